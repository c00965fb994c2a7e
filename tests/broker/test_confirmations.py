"""`confirm_archived` and `floors`: records stay in the journal until their source of history has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Position
from runnel.core.errors import (
    HistoryUnavailable,
    InvalidOption,
    NotArchived,
    NotSupported,
    OffsetOutOfRange,
    TopicConflict,
    TopicDeleted,
    UnknownTopic,
)
from runnel.core.record import Record
from runnel.core.statistics import TopicArchiveStatistics
from runnel.core.topic_bounds import TopicFloors
from runnel.observe import prometheus
from runnel.server import Server, ServerOptions
from runnel.testing import JumpingClock, MemoryHistory
from tests.patience import PATIENCE
from tests.server.http.console.test_pages import shown

SMALL: dict[str, Any] = {"share": False, "fsync": "os", "tail_bytes": 1, "segment_bytes": 4096}


@pytest.fixture
def source() -> MemoryHistory:
    return MemoryHistory(">", chunk=7)


@asynccontextmanager
async def opened(folder: Path, source: MemoryHistory | None, **options: Any) -> AsyncIterator[Broker]:
    if source is not None:
        source.is_closed = False
    async with runnel.open(folder, history=source, **SMALL, **options) as broker:
        yield broker


async def publish(broker: Broker, count: int, topic: str = "t", **options: Any) -> None:
    handle = broker.topic(topic, retention_until="archived", **options)
    await handle.declare()
    for number in range(count):
        await handle.publish(b"%d" % number + bytes(60), key=b"k")


async def read(broker: Broker, count: int, topic: str = "t", start: Any = "earliest") -> list[Record[bytes]]:
    async with asyncio.timeout(PATIENCE), broker.subscribe(topic, start=start) as subscription:
        return [await anext(subscription) for _ in range(count)]


async def archive(broker: Broker, source: MemoryHistory, end: int, topic: str = "t") -> Position:
    """Copy the records before `end` that the source does not have; what to confirm then."""
    epoch = (await broker.bounds(topic))[0].epoch
    held = await source.bounds(topic, epoch)
    begin = 0 if held is None else held.end
    source.add(await read(broker, end - begin, topic, begin))
    return Position(epoch, end)


async def floors(broker: Broker, topic: str = "t") -> tuple[int, int, int, int]:
    (found,) = await broker.floors(topic)
    return found.gone, found.moved, found.confirmed, found.end


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # it depends on threads
            await asyncio.sleep(0.01)


async def moved_to(broker: Broker, offset: int, topic: str = "t") -> None:
    """Wait until the journal begins at an offset, or behind it."""
    await until(lambda: broker.statistics().topics[topic].first >= offset)


def segments_of(broker: Broker) -> int:
    journal = broker.statistics().journal
    assert journal is not None
    return journal.segments


# -- what is kept -----------------------------------------------------------------------------------------------


async def test_retention_by_count_takes_nothing_that_is_not_confirmed(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        assert await floors(broker) == (0, 0, 0, 100)
        await broker.confirm_archived({"t": await archive(broker, source, 40)})
        assert await floors(broker) == (0, 40, 40, 100)
        await broker.confirm_archived({"t": await archive(broker, source, 100)})
        assert await floors(broker) == (0, 90, 100, 100)
        assert [record.offset for record in await read(broker, 100)] == list(range(100))


async def test_retention_by_age_takes_nothing_that_is_not_confirmed(
    tmp_path: Path, source: MemoryHistory, clock: JumpingClock
) -> None:
    async with opened(tmp_path, source, clock=clock) as broker:
        await publish(broker, 50, retention_age=60)
        await clock.advance(1000)
        await publish(broker, 1, retention_age=60)
        assert await floors(broker) == (0, 0, 0, 51)
        await broker.confirm_archived({"t": await archive(broker, source, 30)})
        await clock.advance(20)
        await moved_to(broker, 30)
        await broker.confirm_archived({"t": await archive(broker, source, 51)})
        await clock.advance(20)
        await moved_to(broker, 50)
        assert await floors(broker) == (0, 50, 51, 51)


async def test_retention_by_bytes_takes_nothing_that_is_not_confirmed(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 300, retention_bytes=1000)
        assert await floors(broker) == (0, 0, 0, 300)
        await broker.confirm_archived({"t": await archive(broker, source, 100)})
        await moved_to(broker, 100)
        await broker.confirm_archived({"t": await archive(broker, source, 300)})
        await moved_to(broker, 250)
        assert [record.offset for record in await read(broker, 300)] == list(range(300))


async def test_without_other_limits_confirmed_records_leave_the_journal(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 200)
        assert segments_of(broker) > 3
        await broker.confirm_archived({"t": await archive(broker, source, 200)})
        await moved_to(broker, 200)
        await broker.publish("t", b"next")
        assert [record.offset for record in await read(broker, 201)] == list(range(201))
        await until(lambda: segments_of(broker) <= 2)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_without_other_limits_a_group_loses_nothing_that_it_has_not_settled(
    tmp_path: Path, source: MemoryHistory, pattern: str
) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 20)
        async with broker.subscribe(pattern, group="billing", start="earliest") as deliveries:
            await (await anext(deliveries)).ack(durable=True)
        await broker.confirm_archived({"t": await archive(broker, source, 20)})
        await publish(broker, 1)
        assert (await floors(broker))[1] <= 1
    async with opened(tmp_path, source) as broker:
        async with broker.subscribe(pattern, group="billing") as deliveries:
            for offset in range(1, 21):
                delivery = await anext(deliveries)
                assert delivery.offset == offset
                await delivery.ack(durable=True)
        await broker.confirm_archived({"t": await archive(broker, source, 21)})
        await moved_to(broker, 21)


async def test_what_was_confirmed_is_known_after_a_restart(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        await broker.confirm_archived({"t": await archive(broker, source, 40)})
    for _ in range(2):  # the first life reads it from the tail, the second from a checkpoint
        async with opened(tmp_path, source) as broker:
            assert await floors(broker) == (0, 40, 40, 100)
            with pytest.raises(TopicConflict):
                await broker.topic("t", retention_until="archived", retention_count=11).declare()
    async with opened(tmp_path, source) as broker:
        await broker.confirm_archived({"t": await archive(broker, source, 70)})
        assert await floors(broker) == (0, 70, 70, 100)


async def test_a_subscription_that_holds_and_the_archive_both_hold(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        position = await archive(broker, source, 80)
        await broker.place({"slow": ("t", Position(position.epoch, 20))}, hold=True)
        await broker.confirm_archived({"t": position})
        assert (await floors(broker))[1] == 20
        await broker.place({"slow": ("t", Position(position.epoch, 100))}, hold=True)
        assert (await floors(broker))[1] == 80
        await broker.forget("slow")
        assert (await floors(broker))[1] == 80


async def test_compaction_takes_nothing_that_is_not_confirmed(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 200, "free", compact=True, retention_age=10**6)
        await publish(broker, 200, compact=True, retention_age=10**6)
        await broker.confirm_archived({"free": await archive(broker, source, 200, "free")})
        ledger = broker._backend.store.journal.ledger  # type: ignore[attr-defined]
        topics = {topic.name: topic for topic in ledger.topics.values()}
        await until(lambda: topics["free"].compacted == 200)
        assert topics["t"].compacted == 0
    async with opened(tmp_path, source) as broker:
        assert [record.offset for record in await read(broker, 200)] == list(range(200))


# -- what is gone -----------------------------------------------------------------------------------------------


async def test_a_trim_is_final_in_the_source_too(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        await broker.confirm_archived({"t": await archive(broker, source, 60)})
        assert await floors(broker) == (0, 60, 60, 100)
        await broker.topic("t").trim(30)  # in the source only: what an archive does before it erases
        assert await floors(broker) == (30, 60, 60, 100)
        assert [record.offset for record in await read(broker, 70)] == list(range(30, 100))
        await broker.topic("t").trim(75)  # also what is not confirmed
        assert await floors(broker) == (75, 75, 60, 100)
        assert [record.offset for record in await read(broker, 25)] == list(range(75, 100))
    async with opened(tmp_path, source) as broker:
        assert await floors(broker) == (75, 75, 60, 100)
        await broker.confirm_archived({"t": Position((await broker.bounds("t"))[0].epoch, 70)})
        assert await floors(broker) == (75, 75, 70, 100)
        source.add(await read(broker, 25, start=75))
        await broker.confirm_archived({"t": Position((await broker.bounds("t"))[0].epoch, 100)})
        assert await floors(broker) == (75, 90, 100, 100)
        assert [record.offset for record in await read(broker, 25)] == list(range(75, 100))


async def test_what_retention_took_is_not_gone_for_an_archive_that_the_broker_does_not_know(tmp_path: Path) -> None:
    """An archive erases what is gone: it may have records that this broker cannot read back."""
    async with opened(tmp_path, None) as broker:
        for number in range(20):
            await broker.topic("plain", retention_count=5).publish(b"%d" % number)
        assert await floors(broker, "plain") == (0, 15, 0, 20)
        await broker.topic("plain").trim(3)
        assert await floors(broker, "plain") == (3, 15, 0, 20)


async def test_a_topic_that_was_made_again_has_nothing_confirmed(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 20, retention_count=5)
        old = await archive(broker, source, 20)
        await broker.confirm_archived({"t": old})
        await broker.delete("t")
        await publish(broker, 20, retention_count=5)
        assert await floors(broker) == (0, 0, 0, 20)
        with pytest.raises(TopicDeleted):
            await broker.confirm_archived({"t": old})


# -- what is refused --------------------------------------------------------------------------------------------


async def test_more_than_the_source_has_is_refused(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        await publish(broker, 100, "u", retention_count=10)
        place = await archive(broker, source, 40)
        other = await archive(broker, source, 100, "u")
        with pytest.raises(
            NotArchived, match=r"up to offset 41: its source of history holds offsets \[0, 40\)"
        ) as told:
            await broker.confirm_archived({"u": other, "t": Position(place.epoch, 41)})
        assert (told.value.topic, told.value.asked, told.value.archived) == ("t", 41, 40)
        assert (await broker.floors("u"))[0].confirmed == 0  # none of them, or all
        await broker.confirm_archived({"u": other, "t": place})
        assert [one.confirmed for one in await broker.floors()] == [40, 100]
        await broker.confirm_archived({"t": Position(place.epoch, 7)})  # it never goes back
        assert await floors(broker) == (0, 40, 40, 100)


async def test_a_source_that_begins_too_late_is_refused(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 20, retention_count=5)
        source.add(await read(broker, 15, start=5))
        with pytest.raises(NotArchived, match="a record at 0 that is not there"):
            await broker.confirm_archived({"t": Position((await broker.bounds("t"))[0].epoch, 20)})
        assert await floors(broker) == (0, 0, 0, 20)


async def test_offsets_without_a_record_need_not_be_in_the_source(
    tmp_path: Path, source: MemoryHistory, clock: JumpingClock
) -> None:
    async with opened(tmp_path, source, clock=clock) as broker:
        topic = broker.topic("t", retention_until="archived", retention_count=1)
        await topic.publish(b"brief", expires=1)
        await topic.publish(b"stays")
        await topic.publish(b"brief", expires=1)
        await clock.advance(5)
        found = await read(broker, 1)
        assert [record.value for record in found] == [b"stays"]
        source.add(found)
        await broker.confirm_archived({"t": Position(found[0].epoch, 3)})
        assert (await floors(broker))[2] == 3


async def test_what_cannot_be_confirmed_says_why(tmp_path: Path, source: MemoryHistory) -> None:
    source.pattern = "t"
    async with opened(tmp_path, source) as broker:
        await publish(broker, 10)
        await publish(broker, 10, "uncovered")
        await broker.topic("brief", durable=False).publish(b"x")
        epochs = {one.topic: one.epoch for one in await broker.bounds()}
        with pytest.raises(NotArchived, match="no source of history covers it") as told:
            await broker.confirm_archived({"uncovered": Position(epochs["uncovered"], 10)})
        assert told.value.archived is None
        with pytest.raises(NotArchived, match="holds nothing of it"):
            await broker.confirm_archived({"t": Position(epochs["t"], 10)})
        with pytest.raises(UnknownTopic):
            await broker.confirm_archived({"missing": Position(1, 10)})
        with pytest.raises(OffsetOutOfRange):
            await broker.confirm_archived({"t": Position(epochs["t"], 11)})
        with pytest.raises(NotSupported, match="kept in memory only"):
            await broker.confirm_archived({"brief": Position(epochs["brief"], 1)})
        source.error = OSError("no route")
        with pytest.raises(HistoryUnavailable, match="no route"):
            await broker.confirm_archived({"t": Position(epochs["t"], 10)})
        for wrong in (["t"], {"t": 10}, {"t": Position(-1, 2)}):
            with pytest.raises(InvalidOption):
                await broker.confirm_archived(wrong)  # type: ignore[arg-type]
        assert await floors(broker) == (0, 0, 0, 10)


async def test_a_broker_in_memory_has_floors_and_no_archive() -> None:
    async with runnel.open() as broker:
        for number in range(20):
            await broker.topic("t", retention_count=5).publish(b"%d" % number)
        assert await floors(broker) == (0, 15, 0, 20)
        with pytest.raises(NotSupported, match="in memory only"):
            await broker.confirm_archived({"t": Position(1, 1)})
        with pytest.raises(NotSupported, match="retention_until"):
            broker.topic("u", retention_until="archived")
    with pytest.raises(InvalidOption, match="expected 'archived'"):
        broker.topic("u", retention_until="lake")


async def test_a_topic_in_memory_cannot_wait_for_an_archive(tmp_path: Path) -> None:
    async with opened(tmp_path, None) as broker:
        with pytest.raises(NotSupported, match="durable=False"):
            broker.topic("u", retention_until="archived", durable=False)


# -- from elsewhere ---------------------------------------------------------------------------------------------


async def test_a_client_confirms_through_the_server(tmp_path: Path, source: MemoryHistory) -> None:
    async with opened(tmp_path, source) as local, Server(local, ServerOptions(port=0, json_port=None)) as server:
        async with runnel.open(server.listeners[0].url) as broker:
            await publish(broker, 100, retention_count=10)
            place = await archive(broker, source, 40)
            found = await broker.confirm_archived({"t": place})
            assert found == [TopicFloors("t", place.epoch, 0, 40, 40, 100, found[0].unconfirmed_bytes)]
            assert found[0].unconfirmed_bytes > 60 * 60
            assert found == await broker.floors() == await local.floors("t")
            with pytest.raises(NotArchived) as told:
                await broker.confirm_archived({"t": Position(place.epoch, 50)})
            assert (told.value.asked, told.value.archived) == (50, 40)
            with pytest.raises(NotSupported, match="durable=False"):
                broker.topic("u", retention_until="archived", durable=False)


# -- what is shown ----------------------------------------------------------------------------------------------


async def test_statistics_metrics_and_the_console_show_how_far_the_archive_is(
    tmp_path: Path, source: MemoryHistory
) -> None:
    async with opened(tmp_path, source) as broker:
        await publish(broker, 100, retention_count=10)
        await broker.publish("plain", b"x")
        await broker.confirm_archived({"t": await archive(broker, source, 60)})
        await broker.topic("t").trim(5)
        seen = broker.statistics()
        waiting = (await broker.floors("t"))[0].unconfirmed_bytes
        assert seen.topics["t"].archive == TopicArchiveStatistics(60, 60, 5, waiting)
        assert seen.topics["plain"].archive is None
        lines = prometheus.render(seen).splitlines()
        for name, value in (("confirmed_offset", 60), ("moved_offset", 60), ("gone_offset", 5)):
            assert f'runnel_topic_{name}{{topic="t"}} {value}' in lines
        assert f'runnel_topic_unconfirmed_bytes{{topic="t"}} {waiting}' in lines
        assert not any('offset{topic="plain"}' in line for line in lines)
        async with Server(broker, ServerOptions(port=0, json_port=None)) as server:
            async with runnel.open(server.listeners[0].url) as client:
                assert (await client.backend.snapshot()).topics["t"].archive == seen.topics["t"].archive
        page = await shown(broker, view="topic", topic="t")
        assert page["topic"]["archive"] == msgspec.to_builtins(seen.topics["t"].archive)
        assert page["topic"]["retention"] == {"count": 10, "until": "archived"}
        assert (await shown(broker, view="topic", topic="plain"))["topic"]["archive"] is None
