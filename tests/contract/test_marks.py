"""Marks: how far somebody came, written with what it came with."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel import Broker
from tests.contract.afar import on_every_socket
from tests.contract.transacting import refused, stored
from tests.contract.working import fill, numbers


@pytest.mark.parametrize(
    ("low", "middle", "high"), [(1, 2, 3), ("a", "b", "c"), (b"", b"\x00", b"\xff"), (-5, 0, 2**64 - 1)]
)
async def test_a_mark_that_is_there_or_further_makes_it_a_no_op(
    broker: Broker, low: Any, middle: Any, high: Any
) -> None:
    async def transact(value: Any) -> bool:
        async with broker.transaction() as tx:
            tx.publish("a", repr(value))
            tx.mark("m", value)
        return tx.applied

    assert await transact(middle)
    assert not await transact(middle)
    assert not await transact(low)
    assert await broker.mark("m") == middle
    assert await transact(high)
    assert await broker.mark("m") == high
    assert await stored(broker, "a") == [[repr(middle).encode(), repr(high).encode()]]


async def test_a_no_op_makes_no_topic_and_acks_nothing(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.transaction() as tx:
        tx.mark("m", 1)
    async with broker.subscribe("jobs", group="g") as deliveries:
        delivery = await anext(deliveries)
        async with broker.transaction() as tx:
            tx.publish("other", b"1")
            tx.ack(delivery)
            tx.mark("m", 1)
        assert not tx.applied
        assert not delivery.settled
        assert await broker.topics() == ["jobs"]
        await delivery.ack()


@on_every_socket
async def test_an_expected_mark_that_is_another_is_a_conflict(broker: Broker) -> None:
    async def transact(value: Any, expected: Any) -> bool:
        async with broker.transaction() as tx:
            tx.publish("a", b"x")
            tx.mark("m", value, expected=expected)
        return tx.applied

    with pytest.raises(runnel.MarkConflict, match="not 1 as expected"):
        await transact(2, 1)
    assert await transact(2, None)
    with pytest.raises(runnel.MarkConflict) as caught:
        await transact(3, None)
    assert (caught.value.mark, caught.value.expected, caught.value.actual) == ("m", None, 2)
    assert await transact(3, 2)
    assert not await transact(3, 2), "a retry of what was done is no conflict"
    with pytest.raises(runnel.MarkConflict):
        await transact(2, 2)
    assert broker.statistics().topics["a"].end == 2


async def test_a_conflict_of_one_mark_counts_more_than_another_that_is_past(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.mark("a", 1)
        tx.mark("b", 1)
    for names in (("a", "b"), ("b", "a")):
        async with refused(broker, runnel.MarkConflict) as tx:
            for name in names:
                tx.mark(name, 1 if name == "a" else 3, expected=1 if name == "a" else 2)


async def test_a_mark_is_forgotten_with_none(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.mark("m", 5)
    async with broker.transaction() as tx:
        tx.mark("m", None, expected=5)
    assert tx.applied
    assert await broker.mark("m") is None
    async with broker.transaction() as tx:
        tx.mark("m", None)
    assert not tx.applied
    async with broker.transaction() as tx:
        tx.mark("m", "another type")
    assert tx.applied


async def test_marks_of_different_types_are_not_compared(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.mark("m", 5)
    async with refused(broker, runnel.InvalidOption, match="another type") as tx:
        tx.mark("m", "6")
    assert await broker.mark("m") == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("", 1), ("x" * 257, 1), (7, 1), ("\ud800", 1)),
        *(("m", 1.5), ("m", True), ("m", [1]), ("m", 2**64), ("m", -(2**63) - 1)),
        *(("m", "x" * 4097), ("m", b"x" * 4097), ("m", "é" * 2049), ("m", "\ud800")),
    ],
)
async def test_what_cannot_be_a_mark_is_refused_in_the_block(broker: Broker, name: Any, value: Any) -> None:
    async with broker.transaction() as tx:
        with pytest.raises(runnel.InvalidOption):
            tx.mark(name, value)
        if name == "m":
            with pytest.raises(runnel.InvalidOption):
                tx.mark("m", None, expected=value)
    assert await broker.marks() == {}


async def test_the_largest_marks_are_kept_as_they_are(broker: Broker) -> None:
    largest: dict[str, Any] = {"x" * 256: 2**64 - 1, "least": -(2**63), "text": "x" * 4096, "bytes": b"\xff" * 4096}
    async with broker.transaction() as tx:
        for name, value in largest.items():
            tx.mark(name, value)
    assert await broker.marks() == largest
    assert list(await broker.marks("te")) == ["text"]


async def test_a_transaction_moves_each_mark_once(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.mark("m", 1)
        with pytest.raises(runnel.InvalidOption, match="once"):
            tx.mark("m", 2)
    assert await broker.mark("m") == 1


@on_every_socket
async def test_of_many_that_move_a_mark_at_once_each_step_happens_once(broker: Broker) -> None:
    async def step(number: int) -> bool:
        async with broker.transaction() as tx:
            tx.publish("a", b"%d" % number)
            tx.mark("m", number)
        return tx.applied

    applied = await asyncio.gather(*(step(number) for number in [1, 1, 2, 1, 3, 3, 2, 4]))
    assert applied == [True, False, True, False, True, False, False, True]
    assert await stored(broker, "a") == [numbers(1, 5)]
    assert await broker.mark("m") == 4
