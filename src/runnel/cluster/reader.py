"""The reader of a subscription on a cluster: an ordered consumer, units put together, records buffered ahead.

A record that was received survives a lost connection and a lost consumer: the next one continues behind it, so each
record is delivered once. The position of a named subscription is a message of the stream, written a moment after it
moved; two open subscriptions of one name are found by the second write, and the one that was there first ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from secrets import token_hex
from typing import Any

import msgspec

from runnel.cluster.catalog import ClusterCatalog, TopicEntry
from runnel.cluster.counting import count_records
from runnel.cluster.jetstream import EXPECTED, ROLLUP, WRONG_LAST, Acknowledged, JetStream
from runnel.cluster.layout import (
    GONE,
    StoredMessage,
    UnitFollower,
    covering,
    first_offset,
    slices_of,
    stored_message,
    stream_sequence,
)
from runnel.cluster.publishing import OVERHEAD, ClusterPublishing
from runnel.cluster.pulling import OrderedConsumer
from runnel.core import dead_letter
from runnel.core.backend import SharedStep, SharedSteps, Taken
from runnel.core.batch import Slice, without_expired
from runnel.core.batch_format import CONTENT_TYPES
from runnel.core.errors import (
    BadBatch,
    BrokerClosed,
    ClusterRefused,
    Disconnected,
    InvalidOption,
    NameInUse,
    NotSupported,
    OffsetOutOfRange,
    RunnelError,
    TopicDeleted,
    UnknownTopic,
)
from runnel.core.options import KEEP_BYTES, NO_TOPIC_OPTIONS, Policy, PolicyKind, SubscribeOptions
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.publishing import Append, checked_record
from runnel.core.record import TOO_SLOW, Gap, MissedRange, Record, joined_missed
from runnel.core.statistics import SubscriberTotals
from runnel.wire.nats import Message

log = logging.getLogger("runnel")

BUFFER = 1024
MOMENT = 0.05  # seconds after which a position that moved is written
BATCH = 512  # messages of a pull

LOOK = 0.1  # seconds to wait for the other messages of a unit, before requesting them from the cluster
MAX_FLOWS = 1000  # pairs of pattern and name that are counted apart

MADE_AGAIN = "the topic was deleted and made again"

_ENCODINGS = {number: encoding for encoding, number in CONTENT_TYPES.items()}
_numbers = count(1)


class StoredPosition(msgspec.Struct):
    """The position of a named subscription."""

    pattern: str
    epoch: int
    offset: int
    owner: str = ""  # the reader that stored it


class ReadersOf:
    """The parts of their backend that readers use."""

    def __init__(self, publishing: ClusterPublishing, credit: int) -> None:
        self.publishing, self.credit = publishing, credit
        self.js, self.catalog, self.clock = publishing.js, publishing.catalog, publishing.clock
        self.loop_owner = publishing.loop_owner
        self.open: set[Any] = set()  # readers and members
        self.is_closed = False
        self._ended: dict[tuple[str, str], SubscriberTotals] = {}  # of readers that ended: counters never go back

    def check_usable(self) -> None:
        """Raise unless a subscription can be opened here."""
        if self.is_closed:
            raise BrokerClosed("subscribing")
        self.loop_owner.check_usable("subscribing")

    def count_ended(self, reader: ClusterReader) -> None:
        """Keep the counts of a reader that ends."""
        _count(self._ended, reader, 0)

    def flowed(self, lags: Mapping[ClusterReader, int]) -> dict[tuple[str, str], SubscriberTotals]:
        """The records delivered and lost, by pattern and name, over open and ended readers."""
        found = dict(self._ended)
        for one in self.open:
            if isinstance(one, ClusterReader):
                _count(found, one, lags.get(one, one.lag))
        return found


def _count(into: dict[tuple[str, str], SubscriberTotals], reader: ClusterReader, lag: int) -> None:
    key = (reader.pattern, reader.name or "anonymous")
    if key not in into and len(into) >= MAX_FLOWS:
        key = ("(other)", "(other)")
    had = into.get(key) or SubscriberTotals(0, 0, 0, 0)
    into[key] = SubscriberTotals(
        had.delivered + reader.delivered,
        had.dropped + reader.dropped_count + reader.untold,
        had.expired + reader.expired,
        had.lag + lag,
    )


class ClusterReader:
    """Reads one topic or pattern, or several. See `core.backend.Reader`."""

    def __init__(
        self,
        shared: ReadersOf,
        patterns: Sequence[str],
        options: SubscribeOptions,
        wake: Callable[[], None],
        resume: Position | int | None,
        until: int | None,
        *,
        several: bool,
    ) -> None:
        policy = options.policy
        if policy is not None and policy.kind is PolicyKind.BLOCK:
            raise NotSupported("policy='block'", "publishers of a cluster do not know its subscribers")
        if options.hold:
            raise NotSupported("hold=True", "JetStream's retention asks no subscriber")
        self.pattern, self._patterns = " ".join(patterns), tuple(patterns)
        self.name = options.name
        self.label = options.name or f"{self.pattern}#{next(_numbers)}"
        self.is_pattern = several or is_pattern(self.pattern)
        self.is_exact = options.name is not None
        self.is_eager = True
        self.buffer = options.buffer or BUFFER
        self.clock = shared.clock
        self.task: Any = None
        self.principal: str | None = None
        self.on_presence: Callable[[], None] | None = None
        self.ended = False
        self.error: RunnelError | None = None
        self.is_quiet, self.due = False, 0
        self.in_hand: Callable[[], int | None]
        self.delivered = self.dropped_count = self.expired = 0
        self.epoch: int | None = None
        self.changes = 0
        self._shared, self._js, self._wake = shared, shared.js, wake
        self._options, self._resume, self._until = options, resume, until
        self._consumer: OrderedConsumer | None = None
        self._buffer: deque[tuple[list[Slice], int, MissedRange | None]] = deque()  # slices, bytes, gap before them
        self._buffered_bytes = self._buffered_records = 0
        self._value_bytes = 0  # of the buffered records, where a policy bounds them
        self._policy = None if options.lags else policy or Policy()
        self._buffer_bytes = options.buffer_bytes or KEEP_BYTES
        self._drops = 0  # in a row
        self._lost: MissedRange | None = None  # dropped behind all that is in the buffer
        self._unit: list[StoredMessage] = []  # messages of a unit that is not complete
        self._has_begun = False  # whether a message was taken
        self._from = 0  # records before this place are not delivered
        self._follower = UnitFollower()
        self._received = self._received_messages = 0
        self._owner = token_hex(8)
        self._looking: asyncio.Task[None] | None = None
        self._place = self._sent = 0
        self._encodings: dict[str, str | None] = {}
        self._left = False
        self._last = 0  # the stream sequence of the last message that came
        self._finish: int | None = None  # the stream sequence at which it ends
        self._is_complete = False
        self._kept: int | None = None  # the stream sequence of the stored position
        self._is_moved = False
        self._keeping: asyncio.Task[None] | None = None
        self._presence: list[int] = []
        self._done: asyncio.Future[None] | None = None
        self._finishing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return (
            f"<ClusterReader {self.label!r}, {self._buffered_records} records buffered, confirmed up to {self._place}>"
        )

    # -- coming and going ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Find the start, make the consumer, and begin to read."""
        if self.ended:
            raise BrokerClosed("subscribing")
        shared, js = self._shared, self._js
        shared.check_usable()
        for one in self._patterns:
            if not is_pattern(one):
                shared.catalog.check_subscribed(one)
        entry = None if self.is_pattern else shared.catalog.get(self.pattern)
        self.epoch = None if self.is_pattern else (0 if entry is None else entry.epoch)
        if self.name is not None and any(one.name == self.name for one in shared.open if one is not self):
            raise NameInUse(self.name)
        start, time = await self._start(entry)
        if self.name is not None and not self._kept:
            start, time = await self._claim(start, time)
        filters = [js.subjects.every_bucket(one) for one in covering(self._patterns)]
        self._consumer = OrderedConsumer(
            js,
            filters,
            self._arrived,
            start=start,
            time=time,
            batch=BATCH,
            max_bytes=shared.credit,
            room=lambda: self._policy is not None or self._buffered_bytes < shared.credit,
            caught_up=self._caught_up,
        )
        shared.open.add(self)
        shared.catalog.on_change.append(self._changed)
        self._presence = [js.link.subscribe(js.subjects.presence(one), self._asked) for one in self._patterns]
        try:
            await self._consumer.start()
        except BaseException:
            self._release()
            raise
        if self._until is not None and self._until <= self._from:
            self._complete()

    async def _start(self, entry: TopicEntry | None) -> tuple[int, datetime | None]:
        """The stream sequence, or time, to begin at; sets the place."""
        js, start = self._js, self._options.start
        if self.name is not None and (kept := await js.last(js.subjects.position(self.name))) is not None:
            self._kept = kept.sequence
            if kept.payload:
                found = _of_pattern(kept.payload, self.name, self.pattern)
                if self._resume is None and found.epoch in (0, self.epoch or 0):
                    return self._at(found.offset, entry), None
                if self._resume is None:
                    return self._begin_anew(), None
        elif self.name is not None:
            self._kept = 0
        if self._resume is not None:
            start = self._resume
            if isinstance(start, int):
                return self._at(start, entry), None
        if isinstance(start, Position):
            if self.epoch and start.epoch not in (0, self.epoch):
                if self._resume is not None:
                    raise TopicDeleted(self.pattern, start.epoch)
                return self._begin_anew(), None
            return self._at(start.offset, entry), None
        if isinstance(start, datetime):
            self._place = self._sent = 0
            return 1, start
        if isinstance(start, int):
            await self._check_offset(start, entry)
            return self._at(start, entry), None
        if start == "earliest" or (start is None and self.name is not None):
            return self._at(0), None
        return self._at(first_offset(await js.last_sequence() + 1), entry), None

    async def _claim(self, start: int, time: datetime | None) -> tuple[int, datetime | None]:
        """Store where a new name begins: it continues there, even if it is killed before it has read anything."""
        js = self._js
        assert self.name is not None
        if time is not None:
            place = first_offset(await js.last_sequence() + 1)
            for one in covering(self._patterns):
                found = await js.next(js.subjects.every_bucket(one), time=time)
                if found is not None:
                    message = stored_message("", found.sequence, found.nanoseconds, found.head, found.payload)
                    place = min(place, first_offset(message.first))
            start, time = self._at(place), None
        said = StoredPosition(self.pattern, self.epoch or 0, self._place, self._owner)
        try:
            self._kept = await write_position(js, self.name, said, 0)
        except ClusterRefused as error:
            if error.number != WRONG_LAST:
                raise
            raise NameInUse(self.name) from error
        return start, time

    def _begin_anew(self) -> int:
        """Begin at the oldest record of a topic that was deleted since the position was stored, and report it."""
        self._lost = MissedRange(0, 0, 0, MADE_AGAIN)
        return self._at(0)

    async def _check_offset(self, offset: int, entry: TopicEntry | None) -> None:
        """Raise if no record, and not the next one, can have this offset."""
        everything = self._js.subjects.every_bucket(self.pattern)
        last = await self._js.last(everything)
        if last is not None:
            found = stored_message(self.pattern, last.sequence, last.nanoseconds, last.head, last.payload)
            end = first_offset(found.first) + found.records
        elif entry is None:
            end = 0
        else:  # all its records are missing: one of them may have been there
            end = entry.trimmed or first_offset(await self._js.last_sequence() + 1)
        if offset > end:
            first = await self._js.next(everything)
            raise OffsetOutOfRange(self.pattern, offset, 0 if first is None else first_offset(first.sequence), end)

    def _at(self, place: int, entry: TopicEntry | None = None) -> int:
        """Begin at a place; the stream sequence of the message that holds it, or of the next one.

        With the entry of the topic, or a place above 0, missing records from there on are reported as a gap.
        """
        self._from = self._place = self._sent = place
        if place or entry is not None:
            self._follower.reached = place
            if entry is not None and entry.trimmed > place:
                self._lost = MissedRange(place, entry.trimmed, 1, GONE)
                self._follower.reached = entry.trimmed
        return max(1, stream_sequence(place))

    def end(self, error: RunnelError | None = None) -> None:
        """End it after the records that were published before this call; with an error, at once."""
        if error is None and self._consumer is not None and not self._is_complete and not self._left:
            self.finish()
        else:
            self.stop(error)

    def stop(self, error: RunnelError | None = None) -> None:
        """End it now: records that were not received are not read."""
        if not self.ended:
            self.ended, self.error = True, error
            if error is not None:
                self._buffer.clear()
            self._release()
            if self._done is not None and not self._done.done():
                self._done.set_result(None)
            self._wake()

    def leave(self, place: int | None = None) -> None:
        """Stop reading; every record before `place` was processed."""
        if place is not None and place > self._place:
            self._place, self._is_moved = place, True
        self._left = True
        if self._is_moved and self.name is not None:
            self._keep_soon()
        self.stop()

    async def left(self) -> None:
        """Return when the position is stored."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    def _release(self) -> None:
        if self._consumer is not None:
            self._consumer.end()
        if self in self._shared.open:
            self._shared.open.discard(self)
            self._shared.count_ended(self)
        if self._changed in self._shared.catalog.on_change:
            self._shared.catalog.on_change.remove(self._changed)
        for sid in self._presence:
            self._js.link.unsubscribe(sid)
        self._presence = []
        if self._looking is not None and self._looking is not asyncio.current_task():
            self._looking.cancel()

    def _changed(self, topic: str, before: TopicEntry | None, entry: TopicEntry) -> None:
        """A topic was created, changed or deleted."""
        if any(matches(one, topic) for one in self._patterns):
            self.changes += 1
            if self.is_pattern:
                return
            if entry.deleted:
                self.stop(TopicDeleted(topic, entry.epoch))
            elif not self.epoch:
                self.epoch = entry.epoch

    def _asked(self, message: Message) -> None:
        """A requester asks whether the topic has a reader."""
        if message.reply is not None:
            self._js.link.publish(message.reply, b"+")

    # -- receiving ----------------------------------------------------------------------------------------------

    def _arrived(self, message: Message, about: Acknowledged) -> None:
        topic = self._js.subjects.topic_of(message.subject)
        self._last = about.sequence
        try:
            found = stored_message(topic, about.sequence, about.nanoseconds, message.head, message.payload)
        except BadBatch as error:
            self._unreadable(about.sequence, error)
        else:
            if self._is_wanted(found):
                self._collect(found)
        self._check_end(about.sequence)

    def _caught_up(self) -> None:
        """No message is behind the received ones: a unit may lack messages, or the end may be missing."""
        is_asked = self._unit or self._until is not None or self._finish is not None
        if is_asked and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look_behind())

    async def _look_behind(self) -> None:
        """Deliver a unit whose other messages are missing; end, if no record is left before the end."""
        while not self.ended:
            unit, seen = self._unit, self._last
            if unit:
                await asyncio.sleep(LOOK)
            try:
                last = await self._js.last_sequence()
                for one in covering(self._patterns):
                    found = await self._js.next(self._js.subjects.every_bucket(one), seen + 1)
                    if found is not None and (not unit or found.sequence < unit[0].first + unit[0].messages):
                        return  # it will come
            except RunnelError:
                continue  # asked again: `repeated` has waited
            if self._unit is not unit or self._last != seen:
                return  # something came
            if unit:
                self._flush_unit()
            is_over = self._until is not None and stream_sequence(self._until - 1) <= last
            if is_over or (self._finish is not None and self._finish <= last):
                self._complete()
            return

    def _is_wanted(self, found: StoredMessage) -> bool:
        if found.topic != self.pattern and not any(matches(one, found.topic) for one in self._patterns):
            return False
        # A publisher that has not heard of the deletion of a topic may still write to its earlier life.
        return found.epoch == self.epoch or found.epoch >= self._shared.catalog.least_epoch(found.topic)

    def _collect(self, found: StoredMessage) -> None:
        """Put a message to the others of its unit; deliver the unit when it is complete."""
        if self._unit and self._unit[0].first != found.first:
            self._flush_unit()
        unit = self._unit
        if found.messages == 1:
            self._has_begun = True
            self._deliver([found])
            return
        if found.number and not unit and not self._has_begun and self._consumer is not None:
            self._has_begun = True
            self._consumer.rewind(found.first)  # it begins inside of a unit, whose other messages come before this one
            return
        self._has_begun = True
        unit.append(found)
        if found.number + 1 == found.messages:
            self._flush_unit()

    def _flush_unit(self) -> None:
        unit, self._unit = self._unit, []
        if unit:
            self._deliver(unit)

    def _deliver(self, unit: list[StoredMessage]) -> None:
        try:
            slices, content_type = slices_of(unit)
        except BadBatch as error:
            self._unreadable(unit[0].sequence, error)
            return
        topic = unit[0].topic
        self._link(unit)
        self._encodings[topic] = _ENCODINGS.get(content_type)
        if slices[0].start < self._from or (self._until is not None and slices[-1].end > self._until):
            slices = list(self._within(slices))
            if not slices:
                return
        if not self.is_pattern and not self.epoch:
            self.epoch = unit[0].epoch
        lost, self._lost = self._lost, None
        if len(unit) == len(slices) == 1:  # in fewer steps, since every record may come alone
            size, records = len(unit[0].payload), len(slices[0])
        else:
            size, records = sum(len(one.payload) for one in unit), sum(map(len, slices))
        self._buffered_bytes += size
        self._buffered_records += records
        self._buffer.append((slices, size, lost))
        if self._policy is not None:
            self._value_bytes += sum(part.size for part in slices)
            self._bound(self._policy)
        self._wake()

    def _link(self, unit: list[StoredMessage]) -> None:
        """Report missing records before a unit, and count received ones."""
        if (missed := self._follower.missed(unit)) is not None:
            self._lost = joined_missed(self._lost, missed)
        self._received_messages += len(unit)
        self._received += unit[0].own if len(unit) == 1 else sum(one.own for one in unit)

    # -- when the user is slow ----------------------------------------------------------------------------------

    def _bound(self, policy: Policy) -> None:
        """Drop received records beyond the bounds of the subscriber. One record always fits."""
        is_newest = policy.kind is PolicyKind.DROP_NEWEST
        at = -1 if is_newest else 0
        while over := self._surplus(self._end_slice(at), reverse=is_newest):
            slices, size, missed = self._buffer[at]
            part = slices.pop(at)
            if over < len(part):
                cut = part.end - over if is_newest else part.start + over
                first, second = part.cut(part.start, cut), part.cut(cut, part.end)
                part, kept = (second, first) if is_newest else (first, second)
                slices.insert(len(slices) if is_newest else 0, kept)
            self._count_out(part)
            gap: MissedRange | None = MissedRange(part.start, part.end, len(part), TOO_SLOW)
            if not slices:
                del self._buffer[at]
                self._buffered_bytes -= size
                gap = joined_missed(missed, gap)
            if is_newest:
                self._lost = joined_missed(gap, self._lost)
            elif slices:
                self._buffer[0] = slices, size, joined_missed(missed, gap)
            else:
                following, more, later = self._buffer[0]  # what fits is there
                self._buffer[0] = following, more, joined_missed(gap, later)
            self._drops += len(part)
            self._show(part)
            if policy.kind is PolicyKind.DISCONNECT and self._drops >= policy.after:
                self.stop(Disconnected(self.label, self._drops, policy.after))
                return

    @property
    def untold(self) -> int:
        """Records that were missed, and are not reported yet."""
        missed = [*(gap for _, _, gap in self._buffer), self._lost]
        return sum(gap.count for gap in missed if gap is not None)

    def _end_slice(self, at: int) -> Slice | None:
        """The first or last slice of the buffer. A gap without records that is in its way joins its neighbor."""
        while self._buffer and not self._buffer[at][0]:
            _, _, missed = self._buffer[at]
            del self._buffer[at]
            if at or not self._buffer:
                self._lost = joined_missed(missed, self._lost)
            else:
                slices, size, later = self._buffer[0]
                self._buffer[0] = slices, size, joined_missed(missed, later)
        return self._buffer[at][0][at] if self._buffer else None

    def _surplus(self, part: Slice | None, *, reverse: bool) -> int:
        """How many records at one end of the buffer, of which `part` is the first slice, have to go."""
        records, size, over = self._buffered_records, self._value_bytes, 0
        if part is None or (records <= self.buffer and size <= self._buffer_bytes):
            return 0
        for value in reversed(part.values) if reverse else part.values:
            if records <= 1 or (records <= self.buffer and size <= self._buffer_bytes):
                break
            records, size, over = records - 1, size - len(value), over + 1
        return over

    def _count_out(self, part: Slice) -> None:
        """A slice leaves the buffer."""
        self._buffered_records -= len(part)
        if self._policy is not None:
            self._value_bytes -= part.size

    def _show(self, part: Slice) -> None:
        """Hand dropped records to the user's `on_drop` and to the dead-letter topic."""
        calls = [call for call in (self._options.on_drop, self._options.dead_letter and self._bury) if call]
        for record in part.records if calls else ():
            for call in calls:
                try:
                    call(record)
                except Exception:
                    log.exception("a callback of subscriber %r failed", self.label)

    def _bury(self, record: Record[bytes]) -> None:
        """Publish a dropped record as a dead letter. A dead letter is not: two topics could exchange it for ever."""
        topic, publishing = self._options.dead_letter, self._shared.publishing
        if topic is None or dead_letter.is_dead_letter(record):
            return
        headers = dead_letter.dead_letter_headers(record, "dropped", subscriber=self.label)
        values, columns, size, extra = checked_record(topic, None, record.value, record.key, headers)
        publishing.check_room(topic, size + extra + OVERHEAD)
        append = Append(values, columns, size, None, True, extra)
        publishing.add(publishing.source(topic, NO_TOPIC_OPTIONS, None), append, None)

    def _within(self, slices: list[Slice]) -> Any:
        for part in slices:
            start = max(part.start, self._from)
            end = part.end if self._until is None else min(part.end, self._until)
            if start < end:
                yield part if (start, end) == (part.start, part.end) else part.cut(start, end)

    def _unreadable(self, sequence: int, error: BadBatch) -> None:
        """A message that runnel did not write, or that was damaged: a gap of one."""
        first = first_offset(sequence)
        self._buffer.append(([], 0, MissedRange(first, first + 1, 1, f"it could not be read: {error.why}")))
        self._wake()

    def _check_end(self, sequence: int) -> None:
        if (self._until is not None and not self._unit and first_offset(sequence + 1) >= self._until) or (
            self._finish is not None and sequence >= self._finish and not self._unit
        ):
            self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self.stop()

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """Take up to `limit` records, and the range missed before them. None: nothing now, or it has ended."""
        if self.error is not None or self._left or not self._buffer:
            return None
        self._drops = 0
        found: list[Slice] = []
        missed: MissedRange | None = None
        while self._buffer and limit > 0:
            slices, size, gap = self._buffer[0]
            if gap is not None and found:
                break  # a gap comes before the records behind it
            self._buffer.popleft()
            self._buffered_bytes -= size
            if gap is not None:
                missed = joined_missed(missed, gap)
            while slices and limit > 0:
                part = slices.pop(0)
                if len(part) > limit:
                    slices.insert(0, part.cut(part.start + limit, part.end))
                    part = part.cut(part.start, part.start + limit)
                limit -= len(part)
                found.append(part)
                self._count_out(part)
            if slices:
                self._buffer.appendleft((slices, 0, None))
        if found:
            if self._place >= self._sent:
                self._place = found[0].start
            self._sent = found[-1].end
            if any(part.columns is not None for part in found):
                found, expired = without_expired(found, self.clock.time())
                self.expired += expired
        self.delivered += sum(map(len, found))
        if missed is not None:
            self.dropped_count += missed.count
            self._sent = max(self._sent, missed.end)
        if self._consumer is not None:
            self._consumer.pull()
        return Taken(found, missed)

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """Do the same as `take`. Nothing is shared: each reader has its own records."""
        taken = self.take(limit)
        if taken is None:
            return None
        slices, missed = taken
        gap = None
        if missed is not None:
            gap = Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)
        return SharedStep(gap, slices, self._sent, self._sent, is_last=not self._buffer)

    def park(self) -> None:
        """Wait for records: the consumer pulls on its own."""

    def ahead(self) -> int:
        """How many records were received; unlimited if the buffer is full, since no more would come."""
        return 2**32 if self._buffered_bytes >= self._shared.credit else self._buffered_records or len(self._buffer)

    @property
    def policy(self) -> str:
        """Apply the overflow policy of a slow user."""
        return "none" if self._policy is None else str(self._policy)

    @property
    def lag(self) -> int:
        """Records that were not taken: those received, and about those of the messages that were not.

        A message that was not received counts as many records as the messages of this reader had on average.
        `pending_records` counts them.
        """
        pending = 0 if self._consumer is None else self._consumer.pending
        if pending and self._received_messages:
            pending = max(pending, round(pending * self._received / self._received_messages))
        return self._buffered_records + pending

    async def pending_records(self) -> int:
        """The same as `lag`, with the records of the messages that were not received counted."""
        if self._consumer is None or not self._consumer.pending:
            return self._buffered_records
        filters = [self._js.subjects.every_bucket(one) for one in covering(self._patterns)]
        return self._buffered_records + (await count_records(self._js, filters, self._consumer.next)).records

    def encoding_of(self, topic: str) -> str | None:
        """The encoding of the values of a topic."""
        return self._encodings.get(topic)

    # -- where it is --------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The place of the first unconfirmed record."""
        return self._place

    @property
    def sent(self) -> int:
        """The place after the last record that was taken."""
        return self._sent

    @property
    def epochs(self) -> Sequence[int] | None:
        """The epochs of the topics that it covers now."""
        catalog = self._shared.catalog
        names = [name for name in catalog.names() if any(matches(one, name) for one in self._patterns)]
        return [entry.epoch for name in names if (entry := catalog.get(name)) is not None]

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before it reached `until`, or the end that `finish` set."""
        return self.ended and not self._is_complete and (self._until is not None or self._finish is not None)

    def end_sequence(self) -> int | None:
        """Not known without asking the cluster."""
        return None

    def confirm(self, place: int) -> None:
        """The user has processed every record before `place`."""
        if place > self._place:
            self._place = place
            if self.name is not None:
                self._is_moved = True
                self._keep_soon()

    def finish(self, *, whole: bool = True) -> None:
        """End it after the records published before this call."""
        if not self.ended and self._finish is None:
            self._finish = 2**63
            self._finishing = asyncio.get_running_loop().create_task(self._find_end())

    async def finished(self) -> None:
        """Return when it has received everything up to its end."""
        if not self.ended:
            self._done = self._done or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._done])

    async def _find_end(self) -> None:
        """The last message that is there now is where it ends."""
        last = 0
        try:
            for one in covering(self._patterns):
                found = await self._js.last(self._js.subjects.every_bucket(one))
                last = max(last, 0 if found is None else found.sequence)
        except RunnelError:
            self.stop()  # where it would end cannot be found out
            return
        self._finish = last
        if self._last >= last or first_offset(last + 1) <= self._from:
            self._complete()

    # -- counters -----------------------------------------------------------------------------------------------

    def unreadable(self, count: int) -> None:
        """Count `count` of the records taken as dropped: they could not be decoded."""
        self.delivered -= count
        self.dropped_count += count

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """Set the totals that a client of a listener reports."""
        self.delivered = taken - unreadable
        self.dropped_count, self.expired = unreadable, expired

    def count_all(self) -> None:
        """Everything that was sent is counted as taken already."""

    def pass_all(self) -> None:
        """Count all records sent as taken and processed."""
        self.confirm(self._sent)

    # -- the position of a name ---------------------------------------------------------------------------------

    def _keep_soon(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        """Write the position, a moment after it moved; of a reader that leaves, at once."""
        assert self.name is not None
        while self._is_moved:
            waited = 0.0
            while not self._left and waited < MOMENT:
                await asyncio.sleep(MOMENT / 5)
                waited += MOMENT / 5
            self._is_moved = False
            said = StoredPosition(self.pattern, self.epoch or 0, self._place, self._owner)
            try:
                self._kept = await write_position(self._js, self.name, said, self._kept)
            except ClusterRefused as error:
                if error.number == WRONG_LAST:
                    if await self._is_own():
                        self._is_moved = True
                        continue
                    self.stop(NameInUse(self.name))
                    return
                log.warning("the position of %r was not stored: %s", self.name, error)
            except RunnelError as error:
                if self._shared.is_closed:
                    return
                log.warning("the position of %r was not stored: %s", self.name, error)
                self._is_moved = not self._left
                await asyncio.sleep(MOMENT)

    async def _is_own(self) -> bool:
        """Whether this reader stored the position that is there: an earlier write, whose answer did not come."""
        assert self.name is not None
        try:
            found = await self._js.last(self._js.subjects.position(self.name))
        except RunnelError:
            return True  # unknown: the next write shows it
        if found is None or msgspec.json.decode(found.payload, type=StoredPosition).owner != self._owner:
            return False
        is_new, self._kept = found.sequence != self._kept, found.sequence
        return is_new

    async def kept(self) -> None:
        """Return when the position is stored, as far as it has moved."""
        if self._keeping is not None and not self._keeping.done():
            await asyncio.wait([self._keeping])


def _of_pattern(payload: bytes, name: str, pattern: str) -> StoredPosition:
    """The stored position of a name, which is to be on this pattern."""
    found = msgspec.json.decode(payload, type=StoredPosition)
    if found.pattern != pattern:
        why = f"it holds a position on {found.pattern!r}, not on {pattern!r}; choose another name"
        raise InvalidOption("name", name, why)
    return found


async def stored_before(js: JetStream, name: str, pattern: str) -> int:
    """The stream sequence of the position of a name, which is to be on this pattern; 0: there is none."""
    kept = await js.last(js.subjects.position(name))
    if kept is not None and kept.payload:
        _of_pattern(kept.payload, name, pattern)
    return 0 if kept is None else kept.sequence


async def write_position(js: JetStream, name: str, said: StoredPosition, expected: int | None) -> int:
    """Store the position of a name; `expected` is the stream sequence of the one that it replaces."""
    headers = {ROLLUP: "sub"}
    if expected is not None:
        headers[EXPECTED] = str(expected)
    sequence, _ = await js.store(js.subjects.position(name), msgspec.json.encode(said), headers)
    return sequence


def check_known(catalog: ClusterCatalog, topic: str) -> TopicEntry:
    """The entry of a topic, or `UnknownTopic`."""
    entry = catalog.get(topic)
    if entry is None:
        raise UnknownTopic(topic)
    return entry
