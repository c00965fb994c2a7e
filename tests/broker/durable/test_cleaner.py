"""The cleaner's thread: it gives space back beside readers and writers, rests, stops, and goes on after trouble."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from runnel.api.broker import Broker
from runnel.broker.durable.cleaner import Cleaner
from runnel.core.batch_format import pack
from runnel.core.errors import InvalidValue, NotSupported
from runnel.core.record import Meta
from runnel.core.statistics import CleanerStatistics
from runnel.journal.backup.archive import archive
from runnel.journal.clean import key_compaction, planning
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.key_compaction import KeyPass
from runnel.journal.format.entry import STAGE_TOPIC, Part, PartKind
from runnel.journal.format.ledger import StageState, stage_commit_part, stage_part, staged_part, trim_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.format.segment import START
from runnel.journal.options import JournalOptions
from runnel.journal.storage import File, Storage
from runnel.opening import open as open_broker
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, journal_of, open_on, until
from tests.carried import columns_of
from tests.journal.journal_cleaning import Seen, by_topic
from tests.journal.written_journal import Writer, flip

SMALL: dict[str, Any] = {"segment_bytes": 1 << 13, "clean_bytes_per_second": 1 << 30}


class Item(msgspec.Struct):
    name: str


def cleaner_of(broker: Broker) -> Cleaner:
    assert broker.backend.store is not None
    found: Cleaner = broker.backend.store.cleaner
    return found


def figures(broker: Broker) -> CleanerStatistics:
    return cleaner_of(broker).statistics()


async def fill(broker: Broker, count: int, *topics: str) -> None:
    for number in range(count):
        for topic in topics:
            await broker.publish(topic, b"%s %d " % (topic.encode(), number) + b"x" * 100)


async def values_of(broker: Broker, topic: str, count: int) -> list[bytes]:
    async with broker.subscribe(topic, start="earliest") as records:
        return [(await anext(records)).value for _ in range(count)]


async def test_what_a_deleted_topic_held_comes_back_and_the_others_lose_nothing(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, **SMALL) as broker:
        await fill(broker, 200, "kept", "deleted")
        before = sum(source.written for source in journal_of(broker).history.sources)
        await broker.topic("deleted").delete()
        await until(lambda: figures(broker).given_back > before // 3)
        assert await values_of(broker, "kept", 200) == [b"kept %d " % n + b"x" * 100 for n in range(200)]
        found = figures(broker)
        assert found.segments > 1
        assert found.read > found.written > 0
        assert found.error is None
        assert 1.0 < found.amplification < 2.5
        assert repr(cleaner_of(broker)) == f"<Cleaner, {found.segments} segments cleaned>"
        assert broker.statistics().journal.cleaner is not None  # type: ignore[union-attr]
        await until(lambda: 0 < figures(broker).live <= figures(broker).on_disk)
    async with open_on(disk, tmp_path, **SMALL) as broker:
        assert len(await values_of(broker, "kept", 200)) == 200


async def test_readers_from_the_beginning_see_nothing_of_it(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path, tail_bytes=1, **SMALL) as broker:
        await fill(broker, 300, "kept", "deleted")
        async with broker.subscribe("kept", start="earliest") as one, broker.subscribe("*", start="earliest") as two:
            first = [(await anext(one)).value for _ in range(20)]
            second = [(await anext(two)).value for _ in range(40)]
            second = [value for value in second if value.startswith(b"kept")]
            await broker.topic("deleted").delete()
            await until(lambda: figures(broker).segments > 3)
            for reader, seen in ((one, first), (two, second)):
                while len(seen) < 300:
                    record = await anext(reader)
                    assert record.gap is None
                    if record.topic == "kept":
                        seen.append(record.value)
            assert first == second == [b"kept %d " % n + b"x" * 100 for n in range(300)]


async def test_a_compacted_topic_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, **SMALL, tombstone_age=0, tail_bytes=1) as broker:
        prices = broker.topic("prices", compact=True)
        for number in range(40):
            for key in ("a", "b", "c"):
                await prices.publish(b"%d" % number * 20, key=key)
        await prices.publish(None, key="b")
        await fill(broker, 100, "other")
        await until(lambda: journal_of(broker).ledger.topics[1].compacted >= 121)
        await fill(broker, 100, "other")
        async with prices.subscribe(start="earliest") as records:
            seen = [await anext(records) for _ in range(2)]
        assert [(record.offset, record.key, record.value) for record in seen] == [
            (117, b"a", b"39" * 20),
            (119, b"c", b"39" * 20),
        ]
        assert [record.gap for record in seen] == [None, None]
        gone = journal_of(broker).ledger.topics[1].gone
        assert {one.reason for one in gone} == {RemovalReason.COMPACTED}


async def test_a_tombstone_is_published_as_none_and_read_as_none_by_its_type(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        items = broker.topic("items", Item, compact=True)
        await items.publish(None, key="a")
        await items.publish(Item("b"), key="b")
        items.publish_nowait(None, key="b")
        async with items.subscribe(start="earliest") as records:
            assert [(await anext(records)).value for _ in range(3)] == [None, Item("b"), None]
        async with items.subscribe(group="g", start="earliest") as deliveries:
            assert (await anext(deliveries)).value is None
        plain = broker.topic("plain", compact=True)
        await plain.publish(None, key="k")
        assert await values_of(broker, "plain", 1) == [b""]


async def test_closing_in_the_middle_of_a_cleaning_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, **SMALL) as broker:
        await fill(broker, 200, "kept", "deleted")
        disk.hold("sync", "-1.seg.tmp")
        await broker.topic("deleted").delete()
        await disk.reached()
        threading.Timer(0.05, disk.go_on).start()  # closing waits for the step that is under way
    assert not [name for name in disk.names() if name.endswith(".tmp")]
    async with open_on(disk, tmp_path, **SMALL) as broker:
        assert len(await values_of(broker, "kept", 200)) == 200


async def test_a_full_disk_is_reported_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, **SMALL) as broker:
        await fill(broker, 200, "kept", "deleted")
        disk.fail_next("write", "-1.seg.tmp", errno.ENOSPC)
        with caplog.at_level(logging.ERROR, "runnel"):
            await broker.topic("deleted").delete()
            await until(lambda: figures(broker).error is not None)
        assert "No space" in str(figures(broker).error)
        assert [record.message for record in caplog.records if "cleaning failed" in record.message]
        assert journal_of(broker).failed is None
        cleaner_of(broker).wake()
        await until(lambda: figures(broker).given_back > 0)
        assert figures(broker).error is None
        assert len(await values_of(broker, "kept", 200)) == 200


async def test_a_damaged_segment_is_left_alone_and_the_others_are_cleaned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryStorage()
    disk = Disk(inner=inner)
    async with open_on(disk, tmp_path, **SMALL) as broker:
        await fill(broker, 200, "kept", "deleted")
        bad = journal_of(broker).history.sources[1].info.name
        flip(inner, bad, START + 60)
        await broker.topic("deleted").delete()
        journal = journal_of(broker)
        told = f"cleaning failed: {bad} is damaged"
        await until(lambda: any(record.message.startswith(told) for record in caplog.records))
        # All but the bad one, the one that is written, and perhaps the one before that: it may hold little.
        await until(lambda: [info.generation for info in journal.manifest.segments].count(0) <= 3)
        assert bad in journal.manifest.files()


async def test_a_failed_journal_is_not_cleaned(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, **SMALL) as broker:
        await fill(broker, 100, "kept", "deleted")
        disk.fail_next("sync")
        with pytest.raises(Exception, match=r"journal|written|disk"):
            await broker.publish("kept", b"x")
        cleaner_of(broker).wake()
        await asyncio.sleep(0)
        assert figures(broker).segments == 0


@pytest.mark.parametrize("topic", ["plain", "memory"])
async def test_none_is_no_value_of_a_topic_that_is_not_compacted(tmp_path: Path, topic: str) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        with pytest.raises(InvalidValue):
            await broker.publish(topic, None, key="k")
        with pytest.raises(InvalidValue):
            await broker.topic("compacted", compact=True).publish(None)


# -- round by round ---------------------------------------------------------------------------------------------


class Rounds:
    """A cleaner without its thread, on a journal with a compacted topic and one that is to be cleaned away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.writer = Writer(options=JournalOptions(segment_bytes=8192, min_free=0, **options))
        self.topic, self.junk = self.writer.topic("t", compact=True), self.writer.topic("junk")
        self.holds: dict[int, int] = {}
        self.now = 0
        self.cleaner = Cleaner(self.writer.journal, self._call, lambda: self.holds, lambda: self.writer.now + self.now)
        monkeypatch.setattr(self.cleaner._stopping, "wait", lambda timeout=None: False)
        self.before_call: list[Callable[[], None]] = []  # what happens before something is done on the commit thread

    def _call(self, work: Callable[[], Any]) -> Future[Any]:
        while self.before_call:
            self.before_call.pop()()
        done: Future[Any] = Future()
        done.set_result(work())
        return done

    def fill(self, count: int, keys: int) -> None:
        ledger = self.writer.journal.ledger
        for number in range(count):
            body = pack([b"%d" % number], columns_of([Meta(b"%d" % (number % keys))]))
            base, crc = ledger.topics[self.topic].end, int.from_bytes(body[:4], "little")
            time = self.writer.now + 1
            self.writer.write([Part(PartKind.BATCH, body, crc, self.topic, base, base, ledger.sequence, time)])
            self.writer.publish(self.junk, bytes(2500))
        self.writer.publish(self.junk, bytes(8000))

    def stage(self, batches: int) -> None:
        """A stage of so many records of a thousand bytes, committed and sealed."""
        writer, ledger = self.writer, self.writer.journal.ledger
        writer.write([stage_part(StageState(1, "w", 0, 0, 0, self.junk, 5))])
        for ordinal in range(batches):
            writer.write([staged_part(1, ordinal, pack([bytes(1000)]), 5)])
        end, sequence = ledger.topics[self.junk].end, ledger.sequence
        writer.write([stage_commit_part(ledger.stages[1], end, sequence, writer.now + 1)])
        writer.publish(self.junk, bytes(8000))

    def again(self, monkeypatch: pytest.MonkeyPatch) -> Rounds:
        """Another life, after a kill."""
        self.writer.killed()
        self.cleaner = Cleaner(self.writer.journal, self._call, lambda: self.holds, lambda: self.writer.now + self.now)
        monkeypatch.setattr(self.cleaner._stopping, "wait", lambda timeout=None: False)
        return self

    def clear(self) -> None:
        """Let the junk go."""
        self.writer.write([trim_part(self.junk, self.writer.journal.ledger.topics[self.junk].end, 0)])

    def run(self) -> int:
        """Work until there is nothing more to do; how many rounds."""
        for count in range(30):
            if not self.cleaner._round():
                return count
        raise AssertionError("it never ends")

    def left(self) -> list[int]:
        return [one.offset for one in by_topic(self.writer.journal.history, self.topic) if isinstance(one, Seen)]


