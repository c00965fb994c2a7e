"""`runnel log cat`: the records of a topic, a pattern or everything, to be read by a person or a program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice

from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.document import of_gap, of_record, print_line
from runnel.cli.folder import add_data, looking
from runnel.cli.problem import FINE, FOUND, Refused, unknown_topic
from runnel.cli.readable import line_of
from runnel.cli.start import Start, parse_start
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.pattern import check_pattern, is_pattern
from runnel.core.record import Gap, Record
from runnel.journal.inspection import Inspection

EXAMPLE = """\
examples:
  runnel log cat orders                              all of a topic that is kept
  runnel log cat orders --from 1200 --count 10       ten records, from an offset on
  runnel log cat 'sensors.>' --from 2026-05-01T12:00 a pattern, from a time on (UTC)
  runnel log cat backup/ orders --json               another folder, JSON lines

One record a line: topic, offset, time, key, value. Bytes that are not text are printed as
hex, and begin with `hex:`; in JSON they are base64 in fields that end in `_base64`.
What cannot be read is told on the error stream, in its place, and makes the exit code 1.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel log cat` known."""
    parser = add_command(commands, "cat", "print records", EXAMPLE, run, "Prints records as they lie in the journal.")
    parser.usage = "runnel log cat [-h] [--data DIR] [--from WHERE] [--count N] [--json] [DIR] [TOPIC]"
    parser.add_argument(
        "what",
        nargs="*",
        metavar="[DIR] [TOPIC]",
        help="the folder, if not said with --data; and a topic or pattern, everything by default",
    )
    add_data(parser, bare=False)
    parser.add_argument(
        "--from", dest="start", default="earliest", metavar="WHERE", help="earliest (default), an offset, or a time"
    )
    parser.add_argument("--count", type=int, metavar="N", help="print so many records and stop")
    add_json(parser, "JSON lines")


def run(chosen: argparse.Namespace) -> int:
    """Print records."""
    chosen.folder, pattern = divided(chosen.what, chosen.data)
    start = parse_start("from", chosen.start)
    check_count(chosen.count)
    status = FINE
    with looking(chosen) as seen:
        for found in islice(read(seen, (pattern,), start), chosen.count):
            if isinstance(found, Gap):
                status = FOUND
                sys.stdout.flush()
                print(f"runnel: {found}", file=sys.stderr)
            if chosen.json:
                print_line(of_gap(found) if isinstance(found, Gap) else of_record(found))
            elif isinstance(found, Record):
                print(line_of(found))
    return status


def divided(what: list[str], data: str | None) -> tuple[str | None, str]:
    """The folder, if it was named, and the pattern. One word alone is a folder if there is one of that name."""
    if len(what) > 2 or (data and len(what) > 1):
        raise Refused("usage_error", f"one folder and one topic or pattern, not {' '.join(what)!r}", 2)
    folder, pattern = None, ">"
    if len(what) == 2:
        folder, pattern = what
    elif what and not data and (os.path.isdir(what[0]) or os.sep in what[0]):
        folder = what[0]
    elif what:
        pattern = what[0]
    return folder, check_pattern(pattern)


def read(seen: Inspection, patterns: tuple[str, ...], start: Start, place: int = 0) -> Iterator[Record[bytes] | Gap]:
    """The records that a command line asks for. Several topics are read by sequence, and have no offset to start at."""
    for pattern in patterns:
        if not is_pattern(pattern) and seen.topic(pattern) is None:
            raise unknown_topic(pattern, repr(str(seen.folder)))
    several = len(patterns) != 1 or is_pattern(patterns[0])
    if start.word == "latest":
        raise InvalidOption("from", "latest", "nothing lies behind it; expected 'earliest', an offset, or a time")
    if start.offset is not None:
        if several:
            raise InvalidOption("from", start.offset, "offsets differ between topics; name one topic, or give a time")
        topic = seen.topic(patterns[0])
        if topic is not None and start.offset > topic.end:
            raise OffsetOutOfRange(topic.name, start.offset, topic.first, topic.end)
        place = start.offset
    return seen.read(*patterns, place=place, time=start.time)
