"""Stages of many topics, and confirmations of an archive, through backups, cleaning, verify and repair."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runnel import Broker, MixedStage, Position
from runnel.broker.durable import staging
from runnel.opening import open as open_broker
from runnel.testing import MemoryHistory
from tests.cli.conftest import Command
from tests.journal.folders import flip
from tests.patience import PATIENCE

Rows = list[tuple[str, bytes]]

OPTIONS: dict[str, Any] = {"segment_bytes": 1 << 16, "tail_bytes": 1, "share": False}
SEEN: Rows = [(f"t.{number % 3}", b"%05d" % number * 40) for number in range(900)]
LATER: Rows = [(f"t.{number % 2}", b"later %d" % number) for number in range(40)]
BEFORE = 5  # records of t.0 that are there before


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits name what was staged, however small it is."""
    monkeypatch.setattr(staging, "INLINE_BYTES", 0)


class Contents(NamedTuple):
    """What a folder says of itself."""

    records: list[tuple[str, int, int, bytes]]
    confirmed: dict[str, int]
    stages: dict[str, int]  # open ones: their records
    reasons: list[str]  # of gaps

    @property
    def rows(self) -> Rows:
        return [(topic, value) for topic, _, _, value in self.records]


async def staged(broker: Broker, writer: str, rows: Rows) -> MixedStage:
    stage = broker.stage(writer=writer, batch=1)
    for start in range(0, len(rows), 100):
        for topic, value in rows[start : start + 100]:
            stage.publish(topic, value)
        await stage.write()
        await broker.publish("junk", bytes(20_000))  # blocks lie in several segments, beside other records
    return stage


async def commit(broker: Broker, stage: MixedStage) -> None:
    async with broker.transaction() as tx:
        tx.commit(stage)


async def fill(broker: Broker, source: MemoryHistory) -> None:
    """A committed stage, an open one, and a topic of which three records are confirmed."""
    await broker.topic("t.0", retention_until="archived", retention_count=1_000_000).declare()
    for number in range(BEFORE):
        await broker.publish("t.0", b"before %d" % number)
    await commit(broker, await staged(broker, "seen", SEEN))
    await staged(broker, "later", LATER)
    async with broker.subscribe("t.0", start="earliest") as subscription:
        records = [await anext(subscription) for _ in range(3)]
    source.add(records)
    await broker.confirm_archived({"t.0": Position(records[0].epoch, 3)})
    await broker.publish("t.1", b"last")


async def contents(broker: Broker) -> Contents:
    records, reasons = [], []
    async with asyncio.timeout(PATIENCE), broker.subscribe("t.>", start="earliest") as subscription:
        await broker.topic("t.end", durable=False).publish(b"")  # leaves no trace on disk
        async for record in subscription:
            if record.topic == "t.end":
                break
            records.append((record.topic, record.offset, record.sequence, record.value))
            reasons += [] if record.gap is None else [record.gap.reason]
    confirmed = {floor.topic: floor.confirmed for floor in await broker.floors("t.0")}
    return Contents(records, confirmed, {one.writer: one.records for one in await broker.stages()}, reasons)


def look(folder: Path, source: MemoryHistory) -> Contents:
    """What is in a folder."""

    async def looking() -> Contents:
        source.is_closed = False
        async with open_broker(folder, history=source, **OPTIONS) as broker:
            return await contents(broker)

    return asyncio.run(looking())


def finish(folder: Path, source: MemoryHistory) -> Contents:
    """Commit the open stage, and return what is in the folder in its next life."""

    async def finishing() -> None:
        source.is_closed = False
        async with open_broker(folder, history=source, **OPTIONS) as broker:
            await commit(broker, broker.stage(writer="later", batch=1))

    asyncio.run(finishing())
    return look(folder, source)


@pytest.fixture
def source() -> MemoryHistory:
    return MemoryHistory("t.0")


@pytest.fixture
def folder(runnel: Command, tmp_path: Path, source: MemoryHistory) -> Path:
    """A filled folder; a snapshot and an archive were begun while a broker used it."""

    async def filling() -> None:
        async with open_broker(tmp_path / "data", history=source, **OPTIONS) as broker:
            assert runnel("backup", "data", "archive").status == 0
            await fill(broker, source)
            assert runnel("log", "snapshot", "data", "snapshot").status == 0
            assert runnel("backup", "data", "archive").status == 0

    asyncio.run(filling())
    return tmp_path / "data"


EXPECTED: Rows = [*(("t.0", b"before %d" % number) for number in range(BEFORE)), *SEEN, ("t.1", b"last")]


