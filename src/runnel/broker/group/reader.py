"""A group at work: brings records from the logs to the group's logic, and carries its effects out.

It outlives its members. What nobody has acked stays, and publishers wait (`block`) before anything would be lost.
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
from runnel.broker.read.attachment import Attachment
from runnel.broker.read.cursor import Cursor
from runnel.broker.read.overflow import BlockPublishers, PolicyOwner
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import CHUNK
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
from runnel.runtime.loop_owner import LoopOwner

if TYPE_CHECKING:
    from runnel.broker.topic.log import Log
    from runnel.core.position import Start


class GroupOverflowPolicy(BlockPublishers):
    """Lose nothing: publishers wait while the group holds its bound, unless what it reads is on disk."""

    __slots__ = ("_counted", "beyond", "group", "lags", "revived")

    def __init__(
        self, cursor: Cursor, buffer: int, buffer_bytes: int, owner: PolicyOwner, group: GroupLogic, *, lags: bool
    ) -> None:
        super().__init__(cursor, Policy.block(), buffer, buffer_bytes, owner)
        self.group, self.lags = group, lags
        self.revived: GroupState | None = None  # what it had done in an earlier life, until it has passed that
        self.beyond: PatternCursor | None = None  # of a pattern: behind all of that, to count what came since
        self._counted: tuple[int, int] | None = None  # a place, and how many were settled from there on
        self.history = self.history_bytes = 0  # a group owes everything it has not settled, whenever it was published

    def take(self, limit: int) -> Taken | None:
        """The next records; the group counts them until they are settled."""
        return self.cursor.take(limit)

    def room(self) -> int:
        """How many small records may come before the group must be asked again."""
        if self.lags:
            return CHUNK
        self.held_bytes = self.group.unsettled_bytes
        return super().room()

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether so much may be published; one record always may when nothing waits."""
        if self.lags:
            return True
        self.held_bytes = self.group.unsettled_bytes
        return super().fits(count, size, coming, coming_bytes)

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
        """Pass what was done in an earlier life; None: it is passed."""
        self.revived, self.beyond, self._counted = known, beyond, None

    def look_ahead(self) -> None:
        """Note what lies ahead."""
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

    __slots__ = ("_label", "_moved", "_owed", "_settled", "_warned")

    def __init__(self, label: str, now: float) -> None:
        self._label, self._moved = label, now
        self._settled = self._owed = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"<StallWarning about {self._label!r} since {self._moved:.3f}>"

    def reset(self, now: float) -> None:
        """A member came, or the group was reset: its time begins now."""
        self._moved, self._warned = now, False

    def look(self, now: float, settled: int, owed: int, members: int) -> float:
        """So many were settled up to `now`, and so many could be; warn if that stays so. When to look again."""
        if settled != self._settled or not owed or not self._owed:
            self.reset(now)
        elif now - self._moved >= STALL_SECONDS and not self._warned:
            self._warned = True
            why, waited = "has settled nothing" if members else "has no member", now - self._moved
            log.warning("group %r %s for %.0f s while %s records wait", self._label, why, waited, f"{owed:,}")
        self._settled, self._owed = settled, owed
        return self._moved + STALL_SECONDS if owed and not self._warned else inf


# -- The reader ------------------------------------------------------------------------------------------


BUFFER = 10_000_000  # records, and bytes, that may wait in a group before publishers do
BUFFER_BYTES = 1024 * 1024 * 1024
LOOK = 4096  # records brought in one turn of the loop; those that wait for their time are no bound


