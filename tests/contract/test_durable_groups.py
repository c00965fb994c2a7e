"""What groups remember of an earlier life: what was settled, tried, put off and given up."""

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel import Broker, NotSupported
from runnel.journal.format.ledger import GroupState
from runnel.testing.clock import JumpingClock
from tests.broker.durable_broker import journal_of
from tests.contract.lives import ON_DISK, Folder
from tests.contract.reading import at_rest, read, running, soon, until
from tests.contract.working import attempts, fill, look, numbers, offsets, take, work
from tests.patience import PATIENCE

PATTERNS = pytest.mark.parametrize("pattern", ["jobs", "*"])


# -- what is settled --------------------------------------------------------------------------------------------


@PATTERNS
async def test_a_group_goes_on_where_it_was(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, 10)
        async with broker.subscribe(pattern, group="g") as deliveries:
            await work(deliveries, 4)
    async with folder.life() as broker:
        assert look(broker).members == ()
        async with broker.subscribe(pattern, group="g") as deliveries:
            assert await work(deliveries, 6) == numbers(4, 10)
            await fill(broker, 1, first=10)
            assert await work(deliveries, 1) == numbers(10, 11)
    async with folder.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        await fill(broker, 1, first=11)
        assert await work(deliveries, 1) == numbers(11, 12)


