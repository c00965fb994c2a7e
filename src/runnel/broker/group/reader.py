"""A group at work: brings records from the logs to the group's logic, and carries its effects out.

It outlives its members. Records that are not acked stay, and publishers wait (`block`) before anything would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from random import random
from typing import TYPE_CHECKING, Any, Protocol

from runnel.broker.durable.pending_acks import PendingAcks
from runnel.broker.durable.pending_state import PendingState
from runnel.broker.group.dead_letter_publisher import DeadLetterPublisher
from runnel.broker.group.delayed_records import DelayedRecords
from runnel.broker.group.logic.group import GroupLogic, GroupOptions
from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.records import (
    bring_records,
    bring_unsettled,
    empty_ranges,
    group_slice,
    pass_settled,
)
from runnel.broker.group.turns import GroupTurns
from runnel.broker.latency_probe import LatencyProbe
from runnel.broker.read.attachment import Attachment
from runnel.broker.read.cursor import Cursor, LogCursor
from runnel.broker.read.overflow import BlockPublishers, PolicyOwner
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import CHUNK, SMALL
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import ProcessedWaiter
from runnel.core.backend import Taken
from runnel.core.batch import Slice
from runnel.core.clock import Clock, Timer
from runnel.core.errors import InvalidOption, NotSupported, RunnelError
from runnel.core.options import Policy, positive
from runnel.core.pattern import check_name
from runnel.core.position import check_start
from runnel.core.record import MissedRange
from runnel.core.statistics import GroupStatistics, MemberStatistics
from runnel.journal.format.ledger import GroupState
from runnel.runtime.dead_letter_log import DeadLetterLog
from runnel.runtime.loop_owner import LoopOwner

if TYPE_CHECKING:
    from runnel.broker.topic.log import Log, LogRun
    from runnel.core.position import Start


class GroupOverflowPolicy(BlockPublishers):
    """Lose nothing: publishers wait while the group holds its bound, unless its records are on disk.

    Publishers need not ask a group that lags. Of a topic in memory the group notes up to which end of the log it has
    room in any case: its lag grows by publishes only.
    """

    __slots__ = ("_counted", "beyond", "clear_bytes", "clear_end", "group", "log", "revived")

    def __init__(
        self, cursor: Cursor, buffer: int, buffer_bytes: int, owner: PolicyOwner, group: GroupLogic, *, lags: bool
    ) -> None:
        super().__init__(cursor, Policy.block(), buffer, buffer_bytes, owner)
        self.group, self.limited = group, not lags
        self.log = cursor.log if isinstance(cursor, LogCursor) else None
        self.clear_end = self.clear_bytes = 0
        self.revived: GroupState | None = None  # what it had done in an earlier life, until it has passed that
        self.beyond: PatternCursor | None = None  # of a pattern: behind all of those, to count later records
        self._counted: tuple[int, int] | None = None  # a place, and how many were settled from there on
        self.history = self.history_bytes = 0  # a group owes everything it has not settled, whenever it was published

    def take(self, limit: int) -> Taken | None:
        """The next records; the group counts them until they are settled."""
        return self.cursor.take(limit)

    def room(self) -> int:
        """How many small records may come before the group must be checked again."""
        if self._is_clear(CHUNK, CHUNK * SMALL):
            return CHUNK
        self.held_bytes = self.group.unsettled_bytes
        return super().room()

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether so much may be published; one record always may when nothing waits."""
        if self._is_clear(count + coming, size + coming_bytes):
            return True
        self.held_bytes = self.group.unsettled_bytes
        if self.log is not None:
            max_count, max_size = self._bounds()
            self.clear_end = self.log.end + max_count - self.lag()
            # Records that the group dropped are read again, and count again then.
            self.clear_bytes = self.log.count_bytes() + max_size - self.cursor.pending_bytes() - self.group.open_bytes
        return super().fits(count, size, coming, coming_bytes)

    def _is_clear(self, count: int, size: int) -> bool:
        """Whether there was room for so much when that was last looked at, and nothing can have taken it."""
        log = self.log
        return log is not None and log.end + count <= self.clear_end and log.count_bytes() + size <= self.clear_bytes

    def bound(self, buffer: int, buffer_bytes: int) -> None:
        """The group may hold so much."""
        self.buffer, self.buffer_bytes, self.clear_end = buffer, buffer_bytes, 0

    def move(self, cursor: Cursor) -> None:
        """The group was reset: it reads from another place."""
        self.cursor, self.clear_end = cursor, 0
        self.revive(None)

    def settled_ahead(self) -> int:
        """Records ahead that were settled in an earlier life."""
        known = self.revived
        if known is None:
            return 0
        at = self.cursor.position
        if self._counted is None:
            self._counted = at, known.settled.count(at, known.end)
        then, places = self._counted
        if then != at:  # asked about every record, of very many ranges: count on from where it was
            places -= known.settled.count(then, at)
            self._counted = at, places
        if self.beyond is None:
            return places
        # Settled places of a pattern are not all records of its own, but those that are not settled are.
        unsettled = max(0, known.end - at - places)
        return max(0, self.cursor.known() - self.beyond.known() - unsettled)

    def revive(self, known: GroupState | None, beyond: PatternCursor | None = None) -> None:
        """Skip records settled before the restart; None: all are skipped."""
        self.revived, self.beyond, self._counted = known, beyond, None

    def note(self, run: LogRun) -> bool:
        """A run of a topic that the pattern covers begins."""
        assert isinstance(self.cursor, PatternCursor), "topics tell only readers of patterns"
        if self.beyond is not None:
            self.beyond.note(run)
        return self.cursor.note(run)

    def look_ahead(self) -> None:
        """Remember the records ahead."""
        self.cursor.pending()
        if self.beyond is not None:
            self.beyond.known()

    def lag(self) -> int:
        """Records published for the group and not settled."""
        return self.group.unsettled + max(0, self.cursor.known() - self.settled_ahead())


