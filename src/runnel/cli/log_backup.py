"""`runnel log snapshot`, `archive` and `restore`: copies of a journal, and any point in time again.

All work while a broker has the folder open. A restored journal gets a new id, and offsets that were never used.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, MISSED, USAGE, CommandError
from runnel.cli.folder import add_data, folder_and
from runnel.cli.output import ProgressBar, Size, human_time, many, not_synced, print_document, print_line, table
from runnel.core.clock import micros
from runnel.core.errors import InvalidOption
from runnel.journal.backup.archive import ArchiveReport, archive, release
from runnel.journal.backup.archive_catalog import ArchiveCatalog, as_utc, open_catalog
from runnel.journal.backup.restore import Point, restore
from runnel.journal.backup.snapshot import snapshot

SNAPSHOT = """\
examples:
  runnel log snapshot data/ backups/monday/
  runnel log snapshot --data data/ backups/monday/ --json

To restore: stop the broker, put the snapshot in the place of the folder, open it.
"""


def add_snapshot(commands: Commands) -> None:
    """Make `runnel log snapshot` known."""
    parser = add_command(
        commands,
        "snapshot",
        "a consistent copy, while a broker runs",
        SNAPSHOT,
        run_snapshot,
        "Makes a folder TARGET that holds the journal as it is durable at this moment, and that opens.\n"
        "Files that no longer change are hard links, on the same file system; the rest is copied.",
    )
    parser.usage = "runnel log snapshot [-h] [--data DIR] [--json] [DIR] TARGET"
    parser.add_argument(
        "what",
        nargs="+",
        metavar="[DIR] TARGET",
        help="the folder, if not said with --data; and the new one, outside of it, that does not exist or is empty",
    )
    add_data(parser, bare=False)
    add_json(parser)


def run_snapshot(chosen: argparse.Namespace) -> int:
    """Make a snapshot."""
    folder = folder_and(chosen, "TARGET")
    with ProgressBar("copying") as bar:
        made = snapshot(folder, chosen.what, bar)
    if chosen.json:
        print_document(msgspec.structs.asdict(made))
    else:
        print(f"{made.target}: {Size(made.bytes)} in {many(made.segments, 'segment')} of journal {made.journal}")
        print(f"{many(made.linked, 'file')} linked, {made.copied:,} copied ({Size(made.copied_bytes)})")
        if made.unsynced_bytes:
            print(not_synced(made.unsynced_records, made.unsynced_bytes, "are not in it"))
    return 0


# -- runnel log archive ----------------------------------------------------------------------------------


FOLLOW_SECONDS = 10.0  # seconds

ARCHIVE = """\
examples:
  runnel log archive data/ /backup/archive              once; the first time it takes a base
  runnel log archive data/ /backup/archive --follow     again every 10 seconds, until interrupted
  runnel log archive data/ /backup/archive --follow 60
  runnel log archive data/ /backup/archive --new-base   restoring begins at the newest base: less to read
  runnel log archive data/ /backup/archive --hold       nothing goes from data/ before it is archived
  runnel log archive data/ /backup/archive --release    it may go again; also if the archive is there no more

In a crontab: */5 * * * * runnel log archive /srv/app/data /backup/archive
To restore: `runnel log restore --help`.

