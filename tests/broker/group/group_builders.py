"""What the tests of groups share: records to hand out, groups made by hand, and a look into a group."""

from __future__ import annotations

from itertools import chain
from typing import Any

from runnel.broker.group.logic.group import GroupLogic, GroupOptions, MemberState
from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.logic.ready import ReadyQueue
from runnel.core.record import Meta


class Shelf:
    """Stock whose sizes and times follow from the place; `narrowed` once it was told to hold one place alone."""

    def __init__(self, narrowed: int | None = None, *, is_kept: bool = False) -> None:
        self.narrowed, self.is_kept = narrowed, is_kept

    def size(self, place: int) -> int:
        return size_of(place)

    def weight(self, first: int, end: int) -> int:
        return sum(map(size_of, range(first, end)))

    def time(self, place: int) -> float:
        return float(place)

    def only(self, place: int) -> Shelf:
        return Shelf(place, is_kept=self.is_kept)


def size_of(place: int) -> int:
    """What lies at `place` has so many bytes."""
    return place * 7 % 40


SHELF = Shelf()
KEPT = Shelf(is_kept=True)  # what lies here can be had again


def make_group(name: str = "g", chance: float = 0.0, **options: Any) -> GroupLogic:
    return GroupLogic(name, GroupOptions(**options), lambda: chance)


def bring(group: GroupLogic, *metas: Meta, first: int = 0, now: float = 0.0) -> None:
    """One record after the other, each with its traits, from place `first` on."""
    for place, meta in enumerate(metas, first):
        group.bring_one(place, meta, size_of(place), SHELF, now)


def keyed(*keys: str) -> list[Meta]:
    return [Meta(key=key.encode()) for key in keys]


def granted(leases: list[Lease], member: MemberState | None = None) -> list[int]:
    """The places of leases, in the order they were granted, of one member or of all."""
    return [place for lease in leases if member in (None, lease.member) for place in range(lease.first, lease.end)]


def hand_all(leases: list[Lease]) -> None:
    """The members see everything they were granted."""
    for lease in leases:
        if not lease.ended:
            lease.member.group.take_up(lease, lease.deadline - lease.member.group.options.ack_wait)
        lease.handed = lease.end


def of(leases: list[Lease], place: int) -> Lease:
    """The lease of `place`."""
    return next(lease for lease in leases if lease.first <= place < lease.end)


def in_queue(ready: ReadyQueue) -> dict[int, str]:
    """Where everything in the queue is: ready, waiting or parked behind its key, scheduled, or due and to be read."""
    found: list[tuple[int, str]] = []
    for stretch in ready._plain:
        found += [(place, "ready") for place in range(stretch.first, stretch.end)]
    for fresh in ready._fresh:
        found += [(item.place, "ready") for item in fresh]
    for again in ready._again:
        found += [(place, "ready") for place, _ in again]
    for behind in ready._keys.values():
        found += [(item.place, "waiting" if item.contents is not None else "parked") for item in behind or ()]
    found += [(row.place, "due") for row in chain(*ready._due, ready._away.values())]
    found += [(place, "scheduled") for _, place, _, _ in ready._schedule]
    assert len(dict(found)) == len(found), "something is in the queue twice"
    return dict(found)


def let_go(ready: ReadyQueue) -> set[int]:
    """The places whose values nobody holds."""
    rows = chain(ready._schedule, *ready._due, ready._away.values())
    behind = [item.place for items in ready._keys.values() for item in items or () if item.contents is None]
    return {row.place for row in rows if row.item is None or row.item.contents is None} | set(behind)


def whereabouts(group: GroupLogic) -> dict[int, str]:
    """Where every unsettled place is: out, ready, waiting or scheduled; each is in one of them only."""
    queued = in_queue(group._ready)
    out = [place for lease in group._leases for place in lease.open_places()]
    assert len(set(out)) == len(out), "a place is out twice"
    assert not queued.keys() & set(out), "a place is out and in the queue"
    return queued | dict.fromkeys(out, "out")


def look(group: GroupLogic) -> tuple[Any, ...]:
    """All there is to see of a group: what must not change when something is refused."""
    return (
        whereabouts(group),
        group.acked,
        group.redelivered,
        group.dead_lettered,
        group.expired,
        group.outstanding,
        group.next_event(),
        [(m.name, m.held, m.held_bytes, m.granted, m.acked) for m in group.members.values()],
        [(lease.low, lease.handed, lease.deadline) for lease in group._leases],
    )
