"""Pattern cursors on a durable broker: disk, memory and topics that are not stored, in one order.

In memory alone they are tested in test_cursor.py.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.api.broker import Broker
from runnel.broker.read import pattern_cursor
from runnel.broker.read.cursor import DELETED, RETENTION
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.core.backend import Taken
from runnel.core.record import MissedRange, Record
from tests.broker.broker_parts import Covered, Noting
from tests.broker.durable_broker import Disk, damage, log_of, open_on, turns, until
from tests.journal.cleaned_segments import clean, journal_with_stages
from tests.patience import PATIENCE

DURABLE, PASSING = ("a", "b"), "m"

# Publish to a topic, so many records of such a size; take so many; let commits land; leave the loop a few turns.
PUBLISH = st.tuples(st.sampled_from((*DURABLE, PASSING)), st.integers(1, 5), st.integers(1, 60))
STEPS = st.lists(PUBLISH | st.integers(1, 7) | st.sampled_from(("land", "turn")), max_size=40)


class Reading:
    """A cursor on a broker's topics, and all that it found."""

    def __init__(self, broker: Broker, *topics: str, position: int = 0) -> None:
        backend = broker.backend
        self.covered = Covered(*(log_of(broker, one) for one in topics))
        self.cursor = PatternCursor(backend.timeline, self.covered, position, backend.cursors.reads)
        backend.readers.patterns.add(topics, Noting(self.cursor))
        self.cursor.wake = self._wake
        self._woken = asyncio.Event()
        self.found: list[Record[bytes]] = []
        self.missed: list[MissedRange] = []

    def _wake(self) -> None:
        self._woken.set()

    def take(self, limit: int) -> Taken | None:
        self._woken.clear()
        taken = self.cursor.take(limit)
        if taken is not None:
            records = [record for part in taken.slices for record in part.records]
            assert len(records) <= limit
            assert records or taken.missed
            self.found += records
            if taken.missed is not None:
                self.missed.append(taken.missed)
        return taken

    async def to_the_end(self, limit: int = 4096) -> None:
        """Read until there is nothing more, on disk or in memory."""
        while True:
            if self.take(limit) is None:
                if not self.cursor.pending():
                    return
                await self._woken.wait()

    def of(self, topic: str) -> list[int]:
        return [record.offset for record in self.found if record.topic == topic]


async def play(steps: list[tuple[str, int, int] | int | str], tail: int, kept: int, folder: Path) -> None:
    published: dict[str, list[bytes]] = {topic: [] for topic in (*DURABLE, PASSING)}
    async with open_on(Disk(), folder, tail_bytes=tail, segment_bytes=4096) as broker:
        topics = {topic: broker.topic(topic) for topic in DURABLE}
        topics[PASSING] = broker.topic(PASSING, durable=False, retention_count=kept)
        for handle in topics.values():
            await handle.declare()
        reading = Reading(broker, *published)
        for step in steps:
            if isinstance(step, tuple):
                name, count, size = step
                for _ in range(count):
                    published[name].append(b"%s%d" % (name.encode(), len(published[name])) + b"x" * size)
                    topics[name].publish_nowait(published[name][-1])
            elif isinstance(step, int):
                reading.take(step)
            elif step == "land":
                await broker.backend.flushed()
            else:
                await asyncio.sleep(0)
        await broker.backend.flushed()
        await reading.to_the_end(3)
    sequences = [record.sequence for record in reading.found]
    assert sequences == sorted(set(sequences)), "in the order of sequences, none twice"
    for topic in DURABLE:
        assert reading.of(topic) == list(range(len(published[topic]))), "every durable record once"
    passed = sum(missed.count for missed in reading.missed)
    assert len(reading.of(PASSING)) + passed == len(published[PASSING]), "what is not there any more was told"
    assert len(reading.of(PASSING)) >= min(kept, len(published[PASSING]))
    assert all(record.value == published[record.topic][record.offset] for record in reading.found)


