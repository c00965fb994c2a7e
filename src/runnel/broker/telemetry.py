"""The broker's telemetry: once in an interval, what happened in it, to `$runnel.telemetry.*`.

It is read from counters that the broker keeps anyway; only topics that were published to since the last sample, and
subscribers whose figures changed, are in it. A sample yields to other tasks, has a bounded number of rows, and is one
batch for each kind of row, all in one commit. Without news nothing is published. Internal topics do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from runnel.broker.statistics import cursor_statistics, open_readers
from runnel.broker.totals import Tally, tally_of
from runnel.core.columns import KEYS, Columns
from runnel.core.errors import BrokerClosed, RunnelError
from runnel.core.publishing import Append
from runnel.core.statistics import Histogram
from runnel.core.telemetry import (
    TELEMETRY_OPTIONS,
    DeadLetterRow,
    Row,
    SubscriberRow,
    TopicRow,
    largest_letters,
    largest_subscribers,
    largest_topics,
    telemetry_topic,
)

if TYPE_CHECKING:
    from runnel.broker.group.reader import GroupReader
    from runnel.broker.parts import BrokerParts
    from runnel.core.clock import Timer

PER_TURN = 256  # subscribers after which others on the loop have their turn
REPEAT = 60.0  # seconds after which a lag that does not change is published again

COUNTED = ("delivered", "acked", "dropped", "expired", "redelivered", "dead_lettered")  # fields that are totals

logger = logging.getLogger("runnel")

T = TypeVar("T")
Key = tuple[str, str, str]  # kind, topic and subscriber
Counts = tuple[int, ...]  # of a histogram


class Telemetry:
    """Samples the broker once in an interval, from `begin` to `end`."""

    def __init__(self, parts: BrokerParts, interval: float) -> None:
        self._parts, self.interval = parts, interval
        self._clock = parts.clock
        self._timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = 0.0  # when
        self._totals: dict[Key, dict[str, int]] = {}  # of subscribers in the last sample
        self._latency: dict[Key, tuple[Counts, Counts]] = {}  # the same of their histograms
        self._lags: dict[Key, tuple[int, float]] = {}  # the last that was published, and when
        self._letters: dict[tuple[str, str, str], int] = {}
        self._has_failed = False

    def __repr__(self) -> str:
        return f"<Telemetry every {self.interval:g} s>"

    # -- from opening to closing --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Count from now on."""
        if self._timer is not None:
            return
        self._parts.timeline.touched = {}
        self._sampled = self._clock.time()
        self._timer = self._clock.call_later(self.interval, self._due)

    def end(self) -> None:
        """Sample no more."""
        self._parts.timeline.touched = None
        if self._timer is not None:
            self._timer.cancel()
        loop = self._parts.loop_owner.loop
        if self._sampling is not None and loop is not None and not loop.is_closed():
            self._sampling.cancel()

    def _due(self) -> None:
        self._sampling = asyncio.get_running_loop().create_task(self._sample())

    async def _sample(self) -> None:
        try:
            await self.sample()
            self._has_failed = False
        except BrokerClosed:
            return
        except RunnelError as error:  # a full disk; figures are lost, and nothing else
            if not self._has_failed:
                logger.warning("telemetry is not published: %s", error)
            self._has_failed = True
        except Exception:
            logger.exception("a sample of telemetry failed")
        self._timer = self._clock.call_later(self.interval, self._due)

    # -- a sample -----------------------------------------------------------------------------------------------

    async def sample(self) -> None:
        """Publish what happened since the last sample."""
        now = self._clock.time()
        seconds, self._sampled = round(max(1e-3, now - self._sampled), 3), now
        time = round(now, 3)
        topics = self._topics(time, seconds)
        letters = self._dead_letters(time, seconds)
        subscribers = [row async for row in self._subscribers(time, seconds)]
        kinds: tuple[tuple[str, list[Row]], ...] = (
            ("topics", [*largest_topics(topics)]),
            ("subscribers", [*largest_subscribers(subscribers)]),
            ("dead_letters", [*largest_letters(letters)]),
        )
        for kind, rows in kinds:
            if rows:
                self._publish(telemetry_topic(kind), rows)

    def _publish(self, topic: str, rows: list[Row]) -> None:
        values = [msgspec.json.encode(row) for row in rows]
        columns = Columns()
        for index, row in enumerate(rows):
            columns.add(KEYS, index, row.topic.encode())
        extra = sum(len(row.topic) for row in rows)
        log = self._parts.catalog.find_own(topic, TELEMETRY_OPTIONS)
        publisher = self._parts.publisher
        # Not `append`: a reader of telemetry that is slow and blocks must not hold this up. Its rows are lost then.
        publisher.append_now(log, Append(values, columns, sum(map(len, values)), checked=True, extra=extra))

    # -- topics -------------------------------------------------------------------------------------------------

    def _topics(self, time: float, seconds: float) -> list[TopicRow]:
        rows = []
        for log, run in self._parts.timeline.take_touched().items():
            published = log.end - run.offset
            if published > 0 and log.name[0] != "$":
                size = max(0, log.count_bytes() - run.bytes_before)
                rows.append(TopicRow(time, seconds, log.name, published, size, log.live_bytes))
        return rows

    # -- dead letters -------------------------------------------------------------------------------------------

    def _dead_letters(self, time: float, seconds: float) -> list[DeadLetterRow]:
        rows = []
        for key, count in self._parts.totals.letters.items():
            if key[0][0] != "$" and (new := count - self._letters.get(key, 0)):
                self._letters[key] = count
                rows.append(DeadLetterRow(time, seconds, *key, new))
        return rows

    # -- subscribers --------------------------------------------------------------------------------------------

    async def _subscribers(self, time: float, seconds: float) -> AsyncIterator[SubscriberRow]:
        seen: set[Key] = set()
        async for row, deliver, ack in self._figures(time, seconds):
            key = (row.kind, row.topic, row.subscriber)
            seen.add(key)
            if (news := self._news(key, row, deliver, ack)) is not None:
                yield news
        for gone in self._totals.keys() - seen:
            for known in (self._totals, self._latency, self._lags):
                known.pop(gone, None)

    def _news(self, key: Key, row: SubscriberRow, deliver: Counts, ack: Counts) -> SubscriberRow | None:
        """The changes of a subscriber since the last sample; None: no change.

        A row of totals becomes one of differences. A counter that went back, of records that turned out to be
        unreadable, counts as unchanged.
        """
        now = {name: getattr(row, name) for name in COUNTED}
        before = self._totals.get(key, {})
        self._totals[key] = now
        changed = {name: max(0, count - before.get(name, 0)) for name, count in now.items()}
        had = self._latency.get(key, ((), ()))
        self._latency[key] = deliver, ack
        new_deliver, new_ack = _since(deliver, had[0]), _since(ack, had[1])
        lag, published = self._lags.get(key, (0, 0.0))
        is_repeated = row.lag and row.time - published >= REPEAT
        if not any(changed.values()) and row.lag == lag and not is_repeated:
            return None
        self._lags[key] = row.lag, row.time
        return msgspec.structs.replace(row, **changed, deliver=new_deliver, ack=new_ack)

    async def _figures(self, time: float, seconds: float) -> AsyncIterator[tuple[SubscriberRow, Counts, Counts]]:
        """Every subscriber: its totals, and its histograms of deliveries and acks."""
        parts = self._parts
        # The sums of those that ended come first: one that ends meanwhile is counted among the open ones now, and
        # among those that ended in the next sample.
        sums: dict[tuple[str, str], Tally] = {}
        members: dict[tuple[str, str], int] = {}
        for key, ended in parts.totals.ended().items():
            sums[key] = both = Tally()
            both.add(ended)
            both.latency = ended.latency
        async for one in _in_turns(open_readers(parts)):
            key = parts.totals.key_of(one)
            tally = tally_of(one)
            if one.ended:
                tally.lag = 0
            else:
                one.wake_probe()
                members[key] = members.get(key, 0) + 1
            sums.setdefault(key, Tally()).add(tally)
        for key, tally in sums.items():
            row = SubscriberRow(
                time, seconds, *key, delivered=tally.delivered, dropped=tally.dropped, expired=tally.expired
            )
            row = msgspec.structs.replace(row, lag=tally.lag, members=members.get(key, 0))
            yield row, _counts_of(tally.latency), ()
        async for group in _in_turns([group for group in parts.groups if group.pattern[0] != "$"]):
            group.wake_probes()
            yield _group_row(group, time, seconds), *_group_latency(group)
        names = [name for name in parts.positions.stored if name not in parts.positions.open and name[0] != "$"]
        async for name in _in_turns(names):
            if name not in parts.positions.stored or name in parts.positions.open:
                continue  # it came back meanwhile
            cursor = cursor_statistics(parts, name)
            if cursor.lag is not None and cursor.pattern[0] != "$":
                yield SubscriberRow(time, seconds, cursor.pattern, name, "position", lag=cursor.lag), (), ()


