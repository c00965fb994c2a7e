"""Which folder a command works on, and opening it: to inspect, or to change it.

`--data DIR` names it, or a bare DIR where a command takes nothing else; then RUNNEL_DATA, then `data` in runnel.toml,
then `data`. Any process may inspect a folder at any time; only its owner changes it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runnel.cli.errors import CommandError, in_use, needs_folder
from runnel.cli.server_address import load_settings
from runnel.core.errors import FolderInUse
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import manifest
from runnel.journal.format.entry import Draft, Part, WriteFailed
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import Inspection, check_folder
from runnel.journal.storage import OsStorage
from runnel.journal.write.journal import Journal
from runnel.opening.opening import check_is_folder

ENVIRONMENT = "RUNNEL_DATA"
DEFAULT = "data"
SMALL_SEGMENT = 256 * 1024  # for a few bytes of state; the next owner begins its own


def add_data(parser: argparse.ArgumentParser, *, bare: bool = True, refuse_server: bool = True) -> None:
    """`--data DIR`, and where `bare` DIR alone. By default `--server` is refused, with the reason."""
    if refuse_server:
        parser.add_argument("--server", metavar="URL", help=argparse.SUPPRESS)
        parser.set_defaults(only_folder=parser.prog.removeprefix("runnel "))
    parser.add_argument(
        "--data", metavar="DIR", help=f"the folder of the journal (default: ${ENVIRONMENT}, else {DEFAULT!r})"
    )
    if bare:
        parser.add_argument("folder", nargs="?", metavar="DIR", help="the folder of the journal, instead of --data")


def folder_of(chosen: argparse.Namespace) -> Path:
    """The folder that the command line means."""
    if getattr(chosen, "only_folder", None) and getattr(chosen, "server", None):
        raise needs_folder(chosen.only_folder, chosen.server)
    bare = getattr(chosen, "folder", None)
    if bare and chosen.data and Path(bare) != Path(chosen.data):
        raise CommandError("usage_error", f"two folders were named: {bare!r} and --data {chosen.data!r}", 2)
    folder = bare or chosen.data or load_settings().general.data
    check_is_folder(str(folder))
    return Path(folder)


def folder_and(chosen: argparse.Namespace, what: str) -> Path:
    """The folder of a command that takes `[DIR] WHAT`; `chosen.what` is left with the other one alone."""
    *folder, chosen.what = chosen.what
    if len(folder) > 1 or (folder and chosen.data):
        given = " ".join([*folder, chosen.what])
        raise CommandError("usage_error", f"one folder and one {what.lower()}, not {given!r}", 2)
    if not folder and not chosen.data and (Path(chosen.what) / manifest.NAME).exists():
        raise CommandError("usage_error", f"{what} is missing: {chosen.what!r} is the folder of a journal", 2)
    chosen.folder = folder[0] if folder else None
    return folder_of(chosen)


def open_inspection(chosen: argparse.Namespace) -> Inspection:
    """The folder, to look at; any process may, at any time."""
    return Inspection(folder_of(chosen))


@contextmanager
def open_journal(folder: Path, *, create: bool = False) -> Iterator[Journal]:
    """The journal, to change it. One that another process has open cannot be changed."""
    if not create:
        check_folder(folder)
    lock = FolderLock(folder)
    try:
        lock.take()
    except FolderInUse as error:
        raise in_use(error) from None
    try:
        storage = OsStorage(folder)
        found = manifest.load(storage)
        fsync = "commit" if found is None else found.fsync
        options = JournalOptions(fsync=fsync, segment_bytes=SMALL_SEGMENT)
        journal = Journal.open(storage, options, may_remove=lambda: not lock.has_readers())
        try:
            yield journal
        finally:
            journal.close()
    finally:
        lock.release()


def write_parts(journal: Journal, *parts: Part) -> None:
    """Write one change; durable when it returns."""
    now = max(time.time_ns() // 1000, journal.ledger.time)
    try:
        journal.write([Draft(parts, now)])
        journal.sync()
    except WriteFailed as failed:
        raise failed.cause from None
