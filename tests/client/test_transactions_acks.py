"""Acks in a transaction, on this side: claimed, settled, or as they were."""

from types import SimpleNamespace
from typing import Any

import pytest

import runnel
from runnel.api.transaction import ack_ranges
from runnel.client.transactions import ClaimedAcks
from runnel.core.transaction import GIVEN_UP, TransactionRequest
from runnel.wire.frames import FrameKind
from runnel.wire.msgpack_messages import SettleVerb, read_settle
from tests.client.memory_link import JoinedLink, joined
from tests.client.test_member import fill, member, take


class Acks(ClaimedAcks):
    """The acks of a transaction, noted delivery by delivery."""

    def __init__(self, link: Any) -> None:
        self.request, self._backend = TransactionRequest(), link.backend
        super().__init__(self.request)

    def note(self, delivery: Any) -> None:
        self.request.ack(ack_ranges(self._backend, delivery))


def said(link: JoinedLink) -> list[tuple[SettleVerb, str | None]]:
    found = [one for kind, _, _, data in link.sent if kind is FrameKind.SETTLE for one in read_settle(data)]
    return [(one.verb, one.reason) for one in found if one.verb is not SettleVerb.BEGIN]


async def test_what_is_claimed_is_named_by_its_lease_and_settled_or_open_again() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await broker.topic("t").publish_many([b"0", b"1", b"2"])
        batch = await anext(deliveries.batches())
        await [*batch][1].ack()
        settling = Acks(link)
        settling.note(batch)
        lease = batch._parts[0].lease
        assert settling.claim() == [
            (deliveries._source.id, lease.number, 0, 1),
            (deliveries._source.id, lease.number, 2, 3),
        ]
        assert all(one.settled for one in batch)
        settling.give_back()
        assert [one.settled for one in batch] == [False, True, False]
        settling = Acks(link)
        settling.note(batch)
        settling.claim()
        settling.settle()
        assert not deliveries._source._leases


@pytest.mark.parametrize("done", [True, False])
async def test_a_delivery_whose_block_was_left_goes_its_way(done: bool) -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        settling = Acks(link)
        async with await anext(deliveries) as delivery:
            settling.note(delivery)
        assert not delivery.settled
        settling.claim()
        settling.give_back(done=done)
        await link.settle()
        assert said(link) == [(SettleVerb.ACK, None) if done else (SettleVerb.NACK, GIVEN_UP)]


async def test_what_came_too_late_is_refused_when_noted_and_when_claimed() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 2)
        one, two = await take(deliveries, 2)
        settling = Acks(link)
        settling.note(two)
        one.ack()
        with pytest.raises(runnel.AlreadySettled):
            settling.note(one)
        link.cut()
        with pytest.raises(runnel.LeaseEnded):
            settling.claim()
        with pytest.raises(runnel.LeaseEnded):
            settling.note(two)


async def test_only_deliveries_of_the_same_broker_can_be_noted() -> None:
    other: Any = object()
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        settling = Acks(SimpleNamespace(backend=object()))
        with pytest.raises(runnel.NotSupported, match="another broker"):
            settling.note(await anext(deliveries))
        with pytest.raises(runnel.InvalidOption):
            settling.note(other)
        assert not settling.request
