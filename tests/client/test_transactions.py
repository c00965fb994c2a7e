"""Transactions on a server: noted here, done there, and known or unknown when the connection is lost."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

import runnel
from runnel.client.server_link import HEARING
from tests.client.memory_link import JoinedLink, joined
from tests.client.test_member import fill, look, member, take


class Paid(msgspec.Struct):
    order: int


def transaction(link: JoinedLink) -> runnel.Transaction:
    return runnel.Transaction(link.backend)


async def test_all_of_it_happens_at_the_end_of_the_block(remote: Any) -> None:
    async with remote.subscribe("jobs", group="g") as deliveries:
        await remote.publish("jobs", b"work")
        delivery = await anext(deliveries)
        paid = remote.topic("paid", Paid)
        async with remote.transaction() as tx:
            one = tx.publish("done", b"1", key="k")
            many = tx.publish_many(paid, [Paid(1), Paid(2)])
            tx.mark("m", 7, expected=None)
            tx.ack(delivery)
            with pytest.raises(runnel.NotSupported, match="known when the block is left"):
                _ = one.position
        assert (tx.applied, delivery.settled, await remote.mark("m")) == (True, True, 7)
        assert (one.position.offset, [position.offset for position in many.span]) == (0, [0, 1])
    async with paid.subscribe(start="earliest") as subscription:
        assert [(await anext(subscription)).value for _ in range(2)] == [Paid(1), Paid(2)]


async def test_a_stage_is_committed_by_its_handle_or_its_key(remote: Any) -> None:
    stage = remote.stage("t", writer="w", batch=1)
    await stage.write([b"a", b"b"])
    await remote.stage("u", writer="w", batch=1, part=1).write([b"c"])
    async with remote.transaction() as tx:
        one, two = tx.commit(stage, ("w", 1, 1, 0))
        with pytest.raises(runnel.StageEnded, match="commits it already"):
            tx.commit(stage)
    assert [position.offset for position in one.span] == [0, 1]
    assert two.span.records() == 1


async def test_a_mark_that_is_there_says_that_it_was_done_before(remote: Any) -> None:
    for expected in (True, False):
        async with remote.transaction() as tx:
            where = tx.publish("t", b"1")
            tx.mark("m", 1)
        assert tx.applied is expected
    with pytest.raises(runnel.NotSupported):
        _ = where.position


async def test_a_refusal_leaves_nothing_and_says_why(remote: Any) -> None:
    await remote.publish("t", b"0")

    async def refused() -> None:
        async with remote.transaction() as tx:
            tx.publish("t", b"1", expected_offset=5)
            tx.mark("m", 1)

    with pytest.raises(runnel.OffsetConflict) as caught:
        await refused()
    assert (caught.value.actual, await remote.mark("m")) == (1, None)


async def test_it_is_used_once_in_its_block_and_with_its_own_broker(remote: Any) -> None:
    tx = remote.transaction()
    with pytest.raises(runnel.NotSupported, match="outside of its block"):
        tx.publish("t", b"1")
    async with tx:
        tx.mark("m", 1)
        with pytest.raises(runnel.InvalidOption, match="once"):
            tx.mark("m", 2)
        async with runnel.open() as other:
            with pytest.raises(runnel.NotSupported, match="another broker"):
                tx.publish(other.topic("t"), b"1")
        with pytest.raises(runnel.InvalidOption, match="Delivery"):
            tx.ack(object())
    with pytest.raises(runnel.TransactionEnded):
        tx.publish("t", b"1")
    assert repr(tx) == "<Transaction of 0 publishes, 0 acks, 1 marks, applied>"


async def test_more_than_it_can_hold_is_refused_in_the_block(remote: Any) -> None:
    async with remote.transaction() as tx:
        for _ in range(4):
            tx.publish("t", bytes(16 * 1024 * 1024))
        with pytest.raises(runnel.TooLarge, match="stage"):
            tx.publish("t", b"x")
        tx._request.publishes.clear()


async def test_an_exception_in_the_block_leaves_the_delivery_open() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await take(deliveries, 1)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(pytest.raises(ZeroDivisionError))
            tx = await stack.enter_async_context(transaction(link))
            tx.ack(delivery)
            _ = 1 // 0
        assert not delivery.settled
        assert not [kind for kind in link.kinds if kind.name == "CALL"]


async def test_while_it_is_committed_no_other_call_settles_what_it_acks() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await take(deliveries, 1)
        link.flow = False
        tx = transaction(link)
        await tx.__aenter__()
        tx.ack(delivery)
        leaving = asyncio.ensure_future(tx.__aexit__(None, None, None))
        await asyncio.sleep(0)
        with pytest.raises(runnel.AlreadySettled):
            delivery.nack()
        link.flow = True
        link.pass_on()
        await leaving
        assert (tx.applied, look(broker).acked) == (True, 1)


@pytest.mark.parametrize(
    ("doing", "error"), [(HEARING, runnel.OutcomeUnknown), ("committing a transaction", runnel.BrokerClosed)]
)
async def test_what_a_closed_broker_did_not_hear_is_unknown_and_what_the_server_refused_is_not(
    doing: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined() as (_, link):

        async def call(*_: Any, **__: Any) -> Any:
            raise runnel.BrokerClosed(doing)

        monkeypatch.setattr(link, "call", call)
        tx = transaction(link)
        await tx.__aenter__()
        tx.mark("m", 1)
        with pytest.raises(error):
            await tx.__aexit__(None, None, None)


async def test_a_connection_that_is_lost_while_it_is_committed_leaves_the_outcome_unknown() -> None:
    async with joined() as (_, link):
        link.flow = False
        tx = transaction(link)
        await tx.__aenter__()
        tx.mark("m", 1)
        leaving = asyncio.ensure_future(tx.__aexit__(None, None, None))
        for _ in range(5):
            await asyncio.sleep(0)
        link.cut()
        with pytest.raises(runnel.OutcomeUnknown, match="mark"):
            await leaving
        assert not tx.applied
