"""`runnel log cat` and `runnel log export`: records for people, and as JSON lines.

What cannot be read is reported in its place. An export replaces its file only when it is complete; with `--resume` it
continues after the last whole line, if that is a record of the same journal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import msgspec

from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError, unknown_topic
from runnel.cli.folder import add_data, open_inspection
from runnel.cli.output import ProgressBar, escaped, line_of, many, of_gap, of_record, print_document, print_line
from runnel.cli.server_address import server_of
from runnel.cli.start import Start, parse_start
from runnel.cli.target import add_target, connect
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.record import Gap, Record
from runnel.journal.read.inspection import Inspection

CAT = """\
examples:
  runnel log cat orders                              all of a topic that is kept
  runnel log cat orders --start 1200 --count 10       ten records, from an offset on
  runnel log cat 'sensors.>' --start 2026-05-01T12:00 a pattern, from a time on (UTC)
  runnel log cat backup/ orders --json               another folder, JSON lines
  runnel log cat orders --server runnel://host:7788  what a server has now

It ends with the last record that is there when it begins; `runnel sub --start earliest` follows.
One record a line: topic, offset, time, key, value. Bytes that are not text are printed as
hex, and begin with `hex:`; in JSON they are base64 in fields that end in `_base64`.
What cannot be read is reported on the error stream, in its place, and makes the exit code 1.
"""


def add_cat(commands: Commands) -> None:
    """Make `runnel log cat` known."""
    parser = add_command(commands, "cat", "print records", CAT, run_cat, "Prints the records of a folder or a server.")
    parser.usage = "runnel log cat [-h] [--server URL | --data DIR] [--start WHERE] [--count N] [--json] [DIR] [TOPIC]"
    parser.add_argument(
        "what",
        nargs="*",
        metavar="[DIR] [TOPIC]",
        help="the folder, if not said with --data; and a topic or pattern, everything by default",
    )
    add_target(parser, bare=False)
    parser.add_argument(
        "--start", "--from", default="earliest", metavar="WHERE", help="earliest (default), an offset, or a time"
    )
    parser.add_argument("--count", type=int, metavar="N", help="print so many records and stop")
    add_json(parser, "JSON lines")


def run_cat(chosen: argparse.Namespace) -> int:
    """Print records."""
    chosen.folder, pattern = folder_and_pattern(chosen.what, chosen.data or chosen.server)
    start = parse_start("start", chosen.start)
    check_count(chosen.count)
    url = server_of(chosen)
    if url is None:
        with open_inspection(chosen) as seen:
            return _print_records(chosen, read_records(seen, (pattern,), start))
    _check_start(start, is_pattern(pattern))
    with connect(url) as server:
        return _print_records(chosen, server.read(pattern, start))


def _print_records(chosen: argparse.Namespace, records: Iterator[Record[bytes] | Gap]) -> int:
    status = FINE
    for found in islice(records, chosen.count):
        if isinstance(found, Gap):
            status = FOUND
            sys.stdout.flush()
            print(f"runnel: {escaped(str(found))}", file=sys.stderr)
        if chosen.json:
            print_line(of_gap(found) if isinstance(found, Gap) else of_record(found))
        elif isinstance(found, Record):
            print(line_of(found))
    return status


def folder_and_pattern(what: list[str], data: str | None) -> tuple[str | None, str]:
    """The folder, if it was named, and the pattern. One word alone is a folder if there is one of that name."""
    if len(what) > 2 or (data and len(what) > 1):
        raise CommandError("usage_error", f"one folder and one topic or pattern, not {' '.join(what)!r}", 2)
    folder, pattern = None, ">"
    if len(what) == 2:
        folder, pattern = what
    elif what and not data and (os.path.isdir(what[0]) or os.sep in what[0]):
        folder = what[0]
    elif what:
        pattern = what[0]
    return folder, check_pattern(pattern)


def read_records(
    seen: Inspection, patterns: tuple[str, ...], start: Start, place: int = 0
) -> Iterator[Record[bytes] | Gap]:
    """The records that a command line asks for. Several topics are read by sequence, and have no offset to start at."""
    for pattern in patterns:
        if not is_pattern(pattern) and seen.topic(pattern) is None:
            raise unknown_topic(pattern, repr(str(seen.folder)))
    _check_start(start, len(patterns) != 1 or is_pattern(patterns[0]))
    if start.offset is not None:
        topic = seen.topic(patterns[0])
        if topic is not None and start.offset > topic.end:
            raise OffsetOutOfRange(topic.name, start.offset, topic.first, topic.end)
        place = start.offset
    return seen.read(*patterns, place=place, time=start.time)


def _check_start(start: Start, several: bool) -> None:
    """Raise unless a reading of one topic, or of several, can begin there."""
    if start.word == "latest":
        raise InvalidOption("start", "latest", "nothing comes after it; expected 'earliest', an offset, or a time")
    if start.offset is not None and several:
        raise InvalidOption("start", start.offset, "offsets differ between topics; name one topic, or give a time")


# -- runnel log export -----------------------------------------------------------------------------------


EXPORT = """\
examples:
  runnel log export data/ > all.jsonl                        everything, by sequence
  runnel log export --topic orders --output orders.jsonl     one topic, into a file
  runnel log export --topic orders --output orders.jsonl --resume
                                                             go on where the file ends

