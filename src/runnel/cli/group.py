"""`runnel group`: how far groups have come, and setting one back or forth."""

from __future__ import annotations

import argparse
from typing import Any

from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command, add_family
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, add_json, folder_of, looking, owning, write
from runnel.cli.problem import FOUND, Refused
from runnel.cli.start import parse_start, place_of
from runnel.cli.table import table
from runnel.core.errors import OffsetOutOfRange
from runnel.core.pattern import check_pattern, is_pattern
from runnel.journal.entry import Kind, state
from runnel.journal.group_state import GroupState
from runnel.journal.inspection import Inspection
from runnel.journal.parts import group_part

EXAMPLE = """\
examples:
  runnel group list --data data/
  runnel group reset billing --topic orders --to earliest
  runnel group delete billing --topic orders
"""
LIST = """\
examples:
  runnel group list data/
  runnel group list --json

LAG is what a group has not settled. A group on a pattern counts in sequences, and has none.
"""
RESET = """\
examples:
  runnel group reset billing --topic orders --to earliest             everything again
  runnel group reset billing --topic orders --to 2026-05-01T00:00     from a time on (UTC)
  runnel group reset billing --topic orders --to 1200                 from an offset on

What was settled, and what had failed, is forgotten. Nobody may have the folder open.
"""
DELETE = """\
examples:
  runnel group delete billing --topic orders          asks, on a terminal
  runnel group delete billing --topic orders --yes    does not; needed in scripts, and with --json

What it settled is forgotten; whoever joins it again makes a new group. Nobody may have the folder open; a
program says `await broker.forget_group("billing", "orders")`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel group` and its commands known."""
    inner = add_family(
        commands,
        "group",
        "list groups and their lag; set one back or forth, or delete it",
        EXAMPLE,
        "The groups of a folder. `list` works while a broker has it open; `reset` and `delete` change it, so\n"
        "nobody else may have it open.",
    )
    listing = add_command(inner, "list", "the groups, and how far they have come", LIST, run_list)
    add_data(listing)
    add_json(listing)
    reset = add_command(inner, "reset", "let a group go on somewhere else", RESET, run_reset)
    reset.add_argument("group", metavar="GROUP", help="the name of the group")
    reset.add_argument("--topic", metavar="TOPIC", help="what the group reads; needed where several have that name")
    reset.add_argument("--to", required=True, metavar="WHERE", help="earliest, latest, an offset, or a time")
    add_data(reset, bare=False)
    add_json(reset)
    delete = add_command(inner, "delete", "forget a group, and all that it settled", DELETE, run_delete)
    delete.add_argument("group", metavar="GROUP", help="the name of the group")
    delete.add_argument("--topic", metavar="TOPIC", help="what the group reads; needed where several have that name")
    add_data(delete, bare=False)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    add_json(delete)


def run_list(chosen: argparse.Namespace) -> int:
    """Print the groups."""
    with looking(chosen) as seen:
        found = [_facts(group, seen) for group in seen.groups]
    if chosen.json:
        print_document(found)
        return 0
    if not found:
        print("there are no groups")
        return 0
    print(
        table(
            ("GROUP", "READS", "FLOOR", "END", "LAG", "SETTLED AHEAD", "FAILED"),
            (
                (
                    one["group"],
                    one["pattern"],
                    one["floor"],
                    one["end"],
                    one["lag"],
                    one["settled_ahead"],
                    len(one["failed"]),
                )
                for one in found
            ),
        )
    )
    return 0


def run_reset(chosen: argparse.Namespace) -> int:
    """Set a group back or forth."""
    folder = folder_of(chosen)
    start = parse_start("to", chosen.to)
    with owning(folder) as journal:
        group = _find(list(journal.ledger.groups.values()), chosen.group, chosen.topic, folder)
        with Inspection(folder) as seen:
            place = place_of(start, group.pattern, seen, "to")
            topic = seen.topic(group.pattern)
        if topic is not None and place > topic.end:
            raise OffsetOutOfRange(topic.name, place, topic.first, topic.end)
        write(journal, group_part(GroupState(group.id, group.name, group.pattern, group.options, place)))
        before = group.floor
    if chosen.json:
        print_document({"group": group.name, "pattern": group.pattern, "before": before, "floor": place})
    else:
        what = "sequence" if is_pattern(group.pattern) else "offset"
        print(f"group {group.name!r} on {group.pattern!r} goes on at {what} {place:,}; it stood at {before:,}")
    return 0


def run_delete(chosen: argparse.Namespace) -> int:
    """Forget a group."""
    folder = folder_of(chosen)
    check_answerable(chosen)
    with owning(folder) as journal:
        group = _find(list(journal.ledger.groups.values()), chosen.group, chosen.topic, folder)
        if not chosen.yes and not agreed(f"Delete group {group.name!r} on {group.pattern!r}, and what it settled?"):
            print("nothing was done")
            return FOUND
        write(journal, state(Kind.GROUP_DELETED, topic=group.id))
    if chosen.json:
        print_document({"group": group.name, "pattern": group.pattern, "floor": group.floor})
    else:
        print(f"group {group.name!r} on {group.pattern!r} deleted; it stood at {group.floor:,}")
    return 0


def _find(groups: list[GroupState], name: str, pattern: str | None, folder: object) -> GroupState:
    if pattern is not None:
        check_pattern(pattern)
    found = [group for group in groups if group.name == name and pattern in (None, group.pattern)]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(repr(group.pattern) for group in found)
        raise Refused("usage_error", f"there are groups {name!r} on {several}: say which with --topic", 2)
    on = f" on {pattern!r}" if pattern else ""
    raise Refused("unknown_group", f"there is no group {name!r}{on} in {str(folder)!r}; see `runnel group list`")


def _facts(group: GroupState, seen: Inspection) -> dict[str, Any]:
    topic = seen.topic(group.pattern)
    return {
        "group": group.name,
        "pattern": group.pattern,
        "floor": group.floor,
        "end": seen.ledger.sequence if topic is None else topic.end,
        "lag": seen.lag_of(group),
        "settled_ahead": sum(end - first for first, end in group.settled),
        "failed": [
            {"place": place, "attempts": failure.attempts, "due": failure.due, "reason": failure.reason}
            for place, failure in sorted(group.failed.items())
        ],
        "options": group.options,
    }