def test_a_hold_that_begins_after_a_pass_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.fill(6, keys=2)
    rounds.run()
    rounds.holds[rounds.topic] = 1
    rounds.clear()
    assert rounds.run() > 0
    assert rounds.left() == [1, 2, 3, 4, 5]


def test_a_hold_that_begins_while_a_job_works_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.fill(6, keys=2)
    rounds.run()
    rounds.clear()
    real = rounds.cleaner._work

    def work(job: CleaningJob) -> bool:
        rounds.before_call.append(lambda: rounds.holds.update({rounds.topic: 0}))
        return real(job)

    monkeypatch.setattr(rounds.cleaner, "_work", work)
    assert rounds.run() > 1
    assert rounds.left() == [0, 1, 2, 3, 4, 5]
    assert rounds.cleaner.statistics().given_back > 0


# -- in turns, and across restarts ------------------------------------------------------------------------------


def test_what_retention_let_go_of_does_not_wait_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.durable.cleaner.TURN", 1)
    rounds = Rounds(monkeypatch)
    rounds.fill(40, keys=20)
    rounds.clear()
    monkeypatch.setattr(KeyPass, "step", _never)
    for _ in range(40):
        with suppress(_Looked):
            rounds.cleaner._round()
    assert rounds.cleaner.statistics().given_back > 90_000, "nearly all of the junk"
    assert rounds.left() == list(range(40))