An object a record: topic, offset, sequence, epoch, time, key, headers, value. Where bytes are not
UTF-8 the field is `value_base64` or `key_base64`. What cannot be read is an object `{"gap": …}` in
its place, a line on the error stream, and the exit code 1. FILE is swapped when everything is in it;
with --resume it grows, and has to be an export of the same topics from the same journal.
"""

EARLIEST = Start(word="earliest")

_TAIL = 64 * 1024
_POSITION_FIELDS = ("offset", "sequence", "epoch")
_BEGINS = (b'{"topic":', b'{"gap":')  # how a line of an export begins


def add_export(commands: Commands) -> None:
    """Make `runnel log export` known."""
    parser = add_command(
        commands, "export", "write records as JSON lines", EXPORT, run_export, "Writes records as JSON lines, in order."
    )
    add_data(parser)
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="a topic or pattern; may be repeated")
    parser.add_argument("--start", "--from", default="earliest", metavar="WHERE", help="earliest, an offset, a time")
    parser.add_argument("--count", type=int, metavar="N", help="write so many records and stop")
    parser.add_argument("--output", metavar="FILE", help="write to this file, not to the standard output")
    parser.add_argument("--resume", action="store_true", help="continue after the last complete line of FILE")
    add_json(parser, "what was done as one document (with --output)")


def run_export(chosen: argparse.Namespace) -> int:
    """Write records."""
    patterns = tuple(check_pattern(one) for one in chosen.topic or [">"])
    start = parse_start("start", chosen.start)
    check_count(chosen.count)
    if chosen.resume and not chosen.output:
        raise CommandError("usage_error", "--resume continues a file: name it with --output", USAGE)
    with open_inspection(chosen) as seen:
        if not chosen.output:
            return _export(seen, patterns, read_records(seen, patterns, start), chosen.count, sys.stdout).status
        file = Path(chosen.output)
        if chosen.resume and file.exists():
            found = _resumed(file, patterns, start, seen)
        else:
            found = read_records(seen, patterns, start)  # before the file is created: the requested topic may not exist
        with _open_output(file, anew=not chosen.resume) as out:
            done = _export(seen, patterns, found, chosen.count, out)
    if chosen.json:
        print_document({"output": chosen.output, "records": done.records, "gaps": done.gaps})
    else:
        print(f"{many(done.records, 'record')} written to {chosen.output}", file=sys.stderr)
    return done.status


@contextmanager
def _open_output(file: Path, *, anew: bool) -> Iterator[TextIO]:
    """The file to write to. Anew, it is swapped when all is there: whatever goes wrong, the one before stays."""
    target = Path(os.path.realpath(file))  # through a link, as writing in place would go
    if target.exists() and not target.is_file():  # a pipe or a device
        with open(target, "w", encoding="utf-8") as out:
            yield out
        return
    writing = target.with_name(target.name + ".tmp") if anew else target
    try:
        with open(writing, "w" if anew else "a", encoding="utf-8") as out:
            if anew and target.exists():
                shutil.copymode(target, writing)
            yield out
            out.flush()
            os.fsync(out.fileno())
        if anew:
            os.replace(writing, target)
    except BaseException:
        if anew:
            writing.unlink(missing_ok=True)
        raise


class ExportResult(NamedTuple):
    """The records written."""

    records: int
    gaps: int

    @property
    def status(self) -> int:
        """The exit code."""
        return FOUND if self.gaps else FINE


def _export(
    seen: Inspection, patterns: tuple[str, ...], items: Iterator[Record[bytes] | Gap], count: int | None, out: TextIO
) -> ExportResult:
    records = gaps = 0
    held = seen.held()
    total = sum(held[name].records for name in held if any(matches(pattern, name) for pattern in patterns))
    total = total if count is None else min(total, count)
    with ProgressBar("exporting", unit="record") as bar:
        for found in items if count is None or count > 0 else ():
            if isinstance(found, Gap):
                gaps += 1
                print(f"runnel: {escaped(str(found))}", file=sys.stderr)
                print_line(of_gap(found), out)
                continue
            records += 1
            print_line(of_record(found), out)
            if records % 1000 == 0:
                bar(records, total)
            if records == count:
                break
    return ExportResult(records, gaps)


# -- continuing -------------------------------------------------------------------------------------------------


def _resumed(file: Path, patterns: tuple[str, ...], start: Start, seen: Inspection) -> Iterator[Record[bytes] | Gap]:
    """The records behind the last one in the file. The rest of the file is cut off.

    That is half a line, which was being written when the last run stopped, and gaps, which are reported again.
    """
    with open(file, "r+b") as written:
        end, last = _last_record(written, file)
        if last is None:
            found = read_records(seen, patterns, start)
        else:
            _check_fits(last, patterns, file, seen)
            several = len(patterns) != 1 or is_pattern(patterns[0])
            found = read_records(seen, patterns, EARLIEST, int(last["sequence" if several else "offset"]))
            found = _behind(last, found, file, seen)
        written.truncate(end)
    return found


def _last_record(written: BinaryIO, file: Path) -> tuple[int, dict[str, Any] | None]:
    """The last whole line that is a record, and where it ends. Raises where another program wrote the file."""
    for end, line in _lines_from_the_end(written):
        try:
            last = msgspec.json.decode(line)
            if "gap" in last:
                continue
            if not isinstance(last["topic"], str) or not all(isinstance(last[name], int) for name in _POSITION_FIELDS):
                raise TypeError("that is no record")
            return end, dict(last)
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
            raise CommandError(
                "usage_error", f"the last line of {str(file)!r} was not written by an export", USAGE
            ) from None
    written.seek(0)
    began = written.read(len(_BEGINS[0]))
    if not any(begins.startswith(began) or began.startswith(begins) for begins in _BEGINS):
        raise CommandError("usage_error", f"{str(file)!r} was not written by an export", USAGE)
    return 0, None


def _lines_from_the_end(written: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file, last first, each with where it ends."""
    at, step, held = written.seek(0, os.SEEK_END), _TAIL, b""
    while True:
        ends = held.rfind(b"\n")
        before = held.rfind(b"\n", 0, max(ends, 0))
        if ends >= 0 and (before >= 0 or at == 0):
            yield at + ends + 1, held[before + 1 : ends]
            held = held[: before + 1]
        elif at == 0:
            return
        else:
            size = min(step, at)
            at, step = at - size, 2 * step
            written.seek(at)
            held = written.read(size) + held


