"""The group: members, grants, acks, redelivery, and acks that belong to a transaction.

Each record goes to one member at a time, and belongs to the group until it is acked, expired or dead-lettered. Between
its floor and its position a group keeps only unsettled records. A record that waits long and can be read again is kept
as a place, without its value, and read again when it is due (`recall`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice, takewhile
from typing import Any, NamedTuple

from runnel.broker.group.logic.leases import GroupRecords, Lease, LeaseTable, ProgressRecorder
from runnel.broker.group.logic.ready import PLAIN, PlainRange, QueuedRecord, ReadyQueue
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, UnknownMember
from runnel.core.group_options import BACKOFF as BACKOFF  # found here with the group
from runnel.core.group_options import GroupOptions as GroupOptions
from runnel.core.record import Meta

# -- Members ---------------------------------------------------------------------------------------------


class MemberState:
    """A member. `held` never exceeds `prefetch`, nor `held_bytes` its bound, except by one record."""

    __slots__ = (
        "acked",
        "granted",
        "group",
        "held",
        "held_bytes",
        "is_full",
        "last_ack",
        "leases",
        "moved",
        "name",
        "prefetch",
        "prefetch_bytes",
    )

    def __init__(self, group: GroupLogic, name: str, prefetch: int, prefetch_bytes: int | None) -> None:
        self.group, self.name, self.prefetch, self.prefetch_bytes = group, name, prefetch, prefetch_bytes
        self.held = self.held_bytes = 0
        self.is_full = False  # has no turn: it had no room when it was last granted records
        self.leases: dict[Lease, None] = {}  # in the order of their grants, so the unseen ones are last
        self.granted = self.acked = 0
        self.last_ack: float | None = None
        self.moved = float("-inf")  # when it last took something up, or settled it

    def __repr__(self) -> str:
        return f"<MemberState {self.name!r} holds {self.held} of {self.prefetch}>"

    @property
    def has_unseen(self) -> bool:
        """Whether it holds records that it has not seen."""
        last = next(reversed(self.leases), None)
        return last is not None and last.has_unseen()

    @property
    def room(self) -> int:
        """How many more records it may be granted."""
        if self.prefetch_bytes is not None and self.held_bytes >= self.prefetch_bytes:
            return 0
        return self.prefetch - self.held


# -- The group -------------------------------------------------------------------------------------------


MAX_BYTES = 256 * 1024 * 1024  # of records that a group holds and has not settled, whatever their time
EXPIRED_LEASE = "its lease ended without an ack"
LEFT = "its member left without an ack"


class DeadLetter(NamedTuple):
    """A record that failed for good: publish it to the dead-letter topic."""

    place: int
    contents: GroupRecords
    attempts: int
    reason: str


class GroupLogic:
    """Which member works on what. Methods take the time as an argument; those that can fail records return them."""

    def __init__(self, name: str, options: GroupOptions, chance: Callable[[], float]) -> None:
        self.name, self.options = name, options
        self.members: dict[str, MemberState] = {}
        self.paused = False
        self.acked = self.redelivered = self.dead_lettered = self.expired = 0
        self.settled_at = float("-inf")  # when a record was last settled
        self.outstanding = 0  # places at members
        self.notes: ProgressRecorder | None = None  # where the group outlives its process
        self.is_cancelled: Callable[[Any, int], bool] | None = None  # of contents and a place; None: nothing is
        self._chance = chance
        self._ready = ReadyQueue()
        self._bytes = 0  # of records brought here that are not settled, held or dropped from memory
        # Members with room, each in one of the two, in the order in which they are served.
        self._idle: dict[MemberState, None] = {}  # those that hold nothing
        self._ring: dict[MemberState, None] = {}  # those that hold something
        self._stocked: dict[MemberState, None] = {}  # those that may hold records that they have not seen
        self._leases = LeaseTable()

    def __repr__(self) -> str:
        return (
            f"<GroupLogic {self.name!r}, {len(self.members)} members, {self.outstanding} out, {self.backlog} to come>"
        )

    # -- what it holds ------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Records brought here and not at a member."""
        ready = self._ready
        return ready.count + ready.waiting + ready.scheduled + ready.parked + ready.due

    @property
    def scheduled(self) -> int:
        """Records whose time has not come."""
        return self._ready.scheduled

    @property
    def parked(self) -> int:
        """Records that stand behind another of their key, and came before their time."""
        return self._ready.parked

    @property
    def open_bytes(self) -> int:
        """The bytes of unsettled records brought here, including those dropped from memory."""
        return self._bytes

    @property
    def unsettled_bytes(self) -> int:
        """The bytes of unsettled records brought here, without those dropped from memory."""
        return self._bytes - self._ready.let_go

    @property
    def unsettled(self) -> int:
        """Records brought here and not settled."""
        return self.outstanding + self.backlog

    def wants(self) -> int:
        """How many more records to bring. Scheduled ones wait outside the window, as long as they are not too large."""
        if self.unsettled_bytes >= MAX_BYTES:
            return 0
        ready = self._ready
        return max(0, self.options.max_ack_pending - self.outstanding - ready.count - ready.waiting - ready.due)

    def floor(self, position: int) -> int:
        """The least place not settled; `position` (where to read on) when there is none."""
        out = [lease.low for lease in self._leases]
        oldest = self._ready.oldest()
        return min([position, *out] if oldest is None else [position, oldest, *out])

    def time_at(self, place: int) -> float | None:
        """The publish time of the record at the least unsettled place, if it was brought here."""
        for lease in self._leases:
            if lease.low == place:
                return lease.contents.time(place)
        return self._ready.time_at(place)

    # -- members ------------------------------------------------------------------------------------------------

    def join(self, name: str, prefetch: int, prefetch_bytes: int | None = None) -> MemberState:
        """A member comes, with nothing in hand."""
        if name in self.members:
            raise InvalidOption("member", name, f"group {self.name!r} has a member of that name")
        member = self.members[name] = MemberState(self, name, prefetch, prefetch_bytes)
        self._idle[member] = None
        return member

    def leave(self, name: str, now: float) -> list[DeadLetter]:
        """A member leaves: its records return at once and in order. Unseen ones do not count as attempts."""
        member = self._member(name)
        dead: list[DeadLetter] = []
        for lease in list(member.leases):
            dead += self._end(lease, LEFT, now)
        del self.members[name]
        self._stocked.pop(member, None)
        self._idle.pop(member, None)
        self._ring.pop(member, None)
        return dead

    def _member(self, name: str) -> MemberState:
        member = self.members.get(name)
        if member is None:
            raise UnknownMember(self.name, name)
        return member

    # -- bringing -----------------------------------------------------------------------------------------------

    def bring(self, first: int, end: int, contents: GroupRecords) -> None:
        """Plain records at [first, end): no key, delay, expiry or priority."""
        self._bytes += contents.weight(first, end)
        self._ready.add_plain(PlainRange(first, end, contents))

    def bring_one(self, place: int, meta: Meta, size: int, contents: GroupRecords, now: float) -> None:
        """One record that has a key, delay, expiry or priority."""
        self._bytes += size
        self._ready.add(QueuedRecord(place, meta, size, contents), now)

    def bring_again(
        self, place: int, meta: Meta, contents: GroupRecords, attempts: int, reason: str, due: float, now: float
    ) -> None:
        """One record that was tried in an earlier life of the group, and is not to be tried before `due`."""
        item = QueuedRecord(place, meta, contents.size(place), contents, attempts)
        item.reason = reason
        self._bytes += item.size
        self._ready.add(item, now, due)

    # -- reading dropped records again --------------------------------------------------------------------------

    def release(self, now: float) -> None:
        """Make due records ready, or recall them. Very many take several calls: `next_event` stays in the past then."""
        self._ready.release_due(now)

    @property
    def due(self) -> int:
        """Places of due records that were dropped from memory."""
        return self._ready.due

    def recall(self, limit: int) -> list[int]:
        """Up to `limit` places, in order, that are due and to be read again. Each then `came`, or is `gone`."""
        return self._ready.call_back(limit)

    def room(self) -> int:
        """How many of those may come. They wait outside until there is room: only then are they held again."""
        busy = self.outstanding + self._ready.count
        if self.unsettled_bytes >= MAX_BYTES:
            return 0 if busy else 1  # it is full of records that wait for their key, perhaps for this one
        return max(0, self.options.max_ack_pending - busy)

    def came(self, first: int, end: int, contents: GroupRecords) -> None:
        """The recalled records at [first, end) were read."""
        for place in range(first, end):
            self._ready.came(place, contents)

    def gone(self, place: int, now: float, *, for_good: bool) -> bool:
        """The recalled record at `place` cannot be read: the group skips it, until a restart or for good."""
        if not self._ready.gone(place, now):
            return False
        if for_good and self.notes is not None:
            self.notes.settled(place)
        return True

    # -- granting -----------------------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether a record is ready to be granted."""
        return self._ready.count > 0

    @property
    def is_uneven(self) -> bool:
        """Whether a member holds nothing while another holds several records."""
        return bool(self._idle) and self.outstanding > len(self.members) - len(self._idle)

    @property
    def has_room(self) -> bool:
        """Whether a record would be granted to a member if one were ready."""
        return bool(self._idle or self._ring) and not self.paused

    def grant(self, now: float) -> list[Lease]:
        """Hand out ready records to members with room, in turn; the leases made.

        Members that hold nothing come first, but for what would make them hold more than the others.
        """
        leases: list[Lease] = []
        self.release(now)
        while self.has_room and (free := self._grantable()) > 0:
            turns = self._idle or self._ring
            share = -(-free // len(turns))
            if turns is self._idle:
                share = min(share, -(-(free + self.outstanding) // len(self.members)))
            for member in list(islice(turns, free)):
                if (free := self._grantable()) <= 0:
                    break  # a member that got nothing keeps its turn
                del turns[member]
                self._fill(member, min(share, free, member.room), now, leases)
                self._stocked[member] = None
                self._line_up(member)
        return leases

    def _line_up(self, member: MemberState) -> None:
        """Give a member its turn behind the others, if it has room."""
        member.is_full = member.room <= 0
        if not member.is_full:
            (self._ring if member.held else self._idle)[member] = None

    def _made_room(self, member: MemberState) -> None:
        """A member holds less than before: it may have a turn now, or one among those that hold nothing."""
        if not member.held:
            self._ring.pop(member, None)
            member.is_full = False
            self._idle[member] = None  # where it is, if it is there already
        elif member.is_full:
            self._line_up(member)

    def take_back(self, now: float) -> bool:
        """Take records that busy members have not seen back for members that hold nothing; whether some are ready now.

        A member keeps its share of all that is out. A remote one gets a request: it knows which records were seen, and
        returns the rest (`give_back`).
        """
        if self.paused or self._ready.count or not self.is_uneven:
            return False
        share = -(-self.outstanding // len(self.members))
        for member in list(self._stocked):
            if not member.has_unseen:
                del self._stocked[member]
            elif member.held > share:
                self._recall_from(member, member.held - share, now)
        return self._ready.count > 0

    def _recall_from(self, member: MemberState, excess: int, now: float) -> None:
        """Take up to `excess` unseen records back, the last first."""
        for lease in list(takewhile(Lease.has_unseen, reversed(member.leases))):
            with lease.guard or nullcontext():
                place = max(lease.handed, lease.end - excess)
                excess -= lease.end - place
                if place == lease.end:
                    continue  # a thread has handed out the rest meanwhile
                if lease.on_recall is None:
                    self.give_back(lease, place, now)
                elif place < lease.recalled:
                    lease.recalled = place
                    lease.on_recall(place)
            if excess <= 0:
                return

    def give_back(self, lease: Lease, place: int, now: float) -> None:
        """The unseen records of a lease, from `place` on, are ready again, unchanged."""
        self._check(lease, place)
        if place < lease.handed:
            raise AlreadySettled(self.name, place)
        if place == lease.first:
            self._end(lease, "", now)
            return
        member, count = lease.member, lease.end - place
        self._ready.put_back_plain(PlainRange(place, lease.end, lease.contents))
        lease.end = place
        member.held -= count
        self.outstanding -= count
        if lease.low == lease.end:
            self._forget(lease)
        self._made_room(member)

    def _grantable(self) -> int:
        """How many records may be handed out, to any member: scheduled ones come back into a window that is full."""
        return min(self._ready.count, self.options.max_ack_pending - self.outstanding)

    def _fill(self, member: MemberState, share: int, now: float, leases: list[Lease]) -> None:
        """Grant `member`, which has that much room, up to `share` records."""
        by_bytes = member.prefetch_bytes is not None
        while share > 0:
            picked = self._ready.pick(1 if by_bytes else share)
            if picked is None:
                return
            if by_bytes and isinstance(picked, PlainRange):  # its bytes count: it needs an item of its own
                picked = self._plain_item(picked.first, picked.contents, 0)
            if isinstance(picked, PlainRange):
                lease = self._lease(member, picked.first, picked.end, 1, picked.contents, None, now)
            else:
                expires = picked.meta.expires
                if (expires is not None and expires <= now) or (
                    self.is_cancelled is not None and self.is_cancelled(picked.contents, picked.place)
                ):
                    self.expired += 1
                    self.settled_at = now
                    self._bytes -= picked.size
                    self._ready.settled(picked, now)
                    if self.notes is not None:
                        self.notes.settled(picked.place)
                    continue
                assert picked.contents is not None, "what is ready is here"
                picked.attempts += 1
                lease = self._lease(
                    member, picked.place, picked.place + 1, picked.attempts, picked.contents, picked, now
                )
                member.held_bytes += picked.size
            share -= lease.end - lease.first
            leases.append(lease)
            if by_bytes and not member.room:
                return

    def _lease(
        self,
        member: MemberState,
        first: int,
        end: int,
        attempt: int,
        contents: GroupRecords,
        item: QueuedRecord | None,
        now: float,
    ) -> Lease:
        lease = Lease(member, first, end, attempt, now + self.options.ack_wait, contents, item)
        self._leases.add(lease)
        member.leases[lease] = None
        member.held += end - first
        member.granted += end - first
        self.outstanding += end - first
        return lease

    def take_up(self, lease: Lease, now: float) -> bool:
        """The member begins with what it was granted: only now does its time for it run. False: it has expired."""
        item = lease.item
        if item is not None and item.meta.expires is not None and item.meta.expires <= now:
            lease.settle(item.place)
            self.expired += 1
            self._bytes -= item.size
            self._settled(lease, 1, now)
            if self.notes is not None:
                self.notes.settled(item.place)
            return False
        if item is not None and lease.handed == lease.first:
            self.redelivered += lease.attempt > 1
        lease.member.moved = now
        if (deadline := now + self.options.ack_wait) > lease.deadline:
            lease.deadline = deadline
        return True

    # -- what members say ---------------------------------------------------------------------------------------

    def ack(self, lease: Lease, place: int, now: float) -> None:
        """The record at `place` is done."""
        member = lease.member
        if place != lease.low or place >= lease.end or lease.ended or member.group is not self:  # else it is open
            self._check(lease, place)
        item = lease.item
        self._bytes -= lease.contents.size(place) if item is None else item.size
        lease.settle(place)
        self.acked += 1
        member.acked += 1
        member.last_ack = now
        self.settled_at = now
        self._let_go(lease, 1, now)
        if item is not None and item.meta.key is not None:
            self._ready.settled(item, now)
        if self.notes is not None:
            self.notes.settled(place)

    def ack_range(self, lease: Lease, first: int, end: int, now: float) -> int:
        """All that is open in [first, end) of the lease is done; how many that was."""
        if lease.ended:
            raise LeaseEnded(self.name, first, lease.attempt)
        if lease.member.group is not self:
            raise UnknownMember(self.name, lease.member.name)
        self._bytes -= lease.open_bytes(first, end)
        if self.notes is not None:
            for one, other in lease.open_ranges(first, end):
                self.notes.settled_range(one, other)
        count = lease.settle_range(first, end)
        self.acked += count
        lease.member.acked += count
        if count:
            lease.member.last_ack = now
            self._settled(lease, count, now)
        return count

    def nack(self, lease: Lease, place: int, delay: float | None, reason: str, now: float) -> list[DeadLetter]:
        """The attempt failed: again after `delay` seconds, or after the group's backoff when None."""
        if delay is not None and not 0 <= delay < float("inf"):
            raise InvalidOption("delay", delay, "expected seconds, 0 or more")
        self._check(lease, place)
        lease.settle(place)
        item = lease.item or self._plain_item(place, lease.contents, lease.attempt)
        item.reason = reason
        self._let_go(lease, 1, now)
        return self._again(item, self.options.pause(item.attempts, self._chance()) if delay is None else delay, now)

    def reject(self, lease: Lease, place: int, reason: str, now: float) -> list[DeadLetter]:
        """The record will never succeed: to the dead letters at once."""
        self._check(lease, place)
        self._bytes -= lease.contents.size(place)
        lease.settle(place)
        dead = DeadLetter(place, lease.contents, lease.attempt, reason)
        self.dead_lettered += 1
        self._settled(lease, 1, now)
        if self.notes is not None:
            self.notes.settled(place)
        return [dead]

    def extend(self, lease: Lease, place: int, seconds: float, now: float) -> None:
        """The member needs so many more seconds from now for what it holds in this lease."""
        if not 0 < seconds < float("inf"):
            raise InvalidOption("seconds", seconds, "expected a number above 0")
        self._check(lease, place)
        lease.deadline = now + seconds
        self._leases.renew(lease)

    def _check(self, lease: Lease, place: int) -> None:
        if lease.ended:
            raise LeaseEnded(self.name, place, lease.attempt)
        if lease.member.group is not self:
            raise UnknownMember(self.name, lease.member.name)
        if not lease.is_open(place):
            raise AlreadySettled(self.name, place)

    # -- time ---------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[DeadLetter]:
        """End the leases that are past their deadline; what they held goes back."""
        dead: list[DeadLetter] = []
        for lease in self._leases.to_look_at(now):
            if lease.handed == lease.first:  # in the queue of a member that may be busy with earlier ones
                lease.deadline = max(lease.deadline, lease.member.moved + self.options.ack_wait)
            if lease.deadline > now:  # it moved meanwhile: look again then
                self._leases.renew(lease)
            else:
                dead += self._end(lease, EXPIRED_LEASE, now)
                self._idle.pop(lease.member, None)  # it may be stuck: the others go first
                self._ring.pop(lease.member, None)
                self._line_up(lease.member)
        return dead

    def next_event(self) -> float | None:
        """When `expire` or `grant` may have something to do without another event."""
        times = (self._leases.next_look(), self._ready.next_due())
        return min((time for time in times if time is not None), default=None)

    # -- steering -----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget all records: the position was reset. Acks of leased records are too late."""
        for lease in self._leases:
            lease.lapse()
        for member in self.members.values():
            member.held = member.held_bytes = 0
            member.leases.clear()
            self._made_room(member)
        self._stocked.clear()
        self.outstanding = self._bytes = 0
        self._ready = ReadyQueue()
        self._leases = LeaseTable()

    # -- inside -------------------------------------------------------------------------------------------------

    @staticmethod
    def _plain_item(place: int, contents: GroupRecords, attempts: int) -> QueuedRecord:
        """A plain place that has an item of its own from now on."""
        return QueuedRecord(place, PLAIN, contents.size(place), contents, attempts)

    def _let_go(self, lease: Lease, count: int, now: float) -> None:
        """The member has settled `count` places of the lease."""
        member = lease.member
        member.held -= count
        member.moved = now
        self.outstanding -= count
        if lease.item is not None:
            member.held_bytes -= lease.item.size
        if lease.low == lease.end:
            self._forget(lease)
        else:
            # A member that works gets more time, and nothing of what `extend` gave is taken away.
            deadline = now + self.options.ack_wait
            if deadline > lease.deadline:
                lease.deadline = deadline
        if member.is_full or not member.held:
            self._made_room(member)

    def _forget(self, lease: Lease) -> None:
        """Nothing of a lease is open any more."""
        self._leases.remove(lease)
        del lease.member.leases[lease]

    def _settled(self, lease: Lease, count: int, now: float) -> None:
        self.settled_at = now
        self._let_go(lease, count, now)
        if lease.item is not None:
            self._ready.settled(lease.item, now)

    def _again(self, item: QueuedRecord, delay: float, now: float) -> list[DeadLetter]:
        """Another attempt after `delay` seconds, unless there were enough."""
        limit = self.options.max_deliver
        assert item.contents is not None, "it was out"
        if limit is not None and item.attempts >= limit:
            self.dead_lettered += 1
            self.settled_at = now
            self._bytes -= item.size
            self._ready.settled(item, now)
            if self.notes is not None:
                self.notes.settled(item.place)
            return [DeadLetter(item.place, item.contents, item.attempts, item.reason)]
        if self.notes is not None:
            self.notes.failed(item.place, item.attempts, now + delay, item.reason)
        if delay > 0:
            self._ready.delay(item, now + delay, now)
        else:
            self._ready.put_back(item)
        return []

    def _end(self, lease: Lease, reason: str, now: float) -> list[DeadLetter]:
        """End a lease: seen records are tried again, unseen ones are unchanged."""
        lease.lapse()
        self._forget(lease)
        member = lease.member
        member.held -= len(lease)
        self.outstanding -= len(lease)
        if lease.item is not None:
            member.held_bytes -= lease.item.size
        self._made_room(member)
        dead: list[DeadLetter] = []
        for place in lease.open_places():
            seen = place < lease.handed
            if lease.item is None and not seen:
                self._ready.put_back_plain(PlainRange(place, lease.end, lease.contents))
                break  # nothing after the first unseen place was seen or settled
            item = lease.item or self._plain_item(place, lease.contents, lease.attempt)
            if seen:
                item.reason = reason
                dead += self._again(item, 0.0, now)
            else:
                item.attempts -= 1
                self._ready.put_back(item)
        return dead


# -- Acks of a transaction -------------------------------------------------------------------------------
# Places of a lease that are settled together with a commit that is on its way. Until its outcome is known no
# other member gets them: not when the lease would expire, nor when the member leaves.


NOT_COMMITTED = "its transaction was not committed, and its member had left"

_FOR_EVER = float("inf")


class Claim:
    """Places [first, end) of `lease`, all of them open. To the lease they are settled; the group knows better.

    Every claim ends in `settle` or `give_back`, once.
    """

    __slots__ = ("_count", "_group", "_lease", "_own", "end", "first")

    def __init__(self, group: GroupLogic, lease: Lease, first: int, end: int, now: float) -> None:
        self.first, self.end = first, end
        self._group, self._lease = group, lease
        self._count = lease.settle_range(first, end)
        group._let_go(lease, self._count, now)
        # A lease of its own, of a member that cannot leave, holds the floor and the key, and never expires.
        absent = MemberState(group, lease.member.name, 0, None)
        self._own = Lease(absent, first, end, lease.attempt, _FOR_EVER, lease.contents, lease.item)
        self._own.handed = end
        group._leases.renew(self._own)
        group.outstanding += self._count

    def __repr__(self) -> str:
        return f"<Claim on [{self.first}, {self.end}) of {self._lease!r}{', void' if self.void else ''}>"

    @property
    def void(self) -> bool:
        """Whether the group was reset meanwhile: then nothing of it counts."""
        return self._own.ended

    def settle(self, now: float) -> None:
        """It was done, and is remembered: the group need not note it again."""
        if self.void:
            return
        group, own = self._group, self._own
        self._let_go()
        group._bytes -= own.contents.weight(self.first, self.end)
        group.acked += self._count
        group.settled_at = now
        self._lease.member.acked += self._count
        self._lease.member.last_ack = now
        if own.item is not None:
            group._ready.settled(own.item, now)

    def give_back(self, now: float) -> list[DeadLetter]:
        """It was not done. The member has it again, with a fresh deadline; or the group, if the member cannot."""
        if self.void:
            return []
        group, lease, member = self._group, self._lease, self._lease.member
        self._let_go()
        if lease.ended or group.members.get(member.name) is not member:
            dead: list[DeadLetter] = []
            for place in range(self.first, self.end):
                item = lease.item or group._plain_item(place, lease.contents, lease.attempt)
                item.reason = NOT_COMMITTED
                dead += group._again(item, 0.0, now)
            return dead
        was_over = lease.low == lease.end
        lease.reopen(self.first, self.end)
        member.held += self._count
        group.outstanding += self._count
        if lease.item is not None:
            member.held_bytes += lease.item.size
        lease.deadline = max(lease.deadline, now + group.options.ack_wait)
        if was_over:
            group._leases.renew(lease)
            member.leases = {lease: None, **member.leases}  # all of it was seen: before unseen records
        if group._idle.pop(member, group) is not group:
            group._line_up(member)
        return []

    def _let_go(self) -> None:
        self._group._leases.remove(self._own)
        self._group.outstanding -= self._count