def test_keys_are_looked_through_in_turns_with_what_retention_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.durable.cleaner.TURN", 1)
    rounds = Rounds(monkeypatch)
    rounds.fill(40, keys=20)
    assert rounds.cleaner._round()
    assert rounds.cleaner._pass is not None
    under_way, read = rounds.cleaner._pass, rounds.cleaner._pass.read
    rounds.clear()
    assert rounds.cleaner._round()
    assert rounds.cleaner.statistics().segments > 0
    assert rounds.cleaner._pass is under_way
    assert under_way.read > read
    rounds.run()
    (found,) = rounds.cleaner._compaction.taken({}).values()
    assert {*rounds.left()} - {offset for offset in range(40) if offset in found} == set(range(20, 40))


class _Looked(Exception):
    pass


def _never(found: KeyPass) -> None:
    raise _Looked


@pytest.mark.parametrize("turn", [1, 1 << 20])
def test_another_life_goes_on_where_the_last_one_noted(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.durable.cleaner.TURN", turn)
    monkeypatch.setattr("runnel.broker.durable.cleaner.NOTED", 1)
    rounds = Rounds(monkeypatch)
    rounds.fill(40, keys=20)
    whole = 0
    for _ in range(3):
        rounds.cleaner._round()
        whole = rounds.cleaner.statistics().read
    assert whole > 0
    found = rounds.again(monkeypatch)
    found.run()
    read = found.cleaner.statistics().read
    if turn > 1:
        assert read == 0, "all was looked through"
    else:
        fresh = Rounds(monkeypatch)
        fresh.fill(40, keys=20)
        fresh.run()
        assert read < fresh.cleaner.statistics().read - whole // 2
    found.clear()
    found.run()
    assert found.left() == list(range(20, 40))


def test_what_is_known_is_noted_before_a_rest_and_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.run()
    assert key_compaction.KEYS_FILE not in rounds.writer.storage.names(), "there is nothing to be noted"
    rounds.fill(6, keys=2)
    rounds.cleaner._round()
    assert key_compaction.KEYS_FILE not in rounds.writer.storage.names()
    rounds.run()
    assert key_compaction.KEYS_FILE in rounds.writer.storage.names()
    rounds.writer.storage.remove(key_compaction.KEYS_FILE)
    rounds.fill(6, keys=2)
    rounds.cleaner._round()
    monkeypatch.setattr(rounds.cleaner._stopping, "wait", lambda timeout=None: True)
    rounds.cleaner._run()
    assert key_compaction.KEYS_FILE in rounds.writer.storage.names()


def test_a_note_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.fill(6, keys=2)

    def save(storage: Storage, note: key_compaction.CompactionState) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(key_compaction, "save_state", save)
        rounds.run()
        rounds.clear()
        rounds.run()
    assert "what is known of keys could not be noted" in caplog.text
    assert rounds.left() == [4, 5]


# -- stages -----------------------------------------------------------------------------------------------------


def test_a_stage_that_died_for_the_most_part_gives_its_space_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.stage(60)
    rounds.run()
    assert rounds.writer.journal.ledger.committed
    rounds.writer.write([trim_part(rounds.junk, 50, 0)])
    before = sum(source.info.end for source in rounds.writer.journal.history.sources)
    given = rounds.cleaner.statistics().given_back
    rounds.run()
    assert not rounds.writer.journal.ledger.committed
    after = sum(source.info.end for source in rounds.writer.journal.history.sources)
    assert after < before - 40_000
    assert rounds.cleaner.statistics().given_back - given == before - after
    assert rounds.cleaner.statistics().read < 20_000, "what was staged is dropped, and not read to be cleaned"
    found = by_topic(rounds.writer.journal.history, rounds.junk, 50)
    assert [one.offset for one in found if isinstance(one, Seen)][:10] == list(range(50, 60))


def test_a_stage_that_cannot_be_read_is_left_and_the_others_are_cleaned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.stage(60)
    journal = rounds.writer.journal
    staged = next(one for one in journal.history.sources if one.index.range_of(STAGE_TOPIC | 1) is not None)
    position, _ = staged.index.window(STAGE_TOPIC | 1, 0)
    for at in range(position, staged.info.end - 300, 300):  # in every batch of that segment
        flip(rounds.writer.storage, staged.info.name, at + 250)
    rounds.writer.write([trim_part(rounds.junk, 2, 0)])
    rounds.fill(4, keys=1)
    monkeypatch.setattr(planning, "DEAD_BOUND", 0.01)
    rounds.run()
    assert list(journal.ledger.committed) == [1]
    assert "stage 1" in caplog.text


class Sick:
    """A file that cannot be read."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        pass


def test_a_segment_that_cannot_be_read_stops_neither_cleaning_nor_other_topics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.fill(20, keys=20)
    rounds.clear()
    sources = rounds.writer.journal.history.sources
    bad, whole = sources[1], sources[1].file
    bad._file = cast(File, Sick())
    rounds.run()
    found = rounds.cleaner.statistics()
    assert found.segments >= len(sources) - 3
    assert bad in rounds.writer.journal.history.sources
    told = {record.message for record in caplog.records}
    assert f"cleaning failed: {bad.info.name} cannot be read: [Errno 5] Input/output error" in told
    assert len(caplog.records) == 2, "by the look at the keys, and by the job; not in every round"
    bad._file = whole
    assert rounds.run() == 0, "it is not tried again at once"
    rounds.now += planning.RETRY_AFTER
    assert rounds.run() > 0, "and then it is"
    assert bad not in rounds.writer.journal.history.sources
    assert rounds.left() == list(range(20))


def test_a_topic_that_cannot_be_decoded_here_does_not_stop_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.fill(20, keys=2)
    rounds.clear()

    def unpack(body: bytes, *, verify: bool = True) -> None:
        raise NotSupported("zstd", "it is not installed")

    monkeypatch.setattr(key_compaction, "unpack", unpack)
    assert rounds.run() > 0
    assert rounds.cleaner.statistics().given_back > 40_000
    assert rounds.left() == list(range(20))


async def test_what_an_archive_waits_for_is_cleaned_when_it_has_it(tmp_path: Path) -> None:
    async with open_broker(tmp_path / "data", **SMALL) as broker:
        archive(tmp_path / "data", tmp_path / "archive", hold=True)
        await fill(broker, 200, "kept", "deleted")
        await broker.topic("deleted").delete()
        journal = journal_of(broker)
        cleaner = cleaner_of(broker)
        looked = []
        safe_through = journal.safe_through
        journal.safe_through = lambda: looked.append(1) or safe_through()  # type: ignore[func-returns-value,method-assign]
        for _ in range(2):  # rounds of the cleaner
            looked.clear()
            cleaner.wake()
            await until(lambda: bool(looked))
        assert (figures(broker).segments, figures(broker).written) == (0, 0)
        assert archive(tmp_path / "data", tmp_path / "archive").missed is None
        cleaner.wake()
        await until(lambda: figures(broker).segments > 1)
        assert await values_of(broker, "kept", 200) == [b"kept %d " % n + b"x" * 100 for n in range(200)]