def _check_fits(last: dict[str, Any], patterns: tuple[str, ...], file: Path, seen: Inspection) -> None:
    """Raise unless the file is an export of the requested records, from this journal."""
    name, asked = last["topic"], ", ".join(patterns)
    if not any(matches(pattern, name) for pattern in patterns):
        raise _does_not_fit(file, f"ends with a record of topic {name!r}, and {asked!r} is asked for")
    topic = seen.topic(name)
    if topic is None:
        raise _does_not_fit(file, f"ends with a record of topic {name!r}, which is not in {str(seen.folder)!r}")
    if topic.epoch != last["epoch"]:
        raise _does_not_fit(
            file,
            f"ends with a record of topic {name!r} in epoch {last['epoch']}, and in {str(seen.folder)!r} it has "
            f"epoch {topic.epoch}: it was deleted and made again, or is one of another journal",
        )
    if last["offset"] >= topic.end:
        raise _does_not_fit(
            file, f"ends with offset {last['offset']:,} of topic {name!r}, which goes up to {topic.end:,} only"
        )


def _behind(
    last: dict[str, Any], found: Iterator[Record[bytes] | Gap], file: Path, seen: Inspection
) -> Iterator[Record[bytes] | Gap]:
    """The records behind one that was written before, which must be the same, if it still exists."""
    first = next(found, None)
    if first is None:
        return found
    if isinstance(first, Gap) or (first.topic, first.offset) != (last["topic"], last["offset"]):
        if isinstance(first, Record) and first.sequence <= last["sequence"]:
            raise _does_not_fit(file, f"ends with sequence {last['sequence']:,}, which {str(seen.folder)!r} has not")
        return chain((first,), found)
    if msgspec.json.decode(msgspec.json.encode(of_record(first))) != last:
        raise _does_not_fit(
            file, f"ends with another record at offset {first.offset:,} of {first.topic!r} than {str(seen.folder)!r}"
        )
    return found


def _does_not_fit(file: Path, why: str) -> CommandError:
    return CommandError("usage_error", f"{str(file)!r} {why}; export into a new file", USAGE)