class GroupMember(Protocol):
    """A member, as its group needs it."""

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
        """What was granted is void."""

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
        self.publisher, self._progress, self._loop_owner = publisher, progress, loop_owner
        self.dead_letter = check_name(options.dead_letter or f"dead-letters.{name}")
        if pattern == self.dead_letter:
            raise InvalidOption("dead_letter", self.dead_letter, f"the group itself reads {pattern!r}")
        retry = None if progress is None else progress.call_later
        self.dead_letters = DeadLetterPublisher(publisher, attachment.catalog, retry, name, self.dead_letter)
        self.group = GroupLogic(name, options, random)
        self.options = options
        unsaid = buffer is buffer_bytes is None
        buffer = BUFFER if buffer is None else positive("buffer", buffer)
        buffer_bytes = BUFFER_BYTES if buffer_bytes is None else positive("buffer_bytes", buffer_bytes)
        with self.attachment.covering():
            # A pattern may cover the group's own dead letters; to work on those again would never end.
            self.attachment.logs = {log for log in self.attachment.logs if log.name != self.dead_letter}
            cursor, _ = self.attachment.cursor("earliest" if start is None else start)
        lags = unsaid and progress is not None and self._is_kept()
        self.overflow = GroupOverflowPolicy(cursor, buffer, buffer_bytes, self, self.group, lags=lags)
        self.pending_acks: PendingAcks | None = None  # where the group outlives its process
        self.is_revived = False  # came back from an earlier life, and nobody has joined since
        self.subscriptions: dict[str, GroupMember] = {}
        self.missed = 0
        self._looked = cursor.position  # what lies before this was brought, or is none of the group's
        self.on_end: Callable[[], None] | None = None  # set by the registry
        self._pumping = False
        self._unfed = False  # whether a member could have been given more
        self._timer: Timer | None = None
        self._timer_due = float("inf")
        self._watches: list[ProcessedWaiter] = []
        self._stall_warning = StallWarning(self.label, clock.time())
        self._delayed_records = DelayedRecords(attachment, self.group, self.wake, self._lost)

    def __repr__(self) -> str:
        return f"<GroupReader {self.label!r}, {self.group!r}>"

    # -- outliving the process ----------------------------------------------------------------------------------

    def _is_kept(self) -> bool:
        """Whether what it reads is durable, as far as anybody has said."""
        return self.attachment.is_pattern or any(log.options.durable is not False for log in self.attachment.logs)

    def keep(self, known: GroupState | None) -> None:
        """Have what the group does remembered, where that is possible; go on where it was."""
        if self._progress is None or not self._is_kept():
            return
        if known is not None:
            end = self.overflow.cursor.position + self.overflow.cursor.pending()
            if known.floor <= end or self.attachment.is_pattern:
                self.overflow.cursor.go_to(known.floor)
            beyond: PatternCursor | None = None
            if self.attachment.is_pattern and known.end > known.floor:
                beyond = PatternCursor(
                    self.attachment.timeline, self.attachment.logs, known.end, self.attachment.cursors.reads
                )
            self.overflow.revive(known, beyond)
            self._looked = self.overflow.cursor.position
        self.pending_acks = self.group.notes = self.dead_letters.pending_acks = self._progress.keep_group(self, known)

    def unkeep(self) -> None:
        """What it reads is not durable after all."""
        if self.pending_acks is not None and self._progress is not None:
            self._progress.forget_group(self.pending_acks)
            self.pending_acks = self.group.notes = self.dead_letters.pending_acks = None
        self.overflow.lags = False

    def agree(self, options: GroupOptions, buffer: int | None, buffer_bytes: int | None) -> None:
        """The first member after a restart says what the group is now."""
        self.options = self.group.options = options
        self.dead_letter = self.dead_letters.topic = check_name(options.dead_letter or f"dead-letters.{self.name}")
        if not (buffer is buffer_bytes is None):
            self.overflow.lags = False
            self.overflow.buffer = BUFFER if buffer is None else positive("buffer", buffer)
            self.overflow.buffer_bytes = (
                BUFFER_BYTES if buffer_bytes is None else positive("buffer_bytes", buffer_bytes)
            )
        self.is_revived = False

    def check_durable(self) -> None:
        """Raise unless an ack can be made durable."""
        if self.pending_acks is None:
            raise NotSupported("a durable ack", f"group {self.label!r} lives in memory only")

    async def flushed(self) -> None:
        """Return when what was settled so far is on disk."""
        if self._progress is not None:
            await self._progress.flushed()

    # -- members ------------------------------------------------------------------------------------------------

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self.attachment.pattern

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task of its only member: nobody else could make room while that one publishes."""
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
        if not self._pumping and self._loop_owner.loop is not None:
            self._loop_owner.loop.call_soon(self._pump)
            self._pumping = True

    def _pump(self) -> None:
        """Bring what the group wants, grant what is ready, and see to the time."""
        self._pumping = False
        if not self.attachment.is_attached(self):
            return
        now = self.clock.time()
        self.dead_letters.publish(self.group.expire(now))
        self._delayed_records.bring(now)
        self._look(now)
        if self.pending_acks is not None and self.pending_acks.must_wait:
            # A failed attempt is stored before the next one; the keeper wakes us when it is.
            assert self._progress is not None
            self._progress.flush_soon()
            self._look_after(now)
            return
        for lease in self.group.grant(now):
            self.subscriptions[lease.member.name].receive(lease)
        self._unfed = any(member.room > 0 for member in self.group.members.values())
        self._look_after(now)

    def _look(self, now: float) -> None:
        """Bring as much as the group wants, if there is so much."""
        end = self.group.unsettled + LOOK
        while (wanted := self.group.wants()) > 0:
            if self.group.unsettled >= end:
                self.wake()
                break
            if self.overflow.revived is not None and pass_settled(self.overflow.cursor, self.overflow.revived):
                self.overflow.revive(None)
            taken = self.overflow.take(wanted)
            if taken is None:
                self.attachment.park(self)
                break
            self._bring(taken, now)
        if self.pending_acks is not None and self.publisher.blocked:
            self.publisher.release()  # what was let go takes no room

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
        """Tell what is gone, less what was settled in an earlier life: nobody misses that."""
        count = missed.count
        if self.overflow.revived is not None and not self.attachment.is_pattern:
            count -= self.overflow.revived.settled.count(missed.first, missed.end)
        if count:
            self._lost(count, missed.reason)
        self.publisher.release()  # what is gone takes no room

    def _lost(self, count: int, reason: str) -> None:
        """Records are gone that the group had not settled."""
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

    # -- what members say ---------------------------------------------------------------------------------------

    def ack(self, lease: Lease, place: int) -> None:
        """One record is done."""
        self._check_here()
        self.group.ack(lease, place, self.clock.time())
        member = lease.member
        # A member is refilled when it is half empty, unless another member with room waits for records.
        if not self._pumping and (member.held * 2 <= member.prefetch or self._unfed or self._watches):
            self.after_settling()

    def ack_range(self, lease: Lease, first: int, end: int) -> None:
        """What is open in [first, end) is done."""
        self._check_here()
        self.group.ack_range(lease, first, end, self.clock.time())
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
        told_to_wait = self.group.scheduled + self.group.parked
        owed = 0 if self.group.paused else self.overflow.lag() - told_to_wait
        late = self._stall_warning.look(now, settled, owed, self.members)
        event = self.group.next_event()
        due = late if event is None else min(event, late)
        if self._delayed_records.has_more():
            self.wake()
        elif due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self.clock.call_later(max(0.0, due - now), self._on_timer)

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
        """How far the group is, and what each member holds."""
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
        """Go on from `start`, whatever was settled. What is out is void: settling it raises LeaseEnded."""
        check_start(start, self.pattern, is_pattern=self.attachment.is_pattern)
        cursor, _ = self.attachment.cursor(start)  # may raise: before anything is forgotten
        cursor.wake = self.wake
        self.overflow.cursor, self._looked = cursor, cursor.position
        self.overflow.revive(None)
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

    def join(self, found: Log) -> None:
        """A topic was made that the pattern covers."""
        if found.name != self.dead_letter:
            self.attachment.join(found, self)

    def part(self, found: Log) -> None:
        """A topic of the pattern was deleted."""
        self.attachment.logs.discard(found)

    def settle(self) -> None:
        """Note what lies ahead before records go."""
        self.overflow.look_ahead()

    def watch(self, found: Log, watch: ProcessedWaiter) -> None:
        """Tell when the record at an offset of `found` was settled."""
        if self.attachment.is_pattern:
            watch = watch._replace(place=self.attachment.timeline.sequence_of(found, watch.place))
        self._watches.append(watch)
        self.wake()

    def end(self, error: RunnelError | None = None) -> None:
        """The broker closes, or the topic is gone: so is the group. A closed broker's journal remembers it."""
        members, self.subscriptions = self.subscriptions, {}  # nobody is left to give back to
        self.group.clear()
        self._delayed_records.forget()
        if error is not None and self.pending_acks is not None and self._progress is not None:
            self._progress.forget_group(self.pending_acks)
        for subscription in members.values():
            subscription.end(error)
        self.attachment.detach(self)
        if self.on_end is not None:
            self.on_end()
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches:
            watch.tell()

    def dropped(self, slices: list[Slice]) -> None:
        """Nothing is dropped from a group."""

    def disconnect(self, drops: int) -> None:
        """Nobody is disconnected from a group."""

    def made_room(self) -> None:
        """Told by the flow of a plain subscription; a group tells publishers itself."""


def group_statistics(reader: GroupReader) -> GroupStatistics:
    """A group as it is now: how far it is, and what each member holds."""
    group = reader.group
    members = tuple(
        MemberStatistics(member.name, member.held, member.prefetch, member.granted, member.acked)
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
