"""Declaring commands: a summary for the list, a description, and examples that teach."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from runnel.core.errors import InvalidOption

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = argparse._SubParsersAction  # generic for type checkers only

Run = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands, name: str, summary: str, example: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    """A command that runs `run`; the options are up to the caller."""
    parser = _add(commands, name, summary, example, description)
    parser.set_defaults(run=run)
    return parser


def add_family(commands: Commands, name: str, summary: str, example: str, description: str) -> Commands:
    """A command that has commands of its own, and without one of them prints its help."""
    parser = _add(commands, name, summary, example, description)

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=show)
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON document") -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help=f"print {what}, for programs")


def check_count(count: int | None) -> None:
    """Raise unless so many records can be meant."""
    if count is not None and count < 0:
        raise InvalidOption("count", count, "expected 0 or more")


def _add(commands: Commands, name: str, summary: str, example: str, description: str | None) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
