"""What can be seen of a group, and when it asks to be looked at."""

import logging
from typing import Any

import pytest

from runnel import Broker, GroupSubscription
from runnel.core.statistics import MemberStatistics
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest
from tests.contract.working import fill, look, take, work


def member(broker: Broker, pattern: str = "jobs", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group="g", **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_a_group_tells_how_far_it_is(broker: Broker, clock: JumpingClock, pattern: str) -> None:
    await fill(broker, 10)
    await fill(broker, 2, first=10, delay=600)
    async with member(broker, pattern, prefetch=4, dead_letter="x.y") as deliveries:
        first, second, third, _ = await take(deliveries, 4)
        await first.ack()
        await second.nack(delay=0)
        await third.reject("no")
        await at_rest()
        group = look(broker)
        assert (group.name, group.pattern, group.paused, group.missed) == ("g", pattern, False, 0)
        assert (group.lag, group.in_flight, group.scheduled) == (10, 4, 2)
        assert (group.acked, group.redelivered, group.dead_lettered, group.expired) == (1, 0, 1, 0)
        (again,) = await take(deliveries, 1)
        assert (again.attempt, look(broker).redelivered) == (2, 1), "counted when it is handed out"
    assert look(broker).in_flight == 0


@on_every_socket
async def test_each_member_tells_what_it_holds_and_did(broker: Broker) -> None:
    async with member(broker, name="ann", prefetch=3) as ann, member(broker, name="bob", prefetch=8):
        await fill(broker, 10)
        await work(ann, 1)
        await at_rest()
        ann_now, bob_now = look(broker).members
        assert ann_now.last_ack is not None, "it acked a record"
        assert ann_now == MemberStatistics("ann", 2, 3, 3, 1, ann_now.last_ack)
        assert bob_now == MemberStatistics("bob", 7, 8, 7, 0), "it acked none"
    assert look(broker).members == ()


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_the_age_is_that_of_the_oldest_record_that_is_not_settled(
    broker: Broker, clock: JumpingClock, pattern: str
) -> None:
    async with member(broker, pattern, ack_wait=1000) as deliveries:
        assert look(broker).oldest_unacked_age == 0
        await fill(broker, 1)
        await clock.advance(60)
        await fill(broker, 1, first=1)
        await clock.advance(5)
        assert look(broker).oldest_unacked_age == 65
        first, second = await take(deliveries, 2)
        await second.ack()
        assert look(broker).oldest_unacked_age == 65
        await first.nack(delay=100)
        assert look(broker).oldest_unacked_age == 65
        await clock.advance(100)
        await work(deliveries, 1)
        assert look(broker).oldest_unacked_age == 0


async def test_lag_counts_all_that_is_published_and_not_settled(broker: Broker) -> None:
    async with member(broker, prefetch=2, max_ack_pending=3) as deliveries:
        await fill(broker, 10)
        await at_rest()
        assert look(broker).lag == 10
        await work(deliveries, 4)
        assert look(broker).lag == 6
    assert look(broker).lag == 6


async def test_a_group_counts_its_members_as_subscribers_of_the_topic(broker: Broker) -> None:
    async with member(broker), member(broker), broker.subscribe("jobs"):
        assert broker.statistics().topics["jobs"].subscribers == 3


async def test_a_snapshot_stands_still(broker: Broker) -> None:
    async with member(broker) as deliveries:
        await fill(broker, 1)
        before = look(broker)
        await work(deliveries, 1)
        assert (before.lag, look(broker).lag) == (1, 0)


# -- warnings ---------------------------------------------------------------------------------------------------


async def test_a_group_without_members_is_warned_about_once(
    broker: Broker, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(broker):
        pass
    await fill(broker, 5)
    await clock.advance(300)
    (warning,) = warnings(caplog)
    assert "'g on jobs' has no member" in warning
    assert "5 records wait" in warning


async def test_a_group_that_stops_moving_is_warned_about_once_per_episode(
    broker: Broker, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(broker, ack_wait=10_000) as deliveries:
        await fill(broker, 2)
        held = await take(deliveries, 2)
        await clock.advance(300)
        assert len(warnings(caplog)) == 1
        assert "has settled nothing" in warnings(caplog)[0]
        await held[0].ack()
        await clock.advance(300)
        assert len(warnings(caplog)) == 2
        await held[1].ack()
        await clock.advance(300)
        assert len(warnings(caplog)) == 2


async def test_a_group_that_moves_or_has_nothing_to_do_is_not_warned_about(
    broker: Broker, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(broker, ack_wait=10_000) as deliveries:
        await clock.advance(300)
        await fill(broker, 30)
        for delivery in await take(deliveries, 30):
            await clock.advance(20)
            await delivery.ack()
        await clock.advance(300)
    await clock.advance(300)
    assert warnings(caplog) == []


async def test_a_paused_group_is_not_warned_about(
    broker: Broker, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(broker):
        broker.group("g", "jobs").pause()
        await fill(broker, 1)
        await clock.advance(300)
    assert warnings(caplog) == []