# -- Warning about a stalled group -----------------------------------------------------------------------


log = logging.getLogger("runnel")

STALL_SECONDS = 30.0  # seconds without a member, or without anything settled, before that is warned about


class StallWarning:
    """When something was last settled, and whether it was said that this is long ago."""

    __slots__ = ("_label", "_moved", "_owed", "_settled", "has_warned")

    def __init__(self, label: str, now: float) -> None:
        self._label, self._moved = label, now
        self._settled = self._owed = 0
        self.has_warned = False

    def __repr__(self) -> str:
        return f"<StallWarning about {self._label!r} since {self._moved:.3f}>"

    def reset(self, now: float) -> None:
        """A member came, or the group was reset: its time begins now."""
        self._moved, self.has_warned = now, False

    def look(self, now: float, settled: int, settled_at: float, owed: int, members: int) -> float:
        """So many were settled, the last at `settled_at`, and so many could be; warn if that stays so.

        Returns when to look again.
        """
        if settled != self._settled and owed and self._owed:
            self.reset(settled_at)
        elif not owed or not self._owed:
            self.reset(now)
        if now - self._moved >= STALL_SECONDS and not self.has_warned:
            self.has_warned = True
            why, waited = "has settled nothing" if members else "has no member", now - self._moved
            log.warning("group %r %s for %.0f s while %s records wait", self._label, why, waited, f"{owed:,}")
        self._settled, self._owed = settled, owed
        return self._moved + STALL_SECONDS if owed and not self.has_warned else inf


# -- The reader ------------------------------------------------------------------------------------------


BUFFER = 10_000_000  # records, and bytes, that may wait in a group before publishers do
BUFFER_BYTES = 1024 * 1024 * 1024
LOOK = 4096  # records brought in one turn of the loop; those that wait for their time are no bound