@PATTERNS
async def test_however_many_wait_for_their_time_what_lies_behind_them_comes(
    folder: Folder, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("runnel.broker.group.logic.group.MAX_BYTES", 1000)  # as if they were very many
    for _ in range(2):  # in this life, and in the next
        async with folder.life(**ON_DISK) as broker:
            if broker.statistics().published == 0:
                await broker.topic("jobs").publish_many([b"x" * 100] * 500, delay=60)
                await broker.publish("jobs", b"behind them")
            async with broker.subscribe(pattern, group="g", max_ack_pending=8) as deliveries:
                (found,) = await take(deliveries, 1)
                assert found.value == b"behind them"
                assert (look(broker).scheduled, look(broker).in_flight) == (500, 1)
    async with folder.life(**ON_DISK) as broker, broker.subscribe(pattern, group="g") as deliveries:
        await clock.advance(60)
        assert sorted(await work(deliveries, 501)) == [b"behind them"] + [b"x" * 100] * 500


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_the_lag_of_a_group_and_a_name_survives(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, 10)
        await fill(broker, 10, "not.ours")
        async with broker.subscribe(pattern, group="g") as deliveries:
            await work(deliveries, 4)
        async with broker.subscribe(pattern, name="n") as subscription:
            await read(subscription, 5)
    async with folder.life() as broker:
        assert look(broker).lag == 6
        async with broker.subscribe(pattern, name="n") as subscription:
            assert subscription.lag == 6


@PATTERNS
async def test_acks_out_of_order_survive(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, 20)
        async with broker.subscribe(pattern, group="g", prefetch=20) as deliveries:
            held = await take(deliveries, 20)
            for number in (19, 3, 4, 10, 1, 0, 12, 11):
                await held[number].ack()
    left = [2, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18]
    for _ in range(2):
        async with folder.life() as broker:
            async with broker.subscribe(pattern, group="g", prefetch=20) as deliveries:
                assert sorted(int(one.value) for one in await take(deliveries, len(left))) == left
                assert look(broker).lag == len(left)


@PATTERNS
async def test_a_batch_acked_at_once_survives(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await broker.topic("jobs").publish_many(numbers(0, 100))
        async with broker.subscribe(pattern, group="g", prefetch=50) as deliveries:
            batch = await anext(deliveries.batches(max_records=30))
            await batch.ack()
    async with folder.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        assert await work(deliveries, 70) == numbers(len(batch), 100)[:70]


@PATTERNS
async def test_a_durable_ack_is_on_disk_when_it_returns(data: Folder, pattern: str) -> None:
    async with data.life() as broker:
        await fill(broker, 6)
        async with broker.subscribe(pattern, group="g", prefetch=6) as deliveries:
            first, second, third, _, fifth, _ = await take(deliveries, 6)
            await first.ack()
            await third.ack(durable=True)
            crashed = data.copy()
            await second.ack()
            await fifth.ack(durable=True)
            later = data.copy()
    async with crashed.life() as broker, broker.subscribe(pattern, group="g", prefetch=6) as deliveries:
        assert sorted(int(one.value) for one in await take(deliveries, 4)) == [1, 3, 4, 5]
    async with later.life() as broker, broker.subscribe(pattern, group="g", prefetch=6) as deliveries:
        assert sorted(int(one.value) for one in await take(deliveries, 2)) == [3, 5]


@PATTERNS
async def test_a_durable_ack_of_a_batch(data: Folder, pattern: str) -> None:
    async with data.life() as broker:
        await broker.topic("jobs").publish_many(numbers(0, 10))
        async with broker.subscribe(pattern, group="g", prefetch=10) as deliveries:
            batch = await anext(deliveries.batches(max_records=4))
            await batch.ack(durable=True)
            crashed = data.copy()
    async with crashed.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        assert (await take(deliveries, 1))[0].value == b"4"


@PATTERNS
async def test_what_a_member_held_comes_again_and_what_it_settled_does_not(folder: Folder, pattern: str) -> None:
    seen: list[bytes] = []
    async with folder.life() as broker:
        await fill(broker, 50)
    while len(seen) < 50:
        async with folder.life() as broker, broker.subscribe(pattern, group="g", prefetch=10) as deliveries:
            seen += await work(deliveries, 7 if len(seen) < 42 else 50 - len(seen))
            await take(deliveries, min(2, 50 - len(seen)))
    assert sorted(seen, key=int) == numbers(0, 50)


async def test_groups_on_one_topic_are_remembered_apart(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 10)
        for count, name in enumerate(("a", "b", "c")):
            async with broker.subscribe("jobs", group=name) as deliveries:
                await work(deliveries, count)
    async with folder.life() as broker:
        assert [look(broker, name).lag for name in ("a", "b", "c")] == [10, 9, 8]


async def test_a_group_that_began_at_the_end_begins_there_in_its_next_life_too(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 10)
        async with broker.subscribe("jobs", group="g", start="latest"):
            pass
        await fill(broker, 2, first=10)
    async with folder.life() as broker, broker.subscribe("jobs", group="g", start="earliest") as deliveries:
        assert await work(deliveries, 2) == numbers(10, 12)


# -- what failed ------------------------------------------------------------------------------------------------


@PATTERNS
async def test_attempts_survive(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, 3)
    for attempt in (1, 2, 3):
        async with folder.life() as broker:
            async with broker.subscribe(pattern, group="g", max_deliver=10, prefetch=5) as deliveries:
                one, two, three = sorted(await take(deliveries, 3), key=lambda delivery: delivery.offset)
                assert attempts([one, two, three])[1] == (1, attempt)
                await two.nack(delay=0)
                await at_rest()


async def test_attempts_that_lapsed_survive(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life() as broker:
        await fill(broker, 1)
        async with broker.subscribe("jobs", group="g", ack_wait=10, max_deliver=9) as deliveries:
            await take(deliveries, 1)
            await clock.advance(10)
            assert attempts(await take(deliveries, 1)) == [(0, 2)]
    async with folder.life() as broker, broker.subscribe("jobs", group="g", ack_wait=10, max_deliver=9) as deliveries:
        ((_, attempt),) = attempts(await take(deliveries, 1))
        assert attempt >= 2


@PATTERNS
async def test_what_failed_is_not_tried_before_its_time_in_the_next_life(
    folder: Folder, clock: JumpingClock, pattern: str
) -> None:
    async with folder.life() as broker:
        await fill(broker, 2)
        async with broker.subscribe(pattern, group="g", backoff=(60,), jitter=0) as deliveries:
            first, _ = await take(deliveries, 2)
            await first.nack(reason="busy")
    await clock.advance(30)
    async with folder.life() as broker, broker.subscribe(pattern, group="g", backoff=(60,), jitter=0) as deliveries:
        assert await work(deliveries, 1) == [b"1"]
        async with running(take(deliveries, 1)) as waiting:
            await clock.advance(29)
            assert not waiting.done()
            await clock.advance(1)
            (again,) = await waiting
    assert (again.value, again.attempt) == (b"0", 2)


@PATTERNS
async def test_a_record_that_failed_too_often_over_several_lives_is_a_dead_letter(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await broker.publish("jobs", b"bad", key="k", headers={"h": "x"})
    for _ in range(3):
        async with folder.life() as broker:
            async with broker.subscribe(pattern, group="g", max_deliver=3, dead_letter="dead.jobs") as deliveries:
                (delivery,) = await take(deliveries, 1)
                await delivery.nack(delay=0, reason="broken")
                await at_rest()
    async with folder.life() as broker:
        async with broker.subscribe("dead.jobs", start="earliest") as letters:
            (letter,) = await read(letters, 1)
        async with broker.subscribe(pattern, group="g") as deliveries:
            await broker.publish("jobs", b"good")
            assert await work(deliveries, 1) == [b"good"]
    assert (letter.value, letter.key, letter.headers["h"]) == (b"bad", b"k", "x")
    assert letter.headers["runnel-dead-letter-reason"] == "broken"
    assert letter.headers["runnel-dead-letter-attempts"] == "3"


async def test_a_rejected_record_is_settled_and_its_letter_is_there(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 2)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await (await anext(deliveries)).reject("no good")
    async with folder.life() as broker:
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 1) == [b"1"]
        async with broker.subscribe("dead-letters.g", start="earliest") as letters:
            assert [letter.value for letter in await read(letters, 1)] == [b"0"]


async def test_dead_letters_are_replayed_once_over_several_lives(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 5)
        async with broker.subscribe("jobs", group="g") as deliveries:
            for delivery in await take(deliveries, 5):
                await delivery.reject("not today")
    async with folder.life() as broker:
        assert await broker.replay("dead-letters.g", limit=2) == 2
    async with folder.life(**ON_DISK) as broker:
        assert await broker.replay("dead-letters.g") == 3
        assert await broker.replay("dead-letters.g") == 0
    async with folder.life() as broker:
        assert await broker.replay("dead-letters.g") == 0
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 5) == numbers(0, 5)


# -- holes ------------------------------------------------------------------------------------------------------


def state_of(broker: Broker) -> GroupState:
    return next(iter(journal_of(broker).ledger.groups.values()))


async def test_records_of_others_do_not_hold_the_floor_of_a_pattern(folder: Folder) -> None:
    async with folder.life() as broker:
        async with broker.subscribe("a.*", group="g", prefetch=50) as deliveries:
            for number in range(50):
                await fill(broker, 1, "b.x")
                await fill(broker, 1, "a.x", first=number)
            held = await take(deliveries, 50)
            for delivery in held[:20] + held[21:40]:
                await delivery.ack()
        await broker.backend.flushed()
        state = state_of(broker)
        assert state.floor == 41
        assert list(state.settled) == [(42, 81), *((at, at + 1) for at in range(82, 100, 2))], "one per open record"
        await fill(broker, 5, "b.x")
    async with folder.life() as broker:
        assert look(broker).lag == 11
        await fill(broker, 30, "a.x", first=50)
        assert look(broker).lag == 41, "exact, whatever lies in between"
        async with broker.subscribe("a.*", group="g") as deliveries:
            assert await work(deliveries, 41) == [b"20", *numbers(40, 80)]
        await broker.backend.flushed()
        state = state_of(broker)
        assert (state.floor, len(state.settled)) == (journal_of(broker).ledger.sequence, 0)


async def test_acked_records_that_retention_took_are_not_missed_in_the_next_life(folder: Folder) -> None:
    async with folder.life() as broker:
        jobs = broker.topic("jobs", retention_count=10)
        await jobs.publish_many(numbers(0, 30))
        async with broker.subscribe("jobs", group="g", start=0, prefetch=10) as deliveries:
            held = await take(deliveries, 10)
            assert look(broker).missed == 20, "these are"
            for delivery in held[1:]:
                await delivery.ack()
            await broker.backend.flushed()
            assert state_of(broker).floor == 20
            await jobs.publish_many(numbers(30, 60))
    for number, missed in ((50, 1), (51, 0)):  # the one that was held, and then no more
        async with folder.life() as broker, broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 1) == [b"%d" % number]
            assert look(broker).missed == missed
            await broker.backend.flushed()


# -- when and in which order ------------------------------------------------------------------------------------


@PATTERNS
async def test_delayed_records_wait_for_their_time_in_the_next_life(
    folder: Folder, clock: JumpingClock, pattern: str
) -> None:
    async with folder.life() as broker:
        await fill(broker, 1, delay=100)
        await fill(broker, 1, first=1)
        async with broker.subscribe(pattern, group="g") as deliveries:
            assert await work(deliveries, 1) == [b"1"]
            assert look(broker).scheduled == 1
    await clock.advance(50)
    async with folder.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        async with running(work(deliveries, 1)) as waiting:
            await until(lambda: look(broker).scheduled == 1)
            await clock.advance(49)
            assert not waiting.done()
            await clock.advance(1)
            assert await waiting == [b"0"]


@PATTERNS
async def test_priorities_and_keys_keep_their_order_in_the_next_life(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        for value, key, priority in (
            ("low", None, 0),
            ("k1", "k", 0),
            ("k2", "k", 9),
            ("high", None, 9),
            ("low too", None, 0),
        ):
            await broker.publish("jobs", value, key=key, priority=priority)
        async with broker.subscribe(pattern, group="g", prefetch=1) as deliveries:
            pass
    async with folder.life() as broker, broker.subscribe(pattern, group="g", prefetch=1) as deliveries:
        done = await work(deliveries, 5)
    assert done[0] == b"high"
    assert done.index(b"k1") < done.index(b"k2"), "the order of a key outranks priority"
    assert done.index(b"low") < done.index(b"low too")


@PATTERNS
async def test_a_key_waits_for_its_failed_record_in_the_next_life(
    folder: Folder, clock: JumpingClock, pattern: str
) -> None:
    async with folder.life() as broker:
        for number in range(4):
            await broker.publish("jobs", b"%d" % number, key="ab"[number % 2])
        async with broker.subscribe(pattern, group="g", prefetch=4) as deliveries:
            await (await anext(deliveries)).nack(delay=10)
            await at_rest()
    async with folder.life() as broker, broker.subscribe(pattern, group="g", prefetch=4) as deliveries:
        assert await work(deliveries, 2) == [b"1", b"3"]
        async with running(work(deliveries, 2)) as waiting:
            assert not waiting.done()
            await clock.advance(10)
            assert await waiting == [b"0", b"2"]


@PATTERNS
async def test_expired_records_are_not_handed_out_in_the_next_life(
    folder: Folder, clock: JumpingClock, pattern: str
) -> None:
    async with folder.life() as broker:
        await fill(broker, 1, expires=10)
        await fill(broker, 1, first=1)
    await clock.advance(11)
    async with folder.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        assert await work(deliveries, 1) == [b"1"]


# -- steering ---------------------------------------------------------------------------------------------------


@PATTERNS
async def test_a_reset_survives(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, 6)
        async with broker.subscribe(pattern, group="g") as deliveries:
            await work(deliveries, 6)
        broker.group("g", pattern).reset("earliest")
    async with folder.life() as broker:
        async with broker.subscribe(pattern, group="g") as deliveries:
            assert await work(deliveries, 2) == numbers(0, 2)
        broker.group("g", pattern).reset("latest")
    async with folder.life() as broker, broker.subscribe(pattern, group="g") as deliveries:
        await fill(broker, 1, first=6)
        assert await work(deliveries, 1) == numbers(6, 7)


async def test_a_group_can_be_reset_before_a_member_joins_it_again(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 6)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await work(deliveries, 4)
    async with folder.life() as broker:
        broker.group("g", "jobs").reset(1)
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 5) == numbers(1, 6)


async def test_a_group_on_a_deleted_topic_is_gone(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await work(deliveries, 2)
        await broker.delete("jobs")
        await fill(broker, 3)
    async with folder.life() as broker:
        with pytest.raises(runnel.UnknownGroup):
            broker.group("g", "jobs")
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 3) == numbers(0, 3)


async def test_a_group_on_a_topic_made_again_in_the_same_turn_survives(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 3)

        async def member() -> None:
            async with broker.subscribe("jobs", group="g") as deliveries:
                await fill(broker, 3, first=10)
                for delivery in await take(deliveries, 2):
                    await delivery.ack(durable=True)

        await asyncio.gather(broker.delete("jobs"), member())
    async with folder.life() as broker, broker.subscribe("jobs", group="g") as deliveries:
        assert await work(deliveries, 1) == [b"12"]


async def test_a_group_on_a_topic_without_records_survives(folder: Folder) -> None:
    async with folder.life() as broker, broker.subscribe("jobs", group="g"):
        pass
    async with folder.life() as broker:
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 2) == numbers(0, 2)
    async with folder.life() as broker, broker.subscribe("jobs", group="g") as deliveries:
        assert await work(deliveries, 1) == numbers(2, 3)


