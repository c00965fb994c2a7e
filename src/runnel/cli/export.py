"""`runnel log export`: records as JSON lines, into a file or a pipe. A file can be gone on with."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from runnel.cli.cat import read
from runnel.cli.command import Commands, add_command
from runnel.cli.document import of_gap, of_record, print_document, print_line
from runnel.cli.folder import add_data, add_json, looking
from runnel.cli.problem import FINE, FOUND, Refused
from runnel.cli.progress import Bar
from runnel.cli.start import Start, parse_start
from runnel.cli.table import many
from runnel.core.pattern import check_pattern, is_pattern
from runnel.core.record import Gap
from runnel.journal.inspection import Inspection

EXAMPLE = """\
examples:
  runnel log export data/ > all.jsonl                        everything, by sequence
  runnel log export --topic orders --output orders.jsonl     one topic, into a file
  runnel log export --topic orders --output orders.jsonl --resume
                                                             go on where the file ends

An object a record: topic, offset, sequence, epoch, time, key, headers, value. Where bytes are not
UTF-8 the field is `value_base64` or `key_base64`. What cannot be read is an object `{"gap": …}` in
its place, a line on the error stream, and the exit code 1.
"""

_TAIL = 64 * 1024


def add_to(commands: Commands) -> None:
    """Make `runnel log export` known."""
    parser = add_command(
        commands, "export", "write records as JSON lines", EXAMPLE, run, "Writes records as JSON lines, in order."
    )
    add_data(parser)
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="a topic or pattern; may be said again")
    parser.add_argument("--from", dest="start", default="earliest", metavar="WHERE", help="earliest, an offset, a time")
    parser.add_argument("--count", type=int, metavar="N", help="write so many records and stop")
    parser.add_argument("--output", metavar="FILE", help="write there instead of to the standard output")
    parser.add_argument("--resume", action="store_true", help="go on behind the last whole line of FILE")
    add_json(parser, "what was done as one document (with --output)")


def run(chosen: argparse.Namespace) -> int:
    """Write records."""
    patterns = tuple(check_pattern(one) for one in chosen.topic or [">"])
    start = parse_start("from", chosen.start)
    if chosen.resume and not chosen.output:
        raise Refused("usage_error", "--resume goes on with a file: name it with --output", 2)
    with looking(chosen) as seen:
        if not chosen.output:
            return _export(seen, patterns, start, 0, chosen.count, sys.stdout).status
        file = Path(chosen.output)
        place = _resumed(file, patterns, seen) if chosen.resume and file.exists() else 0
        if place:
            start = Start(word="earliest")
        with open(file, "a" if chosen.resume else "w", encoding="utf-8") as out:
            done = _export(seen, patterns, start, place, chosen.count, out)
            out.flush()
            os.fsync(out.fileno())
    if chosen.json:
        print_document({"output": chosen.output, "records": done.records, "gaps": done.gaps})
    else:
        print(f"{many(done.records, 'record')} written to {chosen.output}", file=sys.stderr)
    return done.status


class Exported(NamedTuple):
    """What was written."""

    records: int
    gaps: int

    @property
    def status(self) -> int:
        """The exit code."""
        return FOUND if self.gaps else FINE


def _export(
    seen: Inspection, patterns: tuple[str, ...], start: Start, place: int, count: int | None, out: TextIO
) -> Exported:
    records = gaps = 0
    total = sum(topic.end - topic.first for topic in seen.topics)
    with Bar("exporting") as bar:
        for found in read(seen, patterns, start, place):
            if count is not None and records >= count:
                break
            if isinstance(found, Gap):
                gaps += 1
                print(f"runnel: {found}", file=sys.stderr)
                print_line(of_gap(found), out)
            else:
                records += 1
                print_line(of_record(found), out)
                if records % 1000 == 0:
                    bar(records, total)
    return Exported(records, gaps)


def _resumed(file: Path, patterns: tuple[str, ...], seen: Inspection) -> int:
    """The place behind the last whole line, and a half line cut off: it was being written when the last run stopped."""
    with open(file, "r+b") as found:
        size = found.seek(0, os.SEEK_END)
        tail, at = b"", size
        while at > 0 and tail.rstrip(b"\n").count(b"\n") < 2:
            step = min(_TAIL, at)
            at -= step
            found.seek(at)
            tail = found.read(step) + tail
        whole = tail[: tail.rfind(b"\n") + 1]
        found.truncate(size - len(tail) + len(whole))
    lines = whole.splitlines()
    if not lines:
        return 0
    try:
        last = msgspec.json.decode(lines[-1])
        gap = last.get("gap")
        several = len(patterns) != 1 or is_pattern(patterns[0])
        if gap is not None:
            return int(gap["end"])
        topic = seen.topic(last["topic"])
        if topic is not None and topic.epoch != last["epoch"] and not several:
            raise Refused(
                "topic_deleted", f"topic {topic.name!r} was deleted and made again since {str(file)!r} was written"
            )
        return int(last["sequence" if several else "offset"]) + 1
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        raise Refused("usage_error", f"the last line of {str(file)!r} was not written by an export", 2) from None
