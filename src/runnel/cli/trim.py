"""`runnel topic trim`: take away the beginning of a topic."""

from __future__ import annotations

import argparse
from datetime import datetime

from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import iso, print_document
from runnel.cli.problem import FOUND
from runnel.cli.start import parse_start
from runnel.cli.target import add_target, changing

TRIM = """\
examples:
  runnel topic trim orders --before 1200                  keep offset 1200 and what follows
  runnel topic trim orders --before 2026-05-01T00:00      keep what is not older than that (UTC)
  runnel topic trim orders --before latest --yes          keep nothing; does not ask

What a subscription holds is not taken, unless with --force.
"""


def add_to(inner: Commands) -> None:
    """Make `runnel topic trim` known."""
    trim = add_command(inner, "trim", "take away the records of a topic before a place", TRIM, run)
    trim.add_argument("name", metavar="NAME", help="the name of the topic")
    trim.add_argument("--before", required=True, metavar="WHERE", help="an offset, a time, or latest: all of it")
    add_target(trim, bare=False)
    trim.add_argument("--force", action="store_true", help="also what a subscription holds")
    trim.add_argument("--yes", action="store_true", help="do not ask")
    add_json(trim)


def run(chosen: argparse.Namespace) -> int:
    """Take away the beginning of a topic."""
    start = parse_start("before", chosen.before)
    check_answerable(chosen)
    with changing(chosen) as target:
        found = target.trim_place(chosen.name, start, force=chosen.force)
        first, before = found["before"], found["first"]
        if isinstance(before, datetime) or before > first:
            if not chosen.yes and not agreed(_question(chosen.name, first, before)):
                print("nothing was done")
                return FOUND
            found["first"] = target.trim(chosen.name, before, force=chosen.force)
    if chosen.json:
        print_document(found)
    elif found["first"] == first:
        print(f"topic {chosen.name!r} begins at offset {first:,} already; nothing was done")
    else:
        print(f"topic {chosen.name!r} begins at offset {found['first']:,} now; it began at {first:,}")
    return 0


def _question(name: str, first: int, before: int | datetime) -> str:
    if isinstance(before, datetime):
        return f"Take what is older than {iso(before)} of {name!r} away?"
    return f"Take offsets [{first:,}, {before:,}) of {name!r} away?"
