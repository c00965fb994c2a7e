"""`runnel log verify` and `runnel log repair`: find damage, and drop unreadable records.

`verify` changes nothing. `repair` prints the losses, prompts, and keeps the damaged files.
"""

from __future__ import annotations

import argparse

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import FINE, FOUND
from runnel.cli.folder import add_data, folder_of
from runnel.cli.output import ProgressBar, Size, many, print_document, print_table
from runnel.journal.check.repair import Repair, repair
from runnel.journal.check.scan import Damage, LostTopicRange
from runnel.journal.check.verify import verify

VERIFY = """\
examples:
  runnel log verify data/ && echo whole
  runnel log verify --data data/ --json

Exit code 0: everything is whole. 1: something is damaged; the table says what, and what is lost with it.
"""


def add_verify(commands: Commands) -> None:
    """Make `runnel log verify` known."""
    parser = add_command(
        commands,
        "verify",
        "read every byte, find damage",
        VERIFY,
        run_verify,
        "Reads the manifest, the checkpoints, every entry of every segment and every index, and checks\n"
        "them against their crcs and each other. Changes nothing; works while a broker has the folder open.",
    )
    add_data(parser)
    add_json(parser)


def run_verify(chosen: argparse.Namespace) -> int:
    """Verify a folder and print the findings."""
    with ProgressBar("reading") as bar:
        found = verify(folder_of(chosen), bar)
    if chosen.json:
        print_document({"whole": found.whole} | msgspec.structs.asdict(found))
    else:
        held = ", ".join((many(found.segments, "segment"), f"{found.entries:,} entries", many(found.records, "record")))
        print(f"{Size(found.bytes)} read: {held}")
        if found.torn is not None:
            torn = found.torn
            print(f"torn tail: {torn.bytes:,} bytes of {torn.file} at {torn.position}; the next opening cuts them")
        for note in found.notes:
            print(f"note: {note}")
        if found.whole:
            print("everything is whole")
        else:
            print_damages(found.damages, found.lost)
            print("\n`runnel log repair` drops what cannot be read; a snapshot may still have it")
    return FINE if found.whole else FOUND


def print_damages(damages: list[Damage], lost: list[LostTopicRange]) -> None:
    """Print the damage, and the records lost by it."""
    print()
    print_table(("DAMAGED", "AT", "WHY"), ((one.file, one.position, one.why) for one in damages))
    print()
    if lost:
        heads = ("LOST FROM", "FIRST", "LAST", "RECORDS")
        print_table(heads, ((one.topic, one.first, one.end - 1, one.end - one.first) for one in lost))
    else:
        print("no records are lost")


# -- runnel log repair -----------------------------------------------------------------------------------


REPAIR = """\
examples:
  runnel log repair data/ --dry-run      what would be done, and what would be lost
  runnel log repair data/                the same, then asks (on a terminal), then does it
  runnel log repair data/ --yes          without asking

No process may have the folder open. The damaged files are kept under DIR/damaged/ with a report.
Exit code 0: nothing to do, or done. 1: with --dry-run something would be done; or you said no.
"""


def add_repair(commands: Commands) -> None:
    """Make `runnel log repair` known."""
    parser = add_command(
        commands,
        "repair",
        "give up what cannot be read, so that the folder opens",
        REPAIR,
        run_repair,
        "Makes a damaged folder open again: damaged indexes and checkpoints are made anew, everything\n"
        "that is whole in a damaged segment is copied into a new one, a lost manifest is put together from the files.",
    )
    add_data(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--discard", action="store_true", help="keep no copy of the damaged files")
    add_json(parser)


def run_repair(chosen: argparse.Namespace) -> int:
    """Repair a folder, when that is wanted."""
    folder = folder_of(chosen)
    with ProgressBar("reading") as bar:
        found = repair(folder, dry_run=True, progress=bar)
    if found.needed and not chosen.dry_run:
        check_can_confirm(chosen)
        if not chosen.yes:
            _print_repair(found)
            if not confirmed(chosen, "Do this?"):
                return FOUND
        with ProgressBar("repairing") as bar:
            found = repair(folder, keep_originals=not chosen.discard, progress=bar)
    if chosen.json:
        print_document({"needed": found.needed} | msgspec.structs.asdict(found))
    elif not found.needed:
        print("nothing is damaged: there is nothing to do")
    else:
        if chosen.yes or chosen.dry_run:
            _print_repair(found)
        if found.done:
            print("done: the folder opens again")
            print(f"the damaged files are in {found.originals}" if found.originals else "no copy was kept")
    return FOUND if found.needed and not found.done else FINE


def _print_repair(found: Repair) -> None:
    print_damages(found.damages, found.lost)
    print("\ndone:" if found.done else "\nto do:")
    for step in found.steps:
        print(f"  {step.file}: {step.what}")
    for note in found.notes:
        print(f"note: {note}")
