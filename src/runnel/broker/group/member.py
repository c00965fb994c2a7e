"""One member of a group in this process: takes the leases that its group grants, and settles them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.reader import GroupReader
from runnel.broker.group.records import slice_of
from runnel.core.backend import SettleVerb
from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, RunnelError, SubscriptionEnded
from runnel.core.record import Record

PREFETCH = 64


class LocalMember:
    """One member of a group. See `core.backend.Member`."""

    hand: Callable[[Any, int, int], None] | None = None  # the group sees `lease.handed`

    def __init__(
        self,
        join: Callable[[], GroupReader],
        label: str,
        group: str,
        prefetch: int | None,
        prefetch_bytes: int | None,
        clock: Clock,
        backend: object,
        wake: Callable[[], None],
        presence: str | None = None,
    ) -> None:
        self.presence = presence  # the presence text of the member
        self.label, self.group, self.clock, self.backend, self._wake = label, group, clock, backend, wake
        self.prefetch = PREFETCH if prefetch is None else prefetch
        self.prefetch_bytes = prefetch_bytes
        self.task: Any = None
        self.principal: str | None = None  # set by a server that knows the login
        self.on_presence: Callable[[], None] | None = None  # set by a server: a lost client has to leave soon
        self.since = 0.0  # when it joined
        self.ended = False
        self.error: RunnelError | None = None
        self.inbox: deque[Lease] = deque()
        # Methods of the group, once it has joined: called for each record, and for each lease.
        self.ack: Callable[[Lease, int], None]
        self.take_up: Callable[[Lease], bool]
        self._join = join
        self._reader: GroupReader | None = None

    def __repr__(self) -> str:
        return f"<LocalMember {self.label!r} of {self.group!r}, {len(self.inbox)} leases not taken up>"

    @property
    def reader(self) -> GroupReader:
        """The group it belongs to."""
        if self._reader is None:
            raise SubscriptionEnded(self.label)
        return self._reader

    # -- coming and going ---------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Join the group; it grants leases from now on."""
        reader = self._join()
        reader.admit(self)
        self.since = self.clock.time()
        self._reader = reader  # only now: a refused member must not leave for one of the same name
        self.ack, self.take_up = reader.ack, reader.take_up

    def leave(self) -> None:
        """Leave the group; unsettled records go to other members at once."""
        self.end()

    async def left(self) -> None:
        """Return at once: the group knows."""

    def end(self, error: RunnelError | None = None) -> None:
        """Accept no more leases; unsettled records return to the group."""
        if not self.ended:
            self.ended, self.error = True, error
            self.inbox.clear()
            if self._reader is not None:
                self._reader.dismiss(self)
            self._wake()

    # -- what the group does with it ----------------------------------------------------------------------------

    def receive(self, lease: Lease) -> None:
        """A lease was granted to this member."""
        self.inbox.append(lease)
        self._wake()

    def forget(self) -> None:
        """End all leases."""
        self.inbox.clear()

    # -- what the member does -----------------------------------------------------------------------------------

    def records(self, lease: Lease, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a lease."""
        contents = slice_of(lease)
        return contents.slice.records[first - contents.first : end - contents.first]

    def values(self, lease: Lease, first: int, end: int) -> tuple[bytes, ...]:
        """Only the values of these records."""
        return slice_of(lease).values(first, end)

    def parts(self, lease: Lease) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""
        contents = slice_of(lease)
        part, shift = contents.slice, contents.first - contents.slice.start
        first, end = lease.first - shift, lease.end - shift
        return [(lease.first, part if (first, end) == (part.start, part.end) else part.cut(first, end))]

    def encoding_of(self, lease: Lease, topic: str) -> str | None:
        """The encoding of the values of `topic`; None if it has no type."""
        return self.reader.attachment.encoding_of(topic)

    def check_durable(self, lease: Lease, place: int) -> None:
        """Raise unless an ack can be made durable."""
        self.reader.check_durable()

    def settle(
        self,
        lease: Lease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
        *,
        durable: bool = False,
    ) -> Awaitable[None] | None:
        """Settle the places [first, end); with `durable`, returns an awaitable that is done when that is on disk."""
        reader = self.reader
        if verb == SettleVerb.ACK:
            if end - first > 1:
                reader.ack_range(lease, first, end)
            else:
                reader.ack(lease, first)
        elif verb == SettleVerb.RETURN:
            if end != lease.end:
                raise InvalidOption("places", (first, end), f"a lease is returned up to its end, which is {lease.end}")
            reader.give_back(lease, first)
        else:
            for place in range(first, end):
                if verb == SettleVerb.NACK:
                    reader.nack(lease, place, number, reason or "nacked")
                elif verb == SettleVerb.REJECT:
                    reader.reject(lease, place, reason or "rejected")
                elif verb == SettleVerb.EXTEND:
                    reader.extend(lease, place, number or 0.0)
        return reader.flushed() if durable else None

    def flushed(self) -> Awaitable[None]:
        """Done when everything settled so far is on disk, if the group is durable."""
        return self.reader.flushed()

    @property
    def blocks(self) -> object | None:
        """The group, if this is its only member, so that a publish of its task would wait for itself; else None."""
        return self._reader if self._reader is not None and self._reader.members == 1 else None