async def _in_turns(found: Sequence[T]) -> AsyncIterator[T]:
    """These, with pauses in which others on the loop have their turn."""
    for number, one in enumerate(found):
        if number % PER_TURN == PER_TURN - 1:
            await asyncio.sleep(0)
        yield one


def _group_row(group: GroupReader, time: float, seconds: float) -> SubscriberRow:
    logic = group.group
    return SubscriberRow(
        time,
        seconds,
        group.pattern,
        group.name,
        "group",
        delivered=group.granted,
        acked=logic.acked,
        dropped=group.missed,
        expired=logic.expired,
        redelivered=logic.redelivered,
        dead_lettered=logic.dead_lettered,
        lag=group.overflow.lag(),
        in_flight=logic.outstanding,
        members=group.members,
    )


def _group_latency(group: GroupReader) -> tuple[Counts, Counts]:
    delivered, acked = group.delivered_probe, group.acked_probe
    return (
        _counts_of(None if delivered is None else delivered.histogram),
        _counts_of(None if acked is None else acked.histogram),
    )


def _counts_of(histogram: Histogram | None) -> Counts:
    return () if histogram is None else histogram.snapshot().counts


def _since(now: Counts, before: Counts) -> Counts:
    """The counts between two snapshots of a histogram; () if there are none."""
    if now == before or not any(now):
        return ()
    return now if not before else tuple(a - b for a, b in zip(now, before, strict=True))
