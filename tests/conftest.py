"""What holds for every test: runs are repeatable, and a test that hangs fails instead."""

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.budget import Budget
from tests.patience import PATIENCE
from tests.scheduling import ByFileOrGroup, longest_first
from tools.postgres import installations

settings.register_profile(
    "runnel",
    derandomize=True,  # the same examples everywhere: a failure in CI is a failure here
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", settings.get_profile("runnel"))  # as long as `tests.nightly.examples` says
settings.load_profile("runnel")


SLOW_SYNC = float(os.environ.get("SLOW_SYNC", "0"))  # not RUNNEL_…: those are settings of `runnel serve`
"""Seconds that every fsync and fdatasync of this process takes longer: no test may fail for it."""


def slowed(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    """The system call, after a wait."""

    @functools.wraps(sync)
    def slow(handle: Any) -> None:
        time.sleep(SLOW_SYNC)
        sync(handle)

    return slow


if SLOW_SYNC:  # before a module of runnel is imported, which may keep the function
    os.fsync = slowed(os.fsync)  # type: ignore[assignment]
    if hasattr(os, "fdatasync"):
        os.fdatasync = slowed(os.fdatasync)  # type: ignore[assignment]


def impatient(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The coroutine test, with an end to its patience."""

    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(2 * PATIENCE):  # so that a wait in it that fails can say for what
            await test(*args, **kwargs)

    return limited


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.markexpr and not hasattr(config, "workerinput"):  # the budget is that of `make test`
        config.pluginmanager.register(Budget())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrGroup | None:
    return ByFileOrGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_nightly_out(config, items)
    if hasattr(config, "workerinput"):
        longest_first(items)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = impatient(item.obj)


def leave_nightly_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `nightly`, unless the command line has `-m` or names single tests (`path::test`)."""
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly") is not None]
    if nightly:
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]
        config.hook.pytest_deselected(items=nightly)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Here and not beside those tests: with several processes, the one that reports collects nothing.
    left_out = []
    if os.environ.get("BROWSER") == "0":
        left_out.append("BROWSER=0: the tests in tests/browser, that need Chromium, were not run")
    if find_spec("pyspark") is None:
        left_out.append("pyspark is not installed: the tests in tests/spark, and of examples/trades, were not run")
    if find_spec("psycopg") is None or not installations():
        left_out.append("psycopg or PostgreSQL is not installed: the tests in tests/postgres were not run")
    if left_out:
        terminalreporter.section("left out", "-")
        for line in left_out:
            terminalreporter.line(line)
