"""`runnel log staged`: what is on disk and nobody sees yet, and how to be rid of it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, folder_of, looking, owning, write
from runnel.cli.problem import Refused
from runnel.cli.table import Size, human_age, many, table
from runnel.journal.journal import Journal
from runnel.journal.ledger import Ledger
from runnel.journal.parts import stage_dropped_part

EXAMPLE = """\
examples:
  runnel log staged data/                what is staged, by whom, and since when
  runnel log staged data/ --json
  runnel log staged data/ --drop 7 8     give stages 7 and 8 up, and their space back

A stage that nobody writes to expires by itself (stage_expiry, a day by default). To drop one here nobody may have the
folder open; where a broker runs, it drops them: `await broker.stage(...).drop()`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log staged` known."""
    parser = add_command(
        commands,
        "staged",
        "what is staged and not committed",
        EXAMPLE,
        run,
        "The open stages of a journal: records that are durable, and that nobody sees before a transaction\n"
        "commits them. Listing them works while a broker has the folder open.",
    )
    add_data(parser)
    parser.add_argument("--drop", nargs="+", type=int, metavar="ID", help="give these stages up")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """List the open stages, or drop some of them."""
    if chosen.drop:
        with owning(folder_of(chosen)) as journal:
            found = _dropped(journal, chosen.drop)
    else:
        with looking(chosen) as seen:
            found = _stages(seen.ledger)
    if chosen.json:
        print_document({"dropped" if chosen.drop else "stages": found})
        return 0
    if chosen.drop:
        records, size = sum(one["records"] for one in found), Size(sum(one["bytes"] for one in found))
        print(f"dropped {many(len(found), 'stage')}: {many(records, 'record')}, {size}")
        return 0
    if not found:
        print("nothing is staged")
        return 0
    print(
        table(
            ("ID", "WRITER", "BATCH", "PART", "ATTEMPT", "TOPIC", "RECORDS", "SIZE", "LAST WRITE"),
            (
                (
                    one["id"],
                    one["writer"],
                    one["batch"],
                    one["part"],
                    one["attempt"],
                    one["topic"],
                    one["records"],
                    Size(one["bytes"]),
                    f"{human_age(one['age'])} ago",
                )
                for one in found
            ),
        )
    )
    print("\nto give one up while nobody has the folder open: runnel log staged --drop ID")
    return 0


def _stages(ledger: Ledger) -> list[dict[str, Any]]:
    now = time.time()
    return [
        {
            "id": stage.id,
            "writer": stage.writer,
            "batch": stage.batch,
            "part": stage.part,
            "attempt": stage.attempt,
            "topic": ledger.topics[stage.topic].name,
            "records": stage.records,
            "bytes": stage.bytes,
            "age": max(0.0, now - stage.time / 1e6),
        }
        for stage in sorted(ledger.stages.values(), key=lambda one: one.key)
    ]


def _dropped(journal: Journal, ids: list[int]) -> list[dict[str, Any]]:
    found = {one["id"]: one for one in _stages(journal.ledger)}
    if unknown := [number for number in ids if number not in found]:
        missing = ", ".join(map(str, unknown))
        raise Refused("unknown_stage", f"there is no open stage {missing}; `runnel log staged` lists those there are")
    chosen = list(dict.fromkeys(ids))
    write(journal, *map(stage_dropped_part, chosen))
    journal.retain(journal.ledger.time)
    return [found[number] for number in chosen]