@settings(max_examples=60)
@given(STEPS, st.sampled_from((1, 150, 600, 10_000)), st.sampled_from((2, 1000)))
def test_every_durable_record_is_read_once_in_order_wherever_it_lies(
    steps: list[tuple[str, int, int] | int | str], tail: int, kept: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(play(steps, tail, kept, Path(folder)), PATIENCE))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """One that keeps hardly anything in memory."""
    async with open_on(Disk(), tmp_path, tail_bytes=1000) as opened:
        yield opened


async def test_a_batch_that_lies_on_disk_and_one_in_memory_are_not_read_as_one(broker: Broker) -> None:
    for number in range(20):
        await broker.publish("t", b"%d" % number + b"x" * 50)
    assert 0 < log_of(broker, "t").base < 20
    reading = Reading(broker, "t")
    await reading.to_the_end()
    assert reading.of("t") == list(range(20))


async def test_a_long_history_that_retention_took_is_passed_in_one_go(broker: Broker) -> None:
    for name in ("a", "b"):
        await broker.topic(name, retention_count=1).declare()
    for number in range(1200):  # far more slices than Python lets a function call itself
        broker.topic("a").publish_nowait(b"%d" % number)
        broker.topic("b").publish_nowait(b"%d" % number)
        await broker.backend.flushed()
    reading = Reading(broker, "a", "b")
    reading.cursor.forget_gone()
    await reading.to_the_end()
    assert (reading.of("a"), reading.of("b"), reading.missed) == ([1199], [1199], [])


async def test_what_retention_took_of_a_slice_is_cut_off_it(broker: Broker) -> None:
    await broker.topic("t", retention_count=5).declare()
    await broker.topic("t").publish_many([b"x" * 100] * 20)
    await broker.publish("other", b"x" * 1000)
    assert log_of(broker, "t").base == 20
    reading = Reading(broker, "t")
    await reading.to_the_end()
    assert reading.of("t") == [15, 16, 17, 18, 19]


async def taken(reading: Reading, limit: int = 4096) -> Taken:
    """What is taken next, once it was read from disk."""
    while (found := reading.take(limit)) is None:
        await reading._woken.wait()
    return found


async def test_topics_in_turn_are_taken_from_disk_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        await broker.publish("ab"[number % 2], b"x" * 20)
    await broker.publish("other", b"x" * 1000)
    reading = Reading(broker, "a", "b")
    assert [len((await taken(reading, limit)).slices) for limit in (1, 7, 20)] == [1, 7, 20]
    assert reading.cursor.position == 28
    reading.cursor.max_bytes = 100
    assert len((await taken(reading)).slices) == 5
    reading.cursor.max_bytes = 1
    assert len((await taken(reading)).slices) == 1, "one that is larger comes alone"
    reading.cursor.max_bytes = None
    monkeypatch.setattr(pattern_cursor, "TAKEN_SLICES", 3)
    assert len((await taken(reading)).slices) == 3
    await reading.to_the_end()
    assert (reading.of("a"), reading.of("b"), reading.missed) == (list(range(30)), list(range(30)), [])


async def test_missing_records_are_reported_before_the_following_ones_and_not_before_earlier_ones(
    broker: Broker,
) -> None:
    await broker.topic("b", retention_count=5).declare()
    for number in range(20):
        await broker.publish("ab"[number % 2], b"x" * 20)
    await broker.publish("other", b"x" * 1000)
    reading = Reading(broker, "a", "b")
    assert reading.cursor.pending() == 15
    assert [part.topic for part in (await taken(reading, 3)).slices] == ["a", "a", "a"], "b was gone before it began"
    assert reading.cursor.pending() == 12
    await broker.topic("b").trim(8)
    found = await taken(reading)
    assert {part.topic for part in found.slices} == {"a"}
    assert found.missed is None
    await reading.to_the_end()
    assert (reading.of("a"), reading.of("b")) == (list(range(10)), [8, 9])
    assert sum(one.count for one in reading.missed) == 3


async def test_a_topic_that_is_deleted_while_it_is_read_from_disk_is_passed(broker: Broker) -> None:
    for number in range(20):
        await broker.publish("ab"[number % 2], b"x" * 200)
    reading = Reading(broker, "a", "b")
    assert reading.take(1) is None, "it has to be read first"
    await reading._woken.wait()
    reading.take(1)
    await broker.delete("b")
    reading.covered.logs = {log for log in reading.covered.logs if not log.deleted}
    await reading.to_the_end()
    assert reading.of("a") == list(range(10))
    assert reading.of("b") == []


