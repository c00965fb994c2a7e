"""The local `Reader`: a cursor under an overflow policy, with its position and its counters.

A record counts as processed when the place after it is confirmed, not when it is taken. So positions, `block` and
`publish_and_wait` mean the same for a task of this process and for a client at the other end of a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from sys import intern
from typing import Any

from runnel.broker.latency_probe import LatencyProbe
from runnel.broker.read.attachment import Attachment
from runnel.broker.read.cursor import LogCursor
from runnel.broker.read.overflow import OVERFLOW_POLICIES, KeepOnDisk, OverflowPolicy
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.topic.log import Log, LogRun
from runnel.broker.topic.named_positions import NamedPositions
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import ProcessedWaiter
from runnel.core import dead_letter
from runnel.core.backend import SharedStep, SharedSteps, Taken
from runnel.core.batch import Slice, without_expired
from runnel.core.by_reference import REASON, ByReference, has_references
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
from runnel.core.record import Gap, MissedRange, Record, joined_missed
from runnel.core.schema import ObjectCodec
from runnel.runtime.waiting import resolve_waiter

log = logging.getLogger("runnel")

FAR_BYTES = 1 << 20  # what a reader over a connection takes at once from memory, and so holds while its client waits
DROPPED = "dropped"  # the reason of its dead letters
FAR_TASK: Any = object()  # represents the task of a client that reads over a connection


def nothing_in_hand() -> None:
    """The default of `in_hand`: the user has no record."""


class OutRun:
    """Consecutive records that were taken: first place, slice, and the index of the first unconfirmed one."""

    __slots__ = ("at", "first", "part")

    def __init__(self, first: int, part: Slice) -> None:
        self.first, self.part, self.at = first, part, 0

    def passed(self, behind: int) -> int:
        """Confirm the records before the index `behind`; their bytes."""
        at, self.at = self.at, behind
        if at == 0 and behind == len(self.part):
            return self.part.size
        return sum(map(len, self.part.values[at:behind]))


class LocalReader:
    """One subscription of a broker in this process. See `core.backend.Reader`."""

    members = 1  # itself

    def __init__(
        self,
        attachment: Attachment,
        positions: NamedPositions,
        publisher: Publisher,
        check_usable: Callable[[str], None],
        on_end: Callable[[LocalReader], None],
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
        self._positions, self._publisher = positions, publisher
        self._check_usable, self._on_end = check_usable, on_end
        self.pattern, self.is_pattern, self.name = attachment.pattern, attachment.is_pattern, options.name
        # Attributes, to save a call through this object: wake the user; let blocked publishers continue.
        self.wake, self.made_room = wake, publisher.release
        options.check_for(attachment.patterns, several=self.is_pattern)
        self._resume = resume  # the place of the same reader on an earlier connection
        self.task: Any = None
        self.principal: str | None = None  # set by a server that knows the login
        self.on_presence: Callable[[], None] | None = None  # set by a server: a lost client has to leave soon
        self.since = 0.0  # when it was entered
        self.is_eager = options.lags  # whether records may be sent ahead; policies and bounds have to act exactly
        self.ended = self._left = False
        self.error: RunnelError | None = None
        self.delivered = self.dropped_count = self.expired = 0
        self.last_ack: float | None = None  # when a named one last confirmed a record
        self._flow: OverflowPolicy | None = None  # set by `enter`
        self._moved: Callable[[LocalReader], None] | None = None  # called when its place changes
        self.is_quiet = False  # whether single records need no `confirm`: the backend calls `in_hand`
        self.due = 0  # if they do: the first place that does
        self.in_hand: Callable[[], int | None] = nothing_in_hand
        self._watches: list[ProcessedWaiter] = []
        self._place = self._sent = 0  # the places after the last record confirmed, and taken
        self._shown = 0  # after the last record returned: those between it and `_sent` have expired
        self._out: deque[OutRun] = deque()  # strict policies: the records taken and not confirmed
        self._is_far = far
        self._given = self._taken = 0  # far: records sent to the client, and taken by its user
        self._unreadable = self._expired_there = 0  # far: totals that the client reported
        self._last = until  # the place where it ends, if that is set
        self.probe: LatencyProbe | None = None
        self._probe_at: float = inf  # the count of records from which on `probe` measures
        self.count_letter: Callable[[str, str, str], None] = lambda pattern, subscriber, reason: None
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
    def buffer(self) -> int:
        """How many records it may lag by."""
        return self.overflow.buffer

    # -- coming and going ---------------------------------------------------------------------------------------

    def enter(self) -> Awaitable[None] | None:
        """Set the start position, and be woken by publishes from now on."""
        if self._flow is not None:
            raise SubscriptionMisused(self.label, "it was entered before; subscribe again for another one")
        self._check_may_enter()
        start = self._chosen_start()
        asked = self.attachment.old_place(start)
        return self._enter_at(start, None) if asked is None else self._enter_later(start, asked)

    async def _enter_later(self, start: Start, asked: Coroutine[Any, Any, int]) -> None:
        """Enter when a source of history has said where that is."""
        place = await asked
        self._check_may_enter()
        if not self.ended and (standing := self._enter_at(start, place)) is not None:
            await standing

    def _check_may_enter(self) -> None:
        self._check_usable("subscribing")
        if self.name is not None and self.name in self._positions.open:
            raise NameInUse(self.name)

    def _enter_at(self, start: Start, place: int | None) -> Awaitable[None] | None:
        options, is_kept = self.options, self._on_disk
        with self.attachment.covering():
            if options.hold and not is_kept():
                raise NotSupported("hold=True", f"topic {self.pattern!r} is kept in memory only")
            self._check_end()
            if self._is_far and not self.is_pattern:
                for found in self.attachment.logs:
                    if isinstance(found.type, ObjectCodec):
                        raise NotSupported(f"reading {found.name!r} over a connection", REASON)
            cursor, missed = self.attachment.cursor(start, with_history=True, place=place)
        if self._last is not None and isinstance(cursor, LogCursor):
            cursor.until = self._last
            if cursor.log.options.compact:
                cursor.read_from_disk()  # a range of a table is the same from here as from its folder
        policy = options.policy or Policy()
        kind = KeepOnDisk if options.lags and is_kept() else OVERFLOW_POLICIES[policy.kind]
        buffer, buffer_bytes = options.buffer or KEEP_COUNT, options.buffer_bytes or KEEP_BYTES
        eager = options.on_drop is not None or options.dead_letter is not None
        flow = self._flow = kind(cursor, policy, buffer, buffer_bytes, self, eager=eager)
        flow.missed = missed
        if self._is_far:
            cursor.max_bytes = FAR_BYTES
        store = self._positions.store
        self._moved = None if self.name is None or store is None else store.moved
        self._place = self._sent = self._shown = cursor.position
        self.since = self.clock.time()
        alike = (self.pattern, self.is_pattern, kind, options.buffer, options.buffer_bytes)
        self._alike = intern(repr(alike))  # interned: compared by identity
        is_turn_over = self.attachment.attach(self)
        if self.name is not None:
            self._positions.open[self.name] = self
            if options.hold is not None and store is not None:
                store.hold(self, self.name, self._where(), hold=options.hold)
        return self._pause() if is_turn_over else None

    def _pause(self) -> Awaitable[None]:
        """Done in the next turn of the event loop; if it is cancelled instead, the reader leaves."""
        loop = asyncio.get_running_loop()
        pause: asyncio.Future[None] = loop.create_future()
        pause.add_done_callback(lambda pause: self.leave() if pause.cancelled() else None)
        loop.call_soon(resolve_waiter, pause)
        return pause

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

    def _chosen_start(self) -> Start:
        start: Start = self.options.start
        if self._resume is not None:
            start = self._resume
        elif self.name is not None and (stored := self._positions.stored.get(self.name)) is not None:
            pattern, start = stored
            if pattern != self.pattern:
                raise InvalidOption("name", self.name, f"it holds a position on {pattern!r}, not on {self.pattern!r}")
        elif start is None:
            start = "latest" if self.name is None else "earliest"
        return start

    def end(self, error: RunnelError | None = None) -> None:
        """End it. Records published before are still taken, unless it ends with an error."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if error is not None:
            self._stop_old()
        if self.attachment.detach(self):  # else it was never entered
            if self.name is not None:
                self._positions.keep(self.name, *self._where())
                del self._positions.open[self.name]
            for watch in self._watches:
                watch.tell()
            self._on_end(self)
            self.made_room()
        self.wake()

    def leave(self, place: int | None = None) -> None:
        """Stop reading; every record before `place` was processed. A name keeps its position."""
        if place is not None:
            self.confirm(place)
        self._left = True
        self._stop_old()
        self.end()

    def _stop_old(self) -> None:
        """Ask no source of history any more."""
        if self._flow is not None:
            self._flow.cursor.stop()

    async def left(self) -> None:
        """Return at once: the broker detached this reader in `leave`."""

    def finish(self, *, whole: bool = True) -> None:
        """End it after the records published before this call; records published later are not read.

        Not `whole`: without those that would have to be fetched from disk.
        """
        if self._last is not None and not self.ended:
            return  # its end is set already
        if not self.ended and self._flow is not None:
            cursor = self._flow.cursor
            self._last = self.attachment.timeline.sequence if self.is_pattern else cursor.position + cursor.pending()
            if whole and not self._is_done() and self._on_disk():
                self.wake()  # records on disk must be read first: `take` ends it
                return
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
        last = self._last
        taken = None if last is not None and self._is_done() else flow.take(limit)
        if taken is None:
            if last is not None and self._is_done():  # also where nothing was left but a hole
                self.end()
            return None
        slices, missed = taken
        if last is not None:
            slices = self._up_to(last, slices)
        count = 0
        if slices:
            self._went_out(slices, flow)
            for part in slices:
                if part.columns is not None and last is None:  # a range is what the topic holds, expired or not
                    slices, expired = without_expired(slices, self.clock.time())
                    self.expired += expired
                    break
            if self._is_far and ByReference.is_used:
                slices, missed = self._without_references(slices, missed)
            for part in slices:
                count += len(part)
        if missed is not None:
            self.dropped_count += missed.count
            if self.options.strict:
                gap = Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)
                self.end(RecordsMissed(self.label, gap))
                return None
        if self._is_far:
            total = self._given = self._given + count
        else:
            total = self.delivered = self.delivered + count
        if slices:
            if total >= self._probe_at:
                self._measure(slices[0], total)
            part = slices[-1]
            self._shown = (part.sequence if self.is_pattern else part.start) + len(part)
        return Taken(slices, missed)

    def measure_with(self, probe: LatencyProbe) -> None:
        """Have the age of some of the records that it takes measured."""
        self.probe, self._probe_at = probe, 0

    def wake_probe(self) -> None:
        """Measure the next record, if nothing was measured for an interval."""
        if self.probe is not None and self.probe.is_asleep():
            self._probe_at = 0

    def _measure(self, part: Slice, total: int) -> None:
        assert self.probe is not None, "without one no count is reached"
        self._probe_at = self.probe.measure(part.time_of_first.timestamp(), self.clock.time(), total)

    def _without_references(
        self, slices: list[Slice], missed: MissedRange | None
    ) -> tuple[list[Slice], MissedRange | None]:
        """Objects that pass by reference stay in this process: a client gets a gap instead."""
        kept = []
        for part in slices:
            if has_references(part.values):
                first = part.sequence if self.is_pattern else part.start
                missed = joined_missed(missed, MissedRange(first, first + len(part), len(part), REASON))
            else:
                kept.append(part)
        return kept, missed

    def _went_out(self, slices: list[Slice], flow: OverflowPolicy) -> None:
        is_pattern = self.is_pattern
        if self._place >= self._sent:  # all is confirmed: offsets before the first of these are holes
            self._place = slices[0].sequence if is_pattern else slices[0].start
        for part in slices:
            first = part.sequence if is_pattern else part.start
            self._sent = first + len(part)
            if flow.strict:
                self._out.append(OutRun(first, part))

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
            cursor.go_to(step.position)
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
        self.is_quiet = True  # unless the next records require more
        flow = self._flow
        if self._out and flow is not None:
            self._pass_out(place, flow)
            flow.told()
            if flow.is_full:
                self.hurry()
        if self._is_far and self.task is None:
            self.task = FAR_TASK  # the client has begun to read
        if self.name is not None and not self.ended:
            self.last_ack = self.clock.time()
            if self._moved is not None:
                self._moved(self)
        if self._watches:
            self._tell_watches()
            if self._watches:
                self.hurry()

    def _pass_out(self, place: int, flow: OverflowPolicy) -> None:
        """Release the records before `place` from a strict policy."""
        out = self._out
        while out:
            run = out[0]
            at, count = run.at, len(run.part)
            behind = min(count, place - run.first)
            if behind <= at:
                return
            if behind == count:
                out.popleft()
            flow.passed(run.passed(behind), behind - at)

    def report(self) -> None:
        """Have the policy count what the user is done with by now, which need not have been confirmed one by one."""
        place = self.in_hand() if self._out else None
        if place is not None and place > self._place:
            self._place = place
            self._pass_out(place, self.overflow)

    def hurry(self, count: int = 0, size: int = 0) -> None:
        """Have a place confirmed as soon as so many more records, of so many bytes, are before it; without: any."""
        due = self._place_behind(count, size) if count else 0
        self.due = due if self.is_quiet else min(self.due, due)
        self.is_quiet = False

    def _place_behind(self, count: int, size: int) -> int:
        """The place behind the next `count` records that the user has, and `size` bytes; or behind all of them."""
        for run in self._out:
            at, end = run.at, len(run.part)
            if size > 0:
                for value in run.part.values[at:]:
                    at, count, size = at + 1, count - 1, size - len(value)
                    if count <= 0 and size <= 0:
                        return run.first + at
            elif count <= end - at:
                return run.first + at + count
            else:
                count -= end - at
        return self._sent

    def limit(self, *, limited: bool) -> None:
        """Add the policy to those that publishers check before a publish, or remove it."""
        self.attachment.limit(self, limited=limited)

    def _tell_watches(self) -> None:
        position = self.position
        for watch in [watch for watch in self._watches if watch.place < position]:
            watch.tell()
            self._watches.remove(watch)

    def place(self) -> tuple[str, Position | int] | None:
        """The stored state of its name: its pattern, and a position or sequence; None once it has ended."""
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

    # -- counters ------------------------------------------------------------------------------------------------

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

    def covers(self, topic: str) -> bool:
        """It reads every topic that its pattern matches."""
        return True

    def note(self, run: LogRun) -> bool:
        """A run of a topic that matches the pattern begins; whether it has noted so many that it should `settle`."""
        return self._pattern_cursor.note(run)

    @property
    def _pattern_cursor(self) -> PatternCursor:
        cursor = self.overflow.cursor
        assert isinstance(cursor, PatternCursor), "topics tell only readers of patterns"
        return cursor

    def join(self, found: Log) -> None:
        """A topic that matches the pattern was created."""
        self.attachment.join(found)

    def part(self, found: Log) -> None:
        """A topic of the pattern was deleted; its unread records are reported as a gap."""
        self.attachment.part(found)
        self._pattern_cursor.part(found)

    def settle(self) -> None:
        """Apply the bounds to the records ahead."""
        if self.overflow.cursor.pending():
            self.overflow.settle()

    def watch(self, found: Log, watch: ProcessedWaiter) -> None:
        """Resolve `watch` when the record at its offset of `found` was processed."""
        if self.is_pattern:
            watch = watch._replace(place=self.attachment.timeline.sequence_of(found, watch.place))
        self._watches.append(watch)
        self.hurry()
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
        headers = dead_letter.dead_letter_headers(record, DROPPED, subscriber=self.label)
        entry = publisher.own(topic, record.value, record.key, headers)
        found = self.attachment.catalog.find(topic, UNDECLARED)
        if publisher.append_now(found, entry) is None:
            raise publisher.full(found, entry)
        self.count_letter(self.pattern, self.name or self.label, DROPPED)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function. Its exceptions are logged, and do not reach the publisher."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)
