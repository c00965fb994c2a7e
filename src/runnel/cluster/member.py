"""A member of a group on a cluster: messages held, their records leased, settlements sent back.

A group is a set of durable consumers, one for each bucket of keys. A bucket with keys has at most one message
outstanding, so that the members process records of one key in order. A member holds a message until all
its records are settled, and meanwhile reports to the cluster that it works on it. Failed records are delivered to the
same member again. When it releases a message that is partly done, because it leaves or a lease ended, it first stores
which records are settled, so that the next member gets the others only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from secrets import token_hex
from threading import get_ident
from typing import Any

import msgspec

from runnel.cluster.group import ClusterGroup
from runnel.cluster.jetstream import EXPECTED, ROLLUP, WRONG_LAST, Acknowledged
from runnel.cluster.layout import TTL, slices_of, stored_message
from runnel.cluster.publishing import ClusterPublishing
from runnel.cluster.pulling import PullSession
from runnel.cluster.reader import _ENCODINGS, ReadersOf
from runnel.core import dead_letter
from runnel.core.backend import SettleVerb
from runnel.core.batch import Slice
from runnel.core.columns import EXPIRES, KEYS
from runnel.core.errors import (
    AlreadySettled,
    BadBatch,
    BrokerClosed,
    ClusterRefused,
    InvalidOption,
    LeaseEnded,
    NotSupported,
    RunnelError,
    TooLarge,
    UnknownGroup,
)
from runnel.core.options import NO_TOPIC_OPTIONS, SubscribeOptions
from runnel.core.pattern import is_pattern, matches
from runnel.core.publishing import Append, checked_record
from runnel.core.record import Record
from runnel.wire.nats import Message

log = logging.getLogger("runnel")

PREFETCH = 64
NOTE_TTL = f"{30 * 24 * 3600}s"
WRITES = 16  # that a note remembers
DONE_TTL = "3600s"  # of a message that is settled: an ack can be lost when all servers are killed, the note is not
PULL = 256  # messages of a pull, at most

_numbers = count(1)


class SettledNote(msgspec.Struct, array_like=True):
    """The stored state of a released message: how often it was delivered, settled indexes, failed attempts.

    `writes`: the newest ones that led to this note, so that a member whose answer was lost finds out whether its write
    was stored, though others may have written since.
    """

    delivered: int
    settled: list[int]
    attempts: dict[int, int]
    writes: list[str] = []


class ClusterLease:
    """Places [first, end) of one member, from one message."""

    __slots__ = (
        "_settled",
        "attempt",
        "deadline",
        "end",
        "ended",
        "first",
        "guard",
        "handed",
        "message",
        "on_end",
        "on_recall",
        "promised",
    )

    def __init__(self, message: HeldMessage, first: int, end: int, attempt: int) -> None:
        self.message, self.first, self.end, self.attempt = message, first, end, attempt
        self.handed = first
        self.ended = False
        self.deadline: float | None = None
        self.promised: dict[int, bool] | None = None
        self.on_end: Callable[[], None] | None = None
        self.guard: AbstractContextManager[Any] | None = None
        self.on_recall: Callable[[int], None] | None = None
        self._settled: set[int] = set()

    def __repr__(self) -> str:
        return f"<ClusterLease [{self.first}, {self.end}), attempt {self.attempt}, {len(self)} open>"

    def __len__(self) -> int:
        return self.end - self.first - len(self._settled)

    def is_open(self, place: int) -> bool:
        """Whether `place` is unsettled."""
        return self.first <= place < self.end and place not in self._settled

    def open_ranges(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        """The unsettled places in [first, end), as ranges."""
        found: list[tuple[int, int]] = []
        for place in range(max(first, self.first), min(end, self.end)):
            if place not in self._settled:
                if found and found[-1][1] == place:
                    found[-1] = found[-1][0], place + 1
                else:
                    found.append((place, place + 1))
        return found

    def settle(self, place: int) -> None:
        """Mark a place as settled."""
        self._settled.add(place)

    def lapse(self) -> None:
        """End it."""
        if not self.ended:
            self.ended = True
            if self.on_end is not None:
                self.on_end()


class HeldMessage:
    """A message that a member holds: which of its records are settled, leased, or wait."""

    def __init__(
        self, sequence: int, reply: str, delivered: int, slices: list[Slice], encoding: str | None, base: int
    ) -> None:
        self.sequence, self.reply, self.delivered, self.slices, self.encoding = (
            sequence,
            reply,
            delivered,
            slices,
            encoding,
        )
        self.records: list[Record[bytes]] = [record for part in slices for record in part.records]
        self.base = base  # the place of the first record
        self.open = set(range(len(self.records)))  # not settled
        self.attempts = [delivered] * len(self.records)
        # Records that can be leased side by side: no keys, nothing that expires, and none has failed more than others.
        self.is_plain = all(part.columns is None or part.columns.keys().isdisjoint((KEYS, EXPIRES)) for part in slices)
        self.handed: set[int] = set()
        self.waiting = list(range(len(self.records)))  # to be leased, in order
        self.busy: set[bytes] = set()  # keys of which a record is leased, or waits for its next attempt
        self.leases: set[ClusterLease] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.is_going = False  # nothing more of it is leased
        self.is_claimed = True  # else it is not known yet what an earlier holder has settled
        self.burying = 0  # records that are being published as dead letters
        self.noted = 0  # the stream sequence of the note about it; 0: there is none
        self.writes: list[str] = []  # that led to it
        self.noting = 0  # durable acks that are being stored: it is held meanwhile
        self.lock = asyncio.Lock()  # one note at a time

    def expires(self, index: int) -> float | None:
        """When a record expires; None: it does not."""
        for part in self.slices:
            if index < len(part):
                column = () if part.columns is None else part.columns.get(EXPIRES, ())
                return column[index] if index < len(column) else None
            index -= len(part)
        return None

    def is_side_by_side(self, indexes: list[int], max_deliver: int | None) -> bool:
        """Whether these records can be leased together without a look at each."""
        if not self.is_plain or not indexes or indexes[-1] - indexes[0] >= len(indexes):
            return False
        return max_deliver is None or self.delivered <= max_deliver

    def apply(self, note: SettledNote) -> None:
        """Take what an earlier holder noted."""
        self.is_plain = False
        self.open.difference_update(note.settled)
        self.waiting = [index for index in self.waiting if index in self.open]
        more = self.delivered - note.delivered
        for index in range(len(self.records)):
            self.attempts[index] = note.attempts.get(index, note.delivered) + more

    def note(self) -> SettledNote | None:
        """The state for the next holder; None: the number of deliveries is enough."""
        settled = [index for index in range(len(self.records)) if index not in self.open]
        attempts: dict[int, int] = {}
        for index in self.open:
            said = self.attempts[index] - (index not in self.handed)  # one that was not received did not fail
            if said != self.delivered:
                attempts[index] = said
        if not settled and not attempts and not self.noted:
            return None
        return SettledNote(self.delivered, settled, attempts)


class BucketSession(PullSession):
    """Pulls the messages of one bucket for one member."""

    is_new_each_time = False

    def __init__(self, member: ClusterMember, bucket: int) -> None:
        super().__init__(member.js, 1 if bucket else min(member.prefetch, PULL), None)
        self._member, self.bucket = member, bucket

    async def make(self) -> None:
        """Find the durable consumer."""
        self.name = self._member.consumers.consumer(self.bucket)
        await self._member.consumers.find(self.bucket)

    def failed(self, error: RunnelError) -> bool:
        """A group that was forgotten ends its members."""
        if isinstance(error, UnknownGroup):
            self._member.over(error)
            return False
        return True

    def gone(self) -> None:
        """The consumer was deleted: the group was reset, or forgotten."""
        self._member.forget(self.bucket)

    def has_room(self) -> bool:
        """Whether the member can take more."""
        return self._member.has_room()

    def take(self, message: Message, about: Acknowledged) -> bool:
        """A message for this member."""
        self._member.took(self.bucket, message, about)
        return True


class ClusterMember:
    """One member of a group. See `core.backend.Member`."""

    def __init__(
        self,
        shared: ReadersOf,
        publishing: ClusterPublishing,
        group: ClusterGroup,
        options: SubscribeOptions,
        backend: object,
        wake: Callable[[], None],
    ) -> None:
        if options.buffer is not None or options.buffer_bytes is not None:
            raise NotSupported("buffer of a group", "publishers of a cluster do not wait for its groups")
        self.js, self.consumers, self._shared, self._publishing = shared.js, group, shared, publishing
        self.group, self.pattern, self.backend = group.name, group.pattern, backend
        self.name: str | None = None  # of a position: members have none
        self.label = options.name or f"{group.name}#{next(_numbers)}"
        self.prefetch = PREFETCH if options.prefetch is None else options.prefetch
        self.prefetch_bytes = options.prefetch_bytes
        self.clock = shared.clock
        self.task: Any = None
        self.principal: str | None = None
        self.on_presence: Callable[[], None] | None = None
        self.ended = False
        self.error: RunnelError | None = None
        self.inbox: deque[ClusterLease] = deque()
        self.granted = self.acked = 0
        self.last_ack: float | None = None
        self._acked_before = 0  # the time of its last extension
        self._options, self._wake = options, wake
        self._held: dict[int, HeldMessage] = {}  # by stream sequence
        self._behind: dict[int, HeldMessage] = {}  # those of which records wait to be leased
        self._bucket: dict[int, int] = {}
        self._places = 0
        self._leased = self._leased_bytes = 0  # records granted and not settled
        self._sessions: list[BucketSession] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lost: float | None = None  # since when there is no connection
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unconfirmed: deque[str] = deque(maxlen=4096)  # acks that were sent without asking for an answer
        self._presence: list[int] = []
        self._is_stuck = False  # a lease ended, and the user has done nothing since
        self._goes_on = False  # it will, at the end of this loop iteration
        self._is_hasty = False  # leases end before the next regular look at them
        self._ack_wait = 0.0
        self._now: Callable[[], float]  # the time of the event loop
        self._thread = 0

    def __repr__(self) -> str:
        return f"<ClusterMember {self.label!r} of {self.group!r}, {len(self._held)} messages held>"

    # -- coming and going ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Join the group, which is made if it is new."""
        if self.ended:
            raise BrokerClosed("subscribing")
        self._shared.check_usable()
        if not is_pattern(self.pattern):
            self._shared.catalog.check_subscribed(self.pattern)
        if any(one.label == self.label for one in self.consumers.members):
            raise InvalidOption("member", self.label, f"group {self.group!r} has a member of that name")
        await self.consumers.join(self._options)
        self._ack_wait = self.consumers.options.ack_wait
        self._is_hasty = self._ack_wait < self.consumers.cluster_wait / 3
        self._now, self._thread = asyncio.get_running_loop().time, get_ident()
        self._sessions = [BucketSession(self, bucket) for bucket in self.consumers.buckets]
        self._shared.open.add(self)
        self.consumers.members.append(self)
        subjects = self.js.subjects
        self._presence = [self.js.link.subscribe(subjects.presence(self.pattern), self._asked)]
        try:
            await asyncio.gather(*(session.start() for session in self._sessions))
        except BaseException:
            self.end()
            raise
        self._tick()

    def end(self, error: RunnelError | None = None) -> None:
        """Accept no more leases; unsettled records return to the group."""
        if self.ended:
            return
        self.ended, self.error = True, self.error or error
        self._release()
        for held in list(self._held.values()):
            for lease in list(held.leases):
                lease.lapse()
            held.leases.clear()
            held.is_going = True
            self._finish(held)
        self.inbox.clear()
        self._wake()

    def leave(self) -> None:
        """The same, by the user."""
        self.end()

    def over(self, error: RunnelError) -> None:
        """The group was deleted."""
        if not self.ended:
            self.error = error
            self._held.clear()
            self._behind.clear()
            self.end()

    async def left(self) -> None:
        """Return when the cluster has got back the held messages."""
        while tasks := [task for task in self._tasks if not task.done()]:
            done, _ = await asyncio.wait(tasks, timeout=self.js.timeout)
            if not done:
                break
        if self.js.link.state == "connected":
            try:
                await self.js.link.flushed()
            except RunnelError:
                return

    def _release(self) -> None:
        for session in self._sessions:
            session.end()
        for sid in self._presence:
            self.js.link.unsubscribe(sid)
        self._shared.open.discard(self)
        if self in self.consumers.members:
            self.consumers.members.remove(self)
            self.consumers.dead_letter_log.close()
        if self._timer is not None:
            self._timer.cancel()

    def _asked(self, message: Message) -> None:
        if message.reply is not None:
            self.js.link.publish(message.reply, b"+")

    @property
    def held_records(self) -> int:
        """Records that were granted to it and are not settled."""
        return self._leased

    @property
    def blocks(self) -> object | None:
        """None: no publish waits for a group."""
        return None

    def _do(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- messages that come -------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether it holds less than it may."""
        if self.ended:
            return False
        if self.prefetch_bytes is not None and self._leased_bytes >= self.prefetch_bytes:
            return False
        return self._leased + sum(len(held.waiting) for held in self._behind.values()) < self.prefetch

    def took(self, bucket: int, message: Message, about: Acknowledged) -> None:
        """A message was delivered to this member."""
        assert message.reply is not None
        topic = self.js.subjects.topic_of(message.subject)
        known = self._held.get(about.sequence)
        if known is not None:  # the cluster believed that it was given up
            known.reply = message.reply
            return
        if topic == self.consumers.options.dead_letter_topic(self.group) or not matches(self.pattern, topic):
            self._settle_message(message.reply)
            return
        try:
            found = stored_message(topic, about.sequence, about.nanoseconds, message.head, message.payload)
            slices, content_type = slices_of([found])
        except BadBatch as error:
            log.error("group %r passes over message %d of %r: %s", self.group, about.sequence, topic, error)
            self._settle_message(message.reply)
            return
        if found.epoch < self._shared.catalog.least_epoch(topic):  # of a deleted life of the topic
            self._settle_message(message.reply)
            return
        held = HeldMessage(
            about.sequence, message.reply, about.delivered, slices, _ENCODINGS.get(content_type), self._places
        )
        self._places += len(held.records)
        self._held[about.sequence], self._bucket[about.sequence] = held, bucket
        self._behind[about.sequence] = held
        if about.delivered > 1:
            held.is_claimed = False
            self._do(self._recall(held))
        else:
            self._grant(held)

    async def _recall(self, held: HeldMessage) -> None:
        """A message that was delivered before: find out which of its records are settled, and claim it.

        The member that had it before may not know that it was given up: its next note fails, for this one came first.
        """
        pause = 0.05
        while self._held.get(held.sequence) is held:
            try:
                found = await self.js.last(self.consumers.note_subject(held.sequence))
                if found is not None:
                    note = msgspec.msgpack.decode(found.payload, type=SettledNote)
                    held.apply(note)
                    held.noted, held.writes = found.sequence, note.writes
                await self._write_note(held, held.note() or SettledNote(held.delivered, [], {}))
                break
            except RunnelError as error:
                log.debug("message %d could not be claimed: %s", held.sequence, error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
        held.is_claimed = True
        if self._held.get(held.sequence) is held:
            self._grant(held)
            self._finish(held)

    def _grant(self, held: HeldMessage) -> None:
        """Lease available records: none whose key has an earlier one under way."""
        if held.is_going or self.ended or not held.is_claimed:
            return
        options, now, left = self.consumers.options, self.clock.time(), []
        run: list[int] = []
        size = 0

        def lease() -> None:
            nonlocal size
            if run:
                first = held.base + run[0]
                made = ClusterLease(held, first, first + len(run), held.attempts[run[0]])
                held.leases.add(made)
                self._leased += len(run)
                self._leased_bytes += sum(len(held.records[index].value) for index in run)
                self.granted += len(run)
                self.inbox.append(made)
                run.clear()
                size = 0

        waiting, held.waiting = held.waiting, []
        granted = False
        if held.is_side_by_side(waiting, options.max_deliver) and self.prefetch_bytes is None:
            run += waiting[: max(0, self.prefetch - self._leased)]
            left, waiting, granted = waiting[len(run) :], [], bool(run)
        for at, index in enumerate(waiting):
            record = held.records[index]
            if self._leased + len(run) >= self.prefetch or (
                self.prefetch_bytes is not None and self._leased_bytes + size >= self.prefetch_bytes
            ):
                left += waiting[at:]
                break
            key = record.key
            if key is not None and key in held.busy:
                lease()
                left.append(index)
                continue
            if (expires := held.expires(index)) is not None and expires <= now:
                lease()
                self.consumers.expired += 1
                self._done(held, index)
                continue
            if options.max_deliver is not None and held.attempts[index] > options.max_deliver:
                lease()
                if key is not None:
                    held.busy.add(key)
                self._bury(held, index, "its members ended without an ack")
                continue
            if run and (run[-1] + 1 != index or held.attempts[run[0]] != held.attempts[index]):
                lease()
            if key is not None:
                held.busy.add(key)
            run.append(index)
            size += len(record.value)
            granted = True
        lease()
        held.waiting = left
        if left:
            self._behind[held.sequence] = held
        else:
            self._behind.pop(held.sequence, None)
        if granted:
            self._wake()

    # -- what the member does -----------------------------------------------------------------------------------

    def take_up(self, lease: ClusterLease) -> bool:
        """Start a lease; False: it has no unsettled places left."""
        return not lease.ended and len(lease) > 0

    def hand(self, lease: ClusterLease, first: int, end: int) -> None:
        """The user receives the places [first, end): their time starts."""
        if self._is_stuck:
            self._moves()
        lease.handed = end
        lease.deadline = self._now() + self._ack_wait
        held = lease.message
        if end - first == 1:
            held.handed.add(first - held.base)
        else:
            held.handed.update(range(first - held.base, end - held.base))
        if self._is_hasty:
            self._tick(self._ack_wait)

    def records(self, lease: ClusterLease, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a lease."""
        base = lease.message.base
        return tuple(lease.message.records[first - base : end - base])

    def values(self, lease: ClusterLease, first: int, end: int) -> tuple[bytes, ...]:
        """Only the values of these records."""
        return tuple(record.value for record in self.records(lease, first, end))

    def parts(self, lease: ClusterLease) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""
        found: list[tuple[int, Slice]] = []
        place = lease.message.base
        for part in lease.message.slices:
            low, high = max(lease.first, place), min(lease.end, place + len(part))
            if low < high:
                cut = part.cut(part.start + low - place, part.start + high - place)
                found.append((low, cut))
            place += len(part)
        return found

    def encoding_of(self, lease: ClusterLease, topic: str) -> str | None:
        """The encoding of the values of a lease."""
        return lease.message.encoding

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, lease: ClusterLease, place: int) -> None:
        """Ack one record: the same as `settle`, in fewer steps where it is one of many of a lease."""
        held = lease.message
        record = held.records[place - held.base]
        if (
            lease.ended
            or not lease.is_open(place)
            or record.key is not None
            or len(held.open) == 1
            or held.is_going
            or self._is_stuck
            or get_ident() != self._thread
        ):
            self.settle(lease, SettleVerb.ACK, place, place + 1)
            return
        lease.settle(place)
        held.open.discard(place - held.base)
        self._leased -= 1
        self._leased_bytes -= len(record.value)
        self.acked += 1
        self.consumers.acked += 1
        if not len(lease):
            held.leases.discard(lease)
        if not self._goes_on:
            self._soon()

    def check_durable(self, lease: ClusterLease, place: int) -> None:
        """Raise unless an ack can be made durable."""
        if self._shared.is_closed:
            raise LeaseEnded(self.group, place, lease.attempt)

    def settle(
        self,
        lease: ClusterLease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
        *,
        durable: bool = False,
    ) -> Awaitable[None] | None:
        """Settle the unsettled places [first, end)."""
        if verb == SettleVerb.NACK and number is not None and not 0 <= number < float("inf"):
            raise InvalidOption("delay", number, "expected seconds, 0 or more")
        if verb == SettleVerb.EXTEND and not (number is not None and 0 < number < float("inf")):
            raise InvalidOption("seconds", number, "expected a number above 0")
        if not self._publishing.loop_owner.is_here():
            raise NotSupported("settling from another thread", "use runnel.blocking.attach, or settle on the loop")
        if lease.ended:
            raise LeaseEnded(self.group, first, lease.attempt)
        if not lease.is_open(first):
            raise AlreadySettled(self.group, first)
        self._moves()
        held = lease.message
        if verb == SettleVerb.BEGIN:
            return None
        if verb == SettleVerb.EXTEND:
            lease.deadline = asyncio.get_running_loop().time() + (number or 0.0)
            self._working(held)
            self._tick(number)
            return None
        if verb == SettleVerb.RETURN:
            self._return(lease, first)
            return None
        for place in range(first, end):
            if lease.is_open(place):
                lease.settle(place)
                self._leased -= 1
                index = place - held.base
                self._leased_bytes -= len(held.records[index].value)
                if verb == SettleVerb.ACK:
                    self.acked += 1
                    self.consumers.acked += 1
                    self._done(held, index)
                elif verb == SettleVerb.NACK:
                    self._failed(held, index, number, reason or "nacked")
                else:
                    self._bury(held, index, reason or "rejected")
        if not len(lease):
            held.leases.discard(lease)
        answer = self._confirmed(held, first, lease.attempt) if durable else None
        self._finish(held, answer=not durable)
        if not self._goes_on:
            self._soon()
        return answer

    def _soon(self) -> None:
        """Continue once for all that this loop iteration settles."""
        self._goes_on = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _moves(self) -> None:
        """The user does something again: after a lease ended without an ack, take records again."""
        if self._is_stuck:
            self._is_stuck = False
            for session in self._sessions:
                session.resume()

    def _go_on(self) -> None:
        """There is room again: lease waiting records, and request more."""
        self._goes_on = False
        if self.acked != self._acked_before:
            self._acked_before, self.last_ack = self.acked, self.clock.time()
        for held in list(self._behind.values()):
            self._grant(held)
        for session in self._sessions:
            session.pull()

    def _done(self, held: HeldMessage, index: int) -> None:
        """A record is settled for good."""
        held.open.discard(index)
        if (key := held.records[index].key) is not None:
            held.busy.discard(key)
            if held.waiting:
                self._grant(held)

    def _failed(self, held: HeldMessage, index: int, delay: float | None, reason: str) -> None:
        """A record is to be tried again, or has failed too often."""
        options, attempts = self.consumers.options, held.attempts[index]
        if options.max_deliver is not None and attempts >= options.max_deliver:
            self._bury(held, index, reason)
            return
        held.attempts[index], held.is_plain = attempts + 1, False
        held.handed.discard(index)
        self.consumers.redelivered += 1
        pause = options.pause(attempts, random.random()) if delay is None else delay
        if pause <= 0:
            self._again(held, index)
            return

        def again() -> None:
            held.timers.discard(timer)
            self._again(held, index)

        timer = asyncio.get_running_loop().call_later(pause, again)
        held.timers.add(timer)

    def _again(self, held: HeldMessage, index: int) -> None:
        if self._held.get(held.sequence) is held:
            if (key := held.records[index].key) is not None:
                held.busy.discard(key)
            held.waiting.insert(0, index)
            held.waiting.sort()
            self._grant(held)

    def _return(self, lease: ClusterLease, first: int) -> None:
        """The user has not received the places from `first` on, and will not."""
        held = lease.message
        for place in range(first, lease.end):
            if lease.is_open(place):
                index = place - held.base
                self._leased -= 1
                self._leased_bytes -= len(held.records[index].value)
                if (key := held.records[index].key) is not None:
                    held.busy.discard(key)
                held.waiting.append(index)
        lease.end = first
        lease.ended = first == lease.first
        held.waiting.sort()
        if held.waiting and self._held.get(held.sequence) is held:
            self._behind[held.sequence] = held
        if not len(lease):
            held.leases.discard(lease)
        asyncio.get_running_loop().call_soon(self._go_on)

    def _bury(self, held: HeldMessage, index: int, reason: str) -> None:
        """Publish a record as a dead letter; it is settled when that is stored."""
        held.handed.add(index)
        held.burying += 1
        self._do(self._buried(held, index, reason))

    async def _buried(self, held: HeldMessage, index: int, reason: str) -> None:
        try:
            if await self._publish_letter(held, index, reason):
                self.consumers.dead_lettered += 1
                if self._held.get(held.sequence) is held:
                    self._done(held, index)
        finally:
            held.burying -= 1
        self._finish(held)
        self._go_on()

    async def _publish_letter(self, held: HeldMessage, index: int, reason: str) -> bool:
        """Store a record as a dead letter; False: the backend was closed before."""
        record = held.records[index]
        topic = self.consumers.options.dead_letter_topic(self.group)
        if (told := self.consumers.tell_requester) is not None and record.reply_to is not None:
            told(record, reason)
        headers = dead_letter.dead_letter_headers(record, reason, attempts=str(held.attempts[index]), group=self.group)
        self.consumers.dead_letter_log.note(record.topic, record.offset, headers[dead_letter.REASON], topic)
        pause = 0.1
        while True:
            try:
                values, columns, size, extra = checked_record(topic, None, record.value, record.key, headers)
                id = f"dl:{self.consumers.id}:{record.offset}"
                append = Append(values, columns, size, id, True, extra)
                source = self._publishing.source(topic, NO_TOPIC_OPTIONS, None)
                waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._publishing.add(source, append, waiter)
                await waiter
                return True
            except TooLarge:
                if set(headers) == set(_short(headers)):
                    log.error("record %d of %r is too large for a dead letter", record.offset, record.topic)
                    return True
                headers = _short(headers)
            except RunnelError as error:
                if self._shared.is_closed:
                    return False
                log.error("a dead letter of group %r could not be stored and is tried again: %s", self.group, error)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    # -- messages that go ---------------------------------------------------------------------------------------

    def _finish(self, held: HeldMessage, *, answer: bool = True) -> None:
        """Ack a message whose records are all settled; give one back that has no open lease."""
        if held.noting or self._held.get(held.sequence) is not held:
            return
        if not held.open:
            self._drop(held)
            if answer:
                self._settle_message(held.reply)
        elif held.is_going and not held.leases and not held.burying:
            self._let_go(held)

    def _settle_message(self, reply: str) -> None:
        if self.js.link.publish(reply, b"+ACK"):
            self._unconfirmed.append(reply)

    def _drop(self, held: HeldMessage) -> None:
        self._held.pop(held.sequence, None)
        self._behind.pop(held.sequence, None)
        self._bucket.pop(held.sequence, None)
        for timer in held.timers:
            timer.cancel()

    def _let_go(self, held: HeldMessage) -> None:
        """Give a message back to the group."""
        self._drop(held)
        self._do(self._give_back(held))

    async def _give_back(self, held: HeldMessage) -> None:
        note = held.note()
        if note is not None:
            try:
                await self._write_note(held, note)
            except ClusterRefused as error:
                if error.number == WRONG_LAST:
                    return  # another member has it
                log.warning("what is settled of message %d was not stored: %s", held.sequence, error)
            except RunnelError as error:
                log.warning("what is settled of message %d was not stored: %s", held.sequence, error)
        self.js.link.publish(held.reply, b"-NAK")

    async def _write_note(self, held: HeldMessage, note: SettledNote) -> None:
        """Store the state of a message; `ClusterRefused` if another member has stored one since.

        If an answer is lost, the repeated write may be refused although the first one was stored: after a restart, the
        cluster forgets the id of a replaced state.
        """
        headers = {ROLLUP: "sub", TTL: NOTE_TTL if held.open else DONE_TTL, EXPECTED: str(held.noted)}
        subject, write = self.consumers.note_subject(held.sequence), token_hex(4)
        note.writes = [*held.writes, write][-WRITES:]
        try:
            held.noted, _ = await self.js.store(subject, msgspec.msgpack.encode(note), headers)
            held.writes = note.writes
        except ClusterRefused as error:
            found = await self.js.last(subject) if error.number == WRONG_LAST else None
            known = None if found is None else msgspec.msgpack.decode(found.payload, type=SettledNote).writes
            if found is None or known is None or write not in known:
                raise
            if known[-1] == write:
                held.noted, held.writes = found.sequence, known

    def _confirmed(self, held: HeldMessage, place: int, attempt: int) -> Awaitable[None]:
        """Make the settlements of a message durable, unless it was given to another member: `LeaseEnded`."""
        held.noting += 1
        return self._do(self._noted(held, place, attempt))

    async def _noted(self, held: HeldMessage, place: int, attempt: int) -> None:
        is_answered = True  # if it fails, too: nothing more is said of the message
        try:
            is_answered = await self._note_settled(held, place, attempt)
        finally:
            held.noting -= 1
            self._finish(held, answer=not is_answered)

    async def _note_settled(self, held: HeldMessage, place: int, attempt: int) -> bool:
        """Write a note, and ack a message whose records are all settled; whether it was."""
        async with held.lock:
            try:
                await self._write_note(held, held.note() or SettledNote(held.delivered, [], {}))
            except ClusterRefused as error:
                if error.number != WRONG_LAST:
                    raise
                self._drop(held)
                for lease in list(held.leases):
                    self._leased -= len(lease)
                    lease.lapse()
                held.leases.clear()
                raise LeaseEnded(self.group, place, attempt) from error
        if held.open:
            return False
        await self._ack_confirmed(held.reply)
        return True

    async def _ack_confirmed(self, reply: str) -> None:
        async def ask() -> None:
            await self.js.link.request(reply, b"+ACK", 3.0)

        await self.js.repeated(ask, "an ack")

    async def flushed(self) -> None:
        """Return when everything settled so far is on disk."""
        replies = list(self._unconfirmed)
        self._unconfirmed.clear()
        waiting: list[Awaitable[None]] = [self._ack_confirmed(reply) for reply in replies]
        held = [one for one in self._held.values() if len(one.open) < len(one.records)]
        waiting += [self._confirmed(one, one.base, one.delivered) for one in held]
        for found in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, LeaseEnded):  # another member has it
                raise found
        if tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            await asyncio.wait(tasks)

    def forget(self, bucket: int | None = None) -> None:
        """The group was reset: end the leases, and hold nothing."""
        for sequence, held in list(self._held.items()):
            if bucket is None or self._bucket.get(sequence) == bucket:
                for lease in list(held.leases):
                    self._leased -= len(lease)
                    self._leased_bytes = 0
                    lease.lapse()
                self._drop(held)
        left = [lease for lease in self.inbox if not lease.ended]
        self.inbox.clear()  # the same object: the subscription holds it
        self.inbox.extend(left)
        self._leased = sum(len(lease) for held in self._held.values() for lease in held.leases)

    # -- time ---------------------------------------------------------------------------------------------------

    def _tick(self, soon: float | None = None) -> None:
        """Check deadlines, and report messages in work to the cluster."""
        loop = asyncio.get_running_loop()
        wait = max(0.02, min(self.consumers.cluster_wait / 3, soon if soon is not None else 10.0))
        if self._timer is not None:
            if self._timer.when() <= loop.time() + wait and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.ended:
            return
        loop = asyncio.get_running_loop()
        now, is_connected = loop.time(), self.js.link.state == "connected"
        self._lost = None if is_connected else self._lost or now
        if self._lost is not None and now - self._lost > self.consumers.cluster_wait:
            self.forget()  # others have got them by now
        nearest = 10.0
        for held in list(self._held.values()):
            for lease in list(held.leases):
                if lease.deadline is not None and lease.deadline <= now and lease.handed > lease.first:
                    self._expire(held, lease)
                elif lease.deadline is not None:
                    nearest = min(nearest, lease.deadline - now)
            if self._held.get(held.sequence) is held:
                self._working(held)
        self._tick(nearest)

    def _expire(self, held: HeldMessage, lease: ClusterLease) -> None:
        """A lease ended without an ack: its message goes back to the group, as soon as no other lease is open."""
        held.leases.discard(lease)
        self._leased -= len(lease)
        for place in range(lease.first, lease.end):
            if lease.is_open(place):
                self._leased_bytes -= len(held.records[place - held.base].value)
        self.consumers.redelivered += len(lease)
        lease.lapse()
        held.is_going = True
        self._is_stuck = True  # the record should go to a member that works
        for session in self._sessions:
            session.pause()
        unseen = [other for other in held.leases if other.handed == other.first]
        for other in unseen:
            self._leased -= len(other)
            held.leases.discard(other)
            other.lapse()
        self._finish(held)
        self._go_on()

    def _working(self, held: HeldMessage) -> None:
        self.js.link.publish(held.reply, b"+WPI")


def _short(headers: dict[str, str]) -> dict[str, str]:
    """The story of a dead letter alone."""
    return {name: text for name, text in headers.items() if name.startswith(dead_letter.PREFIX)}
