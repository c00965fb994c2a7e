"""`runnel top`: rates, lag and drops of a server, live.

Two looks at the broker's counters become rates per second. The page is redrawn in place with one write, so nothing
half-drawn is seen.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE
from runnel.cli.output import (
    BOLD,
    DIM,
    RED,
    YELLOW,
    Size,
    human_age,
    is_colourful,
    painted,
    print_document,
    print_line,
    table,
)
from runnel.cli.server_address import add_server, location_of
from runnel.cli.target import entered_to_look
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.statistics import RELAY, PipelineStatistics, RelayStatistics, ReplicationStatistics

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.core.statistics import Statistics


EXAMPLE = """\
examples:
  runnel top                                    q or Ctrl-C ends it
  runnel top --server runnel://host:7788 --interval 5s
  runnel top --once                             one look, for scripts and mails
  runnel top --json | jq .published             a JSON line each interval

Rates are per second, over the last interval. LAG is what subscribers and groups have not read or settled; DROPPED is
what was too much for an in-memory subscriber, since the server started. Of a relay of PostgreSQL, LAG is what it has
not confirmed of PostgreSQL's log, BEHIND the age of the oldest unpublished transaction, LOG KEPT the log that its slot
holds back, and SAFE how much more until the slot is lost.
"""

_MOST = 1000  # rows of each table, without a terminal


def add_to(commands: Commands) -> None:
    """Make `runnel top` known."""
    parser = add_command(commands, "top", "rates, lag and drops of a server, live", EXAMPLE, run)
    parser.add_argument("--interval", default="1s", metavar="TIME", help="between two looks (default: 1s)")
    parser.add_argument("--once", action="store_true", help="print one view and stop")
    add_server(parser)
    add_json(parser, "a JSON line for each view; with --once, one document")


def run(chosen: argparse.Namespace) -> int:
    """Show what a server does."""
    try:
        interval = units.seconds(chosen.interval)
    except ValueError as error:
        raise InvalidOption("interval", chosen.interval, str(error)) from None
    if not interval >= 0.1:
        raise InvalidOption("interval", chosen.interval, "expected a tenth of a second, or more")
    asyncio.run(_watch(chosen, location_of(chosen), interval))
    return FINE


async def _watch(chosen: argparse.Namespace, where: str, interval: float) -> None:
    async with AsyncExitStack() as stack:
        broker = await entered_to_look(where)
        stack.push_async_exit(broker.__aexit__)
        if chosen.once or chosen.json or not sys.stdout.isatty():
            await _print(chosen, broker, where, interval)
            return
        colourful = is_colourful(sys.stdout)
        with Screen() as screen, key_pressed("q") as ended:
            screen.show([f"runnel top · {where}", "", "looking ..."])
            async for view in _views(broker, interval, ended):
                screen.show(draw(view, heading(where, await _info(broker)), screen.size[1], colourful))


async def _print(chosen: argparse.Namespace, broker: Broker, where: str, interval: float) -> None:
    async for view in _views(broker, interval):
        if chosen.json:
            (print_document if chosen.once else print_line)(msgspec.to_builtins(view))
        else:
            print("\n".join(draw(view, heading(where, await _info(broker)), _MOST, is_colourful(sys.stdout))))
        sys.stdout.flush()
        if chosen.once:
            return


async def _views(broker: Broker, interval: float, ended: asyncio.Event | None = None) -> AsyncIterator[BrokerRates]:
    """A view after each interval, until it is to end."""
    ended = ended or asyncio.Event()
    before, at = await _look(broker), time.monotonic()
    while True:
        try:
            async with asyncio.timeout(interval):
                await ended.wait()
            return
        except TimeoutError:
            pass
        now, then = await _look(broker), time.monotonic()
        yield rates_between(before, now, then - at)
        before, at = now, then


async def _look(broker: Broker) -> Statistics:
    return await asyncio.to_thread(broker.statistics)


async def _info(broker: Broker) -> dict[str, Any]:
    """The server's description of itself; empty for a broker in this process."""
    info = getattr(broker, "info", None)
    return {} if info is None else await info()


