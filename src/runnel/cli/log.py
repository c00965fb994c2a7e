"""`runnel log`: the family of commands on a journal; here `log info`, `log marks` and `log staged`.

Reading and exporting records, checking and snapshots have modules of their own (`log_records`, `log_repair`,
`log_snapshot`).
"""

from __future__ import annotations

import argparse
import base64
import time
from typing import TYPE_CHECKING, Any

from runnel.cli import log_records, log_repair, log_snapshot
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.errors import CommandError
from runnel.cli.folder import add_data, folder_of, open_inspection, open_journal, write_parts
from runnel.cli.info import facts, shown
from runnel.cli.output import Size, human_age, human_time, many, print_document, print_table
from runnel.cli.target import add_target, open_to_inspect
from runnel.core.stages import MANY_TOPICS
from runnel.journal.format.ledger import BlockStageState, Ledger, stage_dropped_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.read.inspection import Inspection
from runnel.journal.write.journal import Journal

if TYPE_CHECKING:
    from runnel.core.markers import MarkerValue


EXAMPLE = """\
examples:
  runnel log info data/                 segments, sizes, named subscriptions
  runnel log cat data/ orders           the records of a topic
  runnel log verify data/               read every byte, find damage
  runnel log snapshot data/ backup/     a copy that opens, while a broker runs
  runnel log staged data/               what is durable and not committed yet
  runnel log marks data/                how far imports and producers are
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
        "inspect, verify, repair, export and copy a journal",
        EXAMPLE,
        "What lies in a folder, record by record and byte by byte. All but `repair` and\n"
        "`staged --drop` work while a broker has the folder open, and see what is durable.",
    )
    info = add_command(
        inner,
        "info",
        "segments, sizes, named subscriptions",
        INFO,
        run_info,
        "The segments of a journal with what they span, and its named subscriptions.",
    )
    add_data(info)
    add_json(info)
    log_records.add_cat(inner)
    log_repair.add_verify(inner)
    log_repair.add_repair(inner)
    log_records.add_export(inner)
    log_snapshot.add_snapshot(inner)
    add_staged(inner)
    add_marks(inner)


def run_info(chosen: argparse.Namespace) -> int:
    """Print what a journal consists of."""
    with open_inspection(chosen) as seen:
        general, segments, cursors, gone = facts(seen), _segments(seen), _cursors(seen), _gone(seen)
    if chosen.json:
        print_document(general | {"segments": segments, "cursors": cursors, "gone": gone})
        return 0
    print(shown(general))
    print()
    print_table(
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
    if cursors:
        print()
        print_table(
            ("SUBSCRIPTION", "READS", "PLACE", "LAG"),
            ((one["name"], one["pattern"], one["place"], one["lag"]) for one in cursors),
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
            "reason": RemovalReason(one.reason).name.lower(),
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


# -- runnel log marks ------------------------------------------------------------------------------------


MARKS = """\
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


def add_marks(commands: Commands) -> None:
    """Make `runnel log marks` known."""
    parser = add_command(
        commands,
        "marks",
        "how far imports are: marks, and producers' next numbers",
        MARKS,
        run_marks,
        "The marks of a journal, and its producers. Works while a broker has the folder open.",
    )
    add_target(parser)
    parser.add_argument("--producer", action="append", default=[], metavar="NAME", help="only producers of these names")
    add_json(parser)


def run_marks(chosen: argparse.Namespace) -> int:
    """Print the marks and the producers."""
    with open_to_inspect(chosen, at_rest=True) as target:
        marks, producers = list(target.marks().items()), target.producers(chosen.producer)
    if chosen.json:
        print_document(
            {"marks": [{"name": name} | _marker_document(value) for name, value in marks], "producers": producers}
        )
        return 0
    if marks:
        print_table(("MARK", "VALUE"), ((name, _shown_marker(value)) for name, value in marks))
    else:
        print("there are no marks")
    print()
    if producers:
        rows = ((one["name"] or str(one["producer"]), one["next"], human_time(one.get("time", 0))) for one in producers)
        print_table(("PRODUCER", "NEXT", "LAST PUBLISH"), rows)
    else:
        print(f"there are no producers{' of these names' if chosen.producer else ''}")
    return 0


def _marker_document(value: MarkerValue) -> dict[str, Any]:
    return {"value_base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"value": value}


def _shown_marker(value: MarkerValue) -> str:
    """As records are shown: what would break a line is escaped."""
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    return str(value) if isinstance(value, int) else repr(value)


# -- runnel log staged -----------------------------------------------------------------------------------


STAGED = """\
examples:
  runnel log staged data/                what is staged, by whom, and since when
  runnel log staged data/ --json
  runnel log staged data/ --drop 7 8     give stages 7 and 8 up, and their space back

A stage without writes expires by itself (stage_expiry, a day by default). To drop one here no process may have the
folder open; where a broker runs, it drops them: `await broker.stage(...).drop()`.
"""


def add_staged(commands: Commands) -> None:
    """Make `runnel log staged` known."""
    parser = add_command(
        commands,
        "staged",
        "what is staged and not committed",
        STAGED,
        run_staged,
        "The open stages of a journal: records that are durable, and invisible before a transaction\n"
        "commits them. Listing them works while a broker has the folder open.",
    )
    add_data(parser)
    parser.add_argument("--drop", nargs="+", type=int, metavar="ID", help="give these stages up")
    add_json(parser)


def run_staged(chosen: argparse.Namespace) -> int:
    """List the open stages, or drop some of them."""
    if chosen.drop:
        with open_journal(folder_of(chosen)) as journal:
            found = _drop_stages(journal, chosen.drop)
    else:
        with open_inspection(chosen) as seen:
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
    print_table(
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
    print("\nto drop one while no process has the folder open: runnel log staged --drop ID")
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
            "topic": MANY_TOPICS if isinstance(stage, BlockStageState) else ledger.topics[stage.topic].name,
            "records": stage.records,
            "bytes": stage.bytes,
            "age": max(0.0, now - stage.time / 1e6),
        }
        for stage in sorted(ledger.stages.values(), key=lambda one: one.key)
    ]


def _drop_stages(journal: Journal, ids: list[int]) -> list[dict[str, Any]]:
    found = {one["id"]: one for one in _stages(journal.ledger)}
    if unknown := [number for number in ids if number not in found]:
        missing = ", ".join(map(str, unknown))
        raise CommandError(
            "unknown_stage", f"there is no open stage {missing}; `runnel log staged` lists those there are"
        )
    chosen = list(dict.fromkeys(ids))
    write_parts(journal, *map(stage_dropped_part, chosen))
    journal.retain(journal.ledger.time)
    return [found[number] for number in chosen]
