"""`runnel restore`: restore a folder to a point in time, from a backup.

A restored journal gets a new id, and offsets that were never used.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, USAGE, CommandError
from runnel.cli.output import ProgressBar, Size, many, print_document, print_table
from runnel.core.clock import micros
from runnel.core.errors import InvalidOption
from runnel.journal.backup.archive_catalog import ArchiveCatalog, ArchiveFiles, FolderArchive, as_utc, open_catalog
from runnel.journal.backup.object_store import ObjectStore, is_store
from runnel.journal.backup.remote_archive import load_catalog, stored_archive
from runnel.journal.backup.restore import Point, restore

EXAMPLE = """\
examples:
  runnel restore /backup/archive --list                         which points there are
  runnel restore /backup/archive restored/                      all that was archived
  runnel restore /backup/archive restored/ --until 2026-05-01T12:00
  runnel restore /backup/archive restored/ --until-sequence 41999
  runnel restore /backup/archive --dry-run                      read and check everything, make nothing
  runnel restore s3://bucket/orders restored/                   from object storage

Then stop the broker, put the restored folder in the place of the old one, and open it.

A restored journal has a new id, and its offsets go on far higher than the old one can have come, so
that no position ever means two records. For its own archive, begin a new one.
Exit code 1: nothing was made; the message names what is damaged or missing, and what to do.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel restore` known."""
    parser = add_command(
        commands,
        "restore",
        "restore a folder as it was at a point in time",
        EXAMPLE,
        run,
        "Makes a folder TARGET that holds everything (records, topics, subscriptions, groups) exactly as it was\n"
        "at a point in time, from an archive that `runnel backup` kept. Every byte that is read is checked.",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive: a folder, or an address such as s3://…")
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
    """Restore, or print the restorable times."""
    if chosen.list:
        return _list_restore_points(chosen)
    if (chosen.target is None) != chosen.dry_run:
        why = "--dry-run makes no folder: leave out TARGET" if chosen.target else "name the new folder: TARGET"
        raise CommandError("usage_error", why, USAGE)
    point = Point(None if chosen.until is None else parse_time(chosen.until), chosen.until_sequence)
    if point.sequence is not None and point.sequence < 0:
        raise InvalidOption("until-sequence", point.sequence, "expected 0 or more")
    with _archive(chosen.archive, chosen.target) as source, ProgressBar("restoring") as bar:
        done = restore(source, chosen.target, point, base=chosen.base, link=not chosen.copy, progress=bar)
    if chosen.json:
        print_document(msgspec.structs.asdict(done))
        return FINE
    print(f"base {done.base} and {done.entries:,} entries after it: all are intact")
    print(f"state of {as_utc(done.time) if done.time else 'the beginning'}, before sequence {done.sequence:,}")
    for note in done.notes:
        print(f"note: {note}")
    if not done.dry_run:
        print(f"{many(done.linked, 'file')} linked, {done.copied:,} copied ({Size(done.copied_bytes)})")
        print(f"{done.target}: {many(done.segments, 'segment')}, journal {done.journal}, restored from {done.source}")
        print(f"offsets and sequences continue {done.skipped:,} higher, so that none is used twice")
    return FINE


@contextmanager
def _archive(named: str, target: str | None) -> Iterator[ArchiveFiles]:
    """The archive that was named."""
    if not is_store(named):
        yield FolderArchive(Path(named))
        return
    with stored_archive(named, target) as found:
        yield found


def parse_time(given: str) -> int:
    """A time in microseconds; without a zone it is in UTC."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidOption("until", given, "expected a time such as 2026-05-01T12:00") from None
    return micros(found if found.tzinfo else found.replace(tzinfo=UTC))


def _list_restore_points(chosen: argparse.Namespace) -> int:
    store = is_store(chosen.archive)
    found = load_catalog(ObjectStore(chosen.archive))[0] if store else open_catalog(Path(chosen.archive))
    spans = [_span(found, at) for at in range(len(found.spans()))]
    if chosen.json:
        print_document({"archive": chosen.archive, "journal": found.journal, "spans": spans})
        return FINE
    print(f"{chosen.archive}: journal {found.journal}\n")
    heads = ("FROM", "TO", "BASES", "SEGMENTS SINCE", "SIZE")
    rows = (
        (
            as_utc(one["since"]),
            as_utc(one["through"]),
            ", ".join(base["name"] for base in one["bases"]),
            one["segments"],
            Size(one["bytes"]),
        )
        for one in spans
    )
    print_table(heads, rows)
    for before, after in pairwise(spans):
        print(f"\nnot between {as_utc(before['through'])} and {as_utc(after['since'])}: {after['bases'][0]['why']}")
    return FINE


def _span(found: ArchiveCatalog, at: int) -> dict[str, Any]:
    span = found.spans()[at]
    return {
        "since": span.since,
        "through": span.through,
        "segments": span.pieces,
        "bytes": span.bytes,
        "bases": [msgspec.structs.asdict(base) for base in span.bases],
    }