async def test_a_topic_made_again_is_not_taken_for_the_old_one(broker: Broker) -> None:
    for _ in range(10):
        await broker.publish("t", b"old" + b"x" * 200)
    reading = Reading(broker, "t")
    reading.take(1)
    await reading._woken.wait()
    await broker.delete("t")
    await broker.publish("t", b"new")
    reading.covered.logs.add(log_of(broker, "t"))
    reading.covered.logs = {log for log in reading.covered.logs if not log.deleted}
    await reading.to_the_end()
    assert [record.value for record in reading.found] == [b"new"]


async def test_a_cursor_that_stood_in_memory_goes_to_disk_when_it_is_overtaken(broker: Broker) -> None:
    await broker.publish("t", b"0" * 10)
    reading = Reading(broker, "t")
    reading.cursor.collect()
    assert reading.cursor.pending() == 1
    for _ in range(10):
        await broker.publish("t", b"x" * 500)
    await reading.to_the_end()
    assert reading.of("t") == list(range(11))
    assert reading.missed == []


async def test_what_is_not_stored_comes_between_what_is_on_disk(broker: Broker) -> None:
    passing = broker.topic("m", durable=False)
    for _ in range(5):
        await broker.publish("t", b"x" * 500)
        await passing.publish(b"m")
    reading = Reading(broker, "t", "m")
    await reading.to_the_end(1)
    assert [record.topic for record in reading.found] == ["t", "m"] * 5


async def test_records_that_are_not_stored_and_gone_are_reported_between_those_on_disk(broker: Broker) -> None:
    passing = broker.topic("m", durable=False, retention_count=1)
    await passing.declare()
    await broker.publish("t", b"x" * 500)
    reading = Reading(broker, "t", "m")
    for _ in range(3):
        await passing.publish(b"m")
    for _ in range(5):
        await broker.publish("t", b"x" * 500)
    await reading.to_the_end()
    assert reading.missed == [MissedRange(1, 3, 2, RETENTION)]
    assert reading.of("t") == list(range(6))
    assert reading.of("m") == [2]


async def test_what_is_gone_is_not_passed_before_what_is_on_disk_in_front_of_it(broker: Broker) -> None:
    passing = broker.topic("m", durable=False, retention_count=1)
    for _ in range(5):
        await passing.publish(b"m")
        await broker.publish("t", b"x" * 500)
    reading = Reading(broker, "t", "m")
    assert reading.cursor.pass_gone() is None, "it cannot tell before it has read what lies between"
    await reading.to_the_end()
    assert reading.of("t") == list(range(5))
    assert (reading.of("m"), sum(missed.count for missed in reading.missed)) == ([4], 4)


async def test_what_was_in_memory_a_moment_ago_is_read_from_disk_after_all(broker: Broker) -> None:
    for _ in range(20):
        await broker.publish("t", b"x" * 50)
    base = log_of(broker, "t").base
    reading = Reading(broker, "t")
    while reading.cursor.position < base:  # it takes all that is on disk only
        if reading.take(4096) is None:
            await reading._woken.wait()
    assert reading.cursor.position == base
    for _ in range(20):
        await broker.publish("t", b"x" * 50)
    assert log_of(broker, "t").base > base
    await reading.to_the_end()
    assert reading.of("t") == list(range(40))


async def test_only_lost_records_are_reported_and_not_those_before_them(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1000) as broker:
        for topic in ("other", "t"):
            for _ in range(20):
                await broker.publish(topic, b"x" * 100)
        damage(broker, disk, sequence=20)
        reading = Reading(broker, "t")
        await reading.to_the_end()
        (missed,) = reading.missed
        assert (missed.first, missed.end, missed.count) == (20, 21, 1)
        assert "damaged on disk" in missed.reason
        assert reading.of("t") == list(range(1, 20))


