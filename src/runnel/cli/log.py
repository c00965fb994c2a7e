"""`runnel log`: looking after a journal. `log info` is here, each other command in a file of its own."""

from __future__ import annotations

import argparse
from typing import Any

from runnel.cli import archive, cat, export, marks, repair, restore, snapshot, staged, verify
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, looking
from runnel.cli.info import facts, shown
from runnel.cli.table import Size, human_time, table
from runnel.journal.gone import Reason
from runnel.journal.inspection import Inspection

EXAMPLE = """\
examples:
  runnel log info data/                 segments, sizes, named subscriptions
  runnel log cat data/ orders           the records of a topic
  runnel log verify data/               read every byte, find damage
  runnel log snapshot data/ backup/     a copy that opens, while a broker runs
  runnel log staged data/               what is durable and not committed yet
  runnel log marks data/                how far imports and producers are
  runnel log archive data/ archive/     keep what is needed to restore any point in time
"""
INFO = """\
examples:
  runnel log info data/
  runnel log info --data data/ --json
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log` and its commands known."""
    inner = add_family(
        commands,
        "log",
        "look into a journal, verify, repair, export, archive and restore it",
        EXAMPLE,
        "What lies in a folder, record by record and byte by byte. All but `repair` and\n"
        "`staged --drop` work while a broker has the folder open, and see what is durable.",
    )
    info = add_command(
        inner,
        "info",
        "segments, sizes, named subscriptions",
        INFO,
        run,
        "The segments of a journal with what they span, and its named subscriptions.",
    )
    add_data(info)
    add_json(info)
    for command in (cat, verify, repair, export, snapshot, archive, restore, staged, marks):
        command.add_to(inner)


def run(chosen: argparse.Namespace) -> int:
    """Print what a journal consists of."""
    with looking(chosen) as seen:
        general, segments, cursors, gone = facts(seen), _segments(seen), _cursors(seen), _gone(seen)
    if chosen.json:
        print_document(general | {"segments": segments, "cursors": cursors, "gone": gone})
        return 0
    print(shown(general))
    print()
    print(
        table(
            ("SEGMENT", "SIZE", "STATE", "SEQUENCES", "FIRST CHANGE", "LAST CHANGE"),
            (
                (
                    one["file"],
                    Size(one["bytes"]),
                    one["state"],
                    f"[{one['first_sequence']:,}, {one['end_sequence']:,})",
                    human_time(one["first_time"]),
                    human_time(one["last_time"]),
                )
                for one in segments
            ),
        )
    )
    if cursors:
        print()
        print(
            table(
                ("SUBSCRIPTION", "READS", "PLACE", "LAG"),
                ((one["name"], one["pattern"], one["place"], one["lag"]) for one in cursors),
            )
        )
    return 0


def _segments(seen: Inspection) -> list[dict[str, Any]]:
    sizes = seen.sizes()
    found = []
    for info in seen.manifest.segments:
        ends = (info.end_sequence, info.last_time) if info.sealed else (seen.ledger.sequence, seen.ledger.time)
        state = "sealed" if info.sealed else "active" if seen.owner is not None else "not closed"
        found.append(
            {
                "file": info.name,
                "number": info.number,
                "state": state,
                "bytes": sizes.get(info.name, 0),
                "first_sequence": info.first_sequence,
                "end_sequence": ends[0],
                "first_time": info.first_time,
                "last_time": ends[1],
            }
        )
    return found


def _gone(seen: Inspection) -> list[dict[str, Any]]:
    """Which offsets of topics are not there any more, and why."""
    return [
        {
            "topic": topic.name,
            "first": one.first,
            "end": one.end,
            "reason": Reason(one.reason).name.lower(),
            "time": one.time,
        }
        for topic in seen.topics
        for one in topic.gone
    ]


def _cursors(seen: Inspection) -> list[dict[str, Any]]:
    return [
        {
            "name": cursor.name,
            "pattern": cursor.pattern,
            "epoch": cursor.epoch,
            "place": cursor.place,
            "lag": seen.cursor_lag(cursor),
            "hold": cursor.hold,
        }
        for cursor in seen.cursors
    ]
