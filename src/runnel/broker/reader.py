"""The broker's side of a subscription: where it starts, what it reads, and what is told about it.

Below: flow, cursor, gate. Above: subscription, which the user holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from runnel.broker.cursor import Cursor, LogCursor, Missed, PatternCursor
from runnel.broker.flow import FLOWS, Flow
from runnel.broker.gate import Gate
from runnel.broker.log import KEEP_BYTES, KEEP_COUNT, Log
from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, NameInUse, OffsetOutOfRange
from runnel.core.pattern import check_name, check_pattern, is_pattern, matches
from runnel.core.policy import Policy
from runnel.core.position import Position
from runnel.core.record import Gap, Record
from runnel.core.trace import HEADER

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.subscription import Subscription

log = logging.getLogger("runnel")

Start = str | int | datetime | Position | None

DEAD_LETTER_REASON = "runnel-dead-letter-reason"


class SubscribeOptions(msgspec.Struct, frozen=True):
    """What a subscriber asked for, checked."""

    start: Start = None
    name: str | None = None
    policy: Policy = Policy()
    buffer: int = KEEP_COUNT
    buffer_bytes: int = KEEP_BYTES
    strict: bool = False
    on_gap: Callable[[Gap], object] | None = None
    on_drop: Callable[[Record[bytes]], object] | None = None
    dead_letter: str | None = None


class Watch(NamedTuple):
    """Somebody who waits until a position was processed."""

    position: int
    passed: asyncio.Future[None]


class Reader:
    """One subscription as the broker knows it."""

    def __init__(self, broker: Broker, pattern: str, options: SubscribeOptions) -> None:
        self.pattern = check_pattern(pattern)
        self.is_pattern = is_pattern(pattern)
        self.options, self._broker = options, broker
        self.name, self.strict = options.name, options.strict
        self.label = options.name or f"{pattern}#{broker.next_number()}"
        self.logs: set[Log] = set()
        self.watches: list[Watch] = []
        self.positive("buffer", options.buffer)
        self.positive("buffer_bytes", options.buffer_bytes)
        if options.dead_letter is not None:
            check_name(options.dead_letter)
            if matches(pattern, options.dead_letter):
                raise InvalidOption(
                    "dead_letter", options.dead_letter, f"this subscription ({pattern!r}) would read it itself"
                )
        self._check_start(options.start)

    @property
    def clock(self) -> Clock:
        """The broker's clock."""
        return self._broker.clock

    @staticmethod
    def positive(option: str, value: int) -> int:
        """`value`, when it is a whole number above 0."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidOption(option, value, "expected a whole number above 0")
        return value

    @staticmethod
    def not_negative(option: str, value: float) -> float:
        """`value`, when it is a number of seconds."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidOption(option, value, "expected seconds, 0 or more")
        return value

    def _check_start(self, start: Start) -> None:
        if isinstance(start, str) and start not in ("latest", "earliest"):
            raise InvalidOption("start", start, "expected 'latest', 'earliest', an offset, a datetime or a Position")
        if isinstance(start, bool) or not (start is None or isinstance(start, str | int | datetime | Position)):
            raise InvalidOption("start", start, "expected 'latest', 'earliest', an offset, a datetime or a Position")
        if self.is_pattern and isinstance(start, int | Position):
            raise InvalidOption(
                "start", start, f"offsets differ between the topics of {self.pattern!r}; start at a time"
            )
        if isinstance(start, int) and start < 0:
            raise InvalidOption("start", start, "an offset is 0 or more")
        if isinstance(start, datetime) and start.tzinfo is None:
            raise InvalidOption("start", start, "give the time a zone, such as datetime.now(UTC)")

    # -- coming and going ---------------------------------------------------------------------------------------

    def start(self, subscription: Subscription[Any]) -> Flow:
        """Take up the start position."""
        broker = self._broker
        broker.check_usable("subscribing")
        if self.name is not None and self.name in broker.named:
            raise NameInUse(self.name)
        if self.is_pattern:
            self.logs = {log for log in broker.logs.values() if matches(self.pattern, log.name)}
        else:
            self.logs = {broker.log_for(self.pattern)}
        cursor, missed = self._starting()
        options = self.options
        eager = options.on_drop is not None or options.dead_letter is not None
        flow = FLOWS[options.policy.kind](
            cursor, options.policy, options.buffer, options.buffer_bytes, subscription, eager=eager
        )
        flow.missed = missed
        return flow

    def attach(self, subscription: Subscription[Any]) -> None:
        """Be told of what is published from now on."""
        broker = self._broker
        if self.is_pattern:
            broker.patterns.add(self.pattern, subscription)
        for found in self.logs:
            self.join(found, subscription)
        broker.subscriptions[subscription] = None
        if self.name is not None:
            broker.named[self.name] = subscription

    def join(self, found: Log, subscription: Subscription[Any]) -> None:
        """Read `found` too: it is covered by our pattern."""
        self.logs.add(found)
        if found.gate is None:
            found.gate = Gate()
        found.gate.attach(subscription, pattern=self.is_pattern)
        self._broker.timeline.cool()

    def leave(self, subscription: Subscription[Any]) -> None:
        """Let go of everything; a name keeps its position."""
        broker = self._broker
        if broker.subscriptions.pop(subscription, self) is self:
            return  # it was never entered
        if self.name is not None:
            broker.positions[self.name] = self._stored(subscription)
            del broker.named[self.name]
        if self.is_pattern:
            broker.patterns.remove(self.pattern, subscription)
        for found in self.logs:
            if found.gate is not None:
                found.gate.detach(subscription)
        for watch in self.watches:
            _resolve(watch.passed)
        broker.ended.add(subscription)
        self.made_room()

    # -- where to start -----------------------------------------------------------------------------------------

    def _starting(self) -> tuple[Cursor, Missed | None]:
        start: Start = self.options.start
        if self.name is not None and (stored := self._broker.positions.get(self.name)) is not None:
            pattern, start = stored
            if pattern != self.pattern:
                raise InvalidOption("name", self.name, f"it holds a position on {pattern!r}, not on {self.pattern!r}")
        elif start is None:
            start = "latest" if self.name is None else "earliest"
        timeline = self._broker.timeline
        if self.is_pattern:
            if isinstance(start, datetime):
                start = timeline.sequence_at(start.astimezone(UTC))
            sequence = start if isinstance(start, int) else timeline.sequence if start == "latest" else 0
            return PatternCursor(timeline, self.logs, sequence), None
        (found,) = self.logs
        oldest = timeline.first(found)
        missed = None
        if isinstance(start, Position):
            if start.epoch == found.epoch:
                start = start.offset
            else:
                reason = f"the topic was deleted and made again since epoch {start.epoch}"
                missed = Missed(oldest, oldest, 0, reason)
                start = "earliest"
        if isinstance(start, datetime):
            start = found.offset_at(start.astimezone(UTC))
        offset = start if isinstance(start, int) else found.end if start == "latest" else oldest
        if offset > found.end:
            raise OffsetOutOfRange(found.name, offset, oldest, found.end)
        return LogCursor(timeline, found, offset), missed

    def _stored(self, subscription: Subscription[Any]) -> tuple[str, Position | int]:
        """What a name keeps: its pattern, and a position or a sequence."""
        if self.is_pattern:
            return self.pattern, subscription.position
        (found,) = self.logs
        return self.pattern, found.position(subscription.position)

    # -- while it reads -----------------------------------------------------------------------------------------

    def park(self, subscription: Subscription[Any]) -> None:
        """The subscriber sleeps: the next publish must take the long way, and wake it."""
        if not self.is_pattern:
            (found,) = self.logs
            if found.gate is not None:
                found.gate.parked[subscription] = None
            if self._broker.timeline.hot is not found:
                return
        self._broker.timeline.cool()

    def unpark(self, subscription: Subscription[Any]) -> None:
        """The subscriber is awake, or gone."""
        if not self.is_pattern:
            for found in self.logs:
                if found.gate is not None:
                    found.gate.parked.pop(subscription, None)

    def advanced(self, subscription: Subscription[Any]) -> None:
        """The subscriber asked beyond all that it had taken."""
        if self.watches:
            for watch in [watch for watch in self.watches if watch.position < subscription.position]:
                _resolve(watch.passed)
                self.watches.remove(watch)

    def made_room(self) -> None:
        """Publishers may ask again."""
        self._broker.publisher.release()

    def expired(self, slices: list[Slice]) -> set[Position]:
        """The positions of the records that are past their time."""
        now = self._broker.clock.time()
        return {
            Position(part.epoch, offset)
            for part in slices
            for offset, meta in part.metas.items()
            if meta.expires is not None and meta.expires <= now
        }

    def told(self, subscription: Subscription[Any], gap: Gap) -> None:
        """A gap was found; tell whoever asked to hear."""
        if self.options.on_gap is not None:
            self._call(self.options.on_gap, gap)

    def hand_on(self, subscription: Subscription[Any], slices: list[Slice]) -> None:
        """Hand dropped records to the callback and the dead-letter topic."""
        for part in slices:
            for record in part.records:
                if self.options.on_drop is not None:
                    self._call(self.options.on_drop, record)
                # A dead letter that is dropped again stays dropped, or two topics could toss it for ever.
                if self.options.dead_letter is not None and DEAD_LETTER_REASON not in record.headers:
                    self._call(self._bury, record)

    def _bury(self, record: Record[bytes]) -> None:
        assert self.options.dead_letter is not None
        headers = {
            **record.headers,
            HEADER: record.traceparent,
            DEAD_LETTER_REASON: "dropped",
            "runnel-dead-letter-topic": record.topic,
            "runnel-dead-letter-position": str(record.position),
            "runnel-dead-letter-subscriber": self.label,
        }
        self._broker.topic(self.options.dead_letter).publish_nowait(record.value, record.key, headers)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function; what it raises is its own affair, never the publisher's."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
