"""What a transaction on a server acks: deliveries that are settled when it is committed, and open again when it is not.

While its commit is on its way nobody here settles them otherwise.
Below: delivery, lease. Above: transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.client.delivery import RemoteDelivery, RemoteDeliveryBatch
from runnel.client.lease import RemoteLease
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, NotSupported
from runnel.wire.messages import Verb

if TYPE_CHECKING:
    from runnel.client.link import Link

GIVEN_UP = "its transaction was given up"


class Noted(NamedTuple):
    """Places [first, end) of a lease that are to be acked; of a batch, what is open of them."""

    lease: RemoteLease
    first: int
    end: int
    batch: bool


class Settling:
    """The deliveries of one transaction."""

    __slots__ = ("_claims", "_link", "_noted")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._noted: list[Noted] = []
        self._claims: list[tuple[RemoteLease, int, int]] = []

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, delivery: RemoteDelivery[Any] | RemoteDeliveryBatch[Any]) -> None:
        """Have a delivery, or a batch of them, acked at the end. Raises if that is too late already."""
        if isinstance(delivery, RemoteDelivery):
            lease, place = delivery._lease, delivery._place
            found, member = [Noted(lease, place, place + 1, False)], lease.member
        elif isinstance(delivery, RemoteDeliveryBatch):
            found = [Noted(part.lease, part.first, part.end, True) for part in delivery._parts]
            member = delivery._member
        else:
            raise InvalidOption("delivery", delivery, "expected what a group delivered: a Delivery or a DeliveryBatch")
        if member._link is not self._link:
            why = "it has a journal of its own, so the two cannot be written in one; publish first, then ack there"
            raise NotSupported("acking a delivery of another broker in a transaction", why)
        for noted in found:
            _check(noted)
        for noted in found:
            if not noted.batch:
                noted.lease.promised = {**(noted.lease.promised or {}), noted.first: False}
        self._noted += found

    # -- with a commit ------------------------------------------------------------------------------------------

    def claim(self) -> list[tuple[int, int, int, int]]:
        """The commit is about to be sent: (subscription, lease, first, end) of all that it acks, or why it cannot."""
        for noted in self._noted:
            _check(noted)
        for member in {noted.lease.member for noted in self._noted}:
            member.flush()  # what was said before comes before
        for lease, first, end, _ in self._noted:
            for low, high in lease.open_ranges(first, end):
                lease.settle(low, high)
                self._claims.append((lease, low, high))
        return [(lease.member.id, lease.number, first, end) for lease, first, end in self._claims]

    def settle(self) -> None:
        """The commit landed."""
        for lease, first, _, _ in self._noted:
            _unpromise(lease, first)
        for lease, _, _ in self._claims:
            lease.member.let_go(lease)

    def give_back(self, *, done: bool = False) -> None:
        """The commit did not happen: all is as it was. `done`: because another one had done the same before."""
        claims, self._claims = self._claims, []
        for lease, first, end in claims:
            lease.reopen(first, end)
        self.forget(done=done)

    def forget(self, *, done: bool = False) -> None:
        """Nothing is acked by it. Deliveries whose blocks were left go the way they would have gone.

        That is back to the group; or, `done` by another transaction as they are, out of it.
        """
        noted, self._noted = self._noted, []
        for lease, first, _, batch in noted:
            if not batch and _unpromise(lease, first) and lease.is_open(first) and not lease.ended:
                if done:
                    lease.member.settle(lease, Verb.ACK, first, first + 1)
                else:
                    lease.member.settle(lease, Verb.NACK, first, first + 1, None, GIVEN_UP)


def _check(noted: Noted) -> None:
    lease, first, _, batch = noted
    if lease.ended:
        raise LeaseEnded(lease.member.group, first, lease.attempt)
    if not batch and not lease.is_open(first):
        raise AlreadySettled(lease.member.group, first)


def _unpromise(lease: RemoteLease, place: int) -> bool:
    """Nobody will ack `place` but whoever holds it; whether its block was left already."""
    return lease.promised is not None and lease.promised.pop(place, False)
