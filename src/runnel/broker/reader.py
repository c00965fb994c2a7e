"""The broker's side of a subscription: where it starts, what it reads, and what is told about it.

Below: flow, cursor, gate. Above: subscription, which the user holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.broker import dead_letter
from runnel.broker.attachment import Attachment
from runnel.broker.catalog import UNSAID
from runnel.broker.cursor import Cursor
from runnel.broker.flow import FLOWS, Flow, Lag
from runnel.broker.gate import Watch
from runnel.broker.log import KEEP_BYTES, KEEP_COUNT
from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, NameInUse, NotSupported
from runnel.core.missed import Missed
from runnel.core.options import positive
from runnel.core.pattern import check_name, matches
from runnel.core.policy import Policy
from runnel.core.position import Position
from runnel.core.record import Gap, Record
from runnel.core.start import Start

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log
    from runnel.broker.subscription import Subscription

log = logging.getLogger("runnel")


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
    hold: bool | None = None  # None: as the name did before
    lags: bool = False  # nothing was said about bounds: where records are on disk, it may be as slow as it likes


class Reader:
    """One subscription as the broker knows it."""

    def __init__(self, bus: Bus, pattern: str | Sequence[str], options: SubscribeOptions) -> None:
        self.attachment = Attachment(bus, pattern, options.start)
        self.options, self._bus = options, bus
        self.name, self.strict = options.name, options.strict
        self.label = options.name or f"{self.pattern}#{bus.next_number()}"
        self.watches: list[Watch] = []
        self.resume: Position | int | None = None  # where this very reader stood before, in another connection
        if options.name is not None and not (isinstance(options.name, str) and options.name):
            raise InvalidOption("name", options.name, "a subscription's name is text of 1 character or more")
        if options.hold and options.name is None:
            raise InvalidOption("hold", True, "what is held is kept under a name; give the subscription one")
        if options.hold and not bus.is_durable:
            raise NotSupported("hold=True", "this broker lives in memory only")
        positive("buffer", options.buffer)
        positive("buffer_bytes", options.buffer_bytes)
        if options.dead_letter is not None:
            check_name(options.dead_letter)
            if any(matches(one, options.dead_letter) for one in self.attachment.patterns):
                raise InvalidOption(
                    "dead_letter", options.dead_letter, f"this subscription ({self.pattern!r}) would read it itself"
                )

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self.attachment.pattern

    @property
    def is_pattern(self) -> bool:
        """Whether it may read several topics, by sequence."""
        return self.attachment.is_pattern

    @property
    def clock(self) -> Clock:
        """The broker's clock."""
        return self._bus.clock

    # -- coming and going ---------------------------------------------------------------------------------------

    def start(self, subscription: Subscription[Any]) -> Flow:
        """Take up the start position."""
        bus = self._bus
        bus.home.check_usable("subscribing")
        if self.name is not None and self.name in bus.named:
            raise NameInUse(self.name)
        with self.attachment.covering():
            if self.options.hold and not self._on_disk():
                raise NotSupported("hold=True", f"topic {self.pattern!r} is kept in memory only")
            cursor, missed = self._starting()
        options = self.options
        eager = options.on_drop is not None or options.dead_letter is not None
        kind = Lag if options.lags and self._on_disk() else FLOWS[options.policy.kind]
        flow = kind(cursor, options.policy, options.buffer, options.buffer_bytes, subscription, eager=eager)
        flow.missed = missed
        return flow

    def attach(self, subscription: Subscription[Any]) -> None:
        """Be told of what is published from now on."""
        self.attachment.attach(subscription)
        if self.name is not None:
            self._bus.named[self.name] = subscription
            if self.options.hold is not None and self._bus.store is not None:
                place = self.place_of(subscription)
                self._bus.store.keeper.hold(subscription, self.name, place, hold=self.options.hold)

    def leave(self, subscription: Subscription[Any]) -> None:
        """Let go of everything; a name keeps its position."""
        bus = self._bus
        if not self.attachment.detach(subscription):
            return  # it was never entered
        if self.name is not None:
            bus.keep_position(self.name, *self.place_of(subscription))
            del bus.named[self.name]
        for watch in self.watches:
            watch.tell()
        bus.ended.add(subscription)
        self.made_room()

    # -- where to start -----------------------------------------------------------------------------------------

    def _starting(self) -> tuple[Cursor, Missed | None]:
        start: Start = self.options.start
        if self.resume is not None:
            start = self.resume
        elif self.name is not None and (stored := self._bus.positions.get(self.name)) is not None:
            pattern, start = stored
            if pattern != self.pattern:
                raise InvalidOption("name", self.name, f"it holds a position on {pattern!r}, not on {self.pattern!r}")
        elif start is None:
            start = "latest" if self.name is None else "earliest"
        return self.attachment.cursor(start)

    def _on_disk(self) -> bool:
        """Whether what it reads is on disk, or will be as far as anybody has said."""
        if self._bus.store is None:
            return False
        return self.is_pattern or any(log.options.durable is not False for log in self.attachment.logs)

    def moves(self) -> Callable[[Subscription[Any]], None] | None:
        """Whom to tell that it moved; None: nobody keeps its position while it reads."""
        if self.name is None or self._bus.store is None:
            return None
        return self._bus.store.keeper.moved

    def place_of(self, subscription: Subscription[Any]) -> tuple[str, Position | int]:
        """What a name keeps: its pattern, and a position or a sequence."""
        if self.is_pattern:
            return self.pattern, subscription.position
        (found,) = self.attachment.logs
        return self.pattern, found.position(subscription.position)

    # -- while it reads -----------------------------------------------------------------------------------------

    def advanced(self, subscription: Subscription[Any]) -> None:
        """The subscriber asked beyond all that it had taken."""
        if self.watches:
            for watch in [watch for watch in self.watches if watch.place < subscription.position]:
                watch.tell()
                self.watches.remove(watch)

    def sequence_of(self, found: Log, offset: int) -> int:
        """Where a record of one of its topics lies in the order that it reads in."""
        return self._bus.timeline.sequence_of(found, offset)

    def end_sequence(self) -> int:
        """Behind all that is visible now."""
        return self._bus.timeline.sequence

    def made_room(self) -> None:
        """Publishers may ask again."""
        self._bus.publisher.release()

    def expired(self, slices: list[Slice]) -> set[Position]:
        """The positions of the records that are past their time."""
        now = self._bus.clock.time()
        return {
            Position(part.epoch, offset)
            for part in slices
            for offset, meta in part.metas.items()
            if meta.expires is not None and meta.expires <= now
        }

    def told(self, gap: Gap) -> None:
        """A gap was found; tell whoever asked to hear."""
        if self.options.on_gap is not None:
            self._call(self.options.on_gap, gap)

    def hand_on(self, slices: list[Slice]) -> None:
        """Hand dropped records to the callback and the dead-letter topic."""
        for part in slices:
            for record in part.records:
                if self.options.on_drop is not None:
                    self._call(self.options.on_drop, record)
                # A dead letter that is dropped again stays dropped, or two topics could toss it for ever.
                if self.options.dead_letter is not None and not dead_letter.is_dead_letter(record):
                    self._call(self._bury, record)

    def _bury(self, record: Record[bytes]) -> None:
        topic, publisher = self.options.dead_letter, self._bus.publisher
        assert topic is not None, "only called where there is one"
        headers = dead_letter.story(record, "dropped", subscriber=self.label)
        entry = publisher.one(topic, None, record.value, record.key, headers, None, None, 0, None)
        log = self._bus.catalog.find(topic, UNSAID)
        if publisher.append_now(log, entry) is None:
            raise publisher.full(log, entry)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function; what it raises is its own affair, never the publisher's."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)
