"""A member of a group that is connected over the network: leases out, acks back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.reader import GroupReader
from runnel.broker.group.records import GroupSlice
from runnel.broker.group.subscription import Delivery
from runnel.broker.remote.cursor import ContentTypes, WireBatch, range_wire_batches
from runnel.broker.subscribe import open_subscription
from runnel.core.batch import Slice
from runnel.core.errors import InvalidOption, LeaseEnded, RunnelError, SubscriptionEnded

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

MAX_REASON = 10_000  # characters of why a record failed

BEGIN, ACK, NACK, REJECT, EXTEND = range(5)  # what a member says of a lease


class LeaseGrant(NamedTuple):
    """Records that were granted to a member. They are packed when somebody asks: until then nothing is held twice."""

    lease: int
    attempt: int
    part: Slice
    first: int  # of its offsets in the slice
    end: int
    shift: int  # from offsets to places
    content: int

    @property
    def pieces(self) -> list[tuple[int, WireBatch]]:
        """The records as they are sent, each piece with the place of its first record."""
        found = range_wire_batches(self.part, self.first, self.end, self.content)
        return [(piece.offset + self.shift, piece) for piece in found]


def open_remote_member(
    broker: Broker,
    pattern: str,
    group: str,
    *,
    granted: Callable[[LeaseGrant], None],
    lapsed: Callable[[list[tuple[int, int, int]]], None],
    over: Callable[[RunnelError | None], None],
    **options: Any,
) -> RemoteMember:
    """A member of `group`; options as in `broker.subscribe` with a group, without type.

    `granted` is called with each lease, `lapsed` with those that went back, `over` when there will be no more.
    """
    backend = broker.backend
    asked = open_subscription(
        backend, pattern, group=group, **options
    )  # a member that never joins: it checked the options
    return RemoteMember(
        asked._open_reader,
        asked.label,
        asked.prefetch,
        asked.prefetch_bytes,
        ContentTypes(backend),
        granted,
        lapsed,
        over,
    )


class RemoteMember:
    """One far member, on the broker's side."""

    task: asyncio.Task[Any] | None = None  # not of this process

    def __init__(
        self,
        open_reader: Callable[[], GroupReader],
        label: str,
        prefetch: int,
        prefetch_bytes: int | None,
        content: ContentTypes,
        granted: Callable[[LeaseGrant], None],
        lapsed: Callable[[list[tuple[int, int, int]]], None],
        over: Callable[[RunnelError | None], None],
    ) -> None:
        self.label, self.prefetch, self.prefetch_bytes = label, prefetch, prefetch_bytes
        self._open_reader, self._content = open_reader, content
        self._granted, self._lapsed, self._over = granted, lapsed, over
        self._reader: GroupReader | None = None
        self._leases: dict[int, Lease] = {}
        self._numbers = 0
        self._is_over = False

    def __repr__(self) -> str:
        return f"<RemoteMember {self.label!r}, {len(self._leases)} leases out>"

    @property
    def reader(self) -> GroupReader:
        """The group it belongs to."""
        if self._reader is None:
            raise SubscriptionEnded(self.label)
        return self._reader

    # -- its life -----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Join the group; leases come from now on."""
        reader = self._open_reader()
        reader.admit(self)
        self._reader = reader  # only now: who was not admitted has nothing to leave, least of all as its namesake

    def leave(self) -> None:
        """Leave it; what was not settled goes to others, at once."""
        if not self._is_over:
            self._is_over = True
            for lease in self._leases.values():
                lease.on_end = None  # nobody is left to be told
            if self._reader is not None:
                self._reader.dismiss(self)
            self._leases.clear()

    def finish(self) -> None:
        """No more leases; what is out goes back."""
        self.end()

    async def flushed(self) -> None:
        """Return when what was settled so far is on disk, where the group is kept there."""
        if self.reader.pending_acks is not None:
            await self.reader.flushed()

    def check_durable(self) -> None:
        """Raise unless what is settled can be made durable."""
        self.reader.check_durable()

    # -- what the member says -----------------------------------------------------------------------------------

    def settle(self, lease: int, verb: int, first: int, end: int, number: float | None, reason: str | None) -> None:
        """Have what the member says of the places [first, end) of a lease done; raises when it comes too late."""
        held, reader = self._held(lease, first), self.reader
        if not held.first <= first < end <= held.end:
            raise InvalidOption("places", (first, end), f"lease {lease} has [{held.first}, {held.end})")
        if verb == BEGIN:
            if held.handed > held.first or reader.take_up(held):
                held.handed = max(held.handed, end)
        elif verb == ACK:
            held.handed = max(held.handed, end)
            if end - first > 1:
                reader.ack_range(held, first, end)
            else:
                reader.ack(held, first)
        elif verb in (NACK, REJECT, EXTEND):
            held.handed = max(held.handed, end)
            for place in range(first, end):
                self._settle_one(held, verb, place, number, reason)
        else:
            raise InvalidOption("verb", verb, "expected 0 begin, 1 ack, 2 nack, 3 reject or 4 extend")
        if not len(held):
            self._leases.pop(lease, None)

    def _settle_one(self, lease: Lease, verb: int, place: int, number: float | None, reason: str | None) -> None:
        reader, reason = self.reader, None if reason is None else reason[:MAX_REASON]
        if verb == NACK:
            reader.nack(lease, place, number, reason or "nacked")
        elif verb == REJECT:
            reader.reject(lease, place, reason or "rejected")
        else:
            reader.extend(lease, place, number or 0.0)

    def delivery(self, lease: int, place: int) -> Delivery[bytes]:
        """One record of a lease, for a transaction to ack."""
        held = self._held(lease, place)
        if not held.first <= place < held.end:
            raise InvalidOption("places", place, f"lease {lease} has [{held.first}, {held.end})")
        (record,) = self.reader.records(held, place, place + 1)
        return Delivery(self.reader, held, place, record)

    def _held(self, lease: int, place: int) -> Lease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseEnded(self.reader.name, place, 0)
        return held

    # -- what the group does with it ----------------------------------------------------------------------------

    def receive(self, lease: Lease) -> None:
        """Records were granted to this member."""
        self._numbers += 1
        number = self._numbers
        self._leases[number] = lease
        lease.on_end = partial(self._ended, number)
        contents = lease.contents
        assert isinstance(contents, GroupSlice)
        part, shift = contents.slice, contents.first - contents.slice.start
        first, end = lease.first - shift, lease.end - shift
        self._granted(LeaseGrant(number, lease.attempt, part, first, end, shift, self._content.of(part.topic)))

    def _ended(self, number: int) -> None:
        """A lease went back to the group."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            self._lapsed([(number, lease.first, lease.end)])

    def forget(self) -> None:
        """What was granted is void: the group was reset. Each lease has said so itself."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more leases; what was not settled goes back."""
        if not self._is_over:
            self.leave()
            self._over(error)
