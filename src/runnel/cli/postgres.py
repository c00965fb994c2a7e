"""The common part of `runnel relay` and `runnel archive`: errors of PostgreSQL, and running until a signal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runnel.cli.command import Commands, add_command
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.folder import folder_of
from runnel.cli.server_address import server_of
from runnel.config.settings import CONFIG_VARIABLE, DEFAULT_FILE


def add_configured(inner: Commands, name: str, summary: str, example: str, run: Any) -> argparse.ArgumentParser:
    """Make a command known that reads its table of a configuration file."""
    parser = add_command(inner, name, summary, example, run)
    parser.add_argument("--config", metavar="FILE", help="a TOML file (default: $RUNNEL_CONFIG, else runnel.toml)")
    return parser


def config_file(chosen: argparse.Namespace, table: str) -> Path:
    """The configuration file that was chosen."""
    file = Path(chosen.config or os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE)
    if not file.exists():
        raise CommandError("usage_error", f"there is no file {str(file)!r} with a table [{table}]; see --config", USAGE)
    return file


@contextmanager
def needing_psycopg(what: str) -> Iterator[None]:
    """Say how to install psycopg where an import within the block does not find it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        why = f"{what} needs psycopg 3: pip install 'runnel-mq[postgres]'"
        raise CommandError("not_supported", why, USAGE) from None


def talking(work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]) -> Callable[[argparse.Namespace], int]:
    """A command that is a coroutine."""
    return lambda chosen: talk(work(chosen))


def talk(work: Coroutine[Any, Any, int]) -> int:
    """Run it; what PostgreSQL says is an error like any other."""
    try:
        return asyncio.run(work)
    except CommandError:
        raise  # psycopg may be the missing package
    except Exception as error:
        import psycopg

        from runnel.postgres.setup import SetupIncomplete

        if isinstance(error, SetupIncomplete):  # with SQL to copy: not in one line
            print(f"runnel: {error} ({error.code})", file=sys.stderr)
            return FOUND
        if isinstance(error, psycopg.Error):
            raise CommandError("postgres_error", str(error) or type(error).__name__) from None
        raise


def where(chosen: argparse.Namespace) -> str:
    """The server or the folder that was chosen."""
    return server_of(chosen) or str(folder_of(chosen))


def run_until_stopped(chosen: argparse.Namespace, name: str, work: Callable[[Any], Coroutine[Any, Any, None]]) -> int:
    """Open the broker, which is called `name` by a server, and do `work` with it until SIGTERM or Ctrl-C."""
    from runnel.cli.process_settings import process_settings

    options: dict[str, Any] = {}
    if server_of(chosen) is not None:
        options = {"wait": 1e9, "name": name}  # a server is waited for, whenever it comes
    with process_settings("info", "text"):
        return talk(_until_stopped(where(chosen), options, work))


async def _until_stopped(
    location: str, options: dict[str, Any], work: Callable[[Any], Coroutine[Any, Any, None]]
) -> int:
    import runnel

    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        me.cancel()

    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop)
    try:
        async with runnel.open(location, **options) as broker:
            await work(broker)
    except asyncio.CancelledError:
        if not stopping:
            raise
    return FINE
