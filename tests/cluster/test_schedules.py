"""Schedules, and delayed records that are cancelled, on a cluster: by the clock of the machine."""

import asyncio
from datetime import datetime

import pytest

import runnel
from runnel import Firing
from tests.cluster.single import new_stream, open_cluster
from tests.patience import PATIENCE


async def test_two_processes_fire_each_due_time_once() -> None:
    stream, fired = new_stream(), list[datetime]()
    enough = asyncio.Event()
    async with open_cluster(stream) as one, open_cluster(stream) as other:
        for broker in (one, other):

            @broker.every(0.4, name="tick")
            async def tick(firing: Firing) -> None:
                fired.append(firing.due)
                if len(fired) == 3:
                    enough.set()

        running = [asyncio.create_task(broker.run(signals=False)) for broker in (one, other)]
        await asyncio.wait_for(enough.wait(), PATIENCE)
        for broker in (one, other):
            broker.stop()
        await asyncio.gather(*running)
        assert len(set(fired)) == len(fired)
        mark = await one.mark("schedule:tick")
        assert isinstance(mark, int)
        assert mark % 400 == 0
        assert mark >= max(fired).timestamp() * 1000


async def test_a_delayed_record_is_cancelled_by_its_message_id() -> None:
    async with open_cluster() as broker:
        with pytest.raises(runnel.UnknownTopic):
            await broker.cancel("jobs", "1")
        await broker.publish("jobs", b"cancelled", delay=1, message_id="1")
        await broker.publish("jobs", b"kept", delay=1, message_id="2")
        await broker.cancel("jobs", "1")
        async with broker.subscribe("jobs", group="g") as jobs:
            async with await asyncio.wait_for(anext(jobs), PATIENCE) as job:
                assert job.value == b"kept"
            assert (await broker.bounds("jobs"))[0].end > 0
