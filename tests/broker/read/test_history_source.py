"""Subscriptions of a folder whose old records are in a source of history: one id space, from the oldest on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.broker.read import history_reads
from runnel.core.batch import Slice
from runnel.core.errors import BrokerClosed, HistoryUnavailable, InvalidOption, RecordsMissed
from runnel.core.record import Record
from runnel.journal.format.removed_offsets import RemovalReason, RemovedRange
from runnel.testing import JumpingClock, MemoryHistory
from tests.patience import PATIENCE

COUNT, KEPT = 60, 10  # records of each topic; of `t` the journal keeps the last


@asynccontextmanager
async def opened(folder: Path, source: MemoryHistory | list[MemoryHistory], **options: Any) -> AsyncIterator[Any]:
    for one in source if isinstance(source, list) else [source]:
        one.is_closed = False
    given = {"share": False, "fsync": "os", "tail_bytes": 1, "segment_bytes": 4096, **options}
    async with runnel.open(folder, history=source, **given) as broker:
        yield broker


async def fill(folder: Path, source: MemoryHistory) -> list[Record[bytes]]:
    """Two topics in turns: `t`, of which the journal keeps ten records, and `u`, of which it keeps all."""
    records: list[Record[bytes]] = []
    async with opened(folder, source) as broker, broker.subscribe("*", start="earliest") as subscription:
        reading = aiter(subscription)
        t, u = broker.topic("t", retention_count=KEPT), broker.topic("u")
        for number in range(COUNT):
            await t.publish(b"t%d" % number, key=b"k%d" % (number % 3), headers={"n": str(number)})
            await u.publish(b"u%d" % number)
            records += [await anext(reading), await anext(reading)]
    assert len({record.time for record in records}) > 2
    return records


@pytest.fixture
def source() -> MemoryHistory:
    return MemoryHistory("t", chunk=7)


@pytest.fixture
async def records(tmp_path: Path, source: MemoryHistory) -> list[Record[bytes]]:
    found = await fill(tmp_path, source)
    source.add(record for record in found if record.topic == "t")
    return found


@pytest.fixture
async def broker(tmp_path: Path, source: MemoryHistory, records: list[Record[bytes]]) -> AsyncIterator[Any]:
    async with opened(tmp_path, source) as broker:
        yield broker


def of(topic: str, records: list[Record[bytes]]) -> list[Record[bytes]]:
    return [record for record in records if record.topic == topic]


async def read(broker: Any, pattern: str, count: int, **options: Any) -> list[Record[bytes]]:
    async with asyncio.timeout(PATIENCE), broker.subscribe(pattern, **options) as subscription:
        found: list[Record[bytes]] = []
        async for record in subscription:
            found.append(record)
            if len(found) == count:
                break
        return found


def gaps(records: list[Record[bytes]]) -> list[tuple[int, int, int | None, str]]:
    found = [record.gap for record in records if record.gap is not None]
    return [(gap.first, gap.end, gap.count, gap.reason) for gap in found]


# -- where it starts -----------------------------------------------------------------------------------------------


async def test_every_start_reads_the_same_records_as_the_journal_had(broker: Any, records: list[Record[bytes]]) -> None:
    every = of("t", records)
    starts: list[tuple[Any, int]] = [
        ("earliest", 0),
        (0, 0),
        (17, 17),
        (COUNT - KEPT, COUNT - KEPT),
        (COUNT - 1, COUNT - 1),
        (every[23].position, 23),
        (every[31].time, 31),
        (every[COUNT - 3].time, COUNT - 3),
        (every[0].time - timedelta(days=1), 0),
    ]
    for start, first in starts:
        first = next(number for number, record in enumerate(every) if record.time == every[first].time)
        found = await read(broker, "t", COUNT - first, start=start)
        assert found == every[first:], start


async def test_it_goes_on_live(broker: Any, records: list[Record[bytes]]) -> None:
    async with broker.subscribe("t", start=40) as subscription:
        reading = aiter(subscription)
        offsets = [(await anext(reading)).offset for _ in range(COUNT - 40)]
        await broker.publish("t", b"live")
        offsets.append((await anext(reading)).offset)
    assert offsets == list(range(40, COUNT + 1))


async def test_a_name_resumes_below_the_journal(broker: Any, tmp_path: Path, source: MemoryHistory) -> None:
    first = await read(broker, "t", 5, name="page")
    assert [record.offset for record in first] == [0, 1, 2, 3, 4]
    found = await read(broker, "t", COUNT - 4, name="page")  # the last one was not confirmed
    assert [record.offset for record in found] == list(range(4, COUNT))
    assert gaps(found) == []


async def test_a_page_and_the_bounds_go_below_the_journal(broker: Any, records: list[Record[bytes]]) -> None:
    every, backend = of("t", records), broker.backend
    bounds = {one.topic: (one.first, one.end) for one in await broker.bounds()}
    assert bounds == {"t": (0, COUNT), "u": (0, COUNT)}
    (at,) = await broker.bounds("t", time=every[20].time)
    assert every[at.at].time == every[20].time
    (journal,) = await backend.bounds(("t",), history=False)
    assert journal.first == COUNT - KEPT
    page = await backend.history("t", "earliest", 25, 1 << 20)
    assert (page.records, page.gap, page.first, page.next) == (every[:25], None, 0, 25)
    page = await backend.history("t", 45, 100, 1 << 20)
    assert (page.records, page.next) == (every[45:], COUNT)
    page = await backend.history("t", -30, 100, 1 << 20)
    assert page.records == every[-30:]
    assert broker.statistics().history.readers == 0, "a page that is read asks no more"


async def test_patterns_read_by_sequence(broker: Any, records: list[Record[bytes]]) -> None:
    assert await read(broker, "*", 2 * COUNT, start="earliest") == records
    at = next(number for number, record in enumerate(records) if record.time == records[33].time)
    assert await read(broker, ">", 2 * COUNT - at, start=records[33].time) == records[at:]
    first = await read(broker, "*", 9, name="all")
    assert first == records[:9]
    assert await read(broker, "*", 2 * COUNT - 8, name="all") == records[8:]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_retention_moves_on_while_the_source_is_asked(
    broker: Any, source: MemoryHistory, records: list[Record[bytes]], pattern: str
) -> None:
    wanted = [record for record in records if pattern in ("*", record.topic)]
    source.gate.clear()
    reading = asyncio.create_task(
        read(broker, pattern, len(wanted) + 2 * KEPT, start=0 if pattern == "t" else "earliest")
    )
    async with asyncio.timeout(PATIENCE):
        while not source.calls:  # noqa: ASYNC110 - the count is all there is to see
            await asyncio.sleep(0.001)
    async with broker.subscribe("t") as subscription:
        archive = aiter(subscription)
        for number in range(2 * KEPT):  # what was in the journal when the reader began is gone from it
            await broker.publish("t", b"n%d" % number)
            news = await anext(archive)
            source.add([news])
            wanted.append(news)
    (bounds,) = await broker.backend.bounds(("t",), history=False)
    assert bounds.first == COUNT + KEPT
    source.gate.set()
    assert await reading == wanted


class EarlyAnswers(MemoryHistory):
    """A source that decides on its answer when it is asked, and gives it when its gate is open."""

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        gate, self.gate = self.gate, asyncio.Event()
        self.gate.set()
        found = await super().read_sequences(patterns, start, end)
        self.gate = gate
        await gate.wait()
        return found


async def move_on(broker: Any, source: MemoryHistory, held: list[Record[bytes]], count: int) -> list[Record[bytes]]:
    """Publish so many records to `t`, archive all that `held` says the source lacks, and have retention act."""
    async with broker.subscribe("t") as subscription:
        archive = aiter(subscription)
        for number in range(count):
            await broker.publish("t", b"n%d" % number)
            held.append(await anext(archive))
    source.add(held)
    return held


@pytest.mark.parametrize("is_between", [False, True], ids=["while the source answers", "between two windows"])
async def test_a_pattern_reads_the_journal_before_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_between: bool
) -> None:
    """An archive copies, and retention takes, exactly the records that the source lacked when it was asked."""
    source = EarlyAnswers("t")
    records = await fill(tmp_path, source)
    old, new = of("t", records)[: COUNT - KEPT], of("t", records)[COUNT - KEPT :]
    source.add(old)
    start: Any = "earliest"
    if is_between:
        monkeypatch.setattr(history_reads, "WINDOW_RECORDS", 8)
    else:  # of what it is asked for, the source has nothing
        start = new[0].time
        records = [record for record in records if record.time >= start]
    found: list[Record[bytes]] = []
    async with opened(tmp_path, source) as broker, broker.subscribe("*", start=start) as subscription:
        reading = aiter(subscription)
        if is_between:
            found += [await anext(reading) for _ in range(2 * len(old) - 1)]  # up to the last record of the source
            for _ in range(20):  # the answer to its next question comes now, whatever that is
                await asyncio.sleep(0)
            news = await move_on(broker, source, new, 2 * KEPT)
        else:
            source.gate.clear()
            first = asyncio.create_task(anext(reading))
            async with asyncio.timeout(PATIENCE):
                while "read_sequences" not in source.calls:  # noqa: ASYNC110 - the count is all there is to see
                    await asyncio.sleep(0.001)
            news = await move_on(broker, source, new, 2 * KEPT)
            source.gate.set()
            found.append(await first)
        (bounds,) = await broker.backend.bounds(("t",), history=False)
        assert bounds.first == COUNT + KEPT, "the journal has none of the records that the source lacked"
        last = news[-1].offset
        async with asyncio.timeout(PATIENCE):
            while (found[-1].topic, found[-1].offset) != ("t", last):
                found.append(await anext(reading))
    assert found == records + news[KEPT:]
    assert gaps(found) == []


async def test_records_past_their_age_are_read_from_the_source(tmp_path: Path) -> None:
    source, clock = MemoryHistory(chunk=7), JumpingClock()
    records: list[Record[bytes]] = []
    async with opened(tmp_path, source, clock=clock) as broker:
        topic = broker.topic("t", retention_age=60.0)
        async with broker.subscribe("t") as subscription:
            archive = aiter(subscription)
            for number in range(COUNT):
                await topic.publish(b"t%d" % number)
                records.append(await anext(archive))
                source.add(records[-1:])
                await clock.advance(6.0)
        async with asyncio.timeout(60):  # retention moves the first offset on the commit thread
            while (await broker.backend.bounds(("t",), history=False))[0].first <= 10:
                await clock.advance(0.01)
    async with opened(tmp_path, source, clock=clock) as broker:
        (journal,) = await broker.backend.bounds(("t",), history=False)
        assert 10 < journal.first < COUNT, "the source is needed, and the journal, too"
        for pattern in ("t", "*"):
            assert await read(broker, pattern, COUNT, start="earliest") == records
            assert await read(broker, pattern, COUNT - 9, start=records[9].time) == records[9:]


async def test_what_key_compaction_took_is_not_brought_back(tmp_path: Path) -> None:
    source = MemoryHistory()
    async with opened(tmp_path, source) as broker:
        compacted, both = broker.topic("c", compact=True), broker.topic("b", compact=True, retention_count=3)
        async with broker.subscribe("*", name="archive", hold=True) as subscription:
            archive = aiter(subscription)
            records: list[Record[bytes]] = []
            for number in range(400):  # several segments, of which little stays
                for topic in (compacted, both):
                    await topic.publish(b"%d" % number * 20, key=b"k%d" % (number % 5))
                    records.append(await anext(archive))
                    source.add(records[-1:])
        async with asyncio.timeout(PATIENCE):
            while len((await broker.backend.history("c", 0, 400, 1 << 20)).records) == 400:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        found: list[Record[bytes]] = []
        async with asyncio.timeout(PATIENCE), broker.subscribe("c", start="earliest") as subscription:
            async for record in subscription:
                found.append(record)
                if record.offset == 399:
                    break
        assert [record.offset for record in found[-5:]] == list(range(395, 400))
        assert (len(found) < 400, gaps(found)) == (True, [])
        assert source.calls == {}, "retention took nothing of this topic"
        assert await read(broker, "b", 400, start="earliest") == of("b", records)  # retention did: all versions come


async def test_several_sources_have_a_topic_each(tmp_path: Path) -> None:
    sources = [MemoryHistory("t", chunk=3), MemoryHistory("u", chunk=4)]
    records = await fill(tmp_path, sources[0])
    for source in sources:
        source.add(of(source.pattern, records))
    async with opened(tmp_path, sources) as broker:
        await broker.topic("u").trim(0)
        assert await read(broker, "*", 2 * COUNT, start="earliest") == records
        assert await read(broker, "t", COUNT, start="earliest") == of("t", records)
    assert all(source.is_closed for source in sources)


async def test_two_sources_of_one_topic_are_refused(tmp_path: Path, records: list[Record[bytes]]) -> None:
    with pytest.raises(InvalidOption, match="at most one source"):
        async with opened(tmp_path, [MemoryHistory("t"), MemoryHistory("*")]):
            pass
    async with opened(tmp_path, [MemoryHistory("new.a"), MemoryHistory("new.>")]) as broker:
        await broker.publish("new.b", b"x")
        with pytest.raises(InvalidOption, match="at most one source"):
            await read(broker, "new.a", 1)


def test_only_a_folder_takes_a_source() -> None:
    with pytest.raises(InvalidOption, match="open a folder"):
        runnel.open(history=MemoryHistory())
    with pytest.raises(InvalidOption, match=r"\[history\]"):
        runnel.open("runnel://127.0.0.1:7788", history=MemoryHistory())
    with pytest.raises(InvalidOption, match="expected a HistorySource"):
        runnel.open("data", history="postgresql://")  # type: ignore[arg-type]


# -- what is not there ---------------------------------------------------------------------------------------------


async def test_what_the_source_has_dropped_is_a_gap(broker: Any, source: MemoryHistory) -> None:
    source.drop("t", 20)
    source.remove("t", 33)
    found = await read(broker, "t", COUNT - 21, start=5)
    assert found[0].offset == 20
    assert gaps(found) == [(5, 20, 15, "no longer kept (retention)"), (33, 34, 1, "no longer kept (retention)")]
    from_the_first = await read(broker, "t", 3, start="earliest")
    assert ([record.offset for record in from_the_first], gaps(from_the_first)) == ([20, 21, 22], [])
    with pytest.raises(RecordsMissed):
        await read(broker, "t", 1, start=5, strict=True)


async def test_what_is_archived_too_late_is_a_gap(tmp_path: Path, source: MemoryHistory) -> None:
    records = await fill(tmp_path, source)
    source.add(of("t", records)[:30])
    async with opened(tmp_path, source) as broker:
        found = await read(broker, "t", 30 + KEPT, start="earliest")
        assert gaps(found) == [(30, COUNT - KEPT, COUNT - KEPT - 30, "no longer kept (retention)")]
        every = await read(broker, "*", COUNT + 30 + KEPT, start="earliest")
        assert sum(gap[2] or 0 for gap in gaps(every)) == COUNT - KEPT - 30


async def test_offsets_that_were_never_given_are_no_gap(tmp_path: Path) -> None:
    source = MemoryHistory("t")
    async with opened(tmp_path, source, fsync="interval") as broker:
        await broker.topic("t", retention_count=2).publish_many([b"%d" % number for number in range(4)])
        journal = broker.backend.store.journal
        known = journal.ledger.topics[1]
        known.gone = (RemovedRange(0, 2, RemovalReason.SKIPPED), *known.gone)
        found = await read(broker, "t", 2, start=0)
        assert ([record.offset for record in found], gaps(found)) == ([2, 3], [])


async def test_trimmed_records_stay_away(tmp_path: Path, broker: Any, source: MemoryHistory) -> None:
    async with broker.subscribe("t", start=0) as subscription:
        reading = aiter(subscription)
        assert (await anext(reading)).offset == 0
        await broker.topic("t").trim(25)
        following = await anext(reading)
        while following.offset < 25:  # it was decoded before
            assert following.offset < source.chunk
            following = await anext(reading)
        assert following.gap is not None
        assert following.gap.reason == "no longer kept (trimmed)"
    (bounds,) = await broker.bounds("t")
    assert bounds.first == 25
    for start in ("earliest", 25):
        found = await read(broker, "t", 3, start=start)
        assert ([record.offset for record in found], gaps(found)) == ([25, 26, 27], [])
    found = await read(broker, "t", 3, start=10)
    assert gaps(found) == [(10, 25, 15, "no longer kept (trimmed)")]
    every = await read(broker, "*", 2 * COUNT - 25, start="earliest")
    assert [record.offset for record in every if record.topic == "t"] == list(range(25, COUNT))
    assert gaps(every) == []
    page = await broker.backend.history("t", 0, 5, 1 << 20)
    assert page.records[0].offset == 25


async def test_a_trim_holds_after_a_restart(tmp_path: Path, source: MemoryHistory, records: Any) -> None:
    async with opened(tmp_path, source) as broker:
        await broker.topic("t").trim(25)
    async with opened(tmp_path, source) as broker:
        found = await read(broker, "t", COUNT - 25, start="earliest")
        assert [record.offset for record in found] == list(range(25, COUNT))


async def test_a_trim_by_time_asks_the_source(broker: Any, records: list[Record[bytes]]) -> None:
    every = of("t", records)
    await broker.topic("t").trim(every[12].time)
    first = next(record.offset for record in every if record.time == every[12].time)
    assert (await read(broker, "t", 1, start="earliest"))[0].offset == first


async def test_a_deleted_topic_does_not_come_back(tmp_path: Path, source: MemoryHistory, broker: Any) -> None:
    await broker.delete("t")
    topic = broker.topic("t", retention_count=2)
    await topic.publish_many([b"a", b"b", b"c"])
    found = await read(broker, "t", 2, start="earliest")
    assert [record.value for record in found] == [b"b", b"c"]
    every = await read(broker, "*", COUNT + 2, start="earliest")
    assert {record.value for record in every if record.topic == "t"} <= {b"a", b"b", b"c"}


async def test_a_topic_in_memory_has_no_history(tmp_path: Path) -> None:
    source = MemoryHistory()
    async with opened(tmp_path, source) as broker:
        topic = broker.topic("t", durable=False, retention_count=2)
        await topic.publish_many([b"a", b"b", b"c"])
        found = await read(broker, "t", 2, start=0)
        assert gaps(found) == [(0, 1, 1, "no longer kept (retention)")]
    assert source.calls == {}


async def test_groups_read_the_journal_alone(broker: Any, source: MemoryHistory) -> None:
    async with broker.subscribe("t", group="workers") as deliveries:
        delivery = await anext(aiter(deliveries))
        assert delivery.offset == COUNT - KEPT
        await delivery.ack()
    assert source.calls == {}


# -- a source that fails -------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reads, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(history_reads, "LAST_PAUSE", 0.01)


async def failures(broker: Any, count: int) -> None:
    """Return when so many calls have failed."""
    async with asyncio.timeout(PATIENCE):
        while broker.statistics().history.errors < count:  # noqa: ASYNC110 - the count is all there is to see
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("quick")
async def test_a_reader_waits_for_a_source_that_fails(
    broker: Any, source: MemoryHistory, records: list[Record[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    source.error = OSError("the database is away")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(broker.subscribe("t", start=3))
        several = await stack.enter_async_context(broker.subscribe("*", start="earliest"))
        live = await stack.enter_async_context(broker.subscribe("t"))
        waiting = [asyncio.create_task(anext(aiter(each))) for each in (one, several)]
        await failures(broker, 4)
        assert broker.statistics().history.waiting == 2
        assert "the database is away" in broker.statistics().history.last_error
        await broker.publish("t", b"live")
        assert (await anext(aiter(live))).value == b"live"
        assert not any(task.done() for task in waiting)
        with pytest.raises(HistoryUnavailable, match="the database is away"):
            await broker.bounds("t")
        with pytest.raises(HistoryUnavailable):
            await broker.backend.history("t", 0, 5, 1 << 20)
        assert (await broker.backend.history("t", COUNT - 2, 5, 1 << 20)).records[0].offset == COUNT - 2
        source.error = None
        assert [(await task).value for task in waiting] == [b"t3", b"t0"]
        assert broker.statistics().history.waiting == 0
    assert broker.statistics().history.records > 0
    warnings = [one for one in caplog.records if "the database is away" in one.message]
    assert 1 <= len(warnings) <= 3, "not one for each call"


@pytest.mark.usefixtures("quick")
async def test_a_subscription_waits_for_its_start(broker: Any, source: MemoryHistory) -> None:
    source.error = RuntimeError("a bug")
    reading = asyncio.create_task(read(broker, "t", 3, start="earliest"))
    await failures(broker, 3)
    source.error = None
    assert [record.offset for record in await reading] == [0, 1, 2]


@pytest.mark.usefixtures("quick")
async def test_an_answer_that_makes_no_sense_is_an_error(broker: Any, source: MemoryHistory) -> None:
    right = source.read

    async def wrong(topic: str, epoch: int, start: int, end: int) -> Any:
        found: list[Slice] = list(await right(topic, epoch, start, end))
        return [*found, *found]

    source.read = wrong  # type: ignore[method-assign]
    reading = asyncio.create_task(read(broker, "t", 3, start=0))
    await failures(broker, 1)
    source.read = right  # type: ignore[method-assign]
    assert [record.offset for record in await reading] == [0, 1, 2]


@pytest.mark.parametrize("start", ["earliest", 0])
@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_closing_ends_readers_that_wait_for_a_source(
    tmp_path: Path, source: MemoryHistory, records: Any, pattern: str, start: Any
) -> None:
    if pattern == "*":
        start = "earliest" if start == "earliest" else records[0].time
    async with opened(tmp_path, source) as broker:
        source.gate.clear()
        reading = asyncio.create_task(read(broker, pattern, 1, start=start))
        async with asyncio.timeout(PATIENCE):
            while not source.calls:  # noqa: ASYNC110 - the count is all there is to see
                await asyncio.sleep(0.001)
    async with asyncio.timeout(PATIENCE):
        try:
            assert await reading == []
        except BrokerClosed:
            pass
    source.gate.set()


async def test_leaving_ends_the_reading(broker: Any, source: MemoryHistory) -> None:
    source.gate.clear()
    async with broker.subscribe("t", start=0) as subscription:
        reading = asyncio.create_task(anext(aiter(subscription)))
        async with asyncio.timeout(PATIENCE):
            while not source.calls:  # noqa: ASYNC110 - the count is all there is to see
                await asyncio.sleep(0.001)
        assert broker.statistics().history.readers == 1
        reading.cancel()
        await asyncio.wait([reading])
    assert broker.statistics().history.readers == 0
    assert not broker.backend.history_reads._calls or all(
        task.cancelling() for task in broker.backend.history_reads._calls
    )
    source.gate.set()


async def test_a_slow_reader_holds_few_answers(broker: Any, source: MemoryHistory) -> None:
    async with broker.subscribe("t", start=0) as subscription:
        assert (await anext(aiter(subscription))).offset == 0
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.calls["read"] <= 3


@pytest.mark.parametrize("policy", ["block", "drop_newest", "drop_oldest", "disconnect:1000"])
async def test_policies_read_history_as_they_read_the_disk(
    broker: Any, records: list[Record[bytes]], policy: str
) -> None:
    found = await read(broker, "t", COUNT, start="earliest", policy=policy, buffer=20)
    assert found == of("t", records)
    assert await read(broker, "*", 2 * COUNT, start="earliest", policy=policy, buffer=200) == records


async def test_without_a_source_nothing_is_counted(tmp_path: Path) -> None:
    async with runnel.open(tmp_path, share=False) as broker:
        assert broker.statistics().history is None
