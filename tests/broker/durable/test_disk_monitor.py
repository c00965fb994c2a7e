"""The disk monitor: told once when it gets low, once when there is room, and who is in the way."""

from __future__ import annotations

import logging
from pathlib import Path
from time import time

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable import disk_monitor
from runnel.broker.durable.disk_monitor import DiskMonitor
from runnel.core.errors import ArchiveBehind, DiskFull
from runnel.core.position import Position
from runnel.core.statistics import ArchiveStatistics
from runnel.journal.write.archive_holds import NAME, ArchiveHolder, hold
from runnel.opening import open as open_broker
from runnel.testing import MemoryHistory
from tests.broker.durable_broker import Disk, journal_of, log_of, open_on, until

SEGMENT = 1 << 16
MIN_FREE = 4 * SEGMENT


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_monitor, "PAUSE", 0.0)


@pytest.fixture
def disk() -> Disk:
    return Disk(capacity=100 * SEGMENT)


def watch_of(broker: Broker) -> DiskMonitor:
    assert broker.backend.store is not None
    found: DiskMonitor = broker.backend.store.disk_monitor
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def leave(disk: Disk, free: int) -> None:
    """Have so much free, whoever took the rest."""
    inner = disk.inner
    inner.capacity = inner.capacity + free - inner.free()  # type: ignore[attr-defined]


async def another_look(watch: DiskMonitor) -> None:
    watch.free = None
    await until(lambda: watch.free is not None)


async def test_a_low_disk_is_reported_once_and_its_recovery_once(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=MIN_FREE) as broker:
        await until(lambda: watch_of(broker).free is not None)
        assert told(caplog) == []
        for _ in range(2):
            caplog.clear()
            leave(disk, 2 * MIN_FREE - 1)
            await until(lambda: watch_of(broker).is_low)
            for _ in range(3):
                await another_look(watch_of(broker))
            (low,) = told(caplog)
            assert f"{MIN_FREE:,}" in low
            assert str(tmp_path) in low
            leave(disk, 2 * MIN_FREE + 1)
            await another_look(watch_of(broker))
            assert watch_of(broker).is_low, "a little more is not room"
            leave(disk, 3 * MIN_FREE)
            await until(lambda: not watch_of(broker).is_low)
            assert "there is room again" in told(caplog)[-1]
            assert len(told(caplog)) == 2


async def test_while_the_disk_is_low_what_can_be_given_back_is(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=MIN_FREE) as broker:
        await broker.topic("t", retention_count=1).declare()
        for _ in range(3):
            await broker.publish("t", b"x")
        leave(disk, MIN_FREE)
        await until(lambda: journal_of(broker).ledger.topics[1].first == 2)


async def test_who_holds_much_that_retention_wants_is_named_once_an_hour(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_monitor, "MUCH", 5000)
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=0) as broker:
        topic = broker.topic("t", retention_count=2)
        await topic.publish(bytes(1000))
        async with topic.subscribe(name="archive", hold=True):
            pass
        async with broker.subscribe(">", name="all", hold=True):
            pass
        watch = watch_of(broker)
        await until(lambda: len(watch.held) == 2)
        assert told(caplog) == [], "it is little"
        for _ in range(20):
            await topic.publish(bytes(1000))
        assert log_of(broker, "t").first == 0
        await until(lambda: len(told(caplog)) == 2)
        for _ in range(3):
            await another_look(watch)
        assert len(told(caplog)) == 2
        assert "'all'" in "".join(told(caplog))
        assert "broker.forget('archive')" in "".join(told(caplog))
        journal = broker.statistics().journal
        assert journal is not None
        assert {one.name: one.pattern for one in journal.holders} == {"archive": "t", "all": ">"}
        assert all(20_000 < one.bytes < 30_000 for one in journal.holders)


async def test_a_large_holder_of_wanted_records_is_not_named(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_monitor, "MUCH", 5000)
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=0) as broker:
        topic = broker.topic("t")
        for _ in range(20):
            await topic.publish(bytes(1000))
        async with topic.subscribe(name="archive", hold=True):
            pass
        await until(lambda: watch_of(broker).held.get("archive", 0) > 5000)
        assert told(caplog) == []


async def test_a_disk_that_does_not_tell_is_asked_again(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=0) as broker:
        watch, inner = watch_of(broker), disk.free
        asked = []

        def failing() -> int:
            asked.append(1)
            raise OSError(5, "Input/output error")

        disk.free = failing  # type: ignore[method-assign]
        await until(lambda: len(asked) > 2)
        disk.free = inner  # type: ignore[method-assign]
        await another_look(watch)


