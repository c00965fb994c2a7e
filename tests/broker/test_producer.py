"""A producer: whatever became of a publish, sending its number again is safe."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from runnel.api.broker import Broker
from runnel.api.topic import HANDLES
from runnel.core import deduplication
from runnel.core.errors import DiskFull, InvalidName, JournalFailed, NotSupported, NotWritten, OutcomeUnknown
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, entries, journal_of, open_on, turns
from tests.brokers import local_broker

VALUES = [b"0", b"1", b"2"]


async def stored(broker: Broker, topic: str = "t") -> list[bytes]:
    end = broker.statistics().topics[topic].end
    async with broker.subscribe(topic, start="earliest") as records:
        return [(await anext(records)).value for _ in range(end)]


async def test_a_record_with_an_unknown_sync_is_stored_once_after_reopening(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        producer = broker.producer("n")
        await producer.publish("t", b"0", sequence=0)
        disk.hold("sync")
        unknown = asyncio.create_task(producer.publish("t", b"1", sequence=1))
        await disk.reached()
        unwritten = asyncio.create_task(producer.publish("t", b"2", sequence=2))
        await turns()
        disk.fail_next("sync")
        disk.go_on()
        with pytest.raises(OutcomeUnknown):
            await unknown
        with pytest.raises(NotWritten):
            await unwritten
        with pytest.raises(JournalFailed):
            await producer.publish("t", b"1", sequence=1)
        assert (await producer.publish("t", b"0", sequence=0)).offset == 0, "that much is known"
        assert producer.next == 1
    async with open_on(disk, tmp_path) as broker:
        producer = broker.producer("n")
        assert producer.next in (1, 2)
        for number in (0, 1, 2):
            assert (await producer.publish("t", VALUES[number], sequence=number)).offset == number
        assert await stored(broker) == VALUES


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_power_cut_leaves_a_record_or_none_and_a_retry_makes_it_one(tmp_path: Path, acknowledged: bool) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path / "1") as broker:
        producer = broker.producer("n")
        await producer.publish_many("t", VALUES[:2], sequence=0)
        disk.hold("sync")
        last = asyncio.create_task(producer.publish("t", VALUES[2], sequence=2))
        await disk.reached()
        if acknowledged:
            disk.go_on()
            await last
        assert isinstance(disk.inner, MemoryStorage)
        left = [("killed", disk.inner.after_kill()), *disk.inner.worst()]
        disk.go_on()
        await last
    found = set()
    for number, (_, storage) in enumerate(left):
        async with open_on(Disk(inner=storage), tmp_path / f"2.{number}") as broker:
            producer = broker.producer("n")
            found.add(producer.next)
            for again in range(producer.next, 3):
                await producer.publish("t", VALUES[again], sequence=again)
            for again in (2, 1, 0):
                assert (await producer.publish("t", VALUES[again], sequence=again)).offset == again
            assert await stored(broker) == VALUES
    assert found == ({3} if acknowledged else {2, 3})


async def test_after_a_full_disk_the_same_numbers_are_sent_again(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        producer = broker.producer("n")
        await producer.publish("t", b"x" * 3000)
        disk.fail_next("allocate", "", errno.ENOSPC)
        number = producer.next
        with pytest.raises(DiskFull):
            await producer.publish_many("t", [b"y" * 2500] * 2)
        assert producer.next == number == 1
        assert (await producer.publish_many("t", [b"y", b"z"], sequence=number)).last.offset == 2
        assert (await producer.publish_many("t", [b"y", b"z"], sequence=number)).last.offset == 2
    async with open_on(disk, tmp_path) as broker:
        assert broker.producer("n").next == 3


async def test_one_that_was_cancelled_while_it_waited_for_the_disk_is_sent_again(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        producer = broker.producer("n")
        await producer.publish("t", b"0")
        disk.hold("sync")
        number = producer.next
        cancelled = asyncio.create_task(producer.publish("t", b"1", sequence=number))
        await disk.reached()
        cancelled.cancel()
        await turns()
        again = asyncio.create_task(producer.publish("t", b"1", sequence=number))
        await turns()
        assert cancelled.cancelled()
        assert not again.done()
        disk.go_on()
        assert (await again).offset == 1
        assert await stored(broker) == [b"0", b"1"]


async def test_the_batch_of_a_producer_says_who_it_is(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        producer = broker.producer("n")
        await producer.publish_many("t", VALUES, sequence=41)
        body = entries(journal_of(broker))[-1].parts[-1].body
        assert int.from_bytes(body[20:28], "little") == producer.id
        assert int.from_bytes(body[28:36], "little") == 41


async def test_a_producer_that_all_others_pushed_out_goes_on_with_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "MAX_PRODUCERS", 2)
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        ours = broker.producer("ours")
        await ours.publish("t", b"0")
        await ours.publish("t", b"1")
        for _ in range(3):
            await broker.producer().publish("t", b"x")
        assert broker.producer("ours").next == 0
        assert ours.next == 2
        await asyncio.gather(*(ours.publish("t", b"2") for _ in range(3)))
        assert ours.next == 5
        assert (await ours.publish("t", b"2", sequence=4)).offset == 7
    async with open_on(disk, tmp_path) as broker:
        assert broker.producer("ours").next == 5


async def test_handles_of_many_topics_are_not_kept_for_ever() -> None:
    async with local_broker() as broker:
        producer = broker.producer()
        for number in range(HANDLES + 5):
            await producer.publish(f"t{number}", b"x")
        assert len(producer._writers) == 5
        with pytest.raises(InvalidName):
            await producer.publish("not a name", b"x")
        assert producer.next == HANDLES + 5


async def test_the_next_number_is_unknown_before_the_folder_is_open(tmp_path: Path) -> None:
    producer = open_on(Disk(), tmp_path).producer("n")
    with pytest.raises(NotSupported, match="before the folder is open"):
        _ = producer.next