def heading(where: str, info: dict[str, Any]) -> str:
    """The first line: the broker."""
    parts = [f"runnel top · {where}"]
    if "uptime" in info:
        parts.append(f"up {human_age(info['uptime'])}")
    if "connections" in info:
        parts.append(f"{info['connections']:,} connections")
    return " · ".join([*parts, time.strftime("%H:%M:%S")])


def draw(view: BrokerRates, title: str, height: int, colourful: bool) -> list[str]:
    """The page: sums, then relays, pipelines, topics, groups and subscribers, as many of each as there is room for."""
    dropped = f"dropped {view.dropped:,.0f}/s ({view.dropped_ever:,} ever)"
    lines = [
        painted(title, BOLD, colourful),
        f"published {view.published:,.0f}/s, {Size(int(view.published_bytes))}/s   delivered {view.delivered:,.0f}/s   "
        + painted(dropped, RED if view.dropped else "", colourful and bool(view.dropped))
        + (
            painted(f"   {view.waiting_publishers:,} publishers wait", YELLOW, colourful)
            if view.waiting_publishers
            else ""
        ),
    ]
    if (part := view.replication) is not None:
        alarming = part.role == "superseded" or part.holding or part.state == "disk full"
        lines.append(painted(_role(part), RED if alarming else "", colourful and alarming))
    listed = (_standbys(view), _relays(view), _pipelines(view), _topics(view), _groups(view), _readers(view))
    tables = [one for one in listed if len(one) > 1]
    if not tables:
        return [*lines, "", painted("there are no topics yet", DIM, colourful)]
    room = max(3 * len(tables), height - len(lines) - 2 * len(tables))  # a blank line and heads before each
    for left, one in zip(range(len(tables), 0, -1), sorted(tables, key=len), strict=True):
        share = max(1, room // left)  # what a short table leaves, a long one gets
        rows = one[1 : 1 + share]
        room -= len(rows)
        one[1:] = rows
    for one in tables:
        lines += ["", painted(one[0], DIM, colourful), *one[1:]]
    return lines


def _role(part: ReplicationStatistics) -> str:
    """The part of the server in a warm standby."""
    if part.role != "standby":
        held = ", acknowledges nothing: its standby is away or full" if part.holding else ""
        return f"{part.role}, {part.mode}, generation {part.generation}{held}"
    copied = f", copied {Size(part.copied)} of {Size(part.to_copy)}" if part.to_copy else ""
    lag = f"{Size(part.lag_bytes)} and {human_age(part.lag_seconds)} behind"
    return f"standby of {part.primary}, {part.mode}, generation {part.generation}: {part.state}, {lag}{copied}"


def _standbys(view: BrokerRates) -> list[str]:
    heads = ("STANDBY", "STATE", "MODE", "BEHIND", "RECORDS", "SECONDS", "TO COPY")
    followers = () if view.replication is None else view.replication.followers
    rows = (
        (
            one.name,
            one.state,
            one.mode,
            Size(one.lag_bytes),
            one.lag_records,
            human_age(one.lag_seconds),
            Size(one.left),
        )
        for one in followers
    )
    return table(heads, rows).splitlines() if followers else []


def _relays(view: BrokerRates) -> list[str]:
    heads = ("RELAY", "STATE", "ROWS/S", "LAG", "BEHIND", "SLOT", "LOG KEPT", "SAFE", "LAST ERROR")
    rows = (
        (
            one.slot if one.kind == RELAY else f"into {one.slot}",
            one.state,
            round(one.rows_per_second),
            Size(one.lag_bytes) if one.kind == RELAY else "-",
            human_age(one.lag_seconds),
            one.wal_status or "-",
            "-" if one.retained_bytes is None else Size(one.retained_bytes),
            "-" if one.safe_wal_bytes is None else Size(one.safe_wal_bytes),
            one.last_error or "-",
        )
        for one in view.relays
    )
    return table(heads, rows).splitlines() if view.relays else []


def _pipelines(view: BrokerRates) -> list[str]:
    heads = ("PIPELINE", "STATE", "RECORDS/S", "BEHIND", "BATCH", "TOOK", "RESTARTS", "ALERTS", "LAST ERROR")
    rows = (
        (
            one.name,
            one.state,
            round(one.records_per_second),
            "-" if one.behind is None else one.behind,
            "-" if one.batch < 0 else one.batch,
            human_age(one.batch_seconds),
            one.restarts,
            one.alerts,
            one.last_error or "-",
        )
        for one in view.pipelines
    )
    return table(heads, rows).splitlines() if view.pipelines else []


def _topics(view: BrokerRates) -> list[str]:
    heads = ("TOPIC", "IN/S", "BYTES/S", "END", "KEPT", "SUBSCRIBERS")
    rows = (
        (
            one.topic,
            round(one.published),
            Size(int(one.published_bytes)),
            one.end,
            Size(one.kept_bytes),
            one.subscribers,
        )
        for one in view.topics
    )
    return table(heads, rows).splitlines() if view.topics else []


def _groups(view: BrokerRates) -> list[str]:
    heads = ("GROUP", "READS", "DONE/S", "LAG", "OUT", "AGAIN/S", "DEAD", "OLDEST", "MEMBERS", "STATE")
    rows = (
        (
            one.group,
            one.reads,
            round(one.acked),
            one.lag,
            one.in_flight,
            round(one.redelivered),
            one.dead_lettered,
            human_age(one.oldest),
            one.members,
            "paused" if one.paused else "active",
        )
        for one in view.groups
    )
    return table(heads, rows).splitlines() if view.groups else []


def _readers(view: BrokerRates) -> list[str]:
    heads = ("SUBSCRIBER", "READS", "OUT/S", "LAG", "DROPPED/S", "DROPPED")
    rows = (
        (one.subscriber, one.reads, round(one.delivered), one.lag, round(one.dropped), one.dropped_ever)
        for one in view.readers
    )
    return table(heads, rows).splitlines() if view.readers else []


# -- Rates between two looks at a broker -----------------------------------------------------------------


class TopicRow(msgspec.Struct, frozen=True):
    """A topic: its rates in, and its contents."""

    topic: str
    published: float
    published_bytes: float
    end: int
    kept_bytes: int
    subscribers: int


class ReaderRow(msgspec.Struct, frozen=True):
    """All subscriptions of one pattern and name: their rates out, losses and lag."""

    reads: str
    subscriber: str
    delivered: float
    dropped: float
    dropped_ever: int
    lag: int


class GroupRow(msgspec.Struct, frozen=True):
    """A group: its rates, and its backlog."""

    group: str
    reads: str
    acked: float
    lag: int
    in_flight: int
    redelivered: float
    dead_lettered: int
    oldest: float
    members: int
    paused: bool


class BrokerRates(msgspec.Struct, frozen=True):
    """A broker between two looks. Rates are per second."""

    seconds: float
    published: float
    published_bytes: float
    delivered: float
    dropped: float
    dropped_ever: int
    waiting_publishers: int
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    readers: tuple[ReaderRow, ...]
    relays: tuple[RelayStatistics, ...] = ()
    pipelines: tuple[PipelineStatistics, ...] = ()
    replication: ReplicationStatistics | None = None


def cursor_positions(statistics: Statistics) -> dict[tuple[str, str], int]:
    """The positions of names without a reader."""
    return {(one.pattern, one.name): one.place for one in statistics.cursors}


def rates_between(before: Statistics, now: Statistics, seconds: float) -> BrokerRates:
    """The view, the busiest of each first. A new entry counts from 0; a restarted server, too."""

    def rate(new: int, old: int) -> float:
        return (new - old if new >= old else new) / seconds

    def topic_rows() -> list[TopicRow]:
        rows = []
        for name, one in now.topics.items():
            old = before.topics.get(name)
            if old is not None and old.epoch != one.epoch:
                old = None
            published = rate(one.published, old.published if old else 0)
            size = rate(one.published_bytes, old.published_bytes if old else 0)
            rows.append(TopicRow(name, published, size, one.end, one.kept_bytes, one.subscribers))
        return rows

    def reader_rows() -> list[ReaderRow]:
        rows = []
        parked = {(one.pattern, one.name): one.lag for one in now.cursors if one.lag is not None}
        for (pattern, subscriber), one in now.flowed.items():
            old = before.flowed.get((pattern, subscriber))
            delivered = rate(one.delivered, old.delivered if old else 0)
            dropped = rate(one.dropped, old.dropped if old else 0)
            lag = parked.pop((pattern, subscriber), one.lag)
            rows.append(ReaderRow(pattern, subscriber, delivered, dropped, one.dropped, lag))
        return rows + [ReaderRow(*key, passed(*key), 0.0, 0, lag) for key, lag in parked.items()]

    def passed(pattern: str, name: str) -> float:
        """How fast a name moves that has no reader here: it is read elsewhere and reports its position."""
        new, old = cursor_positions(now).get((pattern, name), 0), cursor_positions(before).get((pattern, name))
        return 0.0 if old is None else max(0, new - old) / seconds

    def group_rows() -> list[GroupRow]:
        known = {(one.name, one.pattern): one for one in before.groups}
        rows = []
        for one in now.groups:
            old = known.get((one.name, one.pattern))
            rows.append(
                GroupRow(
                    one.name,
                    one.pattern,
                    rate(one.acked, old.acked if old else 0),
                    one.lag,
                    one.in_flight,
                    rate(one.redelivered, old.redelivered if old else 0),
                    one.dead_lettered,
                    one.oldest_unacked_age,
                    len(one.members),
                    one.paused,
                )
            )
        return rows

    return BrokerRates(
        seconds,
        rate(now.published, before.published),
        rate(now.published_bytes, before.published_bytes),
        rate(now.delivered, before.delivered),
        rate(now.dropped, before.dropped),
        now.dropped,
        now.waiting_publishers,
        tuple(sorted(topic_rows(), key=lambda row: (-row.published, row.topic))),
        tuple(sorted(group_rows(), key=lambda row: (-row.lag, row.group, row.reads))),
        tuple(sorted(reader_rows(), key=lambda row: (-row.dropped, -row.lag, row.reads, row.subscriber))),
        now.relays,
        now.pipelines,
        now.replication,
    )


# -- The page of a terminal ------------------------------------------------------------------------------


_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # a page of its own, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_THE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_STYLE = re.compile(r"\x1b\[\d*m")


class Screen:
    """`with Screen() as screen: screen.show(lines)`. The earlier contents are restored afterwards."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream

    def __enter__(self) -> Screen:
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """The size of the terminal: columns and lines."""
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        """Draw: one write, so that nothing half-drawn is seen; what does not fit is left out."""
        width, height = self.size
        fitting = [cut(line, width) + _TO_THE_END for line in lines[:height]]
        self._write(_HOME + "\r\n".join(fitting) + _BELOW)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def cut(line: str, width: int) -> str:
    """The line, no wider than `width`; styles take no room and are ended."""
    if len(_STYLE.sub("", line)) <= width:
        return line
    kept, room, at = [], width, 0
    for style in (*_STYLE.finditer(line), None):
        text = line[at : style.start() if style else None]
        kept.append(text[:room])
        room -= len(text[:room])
        if style is not None:
            kept.append(style[0])
            at = style.end()
    return "".join(kept)


# -- Keys, without Enter ---------------------------------------------------------------------------------


@contextmanager
def key_pressed(key: str) -> Iterator[asyncio.Event]:
    """An event that comes when `key` is pressed; never, where the input is no terminal."""
    came = asyncio.Event()
    if sys.stdin is None or not sys.stdin.isatty():
        yield came
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def look() -> None:
        typed = os.read(descriptor, 64).decode(errors="ignore")
        if key in typed or not typed:  # or the terminal was closed
            came.set()

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C still interrupts
    loop.add_reader(descriptor, look)
    try:
        yield came
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
