"""`runnel log verify`: whether everything is still what was written."""

from __future__ import annotations

import argparse

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, folder_of
from runnel.cli.problem import FINE, FOUND
from runnel.cli.progress import Bar
from runnel.cli.table import Size, many, table
from runnel.journal.survey import Damage, LostRange
from runnel.journal.verify import verify

EXAMPLE = """\
examples:
  runnel log verify data/ && echo whole
  runnel log verify --data data/ --json

Exit code 0: everything is whole. 1: something is damaged; the table says what, and what is lost with it.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log verify` known."""
    parser = add_command(
        commands,
        "verify",
        "read every byte, find damage",
        EXAMPLE,
        run,
        "Reads the manifest, the checkpoints, every entry of every segment and every index, and checks\n"
        "them against their crcs and each other. Changes nothing; works while a broker has the folder open.",
    )
    add_data(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Verify a folder and print what was found."""
    with Bar("reading") as bar:
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
            print("\n`runnel log repair` gives up what cannot be read; a snapshot may still have it")
    return FINE if found.whole else FOUND


def print_damages(damages: list[Damage], lost: list[LostRange]) -> None:
    """Print what is damaged, and what is lost with it."""
    print()
    print(table(("DAMAGED", "AT", "WHY"), ((one.file, one.position, one.why) for one in damages)))
    print()
    if lost:
        heads = ("LOST FROM", "FIRST", "LAST", "RECORDS")
        print(table(heads, ((one.topic, one.first, one.end - 1, one.end - one.first) for one in lost)))
    else:
        print("no records are lost")