@PATTERNS
async def test_the_bound_of_a_group_holds_in_its_next_life(folder: Folder, pattern: str) -> None:
    for _ in range(2):
        async with folder.life() as broker, broker.subscribe(pattern, group="g", buffer=5) as deliveries:
            await soon(broker.topic("jobs").publish_many([b"x"] * 5))
            with pytest.raises(runnel.Full):
                broker.topic("jobs").publish_nowait(b"x")
            await work(deliveries, 5)


async def test_the_first_member_of_the_next_life_says_what_the_group_is(folder: Folder) -> None:
    async with folder.life() as broker, broker.subscribe("jobs", group="g", ack_wait=5, max_deliver=3):
        pass
    async with folder.life() as broker:
        async with broker.subscribe("jobs", group="g", ack_wait=7):
            options = broker.backend.groups.find("g", "jobs").options
            assert (options.ack_wait, options.max_deliver) == (7, 3)
            with pytest.raises(runnel.InvalidOption, match="members must agree"):
                await broker.subscribe("jobs", group="g", ack_wait=5).__aenter__()


async def test_groups_on_topics_in_memory_are_gone_with_them(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("jobs", durable=False).declare()
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await work(deliveries, 2)
    async with folder.life() as broker:
        with pytest.raises(runnel.UnknownGroup):
            broker.group("g", "jobs")


async def test_a_pattern_group_over_memory_and_disk_goes_on_with_what_is_left(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("memory", durable=False).declare()
        for number in range(5):
            await broker.publish("memory", b"m%d" % number)
            await broker.publish("disk", b"d%d" % number)
        async with broker.subscribe("*", group="g") as deliveries:
            assert await work(deliveries, 4) == [b"m0", b"d0", b"m1", b"d1"]
    async with folder.life() as broker, broker.subscribe("*", group="g") as deliveries:
        assert await work(deliveries, 3) == [b"d2", b"d3", b"d4"]
        await broker.topic("memory", durable=False).publish(b"new")
        assert await work(deliveries, 1) == [b"new"]


async def test_members_work_through_several_lives_and_lose_nothing(folder: Folder) -> None:
    done: list[bytes] = []
    total = 300
    async with folder.life(**ON_DISK) as broker:
        await broker.topic("jobs").publish_many(numbers(0, total), keys=[f"k{n % 7}" for n in range(total)])
    while len(done) < total:
        async with folder.life(**ON_DISK) as broker:
            one = broker.subscribe("jobs", group="g", prefetch=9, backoff=(0,), max_deliver=100)
            two = broker.subscribe("jobs", group="g", prefetch=5, backoff=(0,), max_deliver=100)
            async with one, two:
                for deliveries in (one, two) * 20:
                    if look(broker).lag == 0:
                        break
                    await at_rest()
                    if not deliveries_waiting(broker, deliveries.label):
                        continue
                    (delivery,) = await take(deliveries, 1)
                    if delivery.offset % 5 == 0 and delivery.attempt == 1:
                        await delivery.nack(delay=0)
                    else:
                        await delivery.ack()
                        done.append(delivery.value)
    assert sorted(done, key=int) == numbers(0, total)
    for key in range(7):
        assert [int(value) for value in done if int(value) % 7 == key] == list(range(key, total, 7))


def deliveries_waiting(broker: Broker, member: str) -> int:
    """How many deliveries a member holds."""
    return next(one.held for one in look(broker).members if one.name == member)


def test_a_durable_ack_without_asyncio(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path / "data") as broker:
        broker.topic("jobs").publish_many(numbers(0, 3))
        with broker.subscribe("jobs", group="g") as deliveries:
            deliveries.receive(timeout=PATIENCE).ack(durable=True)
    with runnel.blocking.open(tmp_path / "data") as broker, broker.subscribe("jobs", group="g") as deliveries:
        assert deliveries.receive(timeout=PATIENCE).record.offset == 1


async def test_offsets_of_deliveries_survive(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            before = [delivery.record for delivery in await take(deliveries, 3)]
    async with folder.life() as broker, broker.subscribe("jobs", group="g") as deliveries:
        after = await take(deliveries, 3)
        assert offsets(after) == [0, 1, 2]
        assert [delivery.record for delivery in after] == before


async def test_a_group_on_a_topic_that_turns_out_not_to_be_durable_remembers_nothing(folder: Folder) -> None:
    for life in (b"old", b"new"):
        async with folder.life() as broker:
            async with broker.subscribe("t", group="g") as deliveries:  # before anybody has said what it is
                await broker.topic("t", durable=False).publish_many([life] * 5)
                got = [await anext(deliveries) for _ in range(5)]
                for delivery in got[1:]:
                    await delivery.ack()
                with pytest.raises(NotSupported, match="lives in memory only"):
                    await got[0].ack(durable=True)
        assert [delivery.value for delivery in got] == [life] * 5


@pytest.mark.parametrize("pattern", ["jobs.a", "jobs.*"])
@pytest.mark.parametrize("fsync", ["commit", "interval", "os"])
async def test_a_group_that_was_done_when_it_was_cut_off_is_done_afterwards(
    folder: Folder, pattern: str, fsync: str
) -> None:
    async with folder.life(fsync=fsync) as broker:
        await broker.topic("jobs.a").publish_many([b"1", b"2", b"3"])
        async with broker.subscribe(pattern, group="g") as deliveries:
            for _ in range(3):
                await (await anext(deliveries)).ack(durable=True)
    async with folder.life(fsync=fsync) as broker:
        assert broker.group("g", pattern).statistics().lag == 0
        await broker.publish("jobs.a", b"4")
        assert broker.group("g", pattern).statistics().lag == 1
        async with broker.subscribe(pattern, group="g") as deliveries:
            delivery = await anext(deliveries)
            assert delivery.value == b"4"
            await delivery.ack(durable=True)
        assert broker.group("g", pattern).statistics().lag == 0
