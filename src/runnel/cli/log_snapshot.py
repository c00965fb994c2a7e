"""`runnel log snapshot`: a copy of a journal that opens, made while a broker has the folder open."""

from __future__ import annotations

import argparse

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.folder import add_data, folder_and
from runnel.cli.output import ProgressBar, Size, many, not_synced, print_document
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
