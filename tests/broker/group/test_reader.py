"""A group at work on logs: what it brings, when it looks, what becomes a dead letter, and when it warns."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest

from runnel import Broker, Delivery, GroupSubscription
from runnel.broker.group.reader import STALL_SECONDS, GroupReader, StallWarning
from runnel.broker.group.records import GroupSlice
from runnel.broker.group.turns import GroupTurns
from runnel.core.batch import Slice, SliceRun
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker
from tests.patience import PATIENCE


def subscribe(broker: Broker, pattern: str = "t", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group="g", **options)


async def publish(broker: Broker, count: int, topic: str = "t", **options: Any) -> None:
    for number in range(count):
        await broker.publish(topic, b"%d" % number, **options)


async def take(deliveries: GroupSubscription[bytes], count: int) -> list[Delivery[bytes]]:
    return [await anext(deliveries) for _ in range(count)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def group_of(broker: Broker) -> GroupReader:
    reader: GroupReader
    (reader,) = broker.backend.groups
    return reader


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# -- stock ------------------------------------------------------------------------------------------------------


def test_stock_is_a_slice_at_the_groups_places() -> None:
    slice_ = Slice("t", 1, 10, (b"a", b"bb", b"ccc"), [SliceRun(10, 50, datetime.now(UTC))], None)
    contents = GroupSlice(50, slice_)
    assert contents.values(51, 53) == (b"bb", b"ccc")
    assert [record.offset for record in contents.records(50, 52)] == [10, 11]
    assert [contents.size(place) for place in (50, 51, 52)] == [1, 2, 3]
    alone = contents.only(51)
    assert (alone.first, alone.slice.values, alone.records(51, 52)[0].offset) == (51, (b"bb",), 11)
    assert alone.only(51) is alone


# -- bringing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_only_what_has_traits_is_kept_track_of_by_itself(runnel_broker: Broker, pattern: str) -> None:
    await publish(runnel_broker, 3)
    await publish(runnel_broker, 1, key="k")
    await publish(runnel_broker, 2, headers={"h": "x"})
    await publish(runnel_broker, 1, priority=3)
    async with subscribe(runnel_broker, pattern) as deliveries:
        await turns()
        leases = list(group_of(runnel_broker).group._leases)
        assert sorted((lease.first, lease.end, lease.item is None) for lease in leases) == [
            (0, 3, True),
            (3, 4, False),
            (4, 6, True),
            (6, 7, False),
        ]
        assert sorted(delivery.offset for delivery in await take(deliveries, 7)) == list(range(7))


async def test_it_looks_no_further_ahead_than_it_may(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 100)
    async with subscribe(runnel_broker, max_ack_pending=10, prefetch=4) as deliveries:
        await turns()
        reader = group_of(runnel_broker)
        assert (reader.overflow.cursor.position, reader.group.outstanding, reader.overflow.lag()) == (10, 4, 100)
        for delivery in await take(deliveries, 2):
            await delivery.ack()
        await turns()
        assert (reader.overflow.cursor.position, reader.group.outstanding, reader.overflow.lag()) == (12, 4, 98)


async def test_what_retention_took_is_counted_and_said(runnel_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await runnel_broker.topic("t", retention_count=5).declare()
    async with subscribe(runnel_broker):
        pass
    group_of(runnel_broker).pause()
    async with subscribe(runnel_broker, max_ack_pending=4096):
        await turns()
    await runnel_broker.topic("t").publish_many([b"x"] * 20)
    await turns()
    reader = group_of(runnel_broker)
    assert reader.missed == runnel_broker.statistics().groups[0].missed == 15
    assert any("missed 15 records" in line for line in warnings(caplog))


async def test_a_member_that_is_half_empty_is_refilled(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 20)
    async with subscribe(runnel_broker, prefetch=8) as deliveries:
        got = await take(deliveries, 8)
        member = group_of(runnel_broker).group.members["g#1"]
        for delivery in got[:3]:
            await delivery.ack()
        await turns()
        assert member.held == 5
        await got[3].ack()
        await turns()
        assert member.held == 8


async def test_an_idle_member_need_not_wait_until_a_busy_one_is_half_empty(runnel_broker: Broker) -> None:
    """The window was full of what one member holds: each ack makes room for the other."""
    async with subscribe(runnel_broker, prefetch=16, max_ack_pending=16) as busy:
        await publish(runnel_broker, 30)
        got = await take(busy, 16)
        async with subscribe(runnel_broker) as idle:
            await turns()
            await got[0].ack()
            async with asyncio.timeout(PATIENCE):
                assert (await anext(idle)).offset == 16


async def test_the_next_of_a_key_comes_though_the_one_before_it_expired_at_a_busy_member(
    runnel_broker: Broker, runnel_clock: JumpingClock
) -> None:
    async with subscribe(runnel_broker) as deliveries:
        await runnel_broker.publish("t", b"0")
        await runnel_broker.publish("t", b"1", key="k", expires=5)
        await runnel_broker.publish("t", b"2", key="k")
        (busy,) = await take(deliveries, 1)
        await runnel_clock.advance(5)
        async with asyncio.timeout(PATIENCE):
            assert (await anext(deliveries)).value == b"2"
        await busy.ack()


async def test_the_next_of_a_key_goes_to_an_idle_member_at_once(runnel_broker: Broker) -> None:
    for number in range(18):
        await runnel_broker.publish("t", b"%d" % number, key=f"k{number % 9}")
    async with subscribe(runnel_broker, prefetch=9) as busy:
        got = await take(busy, 9)
        async with subscribe(runnel_broker) as idle:
            await turns()
            await got[1].ack()
            async with asyncio.timeout(PATIENCE):
                assert (await anext(idle)).offset == 10


# -- groups that have nobody to give records to -----------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("members", ["none", "full", "paused"])
async def test_a_publish_costs_a_group_nothing_while_no_member_has_room(
    runnel_broker: Broker, monkeypatch: pytest.MonkeyPatch, pattern: str, members: str
) -> None:
    turns_taken = 0
    add = GroupTurns.add

    def counted(self: GroupTurns, turn: Callable[[], None]) -> bool:
        nonlocal turns_taken
        turns_taken += 1
        return add(self, turn)

    await publish(runnel_broker, 1)
    deliveries = subscribe(runnel_broker, pattern, prefetch=1)
    async with deliveries:
        held = await take(deliveries, 1)
        if members == "none":
            await deliveries.__aexit__(None, None, None)
        elif members == "paused":
            group_of(runnel_broker).pause()
        await turns()
        monkeypatch.setattr(GroupTurns, "add", counted)
        for _ in range(10):
            await publish(runnel_broker, 1)
            await turns()
        reader = group_of(runnel_broker)
        assert reader.overflow.lag() == 11
        if pattern == "t":  # a topic wakes the readers of patterns in any case
            assert turns_taken <= 1
            assert reader.overflow.cursor.position <= 2
        if members == "full":
            await held[0].ack()
    if members == "paused":
        reader.resume()
    async with subscribe(runnel_broker, pattern) as deliveries:
        assert len(await take(deliveries, 10)) == 10


async def test_a_group_without_members_wakes_for_its_first_record_only_and_warns_in_time(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker):
        pass
    await turns()
    await runnel_clock.advance(5 * STALL_SECONDS)
    for _ in range(3):
        await publish(runnel_broker, 1)
        await turns()
    reader = group_of(runnel_broker)
    assert (reader.overflow.cursor.position, reader.overflow.lag()) == (1, 3)
    assert runnel_broker.statistics().groups[0].oldest_unacked_age == 0.0
    await runnel_clock.advance(STALL_SECONDS - 1)
    assert warnings(caplog) == []
    assert runnel_broker.statistics().groups[0].oldest_unacked_age == STALL_SECONDS - 1
    await runnel_clock.advance(1)
    assert warnings(caplog) == ["group 'g on t' has no member for 30 s while 3 records wait"]


async def test_delayed_records_are_no_stall_of_a_group_without_members(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker):
        pass
    for _ in range(3):
        await publish(runnel_broker, 1, delay=3600)
        await turns()
    await runnel_clock.advance(2 * STALL_SECONDS)
    assert warnings(caplog) == []
    assert runnel_broker.statistics().groups[0].scheduled == 3


# -- leaving and ending -----------------------------------------------------------------------------------------


async def test_what_a_member_held_is_with_the_next_in_the_same_turn(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 4)
    async with subscribe(runnel_broker) as other:
        held = await take(other, 4)
        async with subscribe(runnel_broker) as heir:
            await other.__aexit__(None, None, None)
            assert all(delivery.settled for delivery in held)
            again = await take(heir, 4)
            assert [(delivery.offset, delivery.attempt) for delivery in again] == [(0, 2), (1, 2), (2, 2), (3, 2)]


async def test_closing_with_work_in_hand_is_harmless_even_at_its_last_attempt(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 2)
    async with subscribe(runnel_broker, max_deliver=1) as deliveries, runnel_broker.subscribe("t") as plain:
        await take(deliveries, 2)
        runnel_broker.close()
        assert [record async for record in plain] == []
        assert [delivery async for delivery in deliveries] == []


async def test_a_group_that_ended_does_nothing_more(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    await publish(runnel_broker, 2)
    async with subscribe(runnel_broker, ack_wait=5.0) as deliveries:
        await take(deliveries, 1)
        reader = group_of(runnel_broker)
        await runnel_broker.delete("t")
        reader.wake()
        await runnel_clock.advance(100)
        assert (reader.group.outstanding, reader.members) == (0, 0)


async def test_a_dead_letter_is_appended_however_full_its_topic_is(runnel_broker: Broker) -> None:
    async with runnel_broker.subscribe("dead-letters.g", policy="block", buffer=1) as letters:
        await publish(runnel_broker, 3)
        async with subscribe(runnel_broker) as deliveries:
            for delivery in await take(deliveries, 3):
                await delivery.reject("bad")
        assert [(await anext(letters)).value for _ in range(3)] == [b"0", b"1", b"2"]


async def test_dead_letters_need_no_permission_to_make_their_topic() -> None:
    async with local_broker(auto_create=False, clock=JumpingClock()) as broker:
        await broker.topic("t").declare()
        await publish(broker, 1)
        async with subscribe(broker) as deliveries:
            await (await anext(deliveries)).reject("bad")
        assert await broker.topics() == ["dead-letters.g", "t"]


# -- time -------------------------------------------------------------------------------------------------------


async def test_it_sleeps_until_something_is_due(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    await publish(runnel_broker, 1, delay=500)
    async with subscribe(runnel_broker) as deliveries:
        await turns()
        assert len([timer for _, _, timer in runnel_clock._timers if timer.callback]) == 1
        waiting = asyncio.ensure_future(anext(deliveries))
        await runnel_clock.advance(499.9)
        assert not waiting.done()
        await runnel_clock.advance(0.1)
        assert (await waiting).attempt == 1


async def test_an_earlier_event_replaces_a_later_timer(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    async with subscribe(runnel_broker) as deliveries:
        await publish(runnel_broker, 1, delay=500)
        await turns()
        await publish(runnel_broker, 1, delay=5)
        await turns()
        assert len([timer for _, _, timer in runnel_clock._timers if timer.callback]) == 1
        await runnel_clock.advance(5)
        delivery = await anext(deliveries)
        assert delivery.offset == 1
        await delivery.ack()
        await runnel_clock.advance(495)
        assert (await anext(deliveries)).offset == 0


# -- warnings ---------------------------------------------------------------------------------------------------


async def test_a_group_without_a_member_is_warned_about_once(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker):
        await turns()
    await publish(runnel_broker, 3)
    await runnel_clock.advance(STALL_SECONDS - 0.1)
    assert warnings(caplog) == []
    await runnel_clock.advance(0.1)
    assert warnings(caplog) == ["group 'g on t' has no member for 30 s while 3 records wait"]
    await publish(runnel_broker, 1)
    await runnel_clock.advance(10 * STALL_SECONDS)
    assert len(warnings(caplog)) == 1


async def test_a_group_that_settles_nothing_is_warned_about_once_per_episode(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker, ack_wait=1000.0) as deliveries:
        await publish(runnel_broker, 3)
        first, second, third = await take(deliveries, 3)
        await runnel_clock.advance(5 * STALL_SECONDS)
        assert warnings(caplog) == ["group 'g on t' has settled nothing for 30 s while 3 records wait"]
        await first.ack()
        await runnel_clock.advance(5 * STALL_SECONDS)
        assert warnings(caplog)[1:] == ["group 'g on t' has settled nothing for 30 s while 2 records wait"]
        await second.ack()
        await third.ack()
        await runnel_clock.advance(5 * STALL_SECONDS)
        assert len(warnings(caplog)) == 2


async def test_the_warning_counts_from_when_it_last_moved(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker, ack_wait=1000.0) as deliveries:
        await publish(runnel_broker, 3)
        first, *_ = await take(deliveries, 3)
        await runnel_clock.advance(20)
        await first.ack()
        await runnel_clock.advance(29)
        assert warnings(caplog) == []
        await runnel_clock.advance(1)
        assert len(warnings(caplog)) == 1


async def test_an_ack_in_a_transaction_counts_as_a_move(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker, ack_wait=1000.0) as deliveries:
        await publish(runnel_broker, 3)
        first, *_ = await take(deliveries, 3)
        await runnel_clock.advance(20)
        async with runnel_broker.transaction() as tx:
            tx.ack(first)
        await runnel_clock.advance(29)
        assert warnings(caplog) == []
        await runnel_clock.advance(1)
        assert warnings(caplog) == ["group 'g on t' has settled nothing for 30 s while 2 records wait"]


async def test_a_member_that_comes_begins_a_new_episode(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker, ack_wait=1000.0):
        await turns()
    await publish(runnel_broker, 1)
    await runnel_clock.advance(STALL_SECONDS)
    async with subscribe(runnel_broker):
        await runnel_clock.advance(STALL_SECONDS - 1)
        assert len(warnings(caplog)) == 1
        await runnel_clock.advance(1)
        assert "has settled nothing" in warnings(caplog)[1]


@pytest.mark.parametrize("idle", [STALL_SECONDS, 3600.0])
async def test_the_first_record_after_a_quiet_time_is_no_reason_to_worry(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture, idle: float
) -> None:
    async with subscribe(runnel_broker) as deliveries:
        for _ in range(3):
            await publish(runnel_broker, 1)
            (delivery,) = await take(deliveries, 1)
            await runnel_clock.advance(5)
            await delivery.ack()
            await runnel_clock.advance(idle)
    assert warnings(caplog) == []


async def test_what_is_delayed_is_no_reason_to_worry(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker) as deliveries:
        await publish(runnel_broker, 2, delay=600)
        await publish(runnel_broker, 1)
        await (await anext(deliveries)).nack(delay=700)
        await runnel_clock.advance(599)
    assert warnings(caplog) == []


async def test_a_pause_is_no_reason_to_worry_and_its_time_does_not_count(
    runnel_broker: Broker, runnel_clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribe(runnel_broker):
        await publish(runnel_broker, 1)
        await turns()
        reader = group_of(runnel_broker)
        reader.pause()
        await runnel_clock.advance(10 * STALL_SECONDS)
        reader.resume()
        await runnel_clock.advance(STALL_SECONDS - 1)
        assert warnings(caplog) == []
        await runnel_clock.advance(1)
        assert len(warnings(caplog)) == 1


# -- steering ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (4, OffsetOutOfRange),
        (-1, InvalidOption),
        ("tomorrow", InvalidOption),
        (True, InvalidOption),
        (datetime(2026, 1, 1), InvalidOption),  # without a zone, as users do
    ],
)
async def test_a_reset_to_nowhere_leaves_everything_as_it_is(
    runnel_broker: Broker, start: Any, error: type[Exception]
) -> None:
    await publish(runnel_broker, 3)
    async with subscribe(runnel_broker) as deliveries:
        (held,) = await take(deliveries, 1)
        with pytest.raises(error):
            group_of(runnel_broker).reset(start)
        await held.ack()
        assert [delivery.offset for delivery in await take(deliveries, 2)] == [1, 2]


async def test_a_number_means_nothing_to_a_pattern(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 3)
    async with subscribe(runnel_broker, "*"):
        with pytest.raises(InvalidOption, match="offsets differ"):
            group_of(runnel_broker).reset(1)


async def test_it_says_what_it_is(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker):
        reader = group_of(runnel_broker)
        assert repr(reader) == "<GroupReader 'g on t', <GroupLogic 'g', 1 members, 0 out, 0 to come>>"
        assert (reader.pattern, reader.dead_letter, reader.members) == ("t", "dead-letters.g", 1)
        reader.dropped([])
        reader.disconnect(1)
        reader.made_room()
        assert reader.statistics().lag == 0


# -- The stall warning: a group that does not move is reported once, and when somebody could have moved it ----


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(("members", "why"), [(0, "has no member"), (2, "has settled nothing")])
def test_it_is_said_once_that_nothing_moves(caplog: pytest.LogCaptureFixture, members: int, why: str) -> None:
    worry = StallWarning("g on t", 0.0)
    assert worry.look(10.0, 0, 10.0, 5, members) == 10.0 + STALL_SECONDS, "from when there was something to do"
    assert worry.look(9.9 + STALL_SECONDS, 0, 9.9 + STALL_SECONDS, 5, members) == 10.0 + STALL_SECONDS
    assert told(caplog) == []
    assert worry.look(10.0 + STALL_SECONDS, 0, 10.0 + STALL_SECONDS, 1234, members) == inf
    assert worry.look(99.0 + STALL_SECONDS, 0, 99.0 + STALL_SECONDS, 5, members) == inf
    assert told(caplog) == [f"group 'g on t' {why} for {STALL_SECONDS:.0f} s while 1,234 records wait"]


def test_a_member_that_settles_a_record_has_time_again(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    worry.look(0.0, 0, 0.0, 5, 1)
    assert worry.look(STALL_SECONDS, 1, STALL_SECONDS, 4, 1) == 2 * STALL_SECONDS
    assert told(caplog) == []


def test_nothing_to_do_is_no_worry(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    assert worry.look(5 * STALL_SECONDS, 0, 5 * STALL_SECONDS, 0, 0) == inf
    assert told(caplog) == []


def test_a_new_member_has_time_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    worry.look(0.0, 0, 0.0, 5, 0)
    worry.reset(STALL_SECONDS - 1)
    assert worry.look(STALL_SECONDS, 0, STALL_SECONDS, 5, 1) == 2 * STALL_SECONDS - 1
    assert told(caplog) == []
    assert "g on t" in repr(worry)
