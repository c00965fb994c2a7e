"""`runnel group`: show the progress of groups; reset, pause, resume and delete one."""

from __future__ import annotations

import argparse
from typing import Any

from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import FOUND, USAGE, CommandError
from runnel.cli.output import human_age, print_document, print_done, print_table
from runnel.cli.start import parse_start
from runnel.cli.target import ServerTarget, add_target, find_group, open_to_change, open_to_inspect
from runnel.core.pattern import is_pattern

EXAMPLE = """\
examples:
  runnel group list --data data/
  runnel group list --server runnel://127.0.0.1:7788
  runnel group pause billing --server runnel://127.0.0.1:7788
  runnel group reset billing --topic orders --to earliest
  runnel group delete billing --topic orders
"""
LIST = """\
examples:
  runnel group list data/
  runnel group list --json

LAG: records that the group has not settled. IN FLIGHT: records that members hold. SCHEDULED: records that wait for a
delay or a backoff. OLDEST: age of the oldest record that is not settled. Of a folder that no process has open, some are
not known: "-". --json has more: floor, end and each failed record of a folder; each member of a server.
"""
RESET = """\
examples:
  runnel group reset billing --topic orders --to earliest             everything again
  runnel group reset billing --topic orders --to 2026-05-01T00:00     from a time on (UTC)
  runnel group reset billing --topic orders --to 1200                 from an offset on

What was settled, and what had failed, is forgotten.
"""
PAUSE = """\
examples:
  runnel group pause billing --server runnel://127.0.0.1:7788
  runnel group resume billing --topic orders --server runnel://127.0.0.1:7788

A paused group grants nothing more to its members; what they hold they may still settle. It goes on with `resume`, or
when the server is started again.
"""
DELETE = """\
examples:
  runnel group delete billing --topic orders          asks, on a terminal
  runnel group delete billing --topic orders --yes    does not; needed in scripts, and with --json

What it settled is forgotten; the next member to join makes a new group. A program says
`await broker.forget_group("billing", "orders")`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel group` and its commands known."""
    inner = add_family(
        commands,
        "group",
        "list groups and their lag; pause, reset and delete groups",
        EXAMPLE,
        "The groups of a folder, or of a server. In a folder, `list` works while a broker has it open; `reset` and\n"
        "`delete` go through that one, if it shares the folder, as a server does. Only a running broker can `pause`\n"
        "and `resume`.",
    )
    listing = add_command(inner, "list", "the groups, and how far they have come", LIST, run_list)
    add_target(listing)
    add_json(listing)
    for verb, summary in (("pause", "stop the deliveries of a group"), ("resume", "resume a paused group")):
        steer = add_command(inner, verb, summary, PAUSE, run_steer)
        _add_group(steer)
        steer.set_defaults(verb=verb)
        add_json(steer)
    reset = add_command(inner, "reset", "let a group go on somewhere else", RESET, run_reset)
    _add_group(reset)
    reset.add_argument("--to", required=True, metavar="WHERE", help="earliest, latest, an offset, or a time")
    add_json(reset)
    delete = add_command(inner, "delete", "forget a group, and all that it settled", DELETE, run_delete)
    _add_group(delete)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    add_json(delete)


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", help="the name of the group")
    parser.add_argument("--topic", metavar="TOPIC", help="what the group reads; needed where several have that name")
    add_target(parser, bare=False)


def run_list(chosen: argparse.Namespace) -> int:
    """Print the groups."""
    with open_to_inspect(chosen) as target:
        found = target.groups()
    if chosen.json:
        print_document(found)
        return 0
    if not found:
        print("there are no groups")
        return 0
    print_table(list(_COLUMNS.values()), ([_cell(one, key) for key in _COLUMNS] for one in found))
    return 0


def run_steer(chosen: argparse.Namespace) -> int:
    """Pause or resume a group."""
    with open_to_change(chosen) as target:
        pattern = find_group(target, chosen.group, chosen.topic)
        if not isinstance(target, ServerTarget):
            what = f"a group is {chosen.verb}d in a running broker, and {target.name} is a folder: say --server URL"
            raise CommandError("needs_server", what, USAGE)
        (target.pause if chosen.verb == "pause" else target.resume)(chosen.group, pattern)
    paused = chosen.verb == "pause"
    said = f"group {chosen.group!r} on {pattern!r} {'is paused' if paused else 'goes on'}"
    print_done(said, {"group": chosen.group, "pattern": pattern, "paused": paused}, as_json=chosen.json)
    return 0


def run_reset(chosen: argparse.Namespace) -> int:
    """Set a group back or forth."""
    start = parse_start("to", chosen.to)
    with open_to_change(chosen) as target:
        pattern = find_group(target, chosen.group, chosen.topic)
        found = target.reset(chosen.group, pattern, start)
    if "floor" in found:
        what = "sequence" if is_pattern(pattern) else "offset"
        place = f"{what} {found['floor']:,}; it was at {found['before']:,}"
    else:
        place = f"{chosen.to}; {found['lag']:,} to do"
    print_done(f"group {chosen.group!r} on {pattern!r} continues at {place}", found, as_json=chosen.json)
    return 0


def run_delete(chosen: argparse.Namespace) -> int:
    """Forget a group."""
    check_can_confirm(chosen)
    with open_to_change(chosen) as target:
        pattern = find_group(target, chosen.group, chosen.topic)
        if not confirmed(chosen, f"Delete group {chosen.group!r} on {pattern!r}, and what it settled?"):
            return FOUND
        found = target.forget_group(chosen.group, pattern)
    stood = f"it was at {found['floor']:,}" if "floor" in found else f"{found['lag']:,} were unsettled"
    print_done(f"group {chosen.group!r} on {pattern!r} deleted; {stood}", found, as_json=chosen.json)
    return 0


# The same columns for a folder and a server; what a folder does not know is "-".
_COLUMNS = {
    "group": "GROUP",
    "pattern": "READS",
    "lag": "LAG",
    "in_flight": "IN FLIGHT",
    "scheduled": "SCHEDULED",
    "oldest_unacked_age": "OLDEST",
    "redelivered": "REDELIVERED",
    "dead_lettered": "DEAD LETTERS",
    "members": "MEMBERS",
    "state": "STATE",
}


def _cell(facts: dict[str, Any], key: str) -> object:
    value = facts.get(key)
    if value is None:
        return None
    if key == "members":
        return len(value)
    if key == "oldest_unacked_age":
        return human_age(value)
    return value