@pytest.mark.parametrize("way", ["restart", "snapshot", "restore", "restore of a later archive"])
def test_a_copy_holds_all_topics_in_order_and_its_stages_go_on(
    runnel: Command, folder: Path, tmp_path: Path, source: MemoryHistory, way: str
) -> None:
    original = look(folder, source)
    copy = folder
    if way == "snapshot":
        copy = tmp_path / "snapshot"
    elif way != "restart":
        copy = tmp_path / "restored"
        archive = "archive" if way == "restore" else "second"
        if archive == "second":  # it begins with a checkpoint, behind what was staged
            assert runnel("backup", "data", archive).status == 0
        done = runnel("restore", archive, "restored")
        assert (done.status, done.err) == (0, "")
    assert runnel("log", "verify", copy).status == 0
    found = look(copy, source)
    assert found == original
    assert found.rows == EXPECTED
    assert (found.confirmed, found.stages, found.reasons) == ({"t.0": 3}, {"later": len(LATER)}, [])
    assert finish(copy, source).rows == EXPECTED + LATER
    assert runnel("log", "verify", copy).status == 0


@pytest.mark.parametrize(("behind", "held"), [(-6, 500), (-1, 900), (0, 900), (450, 900), (898, 900), (899, None)])
def test_a_point_within_a_stage_shows_none_of_it_and_its_end_all(
    runnel: Command, folder: Path, tmp_path: Path, source: MemoryHistory, behind: int, held: int | None
) -> None:
    first = next(sequence for topic, _, sequence, value in look(folder, source).records if value == SEEN[0][1])
    done = runnel("restore", "archive", "restored", "--until-sequence", first + behind)
    assert (done.status, done.err) == (0, "")
    assert runnel("log", "verify", "restored").status == 0
    found = look(tmp_path / "restored", source)
    shown = [row for row in found.rows if not row[1].startswith(b"before")]
    assert shown == (SEEN if held is None else [])
    assert found.stages.get("seen") == held, "what was staged until then can be committed"


def test_cleaning_keeps_both_and_so_does_a_backup_of_what_was_cleaned(
    runnel: Command, folder: Path, tmp_path: Path, source: MemoryHistory
) -> None:
    async def cleaning() -> None:
        source.is_closed = False
        async with open_broker(folder, history=source, **OPTIONS) as broker:
            await broker.delete("junk")
            await broker.topic("t.2").trim(
                200
            )  # of a third of the records two thirds: blocks are put into their topics
            await broker.topic("t.1").trim(290)
            async with asyncio.timeout(PATIENCE):
                while not _cleaned(broker):  # noqa: ASYNC110  # it depends on threads
                    await asyncio.sleep(0.01)

    asyncio.run(cleaning())
    found = look(folder, source)
    assert (found.confirmed, found.stages) == ({"t.0": 3}, {"later": len(LATER)})
    trimmed = {*SEEN[2::3][:200], *SEEN[1::3][:290]}
    assert [row for row in found.rows if row in SEEN] == [row for row in SEEN if row not in trimmed]
    assert runnel("log", "verify", "data").status == 0
    assert runnel("log", "snapshot", "data", "cleaned").status == 0
    assert runnel("backup", "data", "second").status == 0
    assert runnel("restore", "second", "restored").status == 0
    for copy in ("cleaned", "restored"):
        assert runnel("log", "verify", copy).status == 0
        assert look(tmp_path / copy, source) == found
        assert finish(tmp_path / copy, source).rows == found.rows + LATER


def _cleaned(broker: Broker) -> bool:
    journal = broker.statistics().journal
    return journal is not None and journal.cleaner is not None and journal.cleaner.segments > 0


def test_a_damaged_block_is_found_and_repair_keeps_everything_else_in_order(
    runnel: Command, folder: Path, source: MemoryHistory
) -> None:
    original = look(folder, source)
    value = SEEN[450][1]
    (file,) = [path for path in folder.glob("*.seg") if value in path.read_bytes()]
    flip(file, file.read_bytes().index(value))
    assert runnel("log", "verify", "data").status == 1
    damaged = look(folder, source)
    assert 700 < len(damaged.records) < len(original.records)
    assert set(damaged.records) < set(original.records)
    done = runnel("log", "repair", "data", "--yes")
    assert done.status == 0, done.err
    assert runnel("log", "verify", "data").status == 0
    found = look(folder, source)
    assert found.records == [one for one in original.records if one in set(found.records)]
    assert found.records == damaged.records, "repair keeps what readers could still read"
    assert found.confirmed == {"t.0": 3}
    assert found.stages == {"later": len(LATER)}
    assert finish(folder, source).rows == found.rows + LATER
