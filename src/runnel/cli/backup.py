"""`runnel backup`: keep a backup of a folder, from which any point in time can be restored.

It works while a broker has the folder open. The backup is an archive: a folder, or objects in object storage.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, MISSED, USAGE, CommandError, print_error
from runnel.cli.folder import add_data, folder_and
from runnel.cli.output import ProgressBar, Size, human_time, many, print_document, print_line, print_table
from runnel.core.errors import BackupStoreFailed, InvalidOption
from runnel.journal.backup import remote_archive
from runnel.journal.backup.archive import ArchiveReport, archive, release
from runnel.journal.backup.object_store import is_store

FOLLOW_SECONDS = 10.0  # seconds

EXAMPLE = """\
examples:
  runnel backup data/ /backup/archive              once; the first time it takes a base
  runnel backup data/ /backup/archive --follow     again every 10 seconds, until interrupted
  runnel backup data/ /backup/archive --follow 60
  runnel backup data/ /backup/archive --new-base   restoring begins at the newest base: less to read
  runnel backup data/ /backup/archive --hold       nothing goes from data/ before it is archived
  runnel backup data/ /backup/archive --release    it may go again; also if the archive is there no more
  runnel backup data/ s3://bucket/orders --follow  in object storage: also gs:// and az://

In a crontab: */5 * * * * runnel backup /srv/app/data /backup/archive
To restore: `runnel restore --help`.

If something is gone before it was archived, that is said, a new base is taken, and the exit code is 3: what
lies between cannot be restored, what follows can. Run it more often than retention drops segments; or
with --hold, once is enough: the folder remembers which archive it waits for, until --no-hold or --release.
In object storage (pip install 'runnel-mq[backup]') every object is read back after it was written. Credentials
come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, and so on.
An archive that holds and is forgotten keeps the disk from being given back: `runnel log info` shows it.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel backup` known."""
    parser = add_command(
        commands,
        "backup",
        "keep a backup of a folder, to restore any point in time",
        EXAMPLE,
        run,
        "Adds to ARCHIVE, a folder or an address of object storage, what is durable in the journal and not in it\n"
        "yet: segments as they were written, and the beginning of the one that still grows. Works while a broker or\n"
        "server has the folder open.\n"
        "On the same file system files are hard links; an archive belongs on another disk, where they are copies.",
    )
    parser.usage = (
        "runnel backup [-h] [--data DIR] [--follow [SECONDS]] [--hold | --no-hold] [--new-base] [--copy]\n"
        "                     [--json] [DIR] ARCHIVE\n"
        "       runnel backup [--data DIR] --release [--json] [DIR] ARCHIVE"
    )
    parser.add_argument(
        "what",
        nargs="+",
        metavar="[DIR] ARCHIVE",
        help="the folder, if not said with --data; and the archive: a folder outside of it, made when need be, or s3://…",
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


def run(chosen: argparse.Namespace) -> int:
    """Archive, once or until interrupted."""
    source = folder_and(chosen, "ARCHIVE")
    if chosen.follow is not None and not chosen.follow > 0:
        raise InvalidOption("follow", chosen.follow, "expected seconds above 0")
    if chosen.release:
        return _release_hold(source, chosen)
    new_base = chosen.new_base
    while True:
        try:
            done = _back_up(source, chosen, new_base=new_base)
        except BackupStoreFailed as error:
            if chosen.follow is None:
                raise
            print_error(error)  # object storage is reachable again later: the next run uploads the missing part
        else:
            new_base = False
            _print_archived(done, chosen)
            if chosen.follow is None:
                return MISSED if done.missed else FINE
        sys.stdout.flush()
        time.sleep(chosen.follow)


def _back_up(source: Path, chosen: argparse.Namespace, *, new_base: bool) -> ArchiveReport:
    """One run."""
    with ProgressBar("archiving") as bar, ProgressBar("uploading") as uploading:
        if is_store(chosen.what):
            return remote_archive.back_up(
                source, chosen.what, new_base=new_base, hold=chosen.hold, progress=bar, uploading=uploading
            )
        return archive(source, chosen.what, new_base=new_base, link=not chosen.copy, hold=chosen.hold, progress=bar)


def _release_hold(source: Path, chosen: argparse.Namespace) -> int:
    if chosen.follow is not None or chosen.new_base or chosen.hold is not None:
        raise CommandError("usage_error", "--release adds nothing to the archive: leave out the other options", USAGE)
    gone = (remote_archive.release if is_store(chosen.what) else release)(source, chosen.what)
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
        print_table(("SEGMENT", "SIZE", "FIRST CHANGE", "LAST CHANGE"), rows)
    if done.growing_bytes:
        print(f"{Size(done.growing_bytes)} of the segment that still grows")
    print(f"{many(done.linked, 'file')} linked, {done.copied:,} copied ({Size(done.copied_bytes)})")
    print(f"{done.archive}: journal {done.journal} from {human_time(done.since)} to {human_time(done.through)} UTC")
    if done.holds:
        print("what is newer stays in the journal until it is archived (--hold)")


def _archived_document(done: ArchiveReport) -> dict[str, Any]:
    return msgspec.structs.asdict(done) | {"segments": [msgspec.structs.asdict(one) for one in done.segments]}
