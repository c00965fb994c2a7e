"""`runnel log restore`: the journal as it was at a point in time, in a new folder."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.problem import FINE, USAGE, Refused
from runnel.cli.progress import Bar
from runnel.cli.table import Size, many, table
from runnel.core.errors import InvalidOption
from runnel.core.moment import micros
from runnel.journal.catalog import Catalog, opened, said
from runnel.journal.restore import Point, restore

EXAMPLE = """\
examples:
  runnel log restore /backup/archive --list                         which points there are
  runnel log restore /backup/archive restored/                      all that was archived
  runnel log restore /backup/archive restored/ --until 2026-05-01T12:00
  runnel log restore /backup/archive restored/ --until-sequence 41999
  runnel log restore /backup/archive --dry-run                      read and check everything, make nothing

Then stop the broker, put the restored folder in the place of the old one, and open it.

A restored journal has a new id, and its offsets go on far higher than the old one can have come, so
that no position ever means two records. For its own archive, begin a new one.
Exit code 1: nothing was made; the message names what is damaged or missing, and what to do.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log restore` known."""
    parser = add_command(
        commands,
        "restore",
        "make a folder as it was at a point in time",
        EXAMPLE,
        run,
        "Makes a folder TARGET that holds everything (records, topics, subscriptions, groups) exactly as it was\n"
        "at a point in time, from an archive that `runnel log archive` kept. Every byte that is read is checked.",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the folder of the archive")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the new folder: it does not exist, or is empty")
    point = parser.add_mutually_exclusive_group()
    point.add_argument("--until", metavar="TIME", help="up to the last change at this time (UTC, or with a zone)")
    point.add_argument("--until-sequence", type=int, metavar="N", help="up to the record of this sequence")
    parser.add_argument("--base", metavar="NAME", help="begin with this base instead of the newest before the point")
    parser.add_argument("--copy", action="store_true", help="copy every file, link none")
    parser.add_argument("--dry-run", action="store_true", help="check everything that is needed, and make nothing")
    parser.add_argument("--list", action="store_true", help="show which points can be restored")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Restore, or say what can be."""
    if chosen.list:
        return _list(chosen)
    if (chosen.target is None) != chosen.dry_run:
        why = "--dry-run makes no folder: leave out TARGET" if chosen.target else "name the new folder: TARGET"
        raise Refused("usage_error", why, USAGE)
    point = Point(None if chosen.until is None else parse_time(chosen.until), chosen.until_sequence)
    if point.sequence is not None and point.sequence < 0:
        raise InvalidOption("until-sequence", point.sequence, "expected 0 or more")
    with Bar("restoring") as bar:
        done = restore(chosen.archive, chosen.target, point, base=chosen.base, link=not chosen.copy, progress=bar)
    if chosen.json:
        print_document(msgspec.structs.asdict(done))
        return FINE
    print(f"base {done.base} and {done.entries:,} entries behind it: everything is whole")
    print(f"state of {said(done.time) if done.time else 'the beginning'}, before sequence {done.sequence:,}")
    for note in done.notes:
        print(f"note: {note}")
    if not done.dry_run:
        print(f"{many(done.linked, 'file')} linked, {done.copied:,} copied ({Size(done.copied_bytes)})")
        print(f"{done.target}: {many(done.segments, 'segment')}, journal {done.journal}, restored from {done.source}")
        print(f"offsets and sequences go on {done.skipped:,} higher, so that none is given twice")
    return FINE


def parse_time(given: str) -> int:
    """A time in microseconds; without a zone it is in UTC."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidOption("until", given, "expected a time such as 2026-05-01T12:00") from None
    return micros(found if found.tzinfo else found.replace(tzinfo=UTC))


def _list(chosen: argparse.Namespace) -> int:
    found = opened(Path(chosen.archive))
    spans = [_span(found, at) for at in range(len(found.spans()))]
    if chosen.json:
        print_document({"archive": chosen.archive, "journal": found.journal, "spans": spans})
        return FINE
    print(f"{chosen.archive}: journal {found.journal}\n")
    heads = ("FROM", "TO", "BASES", "SEGMENTS SINCE", "SIZE")
    rows = (
        (
            said(one["since"]),
            said(one["through"]),
            ", ".join(base["name"] for base in one["bases"]),
            one["segments"],
            Size(one["bytes"]),
        )
        for one in spans
    )
    print(table(heads, rows))
    for before, after in pairwise(spans):
        print(f"\nnot between {said(before['through'])} and {said(after['since'])}: {after['bases'][0]['why']}")
    return FINE


def _span(found: Catalog, at: int) -> dict[str, Any]:
    span = found.spans()[at]
    return {
        "since": span.since,
        "through": span.through,
        "segments": span.pieces,
        "bytes": span.bytes,
        "bases": [msgspec.structs.asdict(base) for base in span.bases],
    }
