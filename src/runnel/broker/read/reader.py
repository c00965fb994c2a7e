"""The local `Reader`: a cursor under an overflow policy, with its position and its counters.

A record counts as processed when the place after it is confirmed, not when it is taken. So positions, `block` and
`publish_and_wait` mean the same for a task of this process and for a client at the other end of a connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from sys import intern
from typing import Any, Protocol

from runnel.broker.read.attachment import Attachment
from runnel.broker.read.cursor import Cursor
from runnel.broker.read.overflow import OVERFLOW_POLICIES, KeepOnDisk, OverflowPolicy
from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.topic.log import Log
from runnel.broker.topic.named_positions import NamedPositions
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import ProcessedWaiter
from runnel.core import dead_letter
from runnel.core.backend import SharedStep, SharedSteps, Taken
from runnel.core.batch import Slice, without_expired
from runnel.core.clock import Clock
from runnel.core.errors import (
    Disconnected,
    InvalidOption,
    NameInUse,
    NotSupported,
    OffsetOutOfRange,
    RecordsMissed,
    RunnelError,
    SubscriptionMisused,
)
from runnel.core.options import KEEP_BYTES, KEEP_COUNT, Policy, SubscribeOptions
from runnel.core.position import Position, Start
from runnel.core.record import Gap, MissedRange, Record

log = logging.getLogger("runnel")

FAR_TASK: Any = object()  # stands for the task of a client that reads over a connection


def nothing_in_hand() -> None:
    """The default of `in_hand`: the user has no record."""


class ReaderEvents(Protocol):
    """What an open reader needs of its broker."""

    def check_usable(self, what: str) -> None:
        """Raise unless the broker is open, on its own loop."""

    def ended(self, reader: LocalReader) -> None:
        """A reader ended: its counts go into the totals."""


class OutRun:
    """Consecutive records that were taken: first place, sizes, and the index of the first unconfirmed one."""

    __slots__ = ("at", "first", "sizes")

    def __init__(self, first: int, sizes: list[int]) -> None:
        self.first, self.sizes, self.at = first, sizes, 0


class LocalReader:
    """One subscription of a broker in this process. See `core.backend.Reader`."""

    members = 1  # itself

    def __init__(
        self,
        attachment: Attachment,
        positions: NamedPositions,
        publisher: Publisher,
        events: ReaderEvents,
        clock: Clock,
        options: SubscribeOptions,
        label: str,
        wake: Callable[[], None],
        resume: Position | int | None = None,
        until: int | None = None,
        *,
        far: bool = False,
    ) -> None:
        self.attachment, self.options, self.clock, self.label = attachment, options, clock, label
        self._positions, self._publisher, self._events = positions, publisher, events
        self.pattern, self.is_pattern, self.name = attachment.pattern, attachment.is_pattern, options.name
        # Attributes, to save a call through this object: wake the user; let blocked publishers continue.
        self.wake, self.made_room = wake, publisher.release
        options.check_for(attachment.patterns, several=self.is_pattern)
        self._resume = resume  # the place of the same reader on an earlier connection
        self.task: Any = None
        self.ended = self._left = False
        self.error: RunnelError | None = None
        self.delivered = self.dropped_count = self.expired = 0
        self._flow: OverflowPolicy | None = None  # set by `enter`
        self._moved: Callable[[LocalReader], None] | None = None  # called when its place changes
        self.is_quiet = False  # whether single records need no `confirm`: `in_hand` is asked
        self.in_hand: Callable[[], int | None] = nothing_in_hand
        self._watches: list[ProcessedWaiter] = []
        self._place = self._sent = 0  # the places after the last record confirmed, and taken
        self._shown = 0  # after the last record returned: those between it and `_sent` have expired
        self._out: deque[OutRun] = deque()  # strict policies: the records taken and not confirmed
        self._is_far = far
        self._given = self._taken = 0  # far: records sent to the client, and taken by its user
        self._unreadable = self._expired_there = 0  # far: totals that the client reported
        self._last = until  # the place where it ends, if that is set
        self._alike = ""  # equal for readers that take the same records from the same place

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open" if self._flow is not None else "not entered"
        return f"<LocalReader {self.label!r} {state}, taken up to {self._sent}, confirmed up to {self._place}>"

    @property
    def overflow(self) -> OverflowPolicy:
        """The overflow policy; raises before `enter`."""
        if self._flow is None:
            raise SubscriptionMisused(self.label, "enter it first: `async with broker.subscribe(...) as ...`")
        return self._flow

    @property
    def is_exact(self) -> bool:
        """Whether every record must be confirmed separately: its position is stored, or its policy counts records."""
        return self._moved is not None or self.overflow.strict

    @property
    def is_eager(self) -> bool:
        """Whether records may be sent ahead of the user. Not with a policy or bounds, which have to act exactly."""
        return self.options.lags

    @property
    def buffer(self) -> int:
        """How many records it may lag by."""
        return self.overflow.buffer

    # -- coming and going ---------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Set the start position, and be woken by publishes from now on."""
        if self._flow is not None:
            raise SubscriptionMisused(self.label, "it was entered before; subscribe again for another one")
        self._events.check_usable("subscribing")
        if self.name is not None and self.name in self._positions.open:
            raise NameInUse(self.name)
        options, is_kept = self.options, self._on_disk
        with self.attachment.covering():
            if options.hold and not is_kept():
                raise NotSupported("hold=True", f"topic {self.pattern!r} is kept in memory only")
            self._check_end()
            cursor, missed = self._starting()
        policy = options.policy or Policy()
        kind = KeepOnDisk if options.lags and is_kept() else OVERFLOW_POLICIES[policy.kind]
        buffer, buffer_bytes = options.buffer or KEEP_COUNT, options.buffer_bytes or KEEP_BYTES
        eager = options.on_drop is not None or options.dead_letter is not None
        flow = self._flow = kind(cursor, policy, buffer, buffer_bytes, self, eager=eager)
        flow.missed = missed
        store = self._positions.store
        self._moved = None if self.name is None or store is None else store.moved
        self._place = self._sent = self._shown = cursor.position
        alike = (self.pattern, self.is_pattern, kind, options.buffer, options.buffer_bytes)
        self._alike = intern(repr(alike))  # interned: compared by identity
        self.attachment.attach(self)
        if self.name is not None:
            self._positions.open[self.name] = self
            if options.hold is not None and store is not None:
                store.hold(self, self.name, self._where(), hold=options.hold)

    def _on_disk(self) -> bool:
        """Whether its topics are durable, or will be unless they are declared otherwise."""
        if self.attachment.cursors.reads is None:
            return False
        return self.is_pattern or any(log.options.durable is not False for log in self.attachment.logs)

    def _check_end(self) -> None:
        """Raise if its topic ends before the offset `until`. Ignored for a pattern."""
        if self.is_pattern:
            self._last = None
        elif self._last is not None:
            (found,) = self.attachment.logs
            if self._last > found.end:
                raise OffsetOutOfRange(found.name, self._last, found.first, found.end)

    def _starting(self) -> tuple[Cursor, MissedRange | None]:
        start: Start = self.options.start
        if self._resume is not None:
            start = self._resume
        elif self.name is not None and (stored := self._positions.stored.get(self.name)) is not None:
            pattern, start = stored
            if pattern != self.pattern:
                raise InvalidOption("name", self.name, f"it holds a position on {pattern!r}, not on {self.pattern!r}")
        elif start is None:
            start = "latest" if self.name is None else "earliest"
        return self.attachment.cursor(start)

    def end(self, error: RunnelError | None = None) -> None:
        """End it. Records published before are still taken, unless it ends with an error."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self.attachment.detach(self):  # else it was never entered
            if self.name is not None:
                self._positions.keep(self.name, *self._where())
                del self._positions.open[self.name]
            for watch in self._watches:
                watch.tell()
            self._events.ended(self)
            self.made_room()
        self.wake()

    def leave(self, place: int | None = None) -> None:
        """Stop reading; every record before `place` was processed. A name keeps its position."""
        if place is not None:
            self.confirm(place)
        self._left = True
        self.end()

    async def left(self) -> None:
        """Return at once: the broker detached this reader in `leave`."""

    def finish(self) -> None:
        """End it after the records published before this call; records published later are not read."""
        if self._last is not None and not self.ended:
            return  # its end is set already
        if not self.ended and self._flow is not None:
            cursor = self._flow.cursor
            self._last = self.attachment.timeline.sequence if self.is_pattern else cursor.position + cursor.pending()
        self.end()

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before it reached `until`, or the end that `finish` set."""
        return self._last is not None and self.ended and not self._is_done()

    def _is_done(self) -> bool:
        if self._last is None or self.overflow.put_aside() is not None:
            return False  # the policy still holds earlier records
        return self.overflow.cursor.position >= self._last

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """Take up to `limit` records, and the range missed before them. None: nothing now, or it has ended."""
        flow = self._flow
        if flow is None or self.error is not None or self._left:
            return None
        taken = None if self._is_done() else flow.take(limit)
        if taken is None:
            if self._last is not None and self._is_done():  # also where nothing was left but a hole
                self.end()
            return None
        slices, missed = taken
        if self._last is not None:
            slices = self._up_to(self._last, slices)
        if slices:
            self._went_out(slices, flow)
            if any(part.metas for part in slices):
                slices, expired = without_expired(slices, self.clock.time())
                self.expired += expired
        count = sum(map(len, slices))
        if missed is not None:
            self.dropped_count += missed.count
            if self.options.strict:
                gap = Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)
                self.end(RecordsMissed(self.label, gap))
                return None
        if self._is_far:
            self._given += count
        else:
            self.delivered += count
        if slices:
            last = slices[-1]
            self._shown = (last.sequence if self.is_pattern else last.start) + len(last)
        return Taken(slices, missed)

    def _went_out(self, slices: list[Slice], flow: OverflowPolicy) -> None:
        is_pattern = self.is_pattern
        if self._place >= self._sent:  # all is confirmed: offsets before the first of these are holes
            self._place = slices[0].sequence if is_pattern else slices[0].start
        for part in slices:
            first = part.sequence if is_pattern else part.start
            self._sent = first + len(part)
            if flow.strict:
                self._out.append(OutRun(first, list(map(len, part.values))))
                self.is_quiet = False

    def _up_to(self, last: int, slices: list[Slice]) -> list[Slice]:
        """The records before the place `last`."""
        kept: list[Slice] = []
        for part in slices:
            first = part.sequence if self.is_pattern else part.start
            if first + len(part) <= last:
                kept.append(part)
            elif first < last:
                kept.append(part.cut(part.start, part.start + last - first))
        return kept

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """Do the same as `take`, or reuse what a reader at the same place took.

        `steps` are those of this event loop iteration; a new one is added. Parks if there is nothing to take.
        """
        flow = self.overflow
        cursor = flow.cursor
        plain = not (self.ended or flow.strict or flow.history) and flow.missed is None
        place = (self._alike, cursor.position) if plain and cursor.is_clear else None
        if place is not None and (step := steps.get(place)) is not None:
            cursor.follow(step.position, is_last=step.is_last)
            self._sent = self._shown = step.sent
            self._given += step.count
            return step
        expired = self.expired
        taken = self.take(limit)
        if taken is None:
            if not self.ended:
                self.park()
            return None
        slices, missed = taken
        gap = None
        if missed is not None:
            gap = Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)
        step = SharedStep(gap, slices, cursor.position, self._sent, is_last=not (self.ended or cursor.pending()))
        if place is not None and gap is None and slices and self.expired == expired:
            steps[place] = step
        return step

    def park(self) -> None:
        """Wait for records: `wake` is called when there are some."""
        # A reader that is cancelled while it waits stays in the list of parked readers, which is harmless.
        self.attachment.park(self)

    def ahead(self) -> int:
        """How many records can be taken."""
        return self.overflow.lag()

    def encoding_of(self, topic: str) -> str | None:
        """The encoding of the values of `topic`; None if it has no type."""
        return self.attachment.encoding_of(topic)

    # -- where it is --------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset (of a pattern, the sequence) of the first unconfirmed record."""
        if self._place < self._sent:
            place = self.in_hand()
            return self._place if place is None else place
        aside = self.overflow.put_aside()
        if aside is not None:
            return aside.sequence if self.is_pattern else aside.start
        return self.overflow.cursor.position

    @property
    def sent(self) -> int:
        """The place after the last record that was taken."""
        return self._sent

    def confirm(self, place: int) -> None:
        """The user has processed every record before `place`."""
        if place < self._place:
            return  # a later place was confirmed before
        self._place = place = place if place < self._shown else self._sent
        if self._out:
            run = self._out[0]
            at = run.at
            if place - run.first == at + 1 < len(run.sizes):  # the usual case: one record
                run.at = at + 1
                self._flow.done(run.sizes[at])  # type: ignore[union-attr]  # there are unconfirmed records, so it was entered
            else:
                self._pass_out(place)
            if self._moved is None and not self._watches and not self._is_far:
                return
        if self._is_far and self.task is None:
            self.task = FAR_TASK  # the client has begun to read
        if self._moved is not None and not self.ended:
            self._moved(self)
        if self._watches:
            self._tell_watches()
        self.is_quiet = not (self._out or self._watches)

    def _pass_out(self, place: int) -> None:
        """Release the records before `place` from a strict policy."""
        out, flow = self._out, self._flow
        assert flow is not None
        while out:
            run = out[0]
            at, sizes, behind = run.at, run.sizes, place - run.first
            if behind <= at:
                return
            run.at = behind
            if behind >= len(sizes):
                out.popleft()
            passed = sizes[at:behind]
            flow.done(sum(passed), len(passed))

    def _tell_watches(self) -> None:
        position = self.position
        for watch in [watch for watch in self._watches if watch.place < position]:
            watch.tell()
            self._watches.remove(watch)

    def place(self) -> tuple[str, Position | int] | None:
        """What is stored under its name: its pattern, and a position or sequence; None once it has ended."""
        return None if self.ended else self._where()

    def _where(self) -> tuple[str, Position | int]:
        if self.is_pattern:
            return self.pattern, self.position
        (found,) = self.attachment.logs
        return self.pattern, found.position(self.position)

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""
        return None if self.is_pattern else next(iter(self.attachment.logs)).epoch

    @property
    def epochs(self) -> list[int]:
        """The epochs of the topics that it reads now."""
        return [found.epoch for found in self.attachment.logs]

    @property
    def changes(self) -> int:
        """Counts how often a topic that it reads was created or deleted."""
        return self.attachment.changes

    def end_sequence(self) -> int | None:
        """The sequence after the last visible record, if all records were taken up to it; else None."""
        return None if self.overflow.cursor.pending() else self.attachment.timeline.sequence

    # -- what is counted ----------------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Records published and not yet taken by the user, also those already sent to a client."""
        lag = self.overflow.lag()
        # strict: the policy counts unconfirmed records
        return lag if self.overflow.strict or not self._is_far else lag + self._given - self._taken

    def unreadable(self, count: int) -> None:
        """Count `count` of the records taken as dropped: they could not be decoded."""
        self.delivered -= count
        self.dropped_count += count

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """Set the totals that the client reports: records taken, and of these the expired and the unreadable ones."""
        self._taken = max(self._taken, min(taken, self._given))
        if expired > self._expired_there:
            self.expired += expired - self._expired_there
            self._expired_there = expired
        if unreadable > self._unreadable:
            self.dropped_count += unreadable - self._unreadable
            self._unreadable = unreadable
        self.delivered = max(self.delivered, self._taken - self._expired_there - self._unreadable)

    def count_all(self) -> None:
        """Count all records sent as taken, for a client that reports no totals."""
        self.count(self._given, 0, 0)

    def pass_all(self) -> None:
        """Count all records sent as taken and processed, for a client that reports nothing."""
        if self._moved is None and not self._out and not self._watches:
            self._place, self._taken = self._sent, self._given
            self.delivered = self._given - self._expired_there - self._unreadable
            self.task = FAR_TASK
            return
        self.confirm(self._sent)
        self.count(self._given, 0, 0)

    # -- what the broker does with it ---------------------------------------------------------------------------

    def join(self, found: Log) -> None:
        """A topic that matches the pattern was created."""
        self.attachment.join(found, self)

    def part(self, found: Log) -> None:
        """A topic of the pattern was deleted; its unread records are reported as a gap."""
        self.attachment.part(found)

    def settle(self) -> None:
        """Apply the bounds before records are removed from memory."""
        if self.is_pattern and self.overflow.cursor.pending():
            self.overflow.settle()

    def watch(self, found: Log, watch: ProcessedWaiter) -> None:
        """Resolve `watch` when the record at its offset of `found` was processed."""
        if self.is_pattern:
            watch = watch._replace(place=self.attachment.timeline.sequence_of(found, watch.place))
        self._watches.append(watch)
        self.is_quiet = False
        self._tell_watches()

    def disconnect(self, drops: int) -> None:
        """End it with `Disconnected`: it dropped too many records in a row."""
        self.end(Disconnected(self.label, drops, self.overflow.policy.after))

    def dropped(self, slices: list[Slice]) -> None:
        """Hand dropped records to the callback and the dead-letter topic."""
        for part in slices:
            for record in part.records:
                if self.options.on_drop is not None:
                    self._call(self.options.on_drop, record)
                # A dropped dead letter is not published again, or two topics could pass it back and forth for ever.
                if self.options.dead_letter is not None and not dead_letter.is_dead_letter(record):
                    self._call(self._bury, record)

    def _bury(self, record: Record[bytes]) -> None:
        topic, publisher = self.options.dead_letter, self._publisher
        assert topic is not None, "only called where there is one"
        headers = dead_letter.dead_letter_headers(record, "dropped", subscriber=self.label)
        entry = publisher.own(topic, record.value, record.key, headers)
        found = self.attachment.catalog.find(topic, UNDECLARED)
        if publisher.append_now(found, entry) is None:
            raise publisher.full(found, entry)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function. Its exceptions are logged, and do not reach the publisher."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)