async def test_an_archive_that_holds_and_does_not_come_by_is_named_once_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path / "data", segment_bytes=SEGMENT) as broker:
        caplog.clear()  # of what opening told: that syncs are slow, where they are
        watch, now = watch_of(broker), int(time() * 1e6)
        late = ArchiveHolder("a", "/late", 4, now - 27 * 3600 * 10**6, now - 26 * 3600 * 10**6)
        hold(tmp_path / "data", late)
        hold(tmp_path / "data", ArchiveHolder("b", "/lately", 5, now, now - 23 * 3600 * 10**6))
        await until(lambda: len(watch.archives) == 2)
        for _ in range(3):
            await another_look(watch)
        (message,) = told(caplog)
        assert "'/late' holds everything since segment 5, and the last backup was 26 hours ago" in message
        assert "--release" in message
        journal = broker.statistics().journal
        assert journal is not None
        assert journal.archives[0] == ArchiveStatistics("/late", 4, late.since / 1e6, late.seen / 1e6)
        monkeypatch.setattr(disk_monitor, "AGAIN", 0.0)
        await until(lambda: len(told(caplog)) > 1)


async def test_when_the_archives_that_hold_records_are_unknown_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker(tmp_path / "data", segment_bytes=SEGMENT) as broker:
        caplog.clear()  # of what opening told: that syncs are slow, where they are
        (tmp_path / "data" / NAME).write_bytes(b"no such thing")
        await until(lambda: bool(told(caplog)))
        for _ in range(3):
            await another_look(watch_of(broker))
        (message,) = told(caplog)
        assert "nothing is cleaned or dropped, an archive may be waiting: ARCHIVED is damaged" in message


# -- topics that wait for the archive ---------------------------------------------------------------------------


async def fill(broker: Broker, topic: str, count: int) -> None:
    for _ in range(count):
        await broker.topic(topic, retention_until="archived").publish(bytes(SEGMENT // 4))


async def archive(broker: Broker, source: MemoryHistory, topic: str, count: int) -> None:
    async with broker.subscribe(topic, start="earliest") as records:
        copied = [await anext(records) for _ in range(count)]
    source.add(copied)
    await broker.confirm_archived({topic: Position(copied[-1].epoch, copied[-1].offset + 1)})


async def test_topics_that_fill_the_disk_and_are_not_archived_are_named(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=0) as broker:
        await fill(broker, "small", 3)
        await fill(broker, "large", 40)
        await broker.topic("other").publish(bytes(SEGMENT // 4))
        leave(disk, 50 * SEGMENT)
        for _ in range(3):
            await another_look(watch_of(broker))
        assert told(caplog) == [], "there is room"
        leave(disk, 3 * SEGMENT)
        await until(lambda: bool(told(caplog)))
        for _ in range(3):
            await another_look(watch_of(broker))
        (warning,) = told(caplog)
        sizes = {one.topic: one.unconfirmed_bytes for one in await broker.floors()}
        assert sizes["other"] == 0 < sizes["small"] < sizes["large"]
        named = f"'large' ({sizes['large']:,} bytes), 'small' ({sizes['small']:,} bytes)"
        assert f"about {sizes['large'] + sizes['small']:,} bytes are not archived yet and stay: {named}" in warning
        assert "% full" in warning


async def test_little_that_waits_on_a_disk_that_others_filled_is_not_named(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=0) as broker:
        await fill(broker, "small", 3)
        disk.inner.capacity = 10_000 * SEGMENT  # type: ignore[attr-defined]
        disk.free = lambda: 1000 * SEGMENT  # type: ignore[method-assign]
        for _ in range(3):
            await another_look(watch_of(broker))
        assert told(caplog) == []


async def test_a_full_disk_names_the_archive_and_takes_records_again_once_it_confirmed(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = MemoryHistory()
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=MIN_FREE, history=[source]) as broker:
        with pytest.raises(ArchiveBehind, match=r"'t'.* are kept because they are not archived yet") as raised:
            await fill(broker, "t", 1000)
        count = broker.statistics().topics["t"].end
        assert raised.value.unconfirmed > 0.9 * count * SEGMENT // 4
        assert raised.value.topics == ["t"]
        with pytest.raises(DiskFull):
            await broker.publish("t", bytes(SEGMENT // 4))
        assert any("'t'" in one and "not archived yet" in one for one in told(caplog))
        await archive(broker, source, "t", count)  # reading goes on, and a confirmation finds room
        await until(lambda: log_of(broker, "t").first == count)
        await until(lambda: disk.free() > 90 * SEGMENT)
        await fill(broker, "t", 5)
        async with broker.subscribe("t", start="earliest") as records:
            assert [(await anext(records)).offset for _ in range(count + 5)] == list(range(count + 5))


async def test_a_disk_that_is_full_of_other_topics_does_not_blame_the_archive(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=SEGMENT, min_free=MIN_FREE) as broker:
        await broker.topic("t", retention_until="archived").publish(b"x")
        with pytest.raises(DiskFull) as raised:
            await broker.topic("other").publish_many([bytes(SEGMENT // 4)] * 1000)
        assert not isinstance(raised.value, ArchiveBehind)
