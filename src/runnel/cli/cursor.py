"""`runnel cursor`: named subscriptions, where they stand, what they hold; and forgetting one."""

from __future__ import annotations

import argparse
from typing import Any

from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command, add_family
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, add_json, folder_of, looking, owning, write
from runnel.cli.problem import FOUND
from runnel.cli.table import table
from runnel.core.journal_errors import UnknownName
from runnel.core.pattern import is_pattern
from runnel.journal.inspection import Inspection
from runnel.journal.ledger import CursorState
from runnel.journal.parts import cursor_forgotten_part

EXAMPLE = """\
examples:
  runnel cursor list --data data/
  runnel cursor forget archive
"""
LIST = """\
examples:
  runnel cursor list data/
  runnel cursor list --json

PLACE is an offset; of a subscription on a pattern it is a sequence, and it has no LAG. What one that holds has
not read is not taken away, by retention or anybody.
"""
FORGET = """\
examples:
  runnel cursor forget archive          asks, on a terminal
  runnel cursor forget archive --yes    does not; needed in scripts, and with --json

Its place is forgotten, and what it held may go. Nobody may have the folder open; a program says
`await broker.forget("archive")`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel cursor` and its commands known."""
    inner = add_family(
        commands,
        "cursor",
        "list named subscriptions and what they hold; forget one",
        EXAMPLE,
        "The named subscriptions of a folder. `list` works while a broker has it open; `forget` changes it, so\n"
        "nobody else may have it open.",
    )
    listing = add_command(inner, "list", "the named subscriptions, and where they stand", LIST, run_list)
    add_data(listing)
    add_json(listing)
    forget = add_command(inner, "forget", "forget where a subscription stands, and what it holds", FORGET, run_forget)
    forget.add_argument("name", metavar="NAME", help="the name of the subscription")
    add_data(forget, bare=False)
    forget.add_argument("--yes", action="store_true", help="do not ask")
    add_json(forget)


def run_list(chosen: argparse.Namespace) -> int:
    """Print the named subscriptions."""
    with looking(chosen) as seen:
        found = [_facts(cursor, seen) for cursor in seen.cursors]
    if chosen.json:
        print_document(found)
        return 0
    if not found:
        print("there are no named subscriptions")
        return 0
    print(
        table(
            ("SUBSCRIPTION", "READS", "PLACE", "LAG", "HOLDS"),
            ((one["name"], one["pattern"], one["place"], one["lag"], "yes" if one["hold"] else "no") for one in found),
        )
    )
    return 0


def run_forget(chosen: argparse.Namespace) -> int:
    """Forget a named subscription."""
    check_answerable(chosen)
    with owning(folder_of(chosen)) as journal:
        cursor = journal.ledger.cursors.get(chosen.name)
        if cursor is None:
            raise UnknownName(chosen.name)
        what = "sequence" if is_pattern(cursor.pattern) else "offset"
        where = f"{cursor.name!r}, at {what} {cursor.place:,} of {cursor.pattern!r}"
        if not chosen.yes and not agreed(f"Forget {where}{', and what it holds' if cursor.hold else ''}?"):
            print("nothing was done")
            return FOUND
        write(journal, cursor_forgotten_part(cursor.name))
    if chosen.json:
        print_document({"name": cursor.name, "pattern": cursor.pattern, "place": cursor.place, "hold": cursor.hold})
    else:
        print(f"forgot {where}{'; what it held may go' if cursor.hold else ''}")
    return 0


def _facts(cursor: CursorState, seen: Inspection) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "pattern": cursor.pattern,
        "epoch": cursor.epoch,
        "place": cursor.place,
        "lag": seen.cursor_lag(cursor),
        "hold": cursor.hold,
    }
