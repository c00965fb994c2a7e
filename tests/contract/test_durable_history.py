"""History that is on disk only: starts, order, those who lag, what retention takes. Memory holds next to nothing."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

import runnel
from runnel import Broker, Position
from runnel.testing.clock import JumpingClock
from tests.contract.lives import ON_DISK, Folder
from tests.contract.reading import at_rest, read, running, soon, until, values
from tests.nightly import nightly_beyond
from tests.patience import PATIENCE

COUNT = 600


def at(number: int) -> bytes:
    """A value that says where it is, and takes a little room."""
    return b"%d " % number + bytes(100)


def numbers(records: list[runnel.Record[bytes]]) -> list[int]:
    return [int(record.value.split()[0]) for record in records]


async def fill(broker: Broker, topic: str = "t", count: int = COUNT, first: int = 0, **options: Any) -> None:
    """Publish the numbers from `first` on, in small batches."""
    handle = broker.topic(topic, **options)
    for start in range(first, first + count, 20):
        await handle.publish_many([at(number) for number in range(start, min(start + 20, first + count))])


# -- where to start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 19, 20, 21, 333, COUNT - 1, COUNT])
async def test_a_start_by_offset_or_position(folder: Folder, start: int) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker)
        epoch = broker.statistics().topics["t"].epoch
    assert len(folder.segments()) > 3
    async with folder.life(**ON_DISK) as broker:
        await broker.publish("t", at(COUNT))
        for place in (start, Position(epoch, start)):
            async with broker.subscribe("t", start=place) as subscription:
                assert numbers(await read(subscription, COUNT + 1 - start)) == list(range(start, COUNT + 1))


async def test_a_start_beyond_the_end_is_refused(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=100)
    async with folder.life(**ON_DISK) as broker:
        with pytest.raises(runnel.OffsetOutOfRange):
            await broker.subscribe("t", start=101).__aenter__()


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_start_by_time(folder: Folder, clock: JumpingClock, pattern: str) -> None:
    began = clock.time()
    async with folder.life(**ON_DISK) as broker:
        for number in range(60):
            await broker.topic("t").publish_many([at(number)] * 5)
            await clock.advance(10)
    async with folder.life(**ON_DISK) as broker:
        await broker.publish("t", at(60))
        for seconds in (-5, 0, 5, 10, 295, 300, 585, 590, 595, 600):
            start = datetime.fromtimestamp(began + seconds, UTC)
            expected = [number for number in range(60) for _ in range(5) if number * 10 >= seconds] + [60]
            async with broker.subscribe(pattern, start=start) as subscription:
                assert numbers(await read(subscription, len(expected))) == expected


async def test_a_time_in_the_future_is_the_end(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=100)
    async with folder.life(**ON_DISK) as broker:
        for pattern in ("t", "*"):
            start = datetime.fromtimestamp(clock.time() + 1000, UTC)
            async with broker.subscribe(pattern, start=start) as subscription:
                position = await broker.publish("t", b"new")
                assert (await anext(subscription)).position == position


# -- one order --------------------------------------------------------------------------------------------------


async def test_a_pattern_and_its_topics_agree_on_what_is_on_disk(folder: Folder) -> None:
    random = Random(7)
    async with folder.life(**ON_DISK) as broker:
        for number in range(300):
            await broker.topic(random.choice("abc")).publish_many([at(number)] * random.randint(1, 4))
    async with folder.life(**ON_DISK) as broker:
        topics = broker.statistics().topics
        total = sum(topic.end for topic in topics.values())
        async with broker.subscribe("*", start="earliest") as subscription:
            records = await read(subscription, total)
        assert [record.sequence for record in records] == sorted({record.sequence for record in records})
        for name, topic in topics.items():
            async with broker.subscribe(name, start="earliest") as one:
                assert await read(one, topic.end) == [record for record in records if record.topic == name]


@pytest.mark.parametrize("limit", [1, 7, 5000])
async def test_batches_of_what_is_on_disk_are_bounded(data: Folder, limit: int) -> None:
    async with data.life(**ON_DISK) as broker:
        await fill(broker)
        for pattern in ("t", "*"):
            async with broker.subscribe(pattern, start="earliest") as subscription:
                seen: list[int] = []
                async for batch in subscription.batches(max_records=limit):
                    assert 0 < len(batch) <= limit
                    seen += numbers(list(batch))
                    if len(seen) == COUNT:
                        break
            assert seen == list(range(COUNT))


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_live_and_late_subscribers_see_the_same_while_publishing_goes_on(data: Folder, pattern: str) -> None:
    async with data.life(**ON_DISK) as broker:
        await fill(broker)
        async with broker.subscribe(pattern) as live, broker.subscribe(pattern, start="earliest") as late:
            async with running(read(live, COUNT)) as living, running(read(late, 2 * COUNT)) as catching_up:
                await fill(broker, first=COUNT)
                assert numbers(await living) == list(range(COUNT, 2 * COUNT))
                assert numbers(await catching_up) == list(range(2 * COUNT))
            assert broker.statistics().dropped == 0


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_subscriber_that_lags_on_a_durable_topic_loses_nothing(data: Folder, pattern: str) -> None:
    async with data.life(**ON_DISK) as broker:
        async with broker.subscribe(pattern, strict=True) as subscription:
            await fill(broker, count=3000)
            assert subscription.lag == 3000
            records = await read(subscription, 3000)
        assert numbers(records) == list(range(3000))


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("when", ["before it reads", "while it waits for the disk", "in the middle"])
async def test_closing_ends_a_reader_of_what_is_on_disk_only_and_its_name_resumes_there(
    data: Folder, pattern: str, when: str
) -> None:
    async with data.life(**ON_DISK) as broker:
        await fill(broker, count=1000)
        async with broker.subscribe(pattern, name="n") as subscription:
            seen: list[runnel.Record[bytes]] = []

            async def reading() -> None:
                seen.extend([record async for record in subscription])

            if when == "in the middle":
                seen += await read(subscription, 300)
            task = asyncio.ensure_future(reading())
            if when != "before it reads":
                await asyncio.sleep(0)
            broker.close()
            async with asyncio.timeout(PATIENCE):
                await task
    assert numbers(seen) == list(range(len(seen))), "what it got has no hole"
    async with data.life(**ON_DISK) as broker, broker.subscribe(pattern, name="n") as subscription:
        # What it got after the broker was closed comes again; of the rest nothing is passed over.
        rest_of_it = numbers(await read(subscription, 1))
        rest_of_it += numbers(await read(subscription, 999 - rest_of_it[0]))
    assert rest_of_it[0] <= len(seen)
    assert rest_of_it == list(range(rest_of_it[0], 1000))


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_waiting_until_a_record_was_processed_that_left_memory_at_once(data: Folder, pattern: str) -> None:
    async with data.life(**ON_DISK | {"tail_bytes": 1}) as broker:
        seen: list[bytes] = []

        async def work() -> None:
            async with broker.subscribe(pattern) as subscription:
                seen.extend([record.value async for record in subscription])

        async with running(work()):
            for number in range(10):
                await soon(broker.topic("t").publish_and_wait(at(number), timeout=PATIENCE))


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block"])
@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_bound_that_was_asked_for_holds_after_history_was_read(
    folder: Folder, pattern: str, policy: str
) -> None:
    async with folder.life() as broker:
        await fill(broker, count=20)
    async with folder.life() as broker:
        async with broker.subscribe(pattern, name="n", buffer=3, policy=policy) as subscription:
            assert numbers(await read(subscription, 20)) == list(range(20))
            async with running(read(subscription, 1)) as reader:
                await fill(broker, count=1, first=20)
                await reader
            if policy == "block":
                for number in range(21, 31):
                    with suppress(runnel.Full):
                        broker.topic("t").publish_nowait(at(number))
            else:
                await fill(broker, count=10, first=21)
            await at_rest()
            assert subscription.lag <= 3


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_drop_newest_lags_while_it_reads_from_disk_and_is_bounded_when_it_has_caught_up(
    folder: Folder, pattern: str
) -> None:
    async with folder.life() as broker:
        await fill(broker, count=10)
    async with folder.life() as broker:
        async with broker.subscribe(pattern, start="earliest", policy="drop_newest", buffer=5) as subscription:
            await fill(broker, count=20, first=10)
            assert (subscription.lag, broker.statistics().dropped) == (30, 0)
            assert numbers(await soon(read(subscription, 15))) == list(range(15))
            assert broker.statistics().dropped == 15
            async with running(read(subscription, 1)) as reader:
                await fill(broker, count=1, first=30)
                (record,) = await soon(reader)
            assert numbers([record]) == [30]
            assert record.gap is not None
            assert record.gap.count == 15


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_is_dropped_of_what_is_on_disk_is_handed_on_when_it_was_read(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await fill(broker, count=10)
    dropped: list[runnel.Record[bytes]] = []
    async with folder.life() as broker:
        async with broker.subscribe(pattern, start="earliest", on_drop=dropped.append, buffer=5) as subscription:
            await fill(broker, count=20, first=10)
            records = await soon(read(subscription, 5))
            assert (numbers(dropped), numbers(records)) == (list(range(25)), list(range(25, 30)))
            assert records[0].gap is not None
            assert (records[0].gap.count, broker.statistics().dropped) == (25, 25)


async def test_dead_letters_of_what_was_dropped_are_those_of_what_was_on_disk_too(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=100)
    async with folder.life(**ON_DISK) as broker:
        async with broker.subscribe("t", start="earliest", dead_letter="dead", buffer=5) as subscription:
            await fill(broker, count=20, first=100)
            assert numbers(await soon(read(subscription, 5))) == list(range(115, 120))
        async with broker.subscribe("dead", start="earliest") as letters:
            assert numbers(await soon(read(letters, 115))) == list(range(115))


@pytest.mark.parametrize("seed", nightly_beyond(2, range(6)))
@pytest.mark.parametrize("tail_bytes", [1, 1024, 1024 * 1024])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_with_any_policy_each_record_from_disk_is_read_or_reported_as_dropped_and_handed_on(
    folder: Folder, pattern: str, policy: str, tail_bytes: int, seed: int
) -> None:
    options = ON_DISK | {"tail_bytes": tail_bytes}
    random = Random(seed)
    async with folder.life(**options) as broker:
        await fill(broker, count=40)
    dropped: list[runnel.Record[bytes]] = []
    on_drop = dropped.append if seed % 2 else None
    async with folder.life(**options) as broker:
        async with broker.subscribe(
            pattern, start="earliest", policy=policy, buffer=random.choice([1, 8, 30]), on_drop=on_drop
        ) as subscription:
            seen: list[runnel.Record[bytes]] = []

            async def reading() -> None:
                async for record in subscription:
                    seen.append(record)  # noqa: PERF401 - it is looked at meanwhile

            published = 40
            reader = asyncio.ensure_future(reading())
            for _ in range(random.randint(1, 30)):
                if random.random() < 0.5:
                    await at_rest()
                for _ in range(random.randint(1, 20)):
                    with suppress(runnel.Full):
                        broker.topic("t").publish_nowait(at(published))
                        published += 1
            await at_rest()
            async with asyncio.timeout(PATIENCE):
                await until(lambda: subscription.lag == 0)
                await broker.topic("t").publish(at(published))
                await until(lambda: seen[-1].value == at(published))
            missed = [record.gap for record in seen if record.gap is not None]
            assert sum(gap.count or 0 for gap in missed) == broker.statistics().dropped == published + 1 - len(seen)
            if on_drop is not None:
                assert sorted(numbers(seen + dropped)) == list(range(published + 1))
            subscription.end()
            await soon(reader)


async def test_a_topic_deleted_under_its_publishers_and_made_again_holds_only_what_is_new(folder: Folder) -> None:
    for turns in range(6):
        async with folder.life() as broker:
            await broker.topic("t").declare()
            publishers = [asyncio.ensure_future(broker.publish("t", at(-1))) for _ in range(5)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await broker.delete("t")
            results = await soon(asyncio.gather(*publishers, return_exceptions=True))
            assert all(isinstance(result, Position | runnel.TopicDeleted) for result in results), results
            again = 5 if "t" in await broker.topics() else 0  # some came after the deletion, and made it anew
            await fill(broker, count=3)
        async with folder.life() as broker:
            async with broker.subscribe("t", start="earliest") as subscription:
                assert numbers(await read(subscription, again + 3)) == [-1] * again + [0, 1, 2]
            await broker.delete("t")


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_name_resumes_in_the_middle_of_what_is_on_disk(folder: Folder, pattern: str) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker)
    seen: list[int] = []
    for count in (1, 50, 301, 250):
        async with folder.life(**ON_DISK) as broker, broker.subscribe(pattern, name="n") as subscription:
            found = numbers(await read(subscription, count))
        assert not seen or found[0] == seen[-1], "what was in hand comes again"
        seen += found if not seen else found[1:]
    assert seen == list(range(len(seen)))


async def test_a_group_works_through_what_is_on_disk(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker)
    for pattern in ("t", "*"):
        done: list[int] = []
        for count in (100, 250, 250):
            async with folder.life(**ON_DISK) as broker, broker.subscribe(pattern, group="g") as deliveries:
                for _ in range(count):
                    async with await anext(deliveries) as delivery:
                        done.append(int(delivery.value.split()[0]))
        assert done == list(range(COUNT))


async def test_records_that_leave_memory_under_a_reader_are_read_from_disk(data: Folder) -> None:
    async with data.life(**ON_DISK) as broker:
        async with broker.subscribe("a") as one, broker.subscribe("*") as all_of_them:
            seen: list[runnel.Record[bytes]] = []
            for start in range(0, 1000, 100):
                await fill(broker, "a", 100, start)
                await fill(broker, "b", 100, start)
                seen += await read(one, 37)
            seen += await read(one, 1000 - len(seen))
            assert numbers(seen) == list(range(1000))
            together = await read(all_of_them, 2000)
            assert [record for record in together if record.topic == "a"] == seen
            assert [record.sequence for record in together] == list(range(2000))


async def test_deleting_a_topic_ends_those_who_read_it_from_disk(data: Folder) -> None:
    async with data.life(**ON_DISK) as broker:
        await fill(broker)
        await fill(broker, "other", 100)
        async with broker.subscribe("t", start="earliest") as one, broker.subscribe("*", start="earliest") as several:
            await read(one, 10)
            await read(several, 10)
            await broker.delete("t")
            with pytest.raises(runnel.TopicDeleted):
                await read(one, COUNT)
            await broker.publish("other", at(100))
            records: list[runnel.Record[bytes]] = []
            async with asyncio.timeout(PATIENCE):
                while not records or records[-1].value != at(100):
                    records += [record for record in await read(several, 1) if record.topic == "other"]
            assert numbers(records) == list(range(101))


async def test_expired_records_are_skipped_in_the_next_life_too(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life(**ON_DISK) as broker:
        await broker.publish("t", b"gone", expires=10)
        await broker.publish("t", b"kept", expires=1000)
    await clock.advance(11)
    async with folder.life(**ON_DISK) as broker, broker.subscribe("t", start="earliest") as subscription:
        assert await values(subscription, 1) == [b"kept"]


# -- retention --------------------------------------------------------------------------------------------------


async def first_of(broker: Broker) -> int:
    """The offset of the oldest record that a newcomer reads."""
    async with broker.subscribe("t", start="earliest") as subscription:
        (record,) = await read(subscription, 1)
        offset: int = record.offset
        return offset


async def kept(broker: Broker) -> list[int]:
    """The numbers that a newcomer can read."""
    await at_rest()  # retention may still be looking at what an earlier life left
    topic = broker.statistics().topics["t"]
    first = await first_of(broker)
    async with broker.subscribe("t", start="earliest") as subscription:
        return numbers(await read(subscription, topic.end - first))


async def test_retention_by_count_moves_the_first_offset_and_gives_files_back(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=2000, retention_count=100)
        assert await kept(broker) == list(range(1900, 2000))
        await at_rest()
        assert 1 <= len(folder.segments()) <= 6
    async with folder.life(**ON_DISK) as broker:
        assert await kept(broker) == list(range(1900, 2000))
        await fill(broker, count=10, first=2000)
        assert await kept(broker) == list(range(1910, 2010))


async def test_retention_by_bytes_gives_files_back(folder: Folder) -> None:
    size = len(at(1000))
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=2000, retention_bytes=100 * size)
        found = await kept(broker)
        assert found == list(range(found[0], 2000))
        assert 50 <= len(found) <= 110, "on disk batches count as they are stored, and there is a little slack"
        await at_rest()
        assert 1 <= len(folder.segments()) <= 6
    async with folder.life(**ON_DISK) as broker:
        again = await kept(broker)
        assert again == list(range(again[0], 2000))
        assert again[0] >= found[0], "what is gone does not come back"


async def test_retention_by_age_gives_files_back(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life(**ON_DISK) as broker:
        for number in range(0, 1000, 20):
            await fill(broker, count=20, first=number, retention_age=100)
            await clock.advance(10)
        found = await kept(broker)
        assert found == list(range(found[0], 1000))
        assert found[0] >= 500, "what is on disk goes by whole segments, so a little more may be there"
        await at_rest()
        assert len(folder.segments()) <= 8
    async with folder.life(**ON_DISK) as broker:
        again = await kept(broker)
        assert again[0] >= found[0], "what is gone does not come back"


async def test_a_segment_stays_while_any_topic_wants_it(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        for number in range(0, 1000, 20):
            await broker.publish("kept", at(number))
            await fill(broker, count=20, first=number, retention_count=20)
    async with folder.life(**ON_DISK) as broker, broker.subscribe("kept", start="earliest") as subscription:
        assert numbers(await read(subscription, 50)) == list(range(0, 1000, 20))
        assert await kept(broker) == list(range(980, 1000))


async def test_deleting_a_topic_gives_its_files_back(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await fill(broker, count=2000)
        assert len(folder.segments()) > 10
        await broker.delete("t")
        await fill(broker, "other", 400)
        await at_rest()
        assert len(folder.segments()) <= 8


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_reader_that_retention_overtook_gets_one_gap_and_continues(data: Folder, pattern: str) -> None:
    async with data.life(**ON_DISK) as broker:
        await broker.topic("t", retention_count=100).declare()
        async with broker.subscribe(pattern) as subscription:
            await fill(broker, count=1000)
            record = await anext(subscription)
        assert record.offset == 900
        assert record.gap is not None
        assert record.gap.count == 900
        assert "retention" in record.gap.reason


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_reader_that_retention_overtakes_while_it_catches_up_gets_a_gap(data: Folder, pattern: str) -> None:
    async with data.life(**ON_DISK) as broker:
        await fill(broker, count=1000, retention_count=1000)
        async with broker.subscribe(pattern, start="earliest") as subscription:
            seen = await read(subscription, 100)
            await fill(broker, count=1500, first=1000)
            missed = 0
            while seen[-1].value != at(2499):
                seen += await read(subscription, 1)
                missed += seen[-1].gap.count or 0 if seen[-1].gap is not None else 0
        assert missed + len(seen) == 2500
        assert missed > 0


async def test_many_small_batches_that_are_no_longer_kept_are_passed_over(data: Folder) -> None:
    async with data.life(tail_bytes=1) as broker:
        for topic in "ab":
            await broker.topic(topic, retention_count=1).declare()
        for number in range(3000):
            for topic in "ab":
                broker.topic(topic).publish_nowait(b"%d" % number)
            if number % 10 == 9:
                await asyncio.sleep(0)
        await at_rest()
        async with broker.subscribe("*", start="earliest") as subscription:
            assert await values(subscription, 2) == [b"2999", b"2999"]


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    with runnel.blocking.open(str(tmp_path / "a" / "b" / "c")) as broker:
        broker.publish("t", b"x")
    assert (tmp_path / "a" / "b" / "c").is_dir()
