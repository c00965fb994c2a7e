"""What a transaction acks: deliveries that are settled when it is committed, and open again when it is not.

While its commit is on its way nobody else can settle them, and their leases do not end.
Below: delivery, group.claim. Above: attempt, transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.delivery import Delivery, DeliveryBatch
from runnel.broker.group.claim import Claim
from runnel.broker.group.lease import Lease
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, NotSupported
from runnel.journal.entry import Part
from runnel.journal.parts import progress_part

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.group_reader import GroupReader

GIVEN_UP = "its transaction was given up"


class Noted(NamedTuple):
    """Places [first, end) of a lease that are to be acked; of a batch, what is open of them."""

    reader: GroupReader
    lease: Lease
    first: int
    end: int
    batch: bool


class Settling:
    """The deliveries of one transaction."""

    __slots__ = ("_bus", "_claims", "_noted")

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._noted: list[Noted] = []
        self._claims: list[tuple[GroupReader, Claim]] = []

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def is_kept(self) -> bool:
        """Whether any of it is to be remembered on disk."""
        return any(noted.reader.keeper is not None for noted in self._noted)

    def note(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Have a delivery, or a batch of them, acked at the end. Raises if that is too late already."""
        if isinstance(delivery, Delivery):
            found = [Noted(delivery._reader, delivery._lease, delivery._place, delivery._place + 1, False)]
        elif isinstance(delivery, DeliveryBatch):
            found = [Noted(delivery._reader, part.lease, part.first, part.end, True) for part in delivery._parts]
        else:
            raise InvalidOption("delivery", delivery, "expected what a group delivered: a Delivery or a DeliveryBatch")
        if delivery._reader._bus is not self._bus:
            why = "it has a journal of its own, so the two cannot be written in one; publish first, then ack there"
            raise NotSupported("acking a delivery of another broker in a transaction", why)
        for noted in found:
            _check(noted)
        for noted in found:
            if not noted.batch:
                noted.lease.promised = {**(noted.lease.promised or {}), noted.first: False}
        self._noted += found

    def check(self) -> None:
        """Raise unless all of it can be acked now."""
        for noted in self._noted:
            _check(noted)

    # -- with a commit ------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """The commit is on its way: nobody else settles them, and no lease ends."""
        now = self._bus.clock.time()
        for reader, lease, first, end, _ in self._noted:
            for low, high in list(lease.open_ranges(first, end)):
                self._claims.append((reader, Claim(reader.group, lease, low, high, now)))

    def parts(self) -> list[Part]:
        """What is written of it. A group that was reset meanwhile wants nothing of it."""
        settled: dict[int, list[int]] = {}
        for reader, claim in self._claims:
            if reader.keeper is not None and not claim.void:
                settled.setdefault(reader.keeper.id, []).extend((claim.first, claim.end))
        return [progress_part(group, flat, []) for group, flat in settled.items()]

    def settle(self) -> None:
        """The commit landed."""
        now = self._bus.clock.time()
        for noted in self._noted:
            _unpromise(noted.lease, noted.first)
        for _, claim in self._claims:
            claim.settle(now)
        for reader in {reader for reader, _ in self._claims}:
            reader._after_settling()

    def give_back(self) -> None:
        """The commit failed: all is as it was, and whoever holds it has as long as ever."""
        now = self._bus.clock.time()
        for reader, claim in self._claims:
            reader.letters.bury(claim.give_back(now))
            reader.wake()
        self._claims.clear()
        self.forget()

    def forget(self, *, done: bool = False) -> None:
        """Nothing is acked by it. Deliveries whose blocks were left go the way they would have gone.

        That is back to the group; or, `done` by another transaction as they are, out of it.
        """
        noted, self._noted = self._noted, []
        for reader, lease, first, _, batch in noted:
            if not batch and _unpromise(lease, first) and lease.is_open(first) and not lease.ended:
                if done:
                    reader.ack(lease, first)
                else:
                    reader.nack(lease, first, None, GIVEN_UP)


def _check(noted: Noted) -> None:
    reader, lease, first, _, batch = noted
    if lease.ended:
        raise LeaseEnded(reader.name, first, lease.attempt)
    if not batch and not lease.is_open(first):
        raise AlreadySettled(reader.name, first)


def _unpromise(lease: Lease, place: int) -> bool:
    """Nobody will ack `place` but whoever holds it; whether its block was left already."""
    return lease.promised is not None and lease.promised.pop(place, False)
