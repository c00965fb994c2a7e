"""Presence: who is subscribed to a topic, and who comes and goes."""

from datetime import UTC, datetime

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, soon


@on_every_socket
async def test_subscribers_of_a_topic_are_seen_with_what_they_say(broker: Broker, clock: JumpingClock) -> None:
    assert await broker.presence("room.tea") == []
    async with broker.subscribe("room.tea", presence='{"name": "Ada"}'), broker.subscribe("room.milk"):
        await clock.advance(1)
        async with broker.subscribe("room.*", name="grace"):
            await clock.advance(1)
            async with broker.subscribe("room.tea", group="helpers", name="h1", presence="helper"):
                ada, grace, helper = await soon(broker.presence("room.tea"))
                assert (ada.presence, ada.group, ada.principal) == ('{"name": "Ada"}', None, None)
                assert datetime.fromtimestamp(ada.since, UTC) == datetime(2026, 1, 1, tzinfo=UTC)
                assert (grace.name, grace.presence, grace.since) == ("grace", None, ada.since + 1)
                assert (helper.name, helper.group, helper.presence) == ("h1", "helpers", "helper")
    await at_rest()
    assert await broker.presence("room.tea") == []


@on_every_socket
async def test_who_waits_for_a_topic_that_is_not_there_yet_is_present(broker: Broker) -> None:
    async with broker.subscribe("room.*", presence="ada"), broker.subscribe("room.*", group="g", presence="grace"):
        assert {one.presence for one in await soon(broker.presence("room.tea"))} == {"ada", "grace"}
        assert await soon(broker.presence("kitchen")) == []
    assert "room.tea" not in await broker.topics()


@on_every_socket
async def test_a_watch_gets_the_members_and_then_the_changes(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("room", presence="ada"):
        async with broker.presence("room").watch() as events, broker.presence("room").watch() as others:
            event = await soon(anext(events))
            assert (event.event, event.member.presence) == ("join", "ada")
            async with broker.subscribe("room", presence="grace"):
                await clock.advance(1)
                event = await soon(anext(events))
                assert (event.event, event.member.presence) == ("join", "grace")
            await at_rest()
            await clock.advance(1)
            event = await soon(anext(events))
            assert (event.event, event.member.presence) == ("leave", "grace")
            event = await soon(anext(others))  # what it did not read of is left out: grace came and went
            assert (event.event, event.member.presence) == ("join", "ada")
            await at_rest()
            assert others.waiting() == []


async def test_one_that_comes_again_under_its_name_is_another(broker: Broker, clock: JumpingClock) -> None:
    async with broker.presence("room").watch() as events:
        for _ in range(2):
            async with broker.subscribe("room", name="ada"):
                await clock.advance(1)
                assert (await soon(anext(events))).event == "join"
            await at_rest()
            await clock.advance(1)
            assert (await soon(anext(events))).event == "leave"


async def test_a_watch_ends_with_its_broker(place: Place) -> None:
    async with place.open() as broker:
        async with broker.presence("room").watch() as events:
            broker.close()
            await place.clock.advance(1)
            with pytest.raises(runnel.RunnelError):
                await soon(anext(events))


async def test_what_makes_no_sense_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidName):
        broker.presence("room.*")
    for wrong in ("", "x" * 1025, 7):
        with pytest.raises(runnel.InvalidOption, match="presence"):
            broker.subscribe("room", presence=wrong)  # type: ignore[arg-type]
    with pytest.raises(runnel.SubscriptionMisused):
        await anext(broker.presence("room").watch())
