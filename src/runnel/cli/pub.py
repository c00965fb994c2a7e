"""`runnel pub`: publish a value, the lines of a file, or standard input.

A thread reads lines, the event loop publishes them in order and in batches of all available lines: one typed line or
thousands from a file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.errors import USAGE, CommandError
from runnel.cli.opened import opened
from runnel.cli.options import add_options, flag_of, read_options
from runnel.cli.output import ProgressBar, StatusLine, many, print_document
from runnel.cli.server_address import add_server, location_of
from runnel.core.errors import InvalidOption
from runnel.core.options import PublishOptions, options_of
from runnel.core.pattern import check_name

EXAMPLE = """\
examples:
  runnel pub greetings hello                          one record
  runnel pub orders '{"id": 42}' --key 42 --header source=shell
  runnel pub jobs report --delay 10min --priority 9   for groups: not before ten minutes, and then first
  tail -f app.log | runnel pub logs -                 a record for each line, as they come
  runnel pub orders --file orders.jsonl --rate 1000   the lines of a file, a thousand a second
  runnel pub picture --file cat.jpg --whole           a file as one record
  runnel pub ticks tick --count 10 --rate 1           the same value, ten times
  runnel pub greetings hello --server runnel://host:7788

Without VALUE and --file, the lines of the standard input are published. It returns when the server has all of it; on a
durable topic that is: on disk. Lines go out in batches, in order, as many at a time as are there.
"""

CHUNK = 1000  # records of one value that are published together


def add_to(commands: Commands) -> None:
    """Make `runnel pub` known."""
    parser = add_command(commands, "pub", "publish a value, lines, or a file", EXAMPLE, run)
    parser.add_argument("topic", metavar="TOPIC", help="the name of the topic; it is created if there is none")
    parser.add_argument("value", nargs="?", metavar="VALUE", help="what to publish; -: the lines of the standard input")
    parser.add_argument("--file", metavar="FILE", help="publish the lines of a file")
    parser.add_argument("--whole", action="store_true", help="publish the file, or the input, as one record")
    parser.add_argument("--rate", type=float, metavar="N", help="records a second, at most")
    parser.add_argument("--count", type=int, metavar="N", help="VALUE so many times; lines: at most so many")
    add_server(parser)
    add_json(parser)
    add_options(parser, PublishOptions)


def run(chosen: argparse.Namespace) -> int:
    """Publish."""
    check_name(chosen.topic)
    check_count(chosen.count)
    options = PublishOptions.of(read_options(chosen, PublishOptions))
    if chosen.rate is not None and not chosen.rate > 0:
        raise InvalidOption("rate", chosen.rate, "expected records a second, above 0")
    if chosen.value not in (None, "-") and (chosen.file or chosen.whole):
        raise CommandError("usage_error", "a value was named, and a file or the input: say one of them", USAGE)
    if not _is_one(chosen) and (single := _for_one_record(options)):
        raise CommandError(
            "usage_error", f"{flag_of(single)} is for one record: name a VALUE, or say --whole with a file", USAGE
        )
    where = location_of(chosen)
    try:
        found = asyncio.run(_publish(chosen, where, options))
    finally:
        sys.stderr.flush()
    if chosen.json:
        print_document(found)
    elif found["count"] == 1:
        print(f"{chosen.topic}  {found['last']}")
    elif not found["count"]:
        print("there was nothing to publish")
    else:
        speed = f"{found['count'] / max(found['seconds'], 1e-9):,.0f}/s"
        print(f"{many(found['count'], 'record')} to {chosen.topic!r}, the last at offset {found['last']:,}; {speed}")
    return 0


def _is_one(chosen: argparse.Namespace) -> bool:
    """Whether one record is published, and not a value many times or lines."""
    return bool(chosen.whole) or (chosen.value not in (None, "-") and chosen.count in (None, 1))


def _for_one_record(options: PublishOptions) -> str | None:
    """An option that was given and means nothing for several records."""
    return next((name for name in options.given() if not options_of(PublishOptions)[name].many), None)


async def _publish(chosen: argparse.Namespace, where: str, asked: PublishOptions) -> dict[str, Any]:

    async with opened(where, stays=not _is_one(chosen)) as broker:
        topic, options = broker.topic(chosen.topic), asked.given()
        for_many = {name: value for name, value in options.items() if name != "key"}
        count, began, last = 0, time.monotonic(), None
        async for values in _paced(_values(chosen), chosen.rate):
            if len(values) == 1:
                last = await topic.publish(values[0], **options)
            else:
                keys = None if asked.key is None else [asked.key] * len(values)
                last = (await topic.publish_many(values, keys=keys, **for_many)).last
            count += len(values)
            if asked.expected_offset is not None:  # the next records come right behind
                options["expected_offset"] = for_many["expected_offset"] = last.offset + 1
    seconds = time.monotonic() - began
    epoch = None if last is None else last.epoch
    return {
        "topic": chosen.topic,
        "count": count,
        "epoch": epoch,
        "last": None if last is None else last.offset,
        "seconds": round(seconds, 6),
    }


async def _values(chosen: argparse.Namespace) -> AsyncIterator[list[bytes]]:
    """The values to publish, in chunks, with a progress line on a terminal."""
    if chosen.value not in (None, "-"):
        left = 1 if chosen.count is None else chosen.count
        value = os.fsencode(chosen.value)
        with ProgressBar("publishing", unit="record") as bar:
            while left:
                chunk = min(left, CHUNK)
                yield [value] * chunk
                left -= chunk
                if chosen.count:
                    bar(chosen.count - left, chosen.count)
        return
    if chosen.whole:
        yield [await asyncio.to_thread(_whole, chosen.file)]
        return
    async for chunk in _lines(chosen):
        yield chunk


async def _lines(chosen: argparse.Namespace) -> AsyncIterator[list[bytes]]:
    left = chosen.count
    descriptor = os.open(chosen.file, os.O_RDONLY) if chosen.file else sys.stdin.fileno()
    total = os.fstat(descriptor).st_size if chosen.file else 0
    if not chosen.file and sys.stdin.isatty():
        print("each line is a record; Ctrl-D ends", file=sys.stderr)
    sent, interactive = 0, not chosen.file and sys.stdin.isatty()
    try:
        with ProgressBar("publishing") as bar, StatusLine() as ticker:
            async for lines, read in read_lines(descriptor):
                chunk = lines if left is None else lines[:left]
                if chunk:
                    yield chunk
                sent += len(chunk)
                if total:
                    bar(read, total)
                elif not interactive:
                    ticker(f"{many(sent, 'record')} published")
                if left is not None:
                    left -= len(chunk)
                    if not left:
                        return
    finally:
        if chosen.file:
            os.close(descriptor)


def _whole(file: str | None) -> bytes:
    return Path(file).read_bytes() if file else sys.stdin.buffer.read()


async def _paced(chunks: AsyncIterator[list[bytes]], rate: float | None) -> AsyncIterator[list[bytes]]:
    """The same, not faster than `rate`: in steps of a hundredth of a second, or of one record."""
    if rate is None:
        async for chunk in chunks:
            yield chunk
        return
    due, step = time.monotonic(), max(1, int(rate / 100))
    async for chunk in chunks:
        for at in range(0, len(chunk), step):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            part = chunk[at : at + step]
            yield part
            due = max(due, time.monotonic() - 1.0) + len(part) / rate  # catch up at most one second


# -- Lines of a file or of standard input ----------------------------------------------------------------


READ_BYTES = 256 * 1024
MAX_LINES = 4096  # of a chunk
MAX_AHEAD = 8  # chunks that may wait, so that a huge file is never in memory as a whole


def split_lines(carry: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines, without their ends, and the rest of the last one."""
    lines = (carry + data).split(b"\n")
    left = lines.pop()
    return [line.removesuffix(b"\r") for line in lines], left


async def read_lines(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Lines on arrival, in chunks, with the bytes that were read so far. A last line without an end counts."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[list[bytes], int] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(MAX_AHEAD)

    def hand_over(item: tuple[list[bytes], int] | BaseException | None) -> None:
        room.acquire()
        try:
            loop.call_soon_threadsafe(arrived.put_nowait, item)
        except RuntimeError:  # the loop is closed
            pass

    def read() -> None:
        carry, count = b"", 0
        try:
            while data := os.read(descriptor, READ_BYTES):
                count += len(data)
                lines, carry = split_lines(carry, data)
                for at in range(0, len(lines), MAX_LINES):
                    hand_over((lines[at : at + MAX_LINES], count))
            if carry:
                hand_over(([carry.removesuffix(b"\r")], count))
            hand_over(None)
        except OSError as error:
            hand_over(error)

    # A daemon: it may wait for a line that never comes, and that wait cannot be ended.
    threading.Thread(target=read, name="runnel-lines", daemon=True).start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        room.release()
        yield item
