"""Groups: each record to one member, members that come and go, and nothing forgotten."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Delivery, GroupSubscription
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, rest, running, soon, until, values
from tests.contract.working import attempts, fill, fill_at_once, look, numbers, offsets, take, work


class Job(msgspec.Struct):
    id: int


def member(broker: Broker, pattern: str = "jobs", group: str = "g", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group=group, **options)


# -- the three shapes -------------------------------------------------------------------------------------------


async def test_broadcast_everybody_alone_sees_everything(broker: Broker) -> None:
    async with broker.subscribe("jobs") as one, broker.subscribe("jobs") as two:
        await fill(broker, 3)
        assert await values(one, 3) == await values(two, 3) == numbers(0, 3)


@on_every_socket
async def test_a_work_queue_each_record_goes_to_one_member(broker: Broker) -> None:
    async with member(broker) as one, member(broker) as two:
        await fill_at_once(broker, 10)
        first, second = await take(one, 5), await take(two, 5)
        assert sorted(offsets([*first, *second])) == list(range(10))


@on_every_socket
async def test_several_groups_each_see_everything_and_share_it_inside(broker: Broker) -> None:
    async with member(broker, group="billing") as one, member(broker, group="billing") as two:
        async with member(broker, group="shipping") as shipping, broker.subscribe("jobs", start="earliest") as plain:
            await fill_at_once(broker, 6)
            shared = await work(one, 3) + await work(two, 3)
            assert sorted(shared) == await work(shipping, 6) == await values(plain, 6) == numbers(0, 6)


# -- members come and go ----------------------------------------------------------------------------------------


async def test_a_new_group_starts_at_the_earliest_record(broker: Broker) -> None:
    await fill(broker, 3)
    async with member(broker) as deliveries:
        assert await work(deliveries, 3) == numbers(0, 3)


@pytest.mark.parametrize(("start", "first"), [("latest", 3), (1, 1), ("earliest", 0)])
async def test_a_new_group_may_start_elsewhere(broker: Broker, start: Any, first: int) -> None:
    await fill(broker, 3)
    async with member(broker, start=start) as deliveries:
        await fill(broker, 1, first=3)
        assert (await anext(deliveries)).offset == first


async def test_the_start_counts_only_for_a_new_group(broker: Broker) -> None:
    await fill(broker, 3)
    async with member(broker) as deliveries:
        await work(deliveries, 1)
    async with member(broker, start="latest") as deliveries:
        assert await work(deliveries, 2) == numbers(1, 3)


async def test_the_position_is_kept_without_a_reader(broker: Broker) -> None:
    async with member(broker) as deliveries:
        await fill(broker, 2)
        await work(deliveries, 2)
    await fill(broker, 3, first=2)
    async with member(broker) as deliveries:
        assert await work(deliveries, 3) == numbers(2, 5)


async def test_more_than_any_buffer_waits_while_no_reader_is_there(broker: Broker) -> None:
    async with member(broker):
        pass
    await broker.topic("jobs").publish_many(numbers(0, 10_000))
    async with member(broker, prefetch=1000) as deliveries:
        assert await work(deliveries, 10_000) == numbers(0, 10_000)


async def test_what_a_member_held_goes_back_at_once_and_in_order(broker: Broker) -> None:
    async with member(broker) as heir_to_be:
        async with member(broker) as leaving:
            await fill_at_once(broker, 8)
            held = await take(leaving, 4)
            assert offsets(held) == [4, 5, 6, 7]
            await held[1].ack()
        got = await take(heir_to_be, 7)
    assert attempts(got) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (7, 2)]


async def test_what_goes_back_is_handed_out_before_what_is_newer(broker: Broker) -> None:
    await fill(broker, 4)
    async with member(broker, prefetch=4) as leaving:
        await take(leaving, 2)
        await fill(broker, 4, first=4)
    async with member(broker, prefetch=8) as heir:
        got = await take(heir, 8)
    assert attempts(got) == [(0, 2), (1, 2)] + [(offset, 1) for offset in range(2, 8)]


@on_every_socket
async def test_what_a_cancelled_member_held_goes_back_at_once(broker: Broker) -> None:
    await fill(broker, 2)

    async def hang() -> None:
        async with member(broker) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    await asyncio.Event().wait()

    async with running(hang()):
        assert look(broker).in_flight == 2
    async with member(broker) as heir:
        assert attempts(await take(heir, 2)) == [(0, 2), (1, 1)]


async def test_what_a_failing_member_held_goes_back_at_once(broker: Broker) -> None:
    await fill(broker, 2)

    async def fail() -> None:
        async with member(broker) as deliveries:
            await take(deliveries, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with member(broker) as heir:
        assert attempts(await take(heir, 2)) == [(0, 2), (1, 2)]


@on_every_socket
async def test_what_a_frozen_member_held_goes_to_another_when_its_lease_ends(
    broker: Broker, clock: JumpingClock
) -> None:
    async with member(broker, ack_wait=20.0, prefetch=2) as frozen, member(broker) as alive:
        await fill_at_once(broker, 2)
        (held,) = await take(frozen, 1)
        await work(alive, 1)
        await clock.advance(20)
        assert held.settled
        assert attempts(await take(alive, 1)) == [(held.offset, 2)]


async def test_members_may_join_while_others_work(broker: Broker) -> None:
    await fill(broker, 100)
    async with member(broker, prefetch=10) as one:
        await work(one, 20)
        async with member(broker, prefetch=10) as two:
            got = await work(two, 20)
            assert len(set(got)) == 20
            assert look(broker).acked == 40


# -- spread and prefetch ----------------------------------------------------------------------------------------


async def test_the_spread_is_fair(broker: Broker) -> None:
    async with member(broker, prefetch=100) as _, member(broker, prefetch=100) as _, member(broker, prefetch=100) as _:
        await fill(broker, 90)
        await at_rest()
        assert [one.held for one in look(broker).members] == [30, 30, 30]


async def test_records_that_come_one_by_one_go_round(broker: Broker) -> None:
    async with member(broker) as one, member(broker) as two, member(broker) as three:
        for number in range(9):
            await fill(broker, 1, first=number)
            await at_rest()
        assert [offsets(await take(each, 3)) for each in (one, two, three)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


async def test_no_member_with_room_starves_while_another_is_fast(broker: Broker) -> None:
    """A fast member acks at once and always has room: the slow one still has its turn each time it holds nothing."""
    async with member(broker, prefetch=5) as fast, member(broker, prefetch=5) as slow:

        async def ack_all() -> None:
            async for delivery in fast:
                await delivery.ack()

        async with running(ack_all()):
            for number in range(5):
                await fill(broker, 2, first=2 * number)
                await at_rest()
                assert len(await work(slow, 1)) == 1


async def test_a_member_with_less_room_gets_less(broker: Broker) -> None:
    async with member(broker, prefetch=2), member(broker, prefetch=50):
        await fill(broker, 30)
        await at_rest()
        assert [one.held for one in look(broker).members] == [2, 28]


async def test_a_member_holds_no_more_than_its_prefetch(broker: Broker) -> None:
    await fill(broker, 10)
    async with member(broker, prefetch=3) as deliveries:
        held = await take(deliveries, 3)
        async with running(read(deliveries, 1)) as waiting:
            assert not waiting.done()
            for delivery in held[:2]:
                await delivery.ack()
            assert offsets(await soon(waiting)) == [3]


@pytest.mark.parametrize("when", ["before the member", "after the member", "while nobody was there"])
async def test_a_member_may_bound_its_bytes_too(broker: Broker, when: str) -> None:
    async def publish() -> None:
        for _ in range(10):
            await broker.publish("jobs", bytes(100))
        await at_rest()

    if when != "after the member":
        if when == "while nobody was there":
            async with member(broker):
                pass
        await publish()
    async with member(broker, prefetch_bytes=250) as deliveries:
        if when == "after the member":
            await publish()
        held = await take(deliveries, 3)
        async with running(read(deliveries, 1)) as waiting:
            assert not waiting.done()
            assert look(broker).in_flight == 3
            await held[0].ack()
            assert offsets(await soon(waiting)) == [3]


async def test_no_more_than_max_ack_pending_are_out_however_many_members_there_are(
    broker: Broker, clock: JumpingClock
) -> None:
    await fill(broker, 6, delay=60)
    await fill(broker, 10, first=6)
    async with member(broker, max_ack_pending=5) as one, member(broker) as two:
        await at_rest()
        assert look(broker).in_flight == 5
        await clock.advance(60)
        assert look(broker).in_flight == 5
        await (await anext(one)).ack()
        await (await anext(two)).ack()
        await at_rest()
        assert look(broker).in_flight == 5


# -- patterns ---------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_group_on_a_pattern_gets_topics_that_are_made_later(broker: Broker) -> None:
    await fill(broker, 1, "jobs.a")
    got: list[Delivery[bytes]] = []

    async def collect(deliveries: GroupSubscription[bytes]) -> None:
        while True:
            got.append(await anext(deliveries))

    async with member(broker, "jobs.*") as one, member(broker, "jobs.*") as two:
        await fill(broker, 2, "jobs.b")
        await fill(broker, 1, "other.c")
        await fill(broker, 1, "jobs.a", first=1)
        async with running(collect(one)), running(collect(two)):
            await until(lambda: len(got) == 4)
        assert sorted((delivery.topic, delivery.offset) for delivery in got) == [
            ("jobs.a", 0),
            ("jobs.a", 1),
            ("jobs.b", 0),
            ("jobs.b", 1),
        ]
        for delivery in got:
            await delivery.ack()
        assert (look(broker).lag, look(broker).acked) == (0, 4)


async def test_a_group_on_a_pattern_reads_in_the_order_of_publishing(broker: Broker) -> None:
    for number in range(6):
        await fill(broker, 1, f"jobs.{number % 2}", first=number)
    async with member(broker, "jobs.*") as deliveries:
        assert await work(deliveries, 6) == numbers(0, 6)


async def test_one_name_on_two_patterns_is_two_groups(broker: Broker) -> None:
    async with member(broker) as topic, member(broker, "jobs") as same, member(broker, "*") as pattern:
        await fill_at_once(broker, 2)
        assert sorted(await work(topic, 1) + await work(same, 1)) == await work(pattern, 2) == numbers(0, 2)


async def test_a_deleted_topic_of_a_pattern_leaves_the_group_going(broker: Broker) -> None:
    await fill(broker, 2, "jobs.a")
    async with member(broker, "jobs.*") as deliveries:
        await fill(broker, 1, "jobs.b", first=2)
        got = await take(deliveries, 2)
        await broker.delete("jobs.a")
        for delivery in got:
            await delivery.ack()
        assert (await anext(deliveries)).topic == "jobs.b"


# -- publishers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_publishers_wait_when_a_group_holds_its_buffer(broker: Broker, pattern: str) -> None:
    async with member(broker, pattern, buffer=3) as deliveries:
        await fill(broker, 3)
        async with running(broker.publish("jobs", b"3")) as publishing:
            held = await take(deliveries, 3)
            await at_rest()
            assert not publishing.done()
            await held[0].ack()
            assert (await soon(publishing)).offset == 3


@on_every_socket
async def test_publishers_wait_for_bytes_too(broker: Broker) -> None:
    async with member(broker, buffer_bytes=100, max_ack_pending=1) as deliveries:
        await broker.publish("jobs", bytes(60))
        async with running(broker.publish("jobs", bytes(60))) as publishing:
            assert not publishing.done()
            await work(deliveries, 1)
            assert (await soon(publishing)).offset == 1


@pytest.mark.near("publish_nowait hands over; how full a group is, the server knows")
@pytest.mark.parametrize(("options", "records"), [({"buffer": 3}, 3), ({"buffer_bytes": 100, "max_ack_pending": 1}, 1)])
async def test_publish_nowait_says_that_a_group_is_full(broker: Broker, options: Any, records: int) -> None:
    async with member(broker, **options) as deliveries:
        for _ in range(records):
            await broker.publish("jobs", bytes(60))
        await at_rest()
        with pytest.raises(runnel.Full):
            broker.topic("jobs").publish_nowait(bytes(60))
        await work(deliveries, 1)
        await at_rest()
        broker.topic("jobs").publish_nowait(bytes(60))


async def test_publishers_wait_without_readers_too(broker: Broker) -> None:
    async with member(broker, buffer=2):
        pass
    await fill(broker, 2)
    async with running(broker.publish("jobs", b"2")) as publishing:
        assert not publishing.done()
        async with member(broker) as deliveries:
            await work(deliveries, 1)
            await soon(publishing)


async def test_a_member_may_publish_to_its_own_full_topic_from_another_task(broker: Broker) -> None:
    async with member(broker, buffer=1) as deliveries:
        await fill(broker, 1)
        delivery = await anext(deliveries)
        async with running(broker.publish("jobs", b"1")) as publishing:
            await delivery.ack()
            await soon(publishing)


async def test_the_only_member_cannot_wait_for_itself(broker: Broker) -> None:
    async with member(broker, buffer=1) as deliveries:
        await fill(broker, 1)
        await anext(deliveries)
        with pytest.raises(runnel.WouldDeadlock, match="g on jobs"):
            await broker.publish("jobs", b"1")
        async with member(broker) as other:  # who can make room
            async with running(broker.publish("jobs", b"1")) as publishing:
                assert not publishing.done()
                await deliveries.__aexit__(None, None, None)
                await work(other, 1)
                assert (await soon(publishing)).offset == 1


async def test_one_of_several_members_may_wait_for_the_others(broker: Broker) -> None:
    async with member(broker, buffer=2) as one, member(broker) as two:
        await fill(broker, 2)
        mine, theirs = await anext(one), await anext(two)

        async def make_room() -> None:
            await theirs.ack()

        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(make_room()))
        assert (await broker.publish("jobs", b"2")).offset == 2  # in the task that reads
        await mine.ack()


# -- steering ---------------------------------------------------------------------------------------------------


async def test_a_paused_group_gets_nothing_new_and_may_still_settle(broker: Broker) -> None:
    async with member(broker, prefetch=2) as deliveries:
        await fill(broker, 5)
        held = await take(deliveries, 2)
        broker.group("g", "jobs").pause()
        assert look(broker).paused
        for delivery in held:
            await delivery.ack()
        async with running(read(deliveries, 3)) as waiting:
            assert not waiting.done()
            broker.group("g", "jobs").resume()
            await at_rest()
            assert not look(broker).paused
            assert look(broker).in_flight == 2


@pytest.mark.parametrize(("to", "expected"), [(1, [1, 2, 3, 4]), ("earliest", [0, 1, 2, 3, 4]), ("latest", [])])
async def test_a_group_can_be_reset_by_offset(broker: Broker, to: Any, expected: list[int]) -> None:
    await fill(broker, 5)
    async with member(broker) as deliveries:
        await work(deliveries, 3)
        (held,) = await take(deliveries, 1)
        broker.group("g", "jobs").reset(to)
        with pytest.raises(runnel.LeaseEnded):
            await held.ack()
        await fill(broker, 1, first=5)
        assert attempts(await take(deliveries, len(expected) + 1)) == [(offset, 1) for offset in (*expected, 5)]


@on_every_socket
async def test_a_group_can_be_reset_to_a_position(broker: Broker) -> None:
    await fill(broker, 2)
    position = await broker.publish("jobs", b"2")
    async with member(broker) as deliveries:
        await work(deliveries, 3)
        broker.group("g", "jobs").reset(position)
        assert (await anext(deliveries)).position == position


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_a_group_can_be_reset_by_time(broker: Broker, clock: JumpingClock, pattern: str) -> None:
    for number in range(4):
        await fill(broker, 1, first=number)
        await clock.advance(60)
    async with member(broker, pattern) as deliveries:
        await work(deliveries, 4)
        then = datetime.fromtimestamp(clock.time(), UTC) - timedelta(seconds=130)
        broker.group("g", pattern).reset(then)
        assert await work(deliveries, 2) == numbers(2, 4)


async def test_a_reset_without_members_counts_for_those_who_come(broker: Broker) -> None:
    await fill(broker, 3)
    async with member(broker) as deliveries:
        await work(deliveries, 3)
    broker.group("g", "jobs").reset(1)
    async with member(broker) as deliveries:
        assert await work(deliveries, 2) == numbers(1, 3)


async def test_a_group_without_members_cannot_be_steered(broker: Broker) -> None:
    with pytest.raises(runnel.UnknownGroup, match="subscribe with group='g'"):
        broker.group("g", "jobs")


# -- typed ------------------------------------------------------------------------------------------------------


async def test_a_typed_topic_delivers_its_type(broker: Broker) -> None:
    jobs = broker.topic("jobs", Job)
    await jobs.publish(Job(1))
    async with jobs.subscribe(group="g") as deliveries:
        assert (await anext(deliveries)).value == Job(1)
    async with broker.subscribe("jobs", group="g", type=Job) as same:
        (batch,) = [await anext(same.batches())]
        assert batch.values == (Job(1),)


async def test_a_typed_topic_in_msgpack_is_read_as_such(broker: Broker) -> None:
    await broker.topic("jobs", Job, encoding="msgpack").publish(Job(7))
    async with broker.subscribe("jobs", group="g", type=Job) as deliveries:
        assert (await anext(deliveries)).value == Job(7)


# -- requests and publish_and_wait ------------------------------------------------------------------------------


async def test_one_member_answers_a_request(broker: Broker) -> None:
    async def respond(name: bytes) -> None:
        async with member(broker) as requests:
            async for delivery in requests:
                async with delivery:
                    await broker.reply(delivery, name + delivery.value)

    async with running(respond(b"one ")), running(respond(b"two ")):
        replies = [(await soon(broker.request("jobs", b"%d" % number))).value for number in range(4)]
    assert replies == [b"one 0", b"two 1", b"one 2", b"two 3"]
    assert look(broker).acked == 4


async def test_a_group_without_members_answers_no_request(broker: Broker) -> None:
    async with member(broker):
        pass
    with pytest.raises(runnel.NoResponders):
        await broker.request("jobs", b"?")


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_publish_and_wait_returns_when_every_group_has_settled_it(broker: Broker, pattern: str) -> None:
    async with member(broker, pattern, group="a") as one, member(broker, pattern, group="b") as two:
        async with running(broker.topic("jobs").publish_and_wait(b"x")) as publishing:
            await work(one, 1)
            delivery = await anext(two)
            await delivery.nack(delay=0)
            await at_rest()
            assert not publishing.done()
            await work(two, 1)
            assert (await soon(publishing)).offset == 0


async def test_publish_and_wait_does_not_wait_until_a_busy_member_is_half_empty(broker: Broker) -> None:
    async with member(broker, prefetch=4) as deliveries:
        async with running(broker.topic("jobs").publish_and_wait(b"x")) as publishing:
            await fill(broker, 3)
            held = await take(deliveries, 4)
            await held[0].ack()
            assert (await soon(publishing)).offset == 0


async def test_publish_and_wait_names_the_group_that_stalls(broker: Broker, clock: JumpingClock) -> None:
    async with member(broker, ack_wait=100) as deliveries:
        async with running(broker.topic("jobs").publish_and_wait(b"x", timeout=5)) as publishing:
            await take(deliveries, 1)
            await clock.advance(5)
            with pytest.raises(runnel.Stalled, match="g on jobs"):
                await publishing


# -- what is agreed and refused ---------------------------------------------------------------------------------


async def test_members_agree_on_the_options_of_their_group(broker: Broker) -> None:
    async with member(broker, ack_wait=5.0, max_deliver=3):
        async with member(broker, ack_wait=5.0), member(broker, prefetch=9):
            assert len(look(broker).members) == 3
        for said in ({"ack_wait": 6.0}, {"max_deliver": 4}, {"backoff": [1]}, {"dead_letter": "else"}):
            with pytest.raises(runnel.InvalidOption, match="members must agree"):
                async with member(broker, **said):
                    pass
        assert len(look(broker).members) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "block"},
        {"on_gap": print},
        {"on_drop": print},
        {"strict": True},
        {"prefetch": 0},
        {"ack_wait": -1},
        {"max_deliver": 0},
        {"max_ack_pending": 0},
        {"backoff": []},
        {"jitter": 2},
        {"buffer": 0},
        {"dead_letter": "jobs"},
    ],
)
async def test_what_means_nothing_for_a_group_is_refused(broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(runnel.InvalidOption):
        async with member(broker, **options):
            pass
    assert broker.statistics().groups == ()


@pytest.mark.parametrize("option", ["prefetch", "prefetch_bytes", "ack_wait", "max_ack_pending", "max_deliver"])
async def test_what_means_something_only_in_a_group_is_refused_without_one(broker: Broker, option: str) -> None:
    with pytest.raises(runnel.InvalidOption, match="without group="):
        broker.subscribe("jobs", **{option: 5})  # type: ignore[call-overload]


async def test_two_members_of_one_name_are_refused(broker: Broker) -> None:
    async with member(broker, name="ann"):
        with pytest.raises(runnel.InvalidOption, match="has a member of that name"):
            async with member(broker, name="ann"):
                pass
        assert [one.name for one in look(broker).members] == ["ann"]
    async with member(broker, name="ann"):
        assert [one.name for one in look(broker).members] == ["ann"]


@on_every_socket
async def test_closing_the_broker_ends_the_iteration(broker: Broker) -> None:
    async with member(broker) as deliveries:
        async with running(rest(deliveries)) as reading:
            broker.close()
            assert await soon(reading) == []
