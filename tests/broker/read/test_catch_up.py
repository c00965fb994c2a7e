"""Catching up from disk: a chunk in hand and one on its way, forward only, and nothing lost unsaid."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.api.broker import Broker
from runnel.broker.read.catch_up import END, SLICE, CatchUp, EndOfJournal, slices
from runnel.core.batch import Slice
from runnel.core.batch_format import pack
from runnel.core.record import Meta
from runnel.journal.read.journal_reader import CHUNK
from runnel.journal.read.segment_reader import FoundBatch, LostRange
from tests.broker.broker_parts import make_log
from tests.broker.durable_broker import Disk, damage, journal_of, log_of, open_on, turns
from tests.carried import columns_of
from tests.patience import PATIENCE


class Reading:
    """A way through the journal, and a view of when its owner is woken."""

    def __init__(self, broker: Broker, *topics: str, sequence: bool = False, on_demand: bool = False) -> None:
        store: Any = broker.backend.store
        logs = {log.stored.id: log for topic in topics if (log := log_of(broker, topic)).stored is not None}
        self.woken = asyncio.Event()
        self.way = CatchUp(store.reads, lambda: logs, self.woken.set, sequence=sequence, on_demand=on_demand)

    async def take(self, place: int, limit: int = 10**6) -> Slice | LostRange | EndOfJournal:
        while (found := self.way.take(place, limit)) is None:
            await self.woken.wait()
            self.woken.clear()
        return found


def offsets(found: object) -> tuple[int, int]:
    assert isinstance(found, Slice)
    return found.start, found.end


def lost(found: object) -> tuple[int, int]:
    assert isinstance(found, LostRange)
    return found.first, found.end


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, tail_bytes=1) as opened:
        yield opened


async def test_nothing_is_there_before_it_was_read_and_its_owner_is_woken(broker: Broker) -> None:
    await broker.publish("t", b"x")
    reading = Reading(broker, "t")
    assert reading.way.take(0, 10) is None
    await reading.woken.wait()
    assert offsets(reading.way.take(0, 10)) == (0, 1)
    assert reading.way.take(1, 10) is END


async def test_a_limit_cuts_and_the_rest_comes_next(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
    reading = Reading(broker, "t")
    assert [offsets(await reading.take(place, 4)) for place in (0, 4, 8)] == [(0, 4), (4, 8), (8, 10)]


async def test_a_place_in_the_middle_of_a_batch_is_begun_at(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
    found = await Reading(broker, "t").take(7)
    assert isinstance(found, Slice)
    assert [record.value for record in found.records] == [b"7", b"8", b"9"]
    assert [record.sequence for record in found.records] == [7, 8, 9]


async def test_it_only_goes_forward(broker: Broker) -> None:
    for _ in range(4):
        await broker.publish("t", b"x")
    reading = Reading(broker, "t")
    assert offsets(await reading.take(2)) == (2, 4)
    assert await reading.take(4) is END


async def test_what_is_put_back_is_taken_again(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 10)
    reading = Reading(broker, "t")
    found = await reading.take(0, 4)
    assert isinstance(found, Slice)
    reading.way.put_back(found)
    assert [offsets(await reading.take(place, 5)) for place in (0, 4)] == [(0, 4), (4, 9)]


async def test_the_next_chunk_is_read_while_one_is_worked_on(broker: Broker, disk: Disk) -> None:
    for _ in range(3):
        await broker.publish("t", b"x" * CHUNK)
    reads: list[str] = []
    came, go = threading.Event(), threading.Event()

    def on_read(name: str) -> None:
        reads.append(name)
        if len(reads) > 2:  # the first chunk takes two: an entry may be longer than a chunk
            came.set()
            assert go.wait(PATIENCE)

    disk.on_read = on_read
    reading = Reading(broker, "t")
    assert offsets(await reading.take(0)) == (0, 1)
    assert await asyncio.to_thread(came.wait, PATIENCE), "nobody asked for it"
    assert reading.way.take(1, 10) is None
    go.set()
    assert offsets(await reading.take(1)) == (1, 2)


@pytest.mark.parametrize("sequence", [False, True])
async def test_on_demand_no_chunk_is_read_before_its_records_are_wanted(
    broker: Broker, disk: Disk, sequence: bool
) -> None:
    for _ in range(3):
        await broker.publish("t", b"x" * CHUNK)
    reads: list[str] = []
    disk.on_read = reads.append
    reading = Reading(broker, "t", sequence=sequence, on_demand=True)
    assert offsets(await reading.take(0)) == (0, 1)
    assert reading.way.reach == 1
    await asyncio.to_thread(lambda: None)
    await turns()
    assert len(reads) == 2, "an entry that is longer than a chunk"
    assert offsets(await reading.take(1)) == (1, 2)
    assert (reading.way.reach, len(reads)) == (2, 4)


async def test_neighbours_become_one_slice(broker: Broker) -> None:
    for _ in range(5):
        await broker.publish("t", b"x")
    await broker.publish("other", b"y")
    await broker.publish("t", b"x")
    assert offsets(await Reading(broker, "t").take(0)) == (0, 6)
    by_sequence = Reading(broker, "t", "other", sequence=True)
    found = [await by_sequence.take(place) for place in (0, 5, 6)]
    assert [(one.topic, one.sequence, len(one)) for one in found if isinstance(one, Slice)] == [
        ("t", 0, 5),
        ("other", 5, 1),
        ("t", 6, 1),
    ]


async def test_damage_is_reported_exactly_and_reading_continues(broker: Broker, disk: Disk) -> None:
    for _ in range(5):
        await broker.publish("t", b"x")
    damage(broker, disk, sequence=2)
    reading = Reading(broker, "t")
    assert offsets(await reading.take(0)) == (0, 2)
    assert lost(await reading.take(2)) == (2, 3)
    assert offsets(await reading.take(3)) == (3, 5)


async def test_a_loss_that_was_passed_in_part_is_reported_from_the_current_position(broker: Broker, disk: Disk) -> None:
    await broker.topic("t").publish_many([b"x"] * 5)
    await broker.publish("t", b"y")
    damage(broker, disk, sequence=0)
    assert lost(await Reading(broker, "t").take(3)) == (3, 5)


async def test_a_hole_is_passed_without_a_word(broker: Broker) -> None:
    await broker.publish("t", b"x")
    log = log_of(broker, "t")
    assert log.stored is not None
    log.stored.take_back(0)
    log.stored._next = 10  # as after an unclean start with fsync="os"
    log.revive(0, 10, 1)
    await broker.publish("t", b"y")
    reading = Reading(broker, "t")
    assert offsets(await reading.take(0)) == (0, 1)
    assert offsets(await reading.take(1)) == (10, 11)


@pytest.mark.parametrize("sequence", [False, True])
async def test_a_segment_that_cannot_be_read_is_reported_and_the_next_one_is_read(
    tmp_path: Path, sequence: bool
) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1, segment_bytes=4096) as broker:
        for _ in range(10):
            await broker.publish("t", b"x" * 1000)
        first = journal_of(broker).history.sources[0]
        in_first = next(one.end for _, one in first.index.topics())
        assert 0 < in_first < 10
        reading = Reading(broker, "t", sequence=sequence)
        disk.fail_next("read", first.info.name)
        found = await reading.take(0)
        assert lost(found) == (0, in_first)
        assert isinstance(found, LostRange)
        assert "cannot be read: [Errno 5]" in found.reason
        following = await reading.take(in_first)
        assert isinstance(following, Slice)
        assert following.start == in_first


@pytest.mark.parametrize("sequence", [False, True])
async def test_even_the_segment_that_is_being_written_is_not_passed_in_silence(
    broker: Broker, disk: Disk, sequence: bool
) -> None:
    for _ in range(5):
        await broker.publish("t", b"x")
    reading = Reading(broker, "t", sequence=sequence)
    disk.fail_next("read")
    assert lost(await reading.take(0)) == (0, 5)
    assert await reading.take(5) is END
    await broker.publish("t", b"later")
    assert offsets(await reading.take(5)) == (5, 6)


@pytest.mark.parametrize("sequence", [False, True])
async def test_a_disk_that_fails_during_a_damage_check_is_reported_too(
    broker: Broker, disk: Disk, sequence: bool
) -> None:
    for _ in range(5):
        await broker.publish("t", b"x")
    damage(broker, disk, sequence=0)
    reading = Reading(broker, "t", sequence=sequence)
    assert reading.way.take(0, 10) is None
    await reading.woken.wait()
    disk.fail_next("read")
    assert lost(await reading.take(0)) == (0, 5)


async def test_a_chunk_without_a_receiver_is_dropped(broker: Broker) -> None:
    await broker.publish("t", b"x")
    reading = Reading(broker, "t")
    assert reading.way.take(0, 1) is None
    plan = reading.way._chunks._plan
    assert plan is not None
    reading.way._chunks._came(plan._replace(position=1), b"another's")
    assert reading.way.take(0, 1) is None
    await turns()


FOUND = st.lists(
    st.tuples(
        st.sampled_from((1, 1, 1, 2)),
        st.integers(1, 5),
        st.sampled_from(("", "", "", "hole", "lost", "bad")),
        st.booleans(),
    ),
    max_size=20,
)


@given(FOUND, st.booleans())
def test_slices_hold_every_record_once_in_order(steps: list[tuple[int, int, str, bool]], by_sequence: bool) -> None:
    topics, ends, sequence = {1: make_log("a"), 2: make_log("b")}, {1: 0, 2: 0}, 0
    items: list[FoundBatch | LostRange] = []
    expected: list[tuple[str, int, int, bytes | None]] = []
    for topic, count, kind, keyed in steps:
        first = ends[topic]
        if kind == "hole":
            ends[topic] += 1
            sequence += 1
            continue
        if kind == "lost":
            items.append(LostRange(sequence, sequence + 1, "damaged"))
            ends[topic] += 1
            sequence += 1
            continue
        metas = [Meta(key=b"%d" % at) if keyed else None for at in range(count)]
        body = pack([b"%d" % (first + at) for at in range(count)], columns_of(metas))
        if kind == "bad":
            body = body[:4] + b"\xff" * 20
        else:
            expected += [
                (topics[topic].name, first + at, sequence + at, b"%d" % at if keyed else None) for at in range(count)
            ]
        items.append(FoundBatch(topic, first, first + count - 1, sequence, 0, body))
        ends[topic] = first + count
        sequence += count
    made = list(slices(items, topics, by_sequence=by_sequence))
    records = [record for one in made if isinstance(one, Slice) for record in one.records]
    assert [(one.topic, one.offset, one.sequence, one.key) for one in records] == expected
    for one in made:
        if isinstance(one, Slice) and by_sequence:
            assert [record.sequence for record in one.records] == list(range(one.sequence, one.sequence + len(one)))
    bad = sum(1 for item in steps if item[2] == "bad")
    damaged = sum(1 for item in steps if item[2] == "lost")
    assert len([one for one in made if isinstance(one, LostRange)]) == bad + damaged


def test_a_slice_is_not_longer_than_it_needs_to_be() -> None:
    batch = pack([b"x"] * 1000)
    items: list[FoundBatch | LostRange] = [
        FoundBatch(1, at * 1000, at * 1000 + 999, at * 1000, 0, batch) for at in range(10)
    ]
    made = list(slices(items, {1: make_log()}, by_sequence=False))
    assert [len(one) for one in made if isinstance(one, Slice)] == [5000, 5000]
    assert SLICE == 4096