If something is gone before it was archived, that is said, a new base is taken, and the exit code is 3: what
lies between cannot be restored, what follows can. Run it more often than retention drops segments; or
with --hold, once is enough: the folder remembers which archive it waits for, until --no-hold or --release.
An archive that holds and is forgotten keeps the disk from being given back: `runnel log info` shows it.
"""


def add_archive(commands: Commands) -> None:
    """Make `runnel log archive` known."""
    parser = add_command(
        commands,
        "archive",
        "keep an archive, to restore any point in time",
        ARCHIVE,
        run_archive,
        "Adds to the folder ARCHIVE what is durable in the journal and not in it yet: segments as they\n"
        "were written, and the beginning of the one that still grows. Works while a broker has the folder open.\n"
        "On the same file system files are hard links; an archive belongs on another disk, where they are copies.",
    )
    parser.usage = (
        "runnel log archive [-h] [--data DIR] [--follow [SECONDS]] [--hold | --no-hold] [--new-base] [--copy]\n"
        "                          [--json] [DIR] ARCHIVE\n"
        "       runnel log archive [--data DIR] --release [--json] [DIR] ARCHIVE"
    )
    parser.add_argument(
        "what",
        nargs="+",
        metavar="[DIR] ARCHIVE",
        help="the folder, if not said with --data; and that of the archive, outside of it, made when need be",
    )
    add_data(parser, bare=False)
    parser.add_argument(
        "--follow",
        nargs="?",
        type=float,
        const=FOLLOW_SECONDS,
        metavar="SECONDS",
        help=f"go on, with so many seconds between two runs (default: {FOLLOW_SECONDS:g}), until interrupted",
    )
    parser.add_argument("--new-base", "--base", action="store_true", help="take a base, though none is needed")
    parser.add_argument(
        "--hold",
        action=argparse.BooleanOptionalAction,
        help="from now on the journal keeps what is not in the archive yet; or not any more (default: as it was)",
    )
    parser.add_argument("--release", action="store_true", help="as --no-hold, and add nothing to the archive")
    parser.add_argument("--copy", action="store_true", help="copy every file, link none")
    add_json(parser, "one JSON document (with --follow: a line for each run)")


def run_archive(chosen: argparse.Namespace) -> int:
    """Archive, once or until interrupted."""
    source = folder_and(chosen, "ARCHIVE")
    if chosen.follow is not None and not chosen.follow > 0:
        raise InvalidOption("follow", chosen.follow, "expected seconds above 0")
    if chosen.release:
        return _release_hold(source, chosen)
    new_base, hold = chosen.new_base, chosen.hold
    while True:
        with ProgressBar("archiving") as bar:
            done = archive(source, chosen.what, new_base=new_base, link=not chosen.copy, hold=hold, progress=bar)
        new_base = False
        _print_archived(done, chosen)
        if chosen.follow is None:
            return MISSED if done.missed else FINE
        sys.stdout.flush()
        time.sleep(chosen.follow)


def _release_hold(source: Path, chosen: argparse.Namespace) -> int:
    if chosen.follow is not None or chosen.new_base or chosen.hold is not None:
        raise CommandError("usage_error", "--release adds nothing to the archive: leave out the other options", USAGE)
    gone = release(source, chosen.what)
    if chosen.json:
        print_document({"released": [msgspec.structs.asdict(one) for one in gone]})
    elif gone:
        print(f"{chosen.what} holds {source} no more: what it has not got may be cleaned and dropped")
    else:
        print(f"{chosen.what} did not hold {source}; `runnel log info` shows what does")
    return FINE if gone else FOUND


def _print_archived(done: ArchiveReport, chosen: argparse.Namespace) -> None:
    if chosen.json:
        (print_document if chosen.follow is None else print_line)(_archived_document(done))
        return
    if chosen.follow is not None and not (done.segments or done.growing_bytes or done.base):
        return  # nothing is new
    if done.missed:
        print(f"missed: {done.missed}")
    if done.base:
        print(f"new base {done.base} ({done.why})")
    if done.segments:
        rows = (
            (one.name, Size(one.end), human_time(one.first_time), human_time(one.last_time)) for one in done.segments
        )
        print(table(("SEGMENT", "SIZE", "FIRST CHANGE", "LAST CHANGE"), rows))
    if done.growing_bytes:
        print(f"{Size(done.growing_bytes)} of the segment that still grows")
    print(f"{many(done.linked, 'file')} linked, {done.copied:,} copied ({Size(done.copied_bytes)})")
    print(f"{done.archive}: journal {done.journal} from {human_time(done.since)} to {human_time(done.through)} UTC")
    if done.holds:
        print("what is newer stays in the journal until it is archived (--hold)")


def _archived_document(done: ArchiveReport) -> dict[str, Any]:
    return msgspec.structs.asdict(done) | {"segments": [msgspec.structs.asdict(one) for one in done.segments]}


# -- runnel log restore ----------------------------------------------------------------------------------


RESTORE = """\
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


def add_restore(commands: Commands) -> None:
    """Make `runnel log restore` known."""
    parser = add_command(
        commands,
        "restore",
        "make a folder as it was at a point in time",
        RESTORE,
        run_restore,
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


def run_restore(chosen: argparse.Namespace) -> int:
    """Restore, or say what can be."""
    if chosen.list:
        return _list_restore_points(chosen)
    if (chosen.target is None) != chosen.dry_run:
        why = "--dry-run makes no folder: leave out TARGET" if chosen.target else "name the new folder: TARGET"
        raise CommandError("usage_error", why, USAGE)
    point = Point(None if chosen.until is None else parse_time(chosen.until), chosen.until_sequence)
    if point.sequence is not None and point.sequence < 0:
        raise InvalidOption("until-sequence", point.sequence, "expected 0 or more")
    with ProgressBar("restoring") as bar:
        done = restore(chosen.archive, chosen.target, point, base=chosen.base, link=not chosen.copy, progress=bar)
    if chosen.json:
        print_document(msgspec.structs.asdict(done))
        return FINE
    print(f"base {done.base} and {done.entries:,} entries behind it: everything is whole")
    print(f"state of {as_utc(done.time) if done.time else 'the beginning'}, before sequence {done.sequence:,}")
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


def _list_restore_points(chosen: argparse.Namespace) -> int:
    found = open_catalog(Path(chosen.archive))
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
    print(table(heads, rows))
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
