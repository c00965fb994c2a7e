"""Durable acks: answered when they are on disk, and sent whether anybody awaits them or not."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from tests.client.memory_link import joined
from tests.client.test_member import fill, look, member, take
from tests.patience import PATIENCE


async def test_a_durable_ack_waits_for_the_disk(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data") as (broker, link):
        await fill(broker, 3)
        async with member(link) as deliveries:
            one, two, three = await take(deliveries, 3)
            await two.ack()
            done = one.ack(durable=True)
            assert not asyncio.isfuture(done) or not done.done()
            await asyncio.wait_for(done, PATIENCE)
            three.ack(durable=True)  # nobody awaits it: it counts all the same
        assert look(broker).acked == 3


async def test_a_batch_is_acked_durably_too(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data") as (broker, link), member(link) as deliveries:
        await broker.topic("t").publish_many([b"0", b"1"])
        batch = await asyncio.wait_for(anext(deliveries.batches()), PATIENCE)
        await asyncio.wait_for(batch.ack(durable=True), PATIENCE)
        assert look(broker).acked == len(batch)


async def test_a_lost_connection_leaves_open_whether_it_was_stored(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data") as (broker, link), member(link) as deliveries:
        await fill(broker, 2)
        one, two = await asyncio.wait_for(take(deliveries, 2), PATIENCE)
        link.flow = False
        done = one.ack(durable=True)
        link.cut()
        with pytest.raises(runnel.RunnelError) as caught:
            await done
        assert caught.value.code == "connection_lost"
        with pytest.raises(runnel.LeaseEnded):
            two.ack(durable=True)


async def test_what_the_server_refuses_is_raised(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data") as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await asyncio.wait_for(take(deliveries, 1), PATIENCE)
        link.flow = False
        broker.group("g", "t").reset("earliest")  # and nobody here knows yet
        done = delivery.ack(durable=True)
        link.flow = True
        link.pass_on()
        await link.settle()
        with pytest.raises(runnel.LeaseEnded):
            await asyncio.wait_for(done, PATIENCE)


async def test_after_the_broker_was_closed_it_is_too_late_as_it_is_in_process(remote: Any) -> None:
    await remote.topic("t").publish_many([b"0", b"1", b"2", b"3"])
    async with remote.subscribe("t", group="g") as deliveries:
        batches = deliveries.batches(2)
        one, two = await asyncio.wait_for(anext(batches), PATIENCE)
        batch = await asyncio.wait_for(anext(batches), PATIENCE)
        two.ack()
        remote.close()
        for late in (one, batch):
            with pytest.raises(runnel.LeaseEnded, match="went back to the group"):
                late.ack(durable=True)
        assert not one.settled, "nothing was said of it"
        assert deliveries._source._settlements, "and what was said before is still to be sent"


async def test_an_answer_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data") as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await asyncio.wait_for(take(deliveries, 1), PATIENCE)
        link.flow = False
        link.options = msgspec.structs.replace(link.options, timeout=0.02)
        done = delivery.ack(durable=True)
        with pytest.raises(runnel.NoAnswer, match=r"a durable ack within 0\.02 s"):
            await asyncio.wait_for(done, PATIENCE)
        link.flow = True
        link.pass_on()  # too late: for nobody
        assert look(broker).acked == 1


async def test_one_who_waits_without_a_limit_does(tmp_path: Path) -> None:
    async with joined(where=tmp_path / "data", timeout=None) as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await asyncio.wait_for(take(deliveries, 1), PATIENCE)
        await asyncio.wait_for(delivery.ack(durable=True), PATIENCE)
        assert look(broker).acked == 1
