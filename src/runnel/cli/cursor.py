"""`runnel cursor`: named subscriptions, their position and what they hold; forgetting one."""

from __future__ import annotations

import argparse

from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import FOUND
from runnel.cli.output import known_columns, print_document, print_done, print_table
from runnel.cli.target import add_target, open_to_change, open_to_inspect
from runnel.core.pattern import is_pattern

EXAMPLE = """\
examples:
  runnel cursor list --data data/
  runnel cursor forget archive
  runnel cursor forget archive --server runnel://127.0.0.1:7788
"""
LIST = """\
examples:
  runnel cursor list data/
  runnel cursor list --json

PLACE is an offset; of a subscription on a pattern it is a sequence, and it has no LAG. What one that holds has
not read is not removed, by retention or a trim. Of one that is being read at a server, DELIVERED is said instead.
"""
FORGET = """\
examples:
  runnel cursor forget archive          asks, on a terminal
  runnel cursor forget archive --yes    does not; needed in scripts, and with --json

Its place is forgotten, and what it held may go. A program says `await broker.forget("archive")`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel cursor` and its commands known."""
    inner = add_family(
        commands,
        "cursor",
        "list named subscriptions and what they hold; forget one",
        EXAMPLE,
        "The named subscriptions of a folder, or of a server. In a folder, `list` works while a broker has it open;\n"
        "`forget` goes through that one, if it shares the folder, as a server does.",
    )
    listing = add_command(inner, "list", "the named subscriptions, and where they stand", LIST, run_list)
    add_target(listing)
    add_json(listing)
    forget = add_command(inner, "forget", "forget where a subscription stands, and what it holds", FORGET, run_forget)
    forget.add_argument("name", metavar="NAME", help="the name of the subscription")
    add_target(forget, bare=False)
    forget.add_argument("--yes", action="store_true", help="do not ask")
    add_json(forget)


def run_list(chosen: argparse.Namespace) -> int:
    """Print the named subscriptions."""
    with open_to_inspect(chosen) as target:
        found = target.cursors()
    if chosen.json:
        print_document(found)
        return 0
    if not found:
        print("there are no named subscriptions")
        return 0
    columns = known_columns(_COLUMNS, found)
    rows = ([_yes(one.get(key)) if key == "hold" else one.get(key) for key in columns] for one in found)
    print_table(list(columns.values()), rows)
    return 0


def run_forget(chosen: argparse.Namespace) -> int:
    """Forget a named subscription."""
    check_can_confirm(chosen)
    with open_to_change(chosen) as target:
        found = target.cursor(chosen.name)
        where, hold = repr(found["name"]), found.get("hold")
        if "place" in found:
            what = "sequence" if is_pattern(found["pattern"]) else "offset"
            where += f", at {what} {found['place']:,} of {found['pattern']!r}"
        if not confirmed(chosen, f"Forget {where}{', and what it holds' if hold else ''}?"):
            return FOUND
        target.forget(chosen.name)
    print_done(f"forgot {where}{'; what it held may go' if hold else ''}", found, as_json=chosen.json)
    return 0


_COLUMNS = {
    "name": "SUBSCRIPTION",
    "pattern": "READS",
    "place": "PLACE",
    "lag": "LAG",
    "hold": "HOLDS",
    "delivered": "DELIVERED",
}


def _yes(said: bool | None) -> str | None:
    return None if said is None else "yes" if said else "no"
