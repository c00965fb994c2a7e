"""A range of a topic: exactly its records, as packed batches, each once, however often the connection is cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel import Broker
from runnel.client.range_reader import RemoteRangeReader
from runnel.core.batch_format import unpack
from runnel.core.errors import BadBatch, BrokerClosed, NoAnswer, OffsetOutOfRange, TopicDeleted
from runnel.core.record import MissedRange
from runnel.wire.binary_messages import DeliverPayload, read_credit
from runnel.wire.frames import FrameKind
from tests.client.memory_link import JoinedLink, joined

CREDIT = 1 << 20


async def fill(broker: Broker, count: int, batch: int = 10) -> int:
    """A topic of so many records; its epoch."""
    for first in range(0, count, batch):
        await broker.topic("t").publish_many([b"%d" % at for at in range(first, min(count, first + batch))])
    (bounds,) = await broker.bounds("t")
    return bounds.epoch


def values(items: list[DeliverPayload | MissedRange]) -> list[bytes]:
    return [value for one in items if isinstance(one, DeliverPayload) for value in unpack(one.batch).values]


@asynccontextmanager
async def reading(
    link: JoinedLink, epoch: int, first: int, end: int, credit: int = CREDIT
) -> AsyncIterator[RemoteRangeReader]:
    async with RemoteRangeReader(link, "t", epoch, first, end, credit) as made:  # type: ignore[arg-type]
        yield made


async def whole(made: RemoteRangeReader, at_a_time: int = CREDIT) -> list[DeliverPayload | MissedRange]:
    found: list[DeliverPayload | MissedRange] = []
    while taken := await made.take(at_a_time):
        found += taken
    return found


async def test_exactly_the_range_comes(tmp_path: Path) -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 100)
        async with reading(link, epoch, 17, 63) as made:
            assert values(await whole(made)) == [b"%d" % at for at in range(17, 63)]
            assert await made.take(1) == []
            assert repr(made) == "<RemoteRangeReader of 't', 63 of 63>"


async def test_little_is_taken_at_a_time_and_credit_goes_back(tmp_path: Path) -> None:
    async with joined(where=tmp_path) as (broker, link):
        epoch = await fill(broker, 1000)
        async with reading(link, epoch, 0, 1000, credit=500) as made:
            first = await made.take(1)
            assert len(first) == 1
            assert values(first + await whole(made, 100)) == [b"%d" % at for at in range(1000)]
        given = [read_credit(flags, payload)[0] for kind, flags, _, payload in link.sent if kind is FrameKind.CREDIT]
        assert len(given) > 5
        assert max(given) < 2000


@settings(max_examples=40)
@given(st.lists(st.integers(1, 400), max_size=8), st.integers(1, 300))
def test_a_cut_connection_leaves_nothing_out_and_brings_nothing_twice(cuts: list[int], take: int) -> None:
    async def run() -> None:
        async with joined() as (broker, link):
            epoch = await fill(broker, 200, 7)
            link.flow = False
            made = RemoteRangeReader(link, "t", epoch, 3, 180, 600)  # type: ignore[arg-type]
            entered = asyncio.ensure_future(made.__aenter__())
            await asyncio.sleep(0)
            link.flow = True
            await link.settle()
            await entered
            found: list[DeliverPayload | MissedRange] = []
            for cut in cuts:
                link.flow = False
                link.pass_on(cut)
                link.cut()
                link.flow = True
                link.connect()
                await link.settle()
                found += await made.take(take)
            found += await whole(made)
            assert values(found) == [b"%d" % at for at in range(3, 180)]

    asyncio.run(run())


async def test_removed_records_are_reported() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 100)
        await broker.topic("t").trim(30)
        async with reading(link, epoch, 10, 50) as made:
            missed, *rest = await whole(made)
            assert isinstance(missed, MissedRange)
            assert (missed.first, missed.end, missed.count) == (10, 30, 20)
            assert values(rest) == [b"%d" % at for at in range(30, 50)]


async def test_a_range_beyond_the_end_is_refused() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 10)
        with pytest.raises(OffsetOutOfRange):
            await RemoteRangeReader(link, "t", epoch, 0, 11, CREDIT).__aenter__()  # type: ignore[arg-type]


async def test_another_life_of_the_topic_is_another_topic() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 10)
        await broker.delete("t")
        await fill(broker, 10)
        made = RemoteRangeReader(link, "t", epoch, 5, 10, CREDIT)  # type: ignore[arg-type]
        await made.__aenter__()
        with pytest.raises(TopicDeleted):
            await made.take(1)
        await made.__aexit__()


async def test_a_topic_that_is_deleted_meanwhile_is_reported() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 1000)
        async with reading(link, epoch, 0, 1000, credit=500) as made:
            await made.take(1)
            await broker.delete("t")
            with pytest.raises(TopicDeleted):
                await whole(made)


async def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    async with joined(timeout=0.01) as (broker, link):
        epoch = await fill(broker, 10)
        async with reading(link, epoch, 0, 10) as made:
            link.flow = False
            link.connection = SimpleNamespace(error=None)  # type: ignore[attr-defined]
            made._items.clear()
            made._is_done = False
            with pytest.raises(NoAnswer):
                await made.take(1)
            link.flow = True


async def test_a_broker_that_closes_gives_what_is_there(tmp_path: Path) -> None:
    async with joined(where=tmp_path) as (broker, link):
        epoch = await fill(broker, 1000)
        async with reading(link, epoch, 0, 1000, credit=500) as made:
            first = await made.take(1)
            broker.close()
            assert values(first + await whole(made)) == [b"%d" % at for at in range(1000)]


async def test_an_end_of_the_link_is_no_end_of_the_range() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 10)
        made = RemoteRangeReader(link, "t", epoch, 0, 10, CREDIT)  # type: ignore[arg-type]
        await made.__aenter__()
        made._items.clear()
        made._is_done = False
        link.state = "closed"
        made.over(None)
        with pytest.raises(BrokerClosed):
            await made.take(1)
        link.state = "connected"


async def test_a_batch_without_records_is_damage() -> None:
    async with joined() as (broker, link):
        epoch = await fill(broker, 10)
        async with reading(link, epoch, 0, 10) as made:
            await whole(made)
            made._is_done = False
            made.arrived(FrameKind.DELIVER, 0, 1, bytes(32) + b"t")
            with pytest.raises(BadBatch):
                await made.take(1)


async def test_from_disk_as_from_memory(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        epoch = await fill(broker, 100)
    async with joined(where=tmp_path) as (_, link):
        async with reading(link, epoch, 17, 63) as made:
            assert values(await whole(made)) == [b"%d" % at for at in range(17, 63)]
