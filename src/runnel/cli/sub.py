"""`runnel sub`: print the records of a topic or pattern, from a starting point on, as they come."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from runnel.cli.command import Commands, add_command, check_count
from runnel.cli.errors import FINE
from runnel.cli.opened import opened
from runnel.cli.options import add_options, read_options
from runnel.cli.output import escaped, line_of, of_gap, of_record, print_line
from runnel.cli.server_address import add_server, location_of
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import check_pattern
from runnel.core.record import Gap

EXAMPLE = """\
examples:
  runnel sub greetings                            what comes from now on; Ctrl-C stops
  runnel sub 'sensors.>' --start earliest          everything that is kept, then what comes
  runnel sub orders --start 1200 --count 10        ten records, from an offset on
  runnel sub orders --start 2026-05-01T12:00       from a time on (UTC)
  runnel sub orders --group billing               share the work: each record goes to one member, acked once printed
  runnel sub orders --group billing --ack-wait 5m --max-deliver 3 --backoff 1s,10s
  runnel sub ticks --policy drop_newest --buffer 100
  runnel sub orders --name laptop                 go on where the last `runnel sub --name laptop` stopped
  runnel sub orders --json | jq .value            JSON lines
  runnel sub orders --raw --idle 2s > orders.txt  values alone, until nothing came for two seconds

One record a line: topic, offset, time, key, value. Bytes that are no text are printed as hex, and begin with `hex:`;
in JSON they are base64 in fields that end in `_base64`. What was missed is printed on the error stream.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel sub` known."""
    parser = add_command(commands, "sub", "read a topic or a pattern, and follow it", EXAMPLE, run)
    parser.add_argument("pattern", metavar="PATTERN", help="a topic, or a pattern: * is one word, > all that follow")
    parser.add_argument("--count", type=int, metavar="N", help="stop after so many records")
    parser.add_argument("--idle", metavar="TIME", help="stop when no record came for this time, such as 2s")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--raw", action="store_true", help="print only the values, one per line")
    how.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    add_server(parser)
    add_options(parser, SubscribeOptions)


def run(chosen: argparse.Namespace) -> int:
    """Print records as they come."""
    check_pattern(chosen.pattern)
    check_count(chosen.count)
    options = SubscribeOptions.of(read_options(chosen, SubscribeOptions))
    if chosen.count == 0:
        return FINE
    asyncio.run(_read(chosen, location_of(chosen), options, idle_of(chosen.idle)))
    return FINE


def idle_of(given: str | None) -> float | None:
    """The seconds after which it stops."""
    if given is None:
        return None
    try:
        return units.seconds(given)
    except ValueError as error:
        raise InvalidOption("idle", given, str(error)) from None


async def _read(chosen: argparse.Namespace, where: str, asked: SubscribeOptions, idle: float | None) -> None:

    show = _shower(chosen)
    options = asked.given()
    if asked.group is None:
        options["on_gap"] = _gap_shower(chosen)
    elif chosen.count is not None:
        options["prefetch"] = min(asked.prefetch or 64, chosen.count)  # the others are for other members
    left = chosen.count
    async with opened(where, stays=True) as broker:
        async with broker.subscribe(chosen.pattern, **options) as subscription:
            # With a count one by one: no more is taken, acked or passed by than is printed.
            batches = subscription.batches(None if left is None else 1)
            while left is None or left > 0:
                batch = await _next(batches, idle)
                if batch is None:
                    return
                for record in batch:
                    show(record)
                sys.stdout.flush()  # before it is acked, or its place moves on
                if asked.group is not None:
                    await batch.ack()
                if left is not None:
                    left -= len(batch)
            if asked.name is not None and asked.group is None:
                await _next(batches, 0)  # asking for more is what moves the place behind the last one


async def _next(batches: Any, idle: float | None) -> Any:
    """The next batch; None: there is no more, or nothing came for too long."""
    try:
        async with asyncio.timeout(idle):
            return await anext(batches, None)
    except TimeoutError:
        return None


def _shower(chosen: argparse.Namespace) -> Callable[[Any], None]:
    if chosen.json:
        return lambda record: print_line(of_record(record) | _attempt(record))
    if chosen.raw:
        return _write_raw
    return lambda record: print(line_of(record))


def _attempt(record: Any) -> dict[str, int]:
    return {"attempt": record.attempt} if hasattr(record, "attempt") else {}


def _write_raw(record: Any) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(record.value + b"\n")
    sys.stdout.buffer.flush()


def _gap_shower(chosen: argparse.Namespace) -> Callable[[Gap], None]:
    def show(gap: Gap) -> None:
        sys.stdout.flush()
        print(f"runnel: {escaped(str(gap))}", file=sys.stderr)
        if chosen.json:
            print_line(of_gap(gap))

    return show
