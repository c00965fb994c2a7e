"""A group as one row per record, and a state machine that compares the real one with it after every step.

The model is naive on purpose: it knows nothing of ranges, heaps or rings. What it predicts is
what a user was promised; how the group finds it is the group's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runnel.broker.group.logic.group import EXPIRED_LEASE, LEFT, DeadLetter, GroupLogic, GroupOptions, MemberState
from runnel.broker.group.logic.leases import Lease
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, RunnelError, UnknownMember
from runnel.core.record import Meta
from tests.broker.group.group_builders import KEPT, SHELF, let_go, look, size_of, whereabouts

CHANCE = 0.5
KEYS = st.sampled_from([None, None, b"a", b"b", b"c"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, 5, 9])
TRAITS = st.builds(  # seconds from now, not moments
    Meta,
    key=KEYS,
    priority=PRIORITIES,
    due=st.sampled_from([None, None, None, None, 0.0, 3.0, 20.0]),
    expires=st.sampled_from([None, None, None, None, 1.0, 15.0]),
)
ANSWERS = st.sampled_from(["ack", "ack", "ack", "ack_range", "nack", "nack", "reject", "extend"])
DELAYS = st.sampled_from([None, None, 0.0, 4.0, 100.0])
SECONDS = st.sampled_from([0.5, 1.0, 5.0, 12.0, 40.0])
PICK = st.integers(0, 10**6)  # chooses among what there is


@dataclass
class Note:
    """One record that is not settled."""

    place: int
    key: bytes | None = None
    priority: int = 0
    due: float = 0.0
    expires: float = float("inf")
    tried: int = 0  # how often a member has seen it
    lease: Lease | None = None


@dataclass
class Sums:
    """What was counted so far."""

    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    expired: int = 0


@dataclass
class Model:
    """What is not settled, who sees it, and until when."""

    notes: dict[int, Note] = field(default_factory=dict)
    deadlines: dict[Lease, float] = field(default_factory=dict)  # of leases with something open
    moved: dict[MemberState, float] = field(default_factory=dict)  # when a member last took something up or settled it
    sums: Sums = field(default_factory=Sums)

    def until(self, lease: Lease, wait: float) -> float:
        """When a lease ends; what a busy member has not begun with waits for it."""
        begun = lease.handed > lease.first
        return self.deadlines[lease] if begun else max(self.deadlines[lease], self.moved.get(lease.member, 0.0) + wait)

    def out(self, lease: Lease) -> list[Note]:
        """What is open of a lease."""
        return [note for note in self.notes.values() if note.lease is lease]

    def held(self, member: MemberState) -> list[Note]:
        """What a member holds."""
        return [note for note in self.notes.values() if note.lease is not None and note.lease.member is member]

    def settle(self, lease: Lease, places: list[int], now: float, wait: float) -> None:
        """Places of a lease are no longer open; whoever works gets more time."""
        for place in places:
            self.notes[place].lease = None
        if places:
            self.moved[lease.member] = now
        if self.out(lease):
            self.deadlines[lease] = max(self.deadlines[lease], now + wait)
        else:
            del self.deadlines[lease]

    def first_of_its_key(self, note: Note) -> bool:
        """Whether nothing of the same key before it is unsettled."""
        return note.key is None or not any(n.key == note.key and n.place < note.place for n in self.notes.values())


class GroupMachine(RuleBasedStateMachine):
    """Every rule acts on a group and on the model, and compares what both say."""

    group: GroupLogic
    model: Model

    @initialize(
        limit=st.none() | st.integers(1, 4),
        pending=st.sampled_from([3, 8, 40]),
        backoff=st.sampled_from([0.0, 0.5, 2.0]),
        kept=st.booleans(),
    )
    def open(self, limit: int | None, pending: int, backoff: float, kept: bool) -> None:
        self.shelf = KEPT if kept else SHELF
        self.wanted: list[int] = []  # what the group has asked for again
        self.options = GroupOptions(
            ack_wait=10.0, max_ack_pending=pending, max_deliver=limit, backoff=(backoff, backoff * 3), jitter=0.5
        )
        self.group = GroupLogic("g", self.options, lambda: CHANCE)
        self.other = GroupLogic("other", GroupOptions(), lambda: CHANCE)
        self.other.join("them", 1)
        self.other.bring(0, 1, SHELF)
        (self.foreign,) = self.other.grant(0.0)
        self.model = Model()
        self.now, self.position, self.names = 0.0, 0, 0
        self.past: list[Lease] = []  # every lease there ever was
        self.join(6, None)
        self.bring_plain(5, 0)

    # -- what is there to choose from ---------------------------------------------------------------------------

    def member(self, pick: int) -> MemberState:
        members = list(self.group.members.values())
        return members[pick % len(members)]

    def seen(self) -> list[Note]:
        """What a member has in hand, and may settle."""
        notes = self.model.notes.values()
        return [note for note in notes if note.lease is not None and note.place < note.lease.handed]

    def failed(self, places: list[int], reason: str, delay: float) -> list[DeadLetter]:
        """The model after an attempt at `places` failed; who died of it."""
        dead = []
        for place in places:
            note = self.model.notes[place]
            note.lease = None
            if self.options.max_deliver is not None and note.tried >= self.options.max_deliver:
                dead.append(DeadLetter(place, SHELF, note.tried, reason))
                del self.model.notes[place]
            else:
                note.due = max(note.due, self.now + delay) if delay else note.due
        self.model.sums.dead_lettered += len(dead)
        return dead

    def end(self, leases: list[Lease], reason: str) -> list[DeadLetter]:
        """The model after leases ended: what was seen has failed, the rest is as it was."""
        dead = []
        for lease in leases:
            places = [note.place for note in self.model.out(lease)]
            del self.model.deadlines[lease]
            dead += self.failed([p for p in places if p < lease.handed], reason, 0.0)
            for place in places:
                if place >= lease.handed:
                    self.model.notes[place].lease = None
        return dead

    def same_letters(self, letters: list[DeadLetter], expected: list[DeadLetter]) -> None:
        facts = [(letter.place, letter.attempts, letter.reason) for letter in letters]
        assert sorted(facts) == sorted((letter.place, letter.attempts, letter.reason) for letter in expected)

    # -- bringing -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.group.wants())
    @rule(count=st.integers(1, 12), hole=st.sampled_from([0, 0, 0, 3]))
    def bring_plain(self, count: int, hole: int) -> None:
        first = self.position + hole  # of a pattern, places between belong to other topics
        self.position = first + min(count, self.group.wants())
        self.group.bring(first, self.position, self.shelf)
        self.model.notes |= {place: Note(place) for place in range(first, self.position)}

    @precondition(lambda self: self.group.wants())
    @rule(traits=st.lists(TRAITS, min_size=1, max_size=8))
    def bring_special(self, traits: list[Meta]) -> None:
        for trait in traits[: self.group.wants()]:
            place = self.position
            self.position += 1
            due = None if trait.due is None else self.now + trait.due
            expires = None if trait.expires is None else self.now + trait.expires
            meta = Meta(key=trait.key, priority=trait.priority, due=due, expires=expires)
            self.group.bring_one(place, meta, size_of(place), self.shelf, self.now)
            self.model.notes[place] = Note(
                place,
                meta.key,
                meta.priority,
                self.now if due is None else due,
                float("inf") if expires is None else expires,
            )

    # -- members ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.group.members) < 5)
    @rule(prefetch=st.integers(1, 9), prefetch_bytes=st.none() | st.integers(1, 90))
    def join(self, prefetch: int, prefetch_bytes: int | None) -> None:
        self.names += 1
        member = self.group.join(f"m{self.names}", prefetch, prefetch_bytes)
        assert (member.held, member.held_bytes, member.granted, member.acked) == (0, 0, 0, 0)

    @precondition(lambda self: self.group.members)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        member = self.member(pick)
        leases = [lease for lease in self.model.deadlines if lease.member is member]
        expected = self.end(leases, LEFT)
        self.same_letters(self.group.leave(member.name, self.now), expected)
        assert all(lease.ended for lease in leases)

    # -- granting -----------------------------------------------------------------------------------------------

    @rule(seen=st.booleans())
    def work(self, seen: bool) -> None:
        """What a loop's turn does; most of the time the members then take everything in hand."""
        if not self.group.members:
            self.join(4, None)
        self.grant()
        if seen:
            self.see_everything()

    @rule(limit=st.integers(1, 6), some_are_gone=st.sampled_from([False, False, True]))
    def read_again(self, limit: int, some_are_gone: bool) -> None:
        """What is due and was let go is read, as far as there is room; some of it may be gone."""
        self.group.release(self.now)
        self.wanted += self.group.recall(limit)
        busy = any(where in ("ready", "out") for where in whereabouts(self.group).values())
        assert not self.wanted or self.group.room() or busy, "nothing would ever make room"
        while self.wanted and self.group.room() > 0:
            place = self.wanted.pop(0)
            note = self.model.notes[place]
            assert note.due <= self.now, f"{place} was read before its time"
            assert self.model.first_of_its_key(note), f"{place} was read before its turn"
            if some_are_gone and place % 2:
                assert self.group.gone(place, self.now, for_good=True)
                assert not self.group.gone(place, self.now, for_good=True), "it is gone already"
                del self.model.notes[place]
            else:
                self.group.came(place, place + 1, self.shelf)

    def grant(self) -> None:
        before = {name: sum(size_of(n.place) for n in self.model.held(m)) for name, m in self.group.members.items()}
        leases = self.group.grant(self.now)
        self.past += leases
        self.skip_the_expired()
        for lease in leases:
            self.check_bytes(lease, before)
            self.model.deadlines[lease] = self.now + self.options.ack_wait
            for place in range(lease.first, lease.end):
                note = self.model.notes[place]
                assert note.lease is None, f"{place} is with two members"
                assert note.due <= self.now, f"{place} was handed out before its time"
                assert note.expires > self.now, f"{place} was handed out after it expired"
                assert self.model.first_of_its_key(note), f"{place} overtook another of its key"
                assert lease.attempt == note.tried + 1, f"{place} was tried {note.tried} times"
                assert self.group.members.get(lease.member.name) is lease.member
                note.lease = lease
        left = [place for place, where in whereabouts(self.group).items() if where == "ready"]
        full = self.group.outstanding == self.options.max_ack_pending
        with_room = [member for member in self.group.members.values() if member.room > 0]
        assert self.group.paused or not left or full or not with_room, f"{left} are ready and {with_room} idle"

    @precondition(lambda self: any(lease.handed < lease.end for lease in self.model.deadlines))
    @rule()
    def take_back(self) -> None:
        """What was not seen goes back for members that hold nothing, and to nobody else."""
        group, idle = self.group, {member for member in self.group.members.values() if not member.held}
        unseen = {lease: (lease.handed, lease.end) for lease in self.model.deadlines}
        held = {member: member.held for member in group.members.values()}
        group.release(self.now)
        share = -(-group.outstanding // max(1, len(group.members)))
        was_ready = group.has_ready
        ready = group.take_back(self.now)
        assert not (ready and (was_ready or group.paused or not idle))
        for lease, (handed, end) in unseen.items():
            kept = lease.handed if lease.ended else lease.end
            for place in range(max(kept, handed), end):
                self.model.notes[place].lease = None
            if lease.ended or lease.low == lease.end:
                del self.model.deadlines[lease]
        for member, before in held.items():
            assert member.held == before or member.held >= share, f"{member!r} keeps less than its share"
        if ready:
            self.grant()
            assert not idle or any(member.held for member in idle), "nobody who waited got anything"

    def skip_the_expired(self) -> None:
        """What the group passed over must have expired, and be counted."""
        gone = self.model.notes.keys() - whereabouts(self.group).keys()
        for place in gone:
            assert self.model.notes[place].expires <= self.now, f"{place} was lost"
            assert self.model.notes.pop(place).lease is None
        self.model.sums.expired += len(gone)

    def check_bytes(self, lease: Lease, before: dict[str, int]) -> None:
        """A member that had its bytes was given no more."""
        member, limit = lease.member, lease.member.prefetch_bytes
        assert limit is None or before[member.name] < limit, f"{member!r} has {before[member.name]} bytes of {limit}"
        assert limit is None or lease.end - lease.first == 1, "a stretch, whose bytes nobody counts"
        before[member.name] += sum(map(size_of, range(lease.first, lease.end)))

    @precondition(lambda self: any(lease.handed < lease.end for lease in self.model.deadlines))
    @rule(pick=PICK, count=st.integers(1, 9))
    def see(self, pick: int, count: int) -> None:
        """A member takes some of what it was granted in hand."""
        unseen = [lease for lease in self.model.deadlines if lease.handed < lease.end]
        lease = unseen[pick % len(unseen)]
        note = self.model.notes.get(lease.first)
        if not self.group.take_up(lease, self.now):
            assert note is not None
            assert note.expires <= self.now
            self.model.settle(lease, [note.place], self.now, self.options.ack_wait)
            del self.model.notes[note.place]
            self.model.sums.expired += 1
            return
        assert note is None or note.expires > self.now or lease.handed > lease.first, "expired, and handed out"
        if note is not None and lease.handed == lease.first:
            self.model.sums.redelivered += note.tried > 0
        self.model.moved[lease.member] = self.now
        self.model.deadlines[lease] = max(self.model.deadlines[lease], self.now + self.options.ack_wait)
        first, lease.handed = lease.handed, min(lease.end, lease.handed + count)
        for place in range(first, lease.handed):
            self.model.notes[place].tried += 1

    def see_everything(self) -> None:
        while any(lease.handed < lease.end for lease in self.model.deadlines):
            self.see(0, 9)

    # -- settling -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.seen())
    @rule(steps=st.lists(st.tuples(PICK, ANSWERS, DELAYS, SECONDS), min_size=1, max_size=6))
    def settle(self, steps: list[tuple[int, str, float | None, float]]) -> None:
        """Members say something about what they have in hand, in any order."""
        for pick, answer, delay, seconds in steps:
            if not (seen := self.seen()):
                return
            note = seen[pick % len(seen)]
            assert note.lease is not None
            match answer:
                case "ack":
                    self.ack(note, note.lease)
                case "ack_range":
                    self.ack_range(note.lease, pick)
                case "nack":
                    self.nack(note, note.lease, delay)
                case "reject":
                    self.reject(note, note.lease)
                case "extend":
                    for _ in range(1 + pick % 2):
                        self.group.extend(note.lease, note.place, seconds, self.now)
                    self.model.deadlines[note.lease] = self.now + seconds

    def ack(self, note: Note, lease: Lease) -> None:
        self.group.ack(lease, note.place, self.now)
        self.model.settle(lease, [note.place], self.now, self.options.ack_wait)
        del self.model.notes[note.place]
        self.model.sums.acked += 1

    def ack_range(self, lease: Lease, pick: int) -> None:
        first = min(lease.first + pick % 4, lease.handed)
        end = min(first + pick // 4 % 9, lease.handed)
        places = [note.place for note in self.model.out(lease) if first <= note.place < end]
        assert self.group.ack_range(lease, first, end, self.now) == len(places)
        if places:
            self.model.settle(lease, places, self.now, self.options.ack_wait)
        for place in places:
            del self.model.notes[place]
        self.model.sums.acked += len(places)

    def nack(self, note: Note, lease: Lease, delay: float | None) -> None:
        pause = self.options.pause(note.tried, CHANCE) if delay is None else delay
        self.model.settle(lease, [note.place], self.now, self.options.ack_wait)
        expected = self.failed([note.place], "because", pause)
        self.same_letters(self.group.nack(lease, note.place, delay, "because", self.now), expected)

    def reject(self, note: Note, lease: Lease) -> None:
        self.model.settle(lease, [note.place], self.now, self.options.ack_wait)
        (letter,) = self.group.reject(lease, note.place, "hopeless", self.now)
        assert (letter.place, letter.attempts, letter.reason) == (note.place, note.tried, "hopeless")
        del self.model.notes[note.place]
        self.model.sums.dead_lettered += 1

    # -- time and steering --------------------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        late = [lease for lease in self.model.deadlines if self.model.until(lease, self.options.ack_wait) <= self.now]
        expected = self.end(late, EXPIRED_LEASE)
        self.same_letters(self.group.expire(self.now), expected)
        assert all(lease.ended for lease in late)
        self.grant()
        event = self.group.next_event()
        assert event is None or event > self.now, "what was due is done"

    @rule(paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, paused: bool) -> None:
        self.group.paused = paused

    @precondition(lambda self: len(self.past) > 5)
    @rule(pick=PICK)
    def clear(self, pick: int) -> None:
        self.group.clear()
        assert all(lease.ended for lease in self.model.deadlines)
        self.model.notes.clear()
        self.wanted.clear()
        self.model.deadlines.clear()
        self.position = pick % (self.position + 1)

    # -- what is refused ----------------------------------------------------------------------------------------

    def refused(self, error: type[RunnelError], call: Callable[[], object]) -> None:
        """The call raises just this, and changes nothing."""
        before = look(self.group)
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert look(self.group) == before

    def settlings(self, lease: Lease, place: int) -> list[Callable[[], object]]:
        group, now = self.group, self.now
        return [
            lambda: group.ack(lease, place, now),
            lambda: group.nack(lease, place, 0.0, "late", now),
            lambda: group.reject(lease, place, "late", now),
            lambda: group.extend(lease, place, 5.0, now),
        ]

    @rule(
        pick=PICK, which=st.integers(0, 3), seconds=st.sampled_from([-1.0, float("nan"), float("inf"), -float("inf")])
    )
    def ask_for_what_cannot_be(self, pick: int, which: int, seconds: float) -> None:
        group, now = self.group, self.now
        self.refused(UnknownMember, lambda: group.leave("nobody", now))
        self.refused(UnknownMember, self.settlings(self.foreign, 0)[which])
        self.refused(UnknownMember, lambda: group.ack_range(self.foreign, 0, 1, now))
        assert len(self.foreign) == 1
        if group.members:
            self.refused(InvalidOption, lambda: group.join(self.member(pick).name, 1))
        if self.past:
            self.settle_again(self.past[pick % len(self.past)], pick, which)
        if self.seen():
            note = self.seen()[pick % len(self.seen())]
            assert note.lease is not None
            lease = note.lease
            self.refused(InvalidOption, lambda: group.nack(lease, note.place, seconds, "x", now))
            self.refused(InvalidOption, lambda: group.extend(lease, note.place, seconds, now))
            self.refused(InvalidOption, lambda: group.extend(lease, note.place, 0.0, now))

    def settle_again(self, lease: Lease, pick: int, which: int) -> None:
        """A delivery that was settled, or whose lease has ended, is settled (again)."""
        place = lease.first + pick % (lease.end - lease.first)
        if lease.ended:
            self.refused(LeaseEnded, self.settlings(lease, place)[which])
            self.refused(LeaseEnded, lambda: self.group.ack_range(lease, lease.first, lease.end, self.now))
        elif not lease.is_open(place):
            self.refused(AlreadySettled, self.settlings(lease, place)[which])

    # -- after every step ---------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_and_everything_is_in_one_place(self) -> None:
        where = whereabouts(self.group)
        assert where.keys() == self.model.notes.keys()
        for place, note in self.model.notes.items():
            assert (where[place] == "out") == (note.lease is not None)
            if where[place] in ("waiting", "parked"):
                assert not self.model.first_of_its_key(note)
            if where[place] in ("ready", "out", "due"):
                assert self.model.first_of_its_key(note), f"{place} may overtake another of its key"
            if note.lease is not None:
                assert note.lease.is_open(place)
                assert not note.lease.ended

    @invariant()
    def members_hold_what_they_may(self) -> None:
        for member in self.group.members.values():
            notes = self.model.held(member)
            assert member.held == len(notes) <= member.prefetch
            if member.prefetch_bytes is not None:
                assert member.held_bytes == sum(size_of(note.place) for note in notes)
            elif not notes:
                assert member.held_bytes == 0

    @invariant()
    def the_window_is_kept(self) -> None:
        group, pending = self.group, self.options.max_ack_pending
        where = list(whereabouts(group).values())
        assert group.outstanding == where.count("out") <= pending
        assert group.scheduled == where.count("scheduled")
        assert group.backlog == len(where) - where.count("out")
        assert group.unsettled == len(where)
        outside = where.count("scheduled") + where.count("parked")
        assert group.wants() == max(0, pending - (len(where) - outside))

    @invariant()
    def only_what_is_held_is_weighed(self) -> None:
        gone = let_go(self.group._ready)
        assert self.group.unsettled_bytes == sum(size_of(place) for place in self.model.notes if place not in gone)
        assert not gone or self.shelf.is_kept, "what cannot be read again is held"
        for place, where in whereabouts(self.group).items():
            held = where in ("ready", "waiting", "out") or (where == "scheduled" and not self.shelf.is_kept)
            assert not (held and place in gone)
            assert where not in ("due", "parked") or place in gone

    @invariant()
    def the_floor_is_the_least_place_that_is_not_settled(self) -> None:
        floor = self.group.floor(self.position)
        assert floor == min(self.model.notes, default=self.position)
        assert self.group.time_at(floor) == (float(floor) if self.model.notes else None)

    @invariant()
    def counters_are_exact(self) -> None:
        group, sums = self.group, self.model.sums
        counted = (group.acked, group.redelivered, group.dead_lettered, group.expired)
        assert counted == (sums.acked, sums.redelivered, sums.dead_lettered, sums.expired)

    @invariant()
    def it_is_looked_at_again_in_time(self) -> None:
        """Nobody has to say anything: the group knows when a lease ends or a record is due."""
        times = [self.model.until(lease, self.options.ack_wait) for lease in self.model.deadlines]
        times += [self.model.notes[place].due for place, at in whereabouts(self.group).items() if at == "scheduled"]
        event = self.group.next_event()
        assert event is not None if times else True
        assert event is None or event <= min(times, default=float("inf"))

    @invariant()
    def state_is_as_small_as_what_is_not_settled(self) -> None:
        group = self.group
        leases = list(group._leases)
        assert set(leases) == set(self.model.deadlines)
        assert all(len(lease) for lease in leases)
        assert sum(len(lease._settled or ()) for lease in leases) <= 9 * len(leases)  # as long as a lease is
        assert len(group._leases._renewed) <= 2 * len(group._leases._long) + 65
        assert group._ready._keys.keys() == {note.key for note in self.model.notes.values() if note.key is not None}
        assert [set(member.leases) for member in group.members.values()] == [
            {lease for lease in leases if lease.member is member} for member in group.members.values()
        ]

    @invariant()
    def members_with_room_have_one_turn(self) -> None:
        group = self.group
        assert set(group._idle) == {member for member in group.members.values() if not member.held}
        with_room = {member for member in group.members.values() if member.held and member.room > 0}
        assert with_room <= set(group._ring) <= set(group.members.values()) - set(group._idle)
        assert set(group._stocked) <= set(group.members.values())
