"""Delayed records that are cancelled by their message id."""

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.lives import Folder
from tests.contract.reading import soon
from tests.contract.working import work


@on_every_socket
async def test_a_cancelled_record_is_given_to_no_group(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("jobs")
    async with broker.subscribe("jobs", group="before") as before:
        await topic.publish(b"cancelled", delay=600, message_id="job 1\n")
        await topic.publish(b"of a key", delay=600, message_id="2", key=b"k")
        await topic.publish(b"next of the key", delay=600, key=b"k")
        await topic.publish(b"kept", delay=600, message_id="3")
        await clock.advance(300)  # longer than message ids are remembered
        await broker.cancel("jobs", "job 1\n")
        await broker.cancel("jobs", "2")
        await broker.cancel("jobs", "never published")
        await clock.advance(300)
        assert sorted(await work(before, 2)) == [b"kept", b"next of the key"]
    async with broker.subscribe("jobs", group="later") as later:
        assert sorted(await work(later, 2)) == [b"kept", b"next of the key"]


async def test_a_message_id_may_be_used_again_after_a_cancellation(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("jobs", group="g") as jobs:
        await broker.publish("jobs", b"first", delay=600, message_id="1")
        await clock.advance(200)
        await broker.cancel("jobs", "1")
        await clock.advance(1)
        await broker.publish("jobs", b"second", delay=600, message_id="1")
        await clock.advance(600)
        assert await work(jobs, 1) == [b"second"]
        assert broker.statistics().groups[0].expired == 1


async def test_a_cancellation_survives_a_restart(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.publish("jobs", b"cancelled", delay=600, message_id="1")
        await broker.publish("jobs", b"kept", delay=600, message_id="2")
        async with broker.subscribe("jobs", group="g"):
            pass
        await broker.cancel("jobs", "1")
    await folder.clock.advance(601)
    async with folder.life() as broker:
        for name in ("g", "new"):
            async with broker.subscribe("jobs", group=name) as jobs:
                assert await work(jobs, 1) == [b"kept"]
        assert await broker.marks() == {}


async def test_what_makes_no_sense_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.UnknownTopic):
        await soon(broker.cancel("jobs", "1"))
    await broker.publish("jobs", b"1")
    with pytest.raises(runnel.InvalidOption, match="message_id"):
        await broker.cancel("jobs", "")