class GroupMember(Protocol):
    """A member, as its group needs it."""

    presence: str | None  # the presence text of the member
    principal: str | None  # who logged in
    since: float  # when it joined
    on_presence: Callable[[], None] | None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The one that reads, if it is of this process."""

    @property
    def label(self) -> str:
        """Its name."""

    @property
    def prefetch(self) -> int:
        """How many records it may hold."""

    @property
    def prefetch_bytes(self) -> int | None:
        """How many bytes it may hold."""

    def receive(self, lease: Lease) -> None:
        """Records were granted to it."""

    def forget(self) -> None:
        """The leases granted are void."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more deliveries."""


class GroupReader:
    """One group on one topic or pattern. `broker.group(name, pattern)` gives it to the user."""

    def __init__(
        self,
        attachment: Attachment,
        publisher: Publisher,
        progress: PendingState | None,
        loop_owner: LoopOwner,
        turns: GroupTurns,
        clock: Clock,
        name: str,
        options: GroupOptions,
        start: Start,
        buffer: int | None,
        buffer_bytes: int | None,
    ) -> None:
        pattern = attachment.pattern
        self.name = check_name(name)
        self.label = f"{name} on {pattern}"
        self.attachment, self.clock = attachment, clock
        self.publisher, self._progress, self._loop_owner, self._turns = publisher, progress, loop_owner, turns
        self.dead_letter = check_name(options.dead_letter or f"dead-letters.{name}")
        if pattern == self.dead_letter:
            raise InvalidOption("dead_letter", self.dead_letter, f"the group itself reads {pattern!r}")
        retry = None if progress is None else progress.call_later
        self.dead_letters = DeadLetterPublisher(
            publisher, attachment.catalog, retry, name, self.dead_letter, DeadLetterLog(clock, name)
        )
        self.group = GroupLogic(name, options, random)
        self.options = options
        unsaid = buffer is buffer_bytes is None
        buffer = BUFFER if buffer is None else positive("buffer", buffer)
        buffer_bytes = BUFFER_BYTES if buffer_bytes is None else positive("buffer_bytes", buffer_bytes)
        with self.attachment.covering():
            # A pattern may cover the group's own dead letters; to work on those again would never end.
            attachment.exclude(self.dead_letter)
            cursor, _ = self.attachment.cursor("earliest" if start is None else start)
        lags = unsaid and progress is not None and self._is_kept()
        self.overflow = GroupOverflowPolicy(cursor, buffer, buffer_bytes, self, self.group, lags=lags)
        self.pending_acks: PendingAcks | None = None  # where the group outlives its process
        self.is_revived = False  # restored from disk, and without a member since
        self.subscriptions: dict[str, GroupMember] = {}
        self.missed = 0
        self._looked = cursor.position  # records before this were brought, or do not belong to the group
        self.on_end: Callable[[], None] | None = None  # set by the registry
        self._pumping = False
        self._unfed = False  # whether a member could have been given more
        self._is_waiting = False  # whether all that was published was brought, and the next record wakes it
        self._timer: Timer | None = None
        self._timer_due = float("inf")
        self._watches: list[ProcessedWaiter] = []
        self._stall_warning = StallWarning(self.label, clock.time())
        self.granted = 0  # records handed to members, again or for the first time
        self.delivered_probe: LatencyProbe | None = None  # measures from publish to delivery
        self.acked_probe: LatencyProbe | None = None  # and from delivery to ack
        self._delivered_probe_at: float = inf  # the counts from which on they measure
        self._acked_probe_at: float = inf
        self._delayed_records = DelayedRecords(attachment, self.group, self.wake, self._lost)

    def __repr__(self) -> str:
        return f"<GroupReader {self.label!r}, {self.group!r}>"

    # -- outliving the process ----------------------------------------------------------------------------------

    def _is_kept(self) -> bool:
        """Whether what it reads is durable, as declared."""
        return self.attachment.is_pattern or any(log.options.durable is not False for log in self.attachment.logs)

    def keep(self, known: GroupState | None) -> None:
        """Store the progress of the group, where that is possible; continue from its stored progress."""
        if self._progress is None or not self._is_kept():
            return
        if known is not None:
            end = self.overflow.cursor.position + self.overflow.cursor.pending()
            if known.floor <= end or self.attachment.is_pattern:
                self.overflow.cursor.go_to(known.floor)
            beyond: PatternCursor | None = None
            if self.attachment.is_pattern and known.end > known.floor:
                beyond = PatternCursor(
                    self.attachment.timeline, self.attachment, known.end, self.attachment.cursors.reads
                )
            self.overflow.revive(known, beyond)
            self._looked = self.overflow.cursor.position
        self.pending_acks = self.group.notes = self.dead_letters.pending_acks = self._progress.keep_group(self, known)

    def unkeep(self) -> None:
        """Its topic is not durable after all."""
        if self.pending_acks is not None and self._progress is not None:
            self._progress.forget_group(self.pending_acks)
            self.pending_acks = self.group.notes = self.dead_letters.pending_acks = None
        self._limit_publishers()

    def _limit_publishers(self) -> None:
        """Have publishers wait while the group holds its bound."""
        self.overflow.limited = True
        for log in self.attachment.logs:
            if log.topic_readers is not None:
                log.topic_readers.limit(self.overflow, limited=True)

    def agree(self, options: GroupOptions, buffer: int | None, buffer_bytes: int | None) -> None:
        """The first member after a restart says what the group is now."""
        self.options = self.group.options = options
        self.dead_letter = self.dead_letters.topic = check_name(options.dead_letter or f"dead-letters.{self.name}")
        self.attachment.exclude(self.dead_letter)
        if not (buffer is buffer_bytes is None):
            self.overflow.bound(
                BUFFER if buffer is None else positive("buffer", buffer),
                BUFFER_BYTES if buffer_bytes is None else positive("buffer_bytes", buffer_bytes),
            )
            self._limit_publishers()
        self.is_revived = False

    def check_durable(self) -> None:
        """Raise unless an ack can be made durable."""
        if self.pending_acks is None:
            raise NotSupported("a durable ack", f"group {self.label!r} lives in memory only")

    async def flushed(self) -> None:
        """Return when the settlements so far are on disk."""
        if self._progress is not None:
            await self._progress.flushed()

    # -- members ------------------------------------------------------------------------------------------------

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self.attachment.pattern

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task of its only member: no other task could make room while that one publishes."""
        only = list(self.subscriptions.values())[:2]
        return only[0].task if len(only) == 1 else None

    @property
    def members(self) -> int:
        """How many members it has."""
        return len(self.subscriptions)

    def admit(self, subscription: GroupMember) -> None:
        """A member comes."""
        self.group.join(subscription.label, subscription.prefetch, subscription.prefetch_bytes)
        self.subscriptions[subscription.label] = subscription
        self._stall_warning.reset(self.clock.time())
        self.wake()

    def dismiss(self, subscription: GroupMember) -> None:
        """A member goes; what it held goes to others, at once and in order."""
        if self.subscriptions.pop(subscription.label, None) is not None:
            self.dead_letters.publish(self.group.leave(subscription.label, self.clock.time()))
            self.wake()

    # -- bringing and granting ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do: look at the loop's next turn."""
        if not self._pumping:
            self._pumping = self._turns.add(self._pump)

    def _pump(self) -> None:
        """Bring the records that the group wants, grant ready ones, and handle timeouts."""
        self._pumping = False
        if not self.attachment.is_attached(self):
            return
        now = self.clock.time()
        self.dead_letters.publish(self.group.expire(now))
        self._delayed_records.bring(now)
        self._look(now)
        if self.pending_acks is not None and self.pending_acks.must_wait:
            # A failed attempt is stored before the next one; the commit queue wakes the group when it is.
            assert self._progress is not None
            self._progress.flush_soon()
        else:
            self._grant(now)
        self._look_after(now)

    def _grant(self, now: float) -> None:
        """Grant ready records, and those that can be taken back for members that hold none."""
        while True:
            for lease in self.group.grant(now):
                lease.granted = now
                self.granted += lease.end - lease.first
                if self.granted >= self._delivered_probe_at:
                    self._measure_delivery(lease, now)
                self.subscriptions[lease.member.name].receive(lease)
            if not self.group.take_back(now):
                break
        self._unfed = self.group.has_room

    def _look(self, now: float) -> None:
        """Bring as much as the group wants, if there is so much.

        At the end of the records it waits for more, unless no member could take it: then publishes cost the
        group nothing until a member has room. The first record that is due wakes it in any case, so that a stall is
        noticed.
        """
        self._is_waiting = False
        end = self.group.unsettled + LOOK
        while (wanted := self.group.wants()) > 0:
            if self.group.unsettled >= end:
                self.wake()
                break
            if self.overflow.revived is not None and pass_settled(self.overflow.cursor, self.overflow.revived):
                self.overflow.revive(None)
            taken = self.overflow.take(wanted)
            if taken is None:
                if self.group.has_room or not self._owed():
                    self._is_waiting = True
                    self.attachment.park(self)
                break
            self._bring(taken, now)
        if self.pending_acks is not None and self.publisher.blocked:
            self.publisher.release()  # dropped records take no room

    def _bring(self, taken: Taken, now: float) -> None:
        if taken.missed is not None:
            self._miss(taken.missed)
        logs, by_sequence = self.attachment.catalog.logs, self.attachment.is_pattern
        group_slices = [group_slice(part, logs.get(part.topic), by_sequence=by_sequence) for part in taken.slices]
        before, self._looked = self._looked, self.overflow.cursor.position
        if self.pending_acks is not None:
            for first, end in empty_ranges(taken, group_slices, before, self._looked):
                self.pending_acks.empty(first, end)
        for contents in group_slices:
            if self.overflow.revived is not None and contents.first < self.overflow.revived.end:
                bring_unsettled(self.group, contents, self.overflow.revived, now)
            else:
                bring_records(self.group, contents, now)

    def _miss(self, missed: MissedRange) -> None:
        """Report missing records, except those settled before the restart."""
        count = missed.count
        if self.overflow.revived is not None and not self.attachment.is_pattern:
            count -= self.overflow.revived.settled.count(missed.first, missed.end)
        if count:
            self._lost(count, missed.reason)
        self.publisher.release()  # missing records take no room

    def _lost(self, count: int, reason: str) -> None:
        """Unsettled records were removed."""
        self.missed += count
        log.warning("group %r missed %d records: %s", self.label, count, reason)

    def take_up(self, lease: Lease) -> bool:
        """A member begins with what it was granted; False: there is nothing left to begin with."""
        if lease.ended:
            return False
        if not self.group.take_up(lease, self.clock.time()):
            self.after_settling()  # it has expired: the next of its key may go
            return False
        return True

    # -- how long that takes ------------------------------------------------------------------------------------

    def measure_with(self, delivered: LatencyProbe, acked: LatencyProbe) -> None:
        """Have measured how long some of the records take to be delivered and acked."""
        self.delivered_probe, self._delivered_probe_at = delivered, 0
        self.acked_probe, self._acked_probe_at = acked, 0

    def wake_probes(self) -> None:
        """Measure the next record, if nothing was measured for an interval."""
        if self.delivered_probe is not None and self.delivered_probe.is_asleep():
            self._delivered_probe_at = 0
        if self.acked_probe is not None and self.acked_probe.is_asleep():
            self._acked_probe_at = 0

    def _measure_delivery(self, lease: Lease, now: float) -> None:
        assert self.delivered_probe is not None, "without one no count is reached"
        # A later attempt, or a delay that the publisher asked for, says nothing about the way to the member.
        is_plain = lease.attempt == 1 and (lease.item is None or lease.item.meta.due is None)
        began = lease.contents.time(lease.first) if is_plain else 0.0
        self._delivered_probe_at = self.delivered_probe.measure(began, now, self.granted)

    def _measure_ack(self, lease: Lease, now: float) -> None:
        assert self.acked_probe is not None, "without one no count is reached"
        self._acked_probe_at = self.acked_probe.measure(lease.granted, now, self.group.acked)

    # -- what members say ---------------------------------------------------------------------------------------

    def ack(self, lease: Lease, place: int) -> None:
        """One record is done."""
        self._check_here()
        group, member = self.group, lease.member
        now = self.clock.time()
        group.ack(lease, place, now)
        if group.acked >= self._acked_probe_at:
            self._measure_ack(lease, now)
        if self._pumping:
            return
        # A member is refilled when it is half empty, unless another member with room waits for records.
        if member.held * 2 <= member.prefetch or self._unfed:
            # Nothing new to grant: all records are with members, and none waits for this one.
            waits = self._is_waiting and lease.item is None and not group.has_ready
            is_quiet = waits and (member.held or not group.is_uneven)
            if not is_quiet:
                self.after_settling()
                return
        if self._watches or self.publisher.blocked or self._stall_warning.has_warned:
            self.after_settling()

    def ack_range(self, lease: Lease, first: int, end: int) -> None:
        """The open records in [first, end) are done."""
        self._check_here()
        now = self.clock.time()
        self.group.ack_range(lease, first, end, now)
        if self.group.acked >= self._acked_probe_at:
            self._measure_ack(lease, now)
        self.after_settling()

    def nack(self, lease: Lease, place: int, delay: float | None, reason: str) -> None:
        """One attempt failed."""
        self._check_here()
        self.dead_letters.publish(self.group.nack(lease, place, delay, reason, self.clock.time()))
        self.after_settling()

    def reject(self, lease: Lease, place: int, reason: str) -> None:
        """One record can never succeed."""
        self._check_here()
        self.dead_letters.publish(self.group.reject(lease, place, reason, self.clock.time()))
        self.after_settling()

    def extend(self, lease: Lease, place: int, seconds: float) -> None:
        """One record takes longer."""
        self._check_here()
        self.group.extend(lease, place, seconds, self.clock.time())
        self.wake()

    def give_back(self, lease: Lease, place: int) -> None:
        """A member returns what it has not seen of a lease, from `place` on."""
        self._check_here()
        self.group.give_back(lease, place, self.clock.time())
        self.after_settling()

    def _check_here(self) -> None:
        if not self._loop_owner.is_here():
            raise NotSupported("settling from another thread", "use runnel.blocking.attach, or settle on the loop")

    def after_settling(self) -> None:
        """Something was settled: there may be more to grant, and room for publishers."""
        self.wake()
        if self.publisher.blocked:
            self.publisher.release()

    # -- time ---------------------------------------------------------------------------------------------------

    def _look_after(self, now: float) -> None:
        """Complete waiters, warn if the group stalls, and set a timer for the next thing to do."""
        if self._watches:
            floor = self.floor()
            for watch in [watch for watch in self._watches if watch.place < floor]:
                watch.tell()
                self._watches.remove(watch)
        settled = self.group.acked + self.group.dead_lettered + self.group.expired
        owed = 0 if self.group.paused else self._owed()
        late = self._stall_warning.look(now, settled, self.group.settled_at, owed, self.members)
        event = self.group.next_event()
        due = late if event is None else min(event, late)
        if self._delayed_records.has_more():
            self.wake()
        elif due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self.clock.call_later(max(0.0, due - now), self._on_timer)

    def _owed(self) -> int:
        """Records that are not settled and do not wait for their time."""
        return self.overflow.lag() - self.group.scheduled - self.group.parked

    def _on_timer(self) -> None:
        self._timer, self._timer_due = None, float("inf")
        self.wake()

    @property
    def position(self) -> int:
        """Where it reads on."""
        return self.overflow.cursor.position

    def floor(self) -> int:
        """The least place that is not settled."""
        return self.group.floor(self.overflow.cursor.position)

    def statistics(self) -> GroupStatistics:
        """The progress of the group, and the records that each member holds."""
        return group_statistics(self)

    # -- steering -----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Grant no more leases; granted ones can still be settled."""
        self.group.paused = True
        self.wake()

    def resume(self) -> None:
        """Continue after a pause."""
        self.group.paused = False
        self.wake()

    def reset(self, start: Start) -> None:
        """Continue from `start`, whatever was settled. Leases are void: settling them raises LeaseEnded."""
        check_start(start, self.pattern, is_pattern=self.attachment.is_pattern)
        cursor, _ = self.attachment.cursor(start)  # may raise: before anything is forgotten
        cursor.wake = self.wake
        self._looked = cursor.position
        self.overflow.move(cursor)
        if self.overflow.limited:
            self._limit_publishers()  # they ask again how much room there is
        self.group.clear()
        self._delayed_records.forget()
        if self.pending_acks is not None and self._progress is not None:
            self._progress.place_group(self, self.pending_acks)
        for subscription in self.subscriptions.values():
            subscription.forget()
        self._stall_warning.reset(self.clock.time())
        self.after_settling()

    # -- as a reader of logs ------------------------------------------------------------------------------------

    @property
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""
        return self.attachment.is_pattern

    def covers(self, topic: str) -> bool:
        """It reads every topic that its pattern matches, except its own dead letters."""
        return topic != self.attachment.excluded

    def note(self, run: LogRun) -> bool:
        """A run of a topic that the pattern covers begins; whether it has noted so many that it should `settle`."""
        return self.overflow.note(run)

    def join(self, found: Log) -> None:
        """A topic was made that the pattern covers."""
        self.attachment.join(found)

    def part(self, found: Log) -> None:
        """A topic of the pattern was deleted."""
        self.attachment.part(found)

    def settle(self) -> None:
        """Remember the records ahead before they are removed."""
        self.overflow.look_ahead()

    def watch(self, found: Log, watch: ProcessedWaiter) -> None:
        """Tell when the record at an offset of `found` was settled."""
        if self.attachment.is_pattern:
            watch = watch._replace(place=self.attachment.timeline.sequence_of(found, watch.place))
        self._watches.append(watch)
        self.wake()

    def end(self, error: RunnelError | None = None) -> None:
        """The broker closes, or the topic was deleted: the group ends. A closed broker's journal remembers it."""
        members, self.subscriptions = self.subscriptions, {}  # no member is left to give records back to
        self.group.clear()
        self._delayed_records.forget()
        if error is not None and self.pending_acks is not None and self._progress is not None:
            self._progress.forget_group(self.pending_acks)
        for subscription in members.values():
            subscription.end(error)
        self.attachment.detach(self)
        if self.on_end is not None:
            self.on_end()
        self.dead_letters.log.close()
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches:
            watch.tell()

    def dropped(self, slices: list[Slice]) -> None:
        """Nothing is dropped from a group."""

    def disconnect(self, drops: int) -> None:
        """A group disconnects no member."""

    def made_room(self) -> None:
        """Called by the policy of a plain subscription; a group wakes publishers itself."""

    def report(self) -> None:
        """Nothing to report: the group counts settlements itself."""

    def hurry(self, count: int = 0, size: int = 0) -> None:
        """A group always sees settlements at once."""

    def limit(self, *, limited: bool) -> None:
        """Publishers always ask a group."""


def group_statistics(reader: GroupReader) -> GroupStatistics:
    """A snapshot of a group: its progress, and the records that each member holds."""
    group = reader.group
    members = tuple(
        MemberStatistics(member.name, member.held, member.prefetch, member.granted, member.acked, member.last_ack)
        for member in group.members.values()
    )
    published = group.time_at(reader.floor())  # the oldest that is not settled
    return GroupStatistics(
        reader.name,
        reader.pattern,
        reader.overflow.lag(),
        group.outstanding,
        group.scheduled,
        0.0 if published is None else max(0.0, reader.clock.time() - published),
        group.acked,
        group.redelivered,
        group.dead_lettered,
        group.expired,
        reader.missed,
        group.paused,
        members,
    )