async def test_a_segment_that_cannot_be_read_is_reported_and_memory_reading_continues(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1000) as broker:
        for _ in range(20):
            await broker.publish("t", b"x" * 100)
        base = log_of(broker, "t").base
        reading = Reading(broker, "t")
        disk.fail_next("read")
        await reading.to_the_end()
        (missed,) = reading.missed
        assert (missed.first, missed.end, missed.count) == (0, base, base)
        assert "cannot be read" in missed.reason
        assert reading.of("t") == list(range(base, 20))


async def test_a_deleted_topic_in_memory_is_reported(broker: Broker) -> None:
    await broker.publish("t", b"x")
    reading = Reading(broker, "t")
    reading.cursor.collect()
    await broker.delete("t")
    assert reading.take(1) == Taken([], MissedRange(0, 1, 1, DELETED))


async def test_going_on_elsewhere_forgets_what_was_being_read(broker: Broker) -> None:
    for _ in range(20):
        await broker.publish("t", b"x" * 100)
    reading = Reading(broker, "t")
    reading.take(1)
    reading.cursor.go_to(5)
    await reading.to_the_end()
    assert reading.of("t") == list(range(5, 20))


async def test_lag_counts_what_is_on_disk_and_what_is_in_memory(broker: Broker) -> None:
    for _ in range(20):
        await broker.publish("t", b"x" * 100)
    reading = Reading(broker, "t")
    assert reading.cursor.pending() == 20
    await reading.to_the_end(1)
    assert reading.cursor.pending() == 0


async def test_records_that_are_not_durable_yet_hold_up_those_behind_them(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        passing = broker.topic("m", durable=False)
        await passing.declare()
        await broker.topic("t").declare()
        async with broker.subscribe(">") as records:
            await passing.publish(b"visible")
            disk.hold("sync")
            broker.topic("t").publish_nowait(b"stored")
            await disk.reached()
            await passing.publish(b"quicker")
            assert (await anext(records)).value == b"visible"
            reading = asyncio.ensure_future(anext(records))
            await turns()
            assert not reading.done(), "its place in the order is behind what nobody may see yet"
            disk.go_on()
            assert (await reading).value == b"stored"
            assert (await anext(records)).value == b"quicker"


async def test_a_topic_without_anything_on_disk_reads_what_is_in_memory(broker: Broker) -> None:
    for _ in range(5):
        await broker.publish("t", b"x" * 500)
    passing = broker.topic("m", durable=False)
    await passing.publish(b"m")
    reading = Reading(broker, "m")
    await reading.to_the_end()
    assert reading.of("m") == [0]
    await until(lambda: reading.cursor.pending() == 0)


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("pattern", [">", "a", "c"])
async def test_cleaned_segments_and_committed_stages_are_read_like_all_others(
    tmp_path: Path, cleaned: bool, pattern: str
) -> None:
    storage = journal_with_stages()
    if cleaned:
        clean(storage)
    async with open_on(Disk(inner=storage), tmp_path, tail_bytes=1) as broker:
        await broker.publish("a", b"now")
        want = {">": 42, "a": 21, "c": 6}[pattern]
        async with broker.subscribe(pattern, start="earliest") as subscription:
            found: list[Record[bytes]] = []
            while len(found) < want:
                record = await asyncio.wait_for(anext(subscription), PATIENCE)
                assert record.gap is None
                found.append(record)
        assert [one.sequence for one in found] == sorted(one.sequence for one in found)
        assert len({one.sequence for one in found}) == want
        assert (b"now" in {one.value for one in found}) == (pattern != "c")
        for name in "abc":
            offsets = [one.offset for one in found if one.topic == name]
            assert offsets == list(range(len(offsets)))


async def test_one_who_reads_topics_in_memory_alone_goes_on_when_what_was_before_them_lands(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        passing = broker.topic("p.m", durable=False)
        await passing.declare()
        await broker.topic("t").declare()
        async with broker.subscribe("p.*") as records:
            disk.hold("sync")
            broker.topic("t").publish_nowait(b"stored")
            await disk.reached()
            await passing.publish(b"quicker")
            reading = asyncio.ensure_future(anext(records))
            await turns()
            assert not reading.done(), "its place in the order is behind what nobody may see yet"
            disk.go_on()
            assert (await asyncio.wait_for(reading, PATIENCE)).value == b"quicker"
