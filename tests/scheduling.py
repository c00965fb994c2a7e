"""How tests are spread over the workers of `pytest -n`, with `--dist loadgroup`.

A file goes to one worker, so that what its tests share is made once; the files of a group go to one worker together.
Folders whose files take long come first, so that the workers end at about the same time.

Groups are by path and not by the mark `xdist_group`: xdist 3.8 writes the group into a private field of the test, which
pytest 9.2 no longer has, so that the mark does nothing.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "spark": ("tests/spark/", "tests/examples/test_trades.py"),
    "postgres": ("tests/postgres/",),
    "cluster": ("tests/cluster/",),
}
"""Files and folders whose tests go to one worker: those that need Spark share one session, and so one Java; those that
need PostgreSQL share one server of each version; those of a NATS cluster share one nats-server."""

FIRST = (
    "spark",
    "postgres",
    "cluster",
    "browser",
    "examples",
    "chaos",
    "crash",
    "contract",
    "benchmarks",
    "docs",
    "cli",
)


def unit(nodeid: str) -> str:
    """What goes to one worker together with this test: a group, or a file."""
    path = nodeid.split("::", 1)[0]
    return next((group for group, paths in GROUPS.items() if path.startswith(paths)), path)


def folder(nodeid: str) -> str:
    """The folder below `tests/` that a test counts for: that of its group, or the one that it is in."""
    parts = unit(nodeid).split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else parts[0]


class ByFileOrGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Test by test, as `loadgroup` of xdist does it, would cost 20 s of CPU for 13,000 tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def longest_first(items: list[pytest.Item]) -> None:
    """Put the folders that take long first, in place; the order is otherwise kept."""
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(folder(item.nodeid), len(ranks)))
