"""`runnel log repair`: give up what cannot be read, and say what that was."""

from __future__ import annotations

import argparse

import msgspec

from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, folder_of
from runnel.cli.problem import FINE, FOUND
from runnel.cli.progress import Bar
from runnel.cli.verify import print_damages
from runnel.journal.repair import Repair, repair

EXAMPLE = """\
examples:
  runnel log repair data/ --dry-run      what would be done, and what would be lost
  runnel log repair data/                the same, then asks (on a terminal), then does it
  runnel log repair data/ --yes          without asking

Nobody may have the folder open. The damaged files are kept under DIR/damaged/ with a report.
Exit code 0: nothing to do, or done. 1: with --dry-run something would be done; or you said no.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log repair` known."""
    parser = add_command(
        commands,
        "repair",
        "give up what cannot be read, so that the folder opens",
        EXAMPLE,
        run,
        "Makes a damaged folder open again: damaged indexes and checkpoints are made anew, everything\n"
        "that is whole in a damaged segment is copied into a new one, a lost manifest is put together from the files.",
    )
    add_data(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--discard", action="store_true", help="keep no copy of the damaged files")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Repair a folder, when that is wanted."""
    folder = folder_of(chosen)
    with Bar("reading") as bar:
        found = repair(folder, dry_run=True, progress=bar)
    if found.needed and not chosen.dry_run:
        check_answerable(chosen)
        if not chosen.yes:
            _print(found)
            if not agreed("Do this?"):
                print("nothing was done")
                return FOUND
        with Bar("repairing") as bar:
            found = repair(folder, keep_originals=not chosen.discard, progress=bar)
    if chosen.json:
        print_document({"needed": found.needed} | msgspec.structs.asdict(found))
    elif not found.needed:
        print("nothing is damaged: there is nothing to do")
    else:
        if chosen.yes or chosen.dry_run:
            _print(found)
        if found.done:
            print("done: the folder opens again")
            print(f"the damaged files are in {found.originals}" if found.originals else "no copy was kept")
    return FOUND if found.needed and not found.done else FINE


def _print(found: Repair) -> None:
    print_damages(found.damages, found.lost)
    print("\ndone:" if found.done else "\nto do:")
    for step in found.steps:
        print(f"  {step.file}: {step.what}")
    for note in found.notes:
        print(f"note: {note}")
