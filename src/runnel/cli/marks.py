"""`runnel log marks`: how far imports are, and which number each producer goes on with."""

from __future__ import annotations

import argparse
import base64
from typing import TYPE_CHECKING, Any

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.table import human_time, table
from runnel.cli.target import add_target, looking_at

if TYPE_CHECKING:
    from runnel.core.mark import MarkValue

EXAMPLE = """\
examples:
  runnel log marks data/           marks, and the next numbers of producers
  runnel log marks data/ --producer import --producer sensors
  runnel log marks data/ --json
  runnel log marks --server runnel://127.0.0.1:7788 --producer import

A mark is what a program set in a transaction (`tx.mark`), along with what it published. A producer numbers its
records; NEXT is the number that its next one has. It is forgotten a day after its last publish. The journal knows
producers by a number that is made of their name: with --producer NAME the name is shown. A server tells of those
producers that are named.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log marks` known."""
    parser = add_command(
        commands,
        "marks",
        "how far imports are: marks, and producers' next numbers",
        EXAMPLE,
        run,
        "The marks of a journal, and its producers. Works while a broker has the folder open.",
    )
    add_target(parser)
    parser.add_argument("--producer", action="append", default=[], metavar="NAME", help="only producers of these names")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Print the marks and the producers."""
    with looking_at(chosen) as target:
        marks, producers = list(target.marks().items()), target.producers(chosen.producer)
    if chosen.json:
        print_document({"marks": [{"name": name} | _document(value) for name, value in marks], "producers": producers})
        return 0
    if marks:
        print(table(("MARK", "VALUE"), ((name, _shown(value)) for name, value in marks)))
    else:
        print("there are no marks")
    print()
    if producers:
        rows = ((one["name"] or str(one["producer"]), one["next"], human_time(one.get("time", 0))) for one in producers)
        print(table(("PRODUCER", "NEXT", "LAST PUBLISH"), rows))
    else:
        print(f"there are no producers{' of these names' if chosen.producer else ''}")
    return 0


def _document(value: MarkValue) -> dict[str, Any]:
    return {"value_base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"value": value}


def _shown(value: MarkValue) -> str:
    """As records are shown: what would break a line is escaped."""
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    return str(value) if isinstance(value, int) else repr(value)
