"""The stages of a broker: what is written of them, what failing disks leave, what is kept in memory."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.api.broker import Broker
from runnel.api.stage import Stage
from runnel.broker.durable import staging
from runnel.broker.durable.commit_queue import STAGED
from runnel.broker.durable.staging import OpenStage, StagingArea, append_of_stage, stage_batches
from runnel.broker.tx.stage import SMALL_PIECE_BYTES
from runnel.core.batch_format import pack, unpack
from runnel.core.columns import KEYS
from runnel.core.errors import (
    DiskFull,
    JournalFailed,
    NotWritten,
    OutcomeUnknown,
    RunnelError,
    StageEnded,
    StagingFull,
    TooLarge,
)
from runnel.core.record import Meta
from runnel.core.stages import STAGE_PIECE_BYTES, StageKey, stage_name
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import StageState
from runnel.testing.clock import JumpingClock
from tests.broker.broker_parts import make_log
from tests.broker.durable_broker import Disk, commits_of, entries, journal_of, kinds, log_of, open_on, turns, until
from tests.carried import columns_of, metas_of
from tests.nightly import nightly_beyond

VALUES = [b"%03d" % number for number in range(8)]
LARGE: dict[str, Any] = {"segment_bytes": 1 << 24}


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, **LARGE) as opened:
        await opened.topic("t").declare()
        yield opened


def staging_of(broker: Broker) -> StagingArea:
    assert broker.backend.store is not None
    found: StagingArea = broker.backend.store.staging
    return found


def stage_of(broker: Broker, batch: int = 1, **key: int) -> Stage[bytes]:
    return broker.stage("t", writer="w", batch=batch, **key)


async def commit(broker: Broker, *stages: Any) -> None:
    async with broker.transaction() as tx:
        tx.commit(*stages)


def staged_parts(broker: Broker) -> list[Part]:
    return [part for one in entries(journal_of(broker)) for part in one.parts if part.kind == PartKind.STAGED]


# -- what is written --------------------------------------------------------------------------------------------


async def test_a_stage_is_opened_with_its_first_batch_and_each_write_adds_one(broker: Broker) -> None:
    stage = stage_of(broker)
    await stage.write(VALUES[:2])
    await stage.write(VALUES[2:])
    written = [one for one in kinds(entries(journal_of(broker))) if PartKind.STAGED in one]
    assert written == [[PartKind.STAGE, PartKind.STAGED], [PartKind.STAGED]]
    assert [(part.topic, part.base, part.last) for part in staged_parts(broker)] == [(1, 0, 0), (1, 1, 1)]
    state = journal_of(broker).ledger.stages[1]
    assert (state.key, state.counts, state.records) == (StageKey("w", 1, 0, 0), [2, 6], 8)
    assert state.bytes == stage.bytes == staging_of(broker).bytes


async def test_a_small_stage_becomes_a_plain_batch_and_leaves_nothing(broker: Broker) -> None:
    stage = stage_of(broker)
    await stage.write(VALUES)
    await commit(broker, stage)
    ledger = journal_of(broker).ledger
    assert kinds(entries(journal_of(broker)))[-1] == [PartKind.BATCH, PartKind.STAGE_DROPPED]
    assert (ledger.stages, ledger.committed, staging_of(broker).bytes) == ({}, {}, 0)
    assert log_of(broker, "t").values == VALUES, "live readers find it in memory"


async def test_a_large_stage_is_named(broker: Broker) -> None:
    stage = stage_of(broker)
    await stage.write([bytes(100_000)] * 15)
    await broker.publish("t", b"before")
    await commit(broker, stage)
    last = entries(journal_of(broker))[-1]
    assert [part.kind for part in last.parts] == [PartKind.STAGE_COMMIT]
    assert (last.parts[0].base, last.parts[0].last, last.end - last.position < 200) == (1, 15, True)
    ledger = journal_of(broker).ledger
    assert (ledger.stages, [(one.base, one.end) for one in ledger.committed.values()]) == ({}, [(1, 16)])
    log = log_of(broker, "t")
    assert (log.base, log.end, log.values) == (16, 16, [])


async def test_only_so_much_is_written_again_in_one_commit(broker: Broker) -> None:
    stages = [stage_of(broker, part=number) for number in range(6)]
    for stage in stages:
        await stage.write([bytes(900_000)])
    await commit(broker, *stages)
    last = [part.kind for part in entries(journal_of(broker))[-1].parts]
    assert last == [PartKind.BATCH, PartKind.STAGE_COMMIT, PartKind.STAGE_COMMIT, *[PartKind.STAGE_DROPPED] * 4]


async def test_what_compression_made_small_is_named_all_the_same(broker: Broker) -> None:
    topic = broker.topic("z", compression="zstd")
    stage = broker.stage(topic, writer="w", batch=1)
    await stage.write([bytes(100_000)] * 50)
    assert stage.bytes < 100_000
    await commit(broker, stage)
    assert [part.kind for part in entries(journal_of(broker))[-1].parts] == [PartKind.STAGE_COMMIT]


async def test_small_stages_are_read_again_where_memory_has_no_room(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "KEPT_BYTES", 1000)
    stages = [stage_of(broker, part=number) for number in range(3)]
    for number, stage in enumerate(stages):
        for at in range(4):
            await stage.write([b"%d %d" % (number, at) * 40], keys=["k"])
    assert staging_of(broker)._kept <= 1000
    reads: list[str] = []
    disk.on_read = reads.append
    await commit(broker, *stages)
    assert reads
    assert log_of(broker, "t").values == [b"%d %d" % (number, at) * 40 for number in range(3) for at in range(4)]
    assert (staging_of(broker)._kept, staging_of(broker).bytes) == (0, 0)
    assert log_of(broker, "t").columns == {KEYS: [b"k"] * 12}


async def test_a_long_write_goes_out_in_pieces_through_a_small_window(broker: Broker, disk: Disk) -> None:
    stage, window = stage_of(broker), commits_of(broker).staged
    disk.hold("write")
    writing = asyncio.ensure_future(stage.write([bytes(1000)] * 8000))
    await disk.reached()
    await turns()
    assert STAGED <= window.bytes < STAGED + 2 * STAGE_PIECE_BYTES, "it waits for room"
    assert commits_of(broker).pending.bytes == 0, "and takes none from those who publish"
    beside = asyncio.ensure_future(broker.publish("u", b"beside"))
    disk.go_on()
    await beside
    assert not writing.done(), "nobody waits for all of it"
    assert await writing == 8000
    assert (window.bytes, stage.records) == (0, 8000)
    assert all(len(part.body) < STAGE_PIECE_BYTES + 10_000 for part in staged_parts(broker))
    assert len(staged_parts(broker)) >= 8_000_000 // STAGE_PIECE_BYTES


async def test_while_others_write_one_small_piece_is_on_its_way_at_a_time(broker: Broker, disk: Disk) -> None:
    stage, window = stage_of(broker), commits_of(broker).staged
    await broker.publish("u", b"company")
    disk.hold("write")
    writing = asyncio.ensure_future(stage.write([bytes(1000)] * 3000))
    await disk.reached()
    await turns()
    assert len(staging_of(broker)._open[stage.key].flights) == 1
    disk.go_on()
    await writing
    assert window.limit == 1
    assert max(len(part.body) for part in staged_parts(broker)) < SMALL_PIECE_BYTES + 10_000


async def test_who_stages_and_commits_is_no_company_for_himself(broker: Broker) -> None:
    for batch, size in ((1, 10), (2, 2 << 20)):
        await stage_of(broker, batch).write([bytes(size)])
        await commit(broker, StageKey("w", batch, 0, 0))
    assert commits_of(broker).staged.limit == STAGED
    async with broker.transaction() as tx:
        tx.publish("t", b"x")
    assert commits_of(broker).staged.limit == 1


# -- disks that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_write_whose_outcome_is_unknown_can_be_repeated(tmp_path: Path, disk: Disk, operation: str) -> None:
    values = [b"%06d" % number * 200 for number in range(2000)]
    async with open_on(disk, tmp_path, **LARGE) as broker:
        stage = stage_of(broker)
        await stage.write(values[:500])
        disk.fail_next(operation)
        with pytest.raises((OutcomeUnknown, NotWritten, JournalFailed)):
            await stage.write(values[500:], ordinal=500)
    async with open_on(disk, tmp_path, **LARGE) as broker:
        stage = stage_of(broker)
        assert 500 <= stage.records <= 2000
        assert await stage.write(values[500:], ordinal=500) == 2000
        await commit(broker, stage)
        async with broker.subscribe("t", start="earliest") as subscription:
            assert [(await anext(subscription)).value for _ in range(2000)] == values


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_commit_whose_outcome_is_unknown_is_repeated_with_its_mark(
    tmp_path: Path, disk: Disk, operation: str, size: int
) -> None:
    rows = [b"%d" % number * size for number in range(10)]

    async def once(broker: Broker) -> bool:
        async with broker.transaction() as tx:
            tx.mark("w", 1)
            tx.commit(("w", 1, 0, 0))
        return tx.applied

    async with open_on(disk, tmp_path, **LARGE) as broker:
        await stage_of(broker).write(rows)
        disk.fail_next(operation)
        with pytest.raises(OutcomeUnknown):
            await once(broker)
    async with open_on(disk, tmp_path, **LARGE) as broker:
        was_there = "t" in broker.backend.catalog.logs and log_of(broker, "t").end > 0
        assert await once(broker) is not was_there
        assert not await once(broker)
        async with broker.subscribe("t", start="earliest") as subscription:
            assert [(await anext(subscription)).value for _ in range(subscription.lag)] == rows


ROWS = [b"%02d" % number * 300 for number in range(30)]


async def stage_all(disk: Disk, folder: Path, acked: list[int]) -> None:
    """Stage what is missing, commit it, and say how far that came."""
    async with open_on(disk, folder, segment_bytes=1 << 13) as broker:
        if await broker.mark("w") is None:
            stage = stage_of(broker)
            assert stage.records >= max(acked, default=0), "what was acknowledged is there"
            for start in range(0, 30, 10):
                if stage.records < start + 10:
                    acked.append(await stage.write(ROWS[start : start + 10], ordinal=start))  # noqa: PERF401 - it may fail
        async with broker.transaction() as tx:
            tx.mark("w", 1)
            tx.commit(("w", 1, 0, 0))


@pytest.mark.parametrize("each", nightly_beyond(1, [3, 1]))
@pytest.mark.parametrize("small", [True, False])
async def test_whichever_call_of_the_disk_fails_everything_is_there_once(
    tmp_path: Path, small: bool, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    whole = Disk()
    await stage_all(whole, tmp_path, [])
    assert whole.calls > 50
    for call in range(1 + small % each, whole.calls + 1, each):
        disk, acked = Disk(), list[int]()
        disk.fail_at, disk.error = call, errno.EIO
        with suppress(RunnelError, OSError):
            await stage_all(disk, tmp_path, acked)
        disk.fail_at = None
        await stage_all(disk, tmp_path, acked)
        async with open_on(disk, tmp_path) as broker, broker.subscribe("t", start="earliest") as subscription:
            assert [(await anext(subscription)).value for _ in range(subscription.lag)] == ROWS, f"call {call}"
            assert await broker.stages() == []


async def test_nothing_lands_behind_a_piece_that_did_not(tmp_path: Path, disk: Disk) -> None:
    values = [b"%06d" % number * 200 for number in range(8000)]
    async with open_on(disk, tmp_path, segment_bytes=1 << 22) as broker:
        stage = stage_of(broker)
        await stage.write(values[:1])
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await stage.write(values[1:])
        landed = stage.records
        assert 0 < landed < 8000
        assert journal_of(broker).ledger.stages[1].records == landed
        assert commits_of(broker).staged.bytes == 0
        assert await stage.write(values, ordinal=0) == 8000
        await commit(broker, stage)
        async with broker.subscribe("t", start="earliest") as subscription:
            assert [(await anext(subscription)).value for _ in range(8000)] == values


async def test_a_stage_whose_first_write_failed_is_opened_by_the_next(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.topic("t").declare()
        earlier, stage = stage_of(broker), stage_of(broker, attempt=1)
        await earlier.write(VALUES)
        await broker.publish("t", bytes(50_000))
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await stage.write([bytes(50_000)])
        assert (stage.records, await broker.stages(), len(staging_of(broker))) == (0, [], 0)
        with pytest.raises(StageEnded, match="attempt 1 superseded it"):
            await earlier.write(VALUES)
        await stage.write([b"second try"])
        await commits_of(broker).flushed()
        assert [one.attempt for one in journal_of(broker).ledger.stages.values()] == [1]
        await commit(broker, stage)
        assert log_of(broker, "t").values[-1] == b"second try"


async def test_a_commit_that_failed_leaves_the_stage_as_it_was(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path) as broker:
        stage = stage_of(broker)
        await stage.write([bytes(30_000)])
        await broker.publish("t", bytes(20_000))
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await commit(broker, stage)
        await stage.write([b"more"])
        await commit(broker, stage)
        assert log_of(broker, "t").values[1:] == [bytes(30_000), b"more"]


async def test_a_commit_that_failed_gives_way_to_a_later_attempt_that_came_meanwhile(
    broker: Broker, disk: Disk
) -> None:
    first, second = stage_of(broker), stage_of(broker, attempt=1)
    await first.write(VALUES)
    staging = staging_of(broker)
    (stage,) = staging
    stage.committing = True
    await second.write(VALUES[:1])
    assert len(staging) == 2, "nobody knows how that ends"
    staging.not_committed(stage)
    with pytest.raises(StageEnded, match="attempt 1 superseded it"):
        await commit(broker, first)
    await commits_of(broker).flushed()
    assert [one.attempt for one in journal_of(broker).ledger.stages.values()] == [1]


async def test_staging_leaves_the_disk_its_reserve_and_what_is_dropped_comes_back(tmp_path: Path) -> None:
    disk = Disk(capacity=1 << 20)
    async with open_on(disk, tmp_path, min_free=1 << 18) as broker:
        await broker.publish("t", b"x")
        stage = stage_of(broker)
        with pytest.raises(DiskFull):
            await stage.write([bytes(10_000)] * 200)
        assert disk.free() >= 1 << 18
        staged = stage.records
        assert 20 < staged < 200
        await stage.drop()
        again = stage_of(broker, attempt=1)
        await until(lambda: disk.free() > 1 << 19)
        assert await again.write([bytes(10_000)] * (staged // 2)) == staged // 2
        await broker.publish("t", b"y")


async def test_damage_is_reported_when_a_small_stage_is_committed(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path, **LARGE) as broker:
        await stage_of(broker).write(VALUES)
    async with open_on(disk, tmp_path, **LARGE) as broker:
        disk.fail_next("read")
        with pytest.raises(StageEnded, match="its records cannot be read any more"):
            await commit(broker, stage_of(broker))
        await commit(broker, stage_of(broker))
        assert log_of(broker, "t").values == VALUES


# -- side by side -----------------------------------------------------------------------------------------------


async def test_who_waits_behind_a_first_write_that_is_refused_opens_the_stage(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path, max_staged_bytes=2_000, **LARGE) as broker:
        stage, other = stage_of(broker), stage_of(broker)
        uses = [stage.write([bytes(5_000)]), other.write(VALUES), stage.write(VALUES)]
        results = await asyncio.gather(*uses, return_exceptions=True)
        assert [type(result) for result in results] == [StagingFull, int, int]
        assert (stage.records, other.records) == (16, 16)


async def test_dropping_what_is_refused_meanwhile_does_nothing(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path, max_staged_bytes=2_000, **LARGE) as broker:
        stage = stage_of(broker)
        writing = asyncio.ensure_future(stage.write([bytes(5_000)]))
        commits_of(broker).staged.limit = 0  # it has to wait for room, and holds its turn
        await turns()
        dropping = asyncio.ensure_future(stage.drop())
        await turns()
        commits_of(broker).staged.limit = STAGED
        commits_of(broker).staged.make_room()
        with pytest.raises(StagingFull):
            await writing
        await dropping
        assert len(staging_of(broker)) == 0


async def test_while_it_is_being_committed_a_stage_takes_nothing(broker: Broker, disk: Disk) -> None:
    stage = stage_of(broker)
    await stage.write(VALUES)
    disk.hold("sync")
    committing = asyncio.ensure_future(commit(broker, stage))
    await disk.reached()
    for use in (stage.write([b"late"]), commit(broker, stage), stage.drop()):
        with pytest.raises(StageEnded, match="it is being committed"):
            await use
    disk.go_on()
    await committing
    assert log_of(broker, "t").values == VALUES


async def test_a_later_attempt_that_comes_while_the_earlier_is_committed_leaves_that_alone(
    broker: Broker, disk: Disk
) -> None:
    first, second = stage_of(broker), stage_of(broker, attempt=1)
    await first.write(VALUES)
    disk.hold("sync")
    committing = asyncio.ensure_future(commit(broker, first))
    await disk.reached()
    writing = asyncio.ensure_future(second.write(VALUES))
    await turns()
    disk.go_on()
    await asyncio.gather(committing, writing)
    assert log_of(broker, "t").values == VALUES
    assert [info.attempt for info in await broker.stages()] == [1]


async def test_a_later_attempt_drops_what_is_still_on_its_way(broker: Broker, disk: Disk) -> None:
    first, second = stage_of(broker), stage_of(broker, attempt=1)
    disk.hold("sync")
    early = asyncio.ensure_future(first.write(VALUES))
    await disk.reached()
    late = asyncio.ensure_future(second.write(VALUES[:1]))
    await turns()
    disk.go_on()
    with pytest.raises(StageEnded, match="attempt 1 superseded it"):
        await early
    await late
    assert [one.attempt for one in journal_of(broker).ledger.stages.values()] == [1]
    assert staging_of(broker).bytes == second.bytes


async def test_dropping_waits_for_what_is_on_its_way(broker: Broker, disk: Disk) -> None:
    stage = stage_of(broker)
    disk.hold("sync")
    writing = asyncio.ensure_future(stage.write(VALUES))
    await disk.reached()
    dropping = asyncio.ensure_future(stage.drop())
    await turns()
    disk.go_on()
    await asyncio.gather(writing, dropping)
    assert journal_of(broker).ledger.stages == {}


async def test_dropping_waits_for_what_a_cancelled_write_left_on_its_way(broker: Broker, disk: Disk) -> None:
    stage = stage_of(broker)
    disk.hold("sync")
    busy = asyncio.ensure_future(broker.publish("u", b"x"))
    await disk.reached()
    await turns()
    more = asyncio.ensure_future(broker.publish("u", b"y"))
    await turns()
    writing = asyncio.ensure_future(stage.write(VALUES))  # two commits are under way: this one waits
    await turns()
    writing.cancel()
    await asyncio.wait([writing])
    dropping = asyncio.ensure_future(stage.drop())
    await turns()
    disk.go_on()
    await asyncio.gather(dropping, busy, more)
    await commits_of(broker).flushed()
    assert journal_of(broker).ledger.stages == {}


async def test_a_topic_that_is_deleted_takes_along_what_is_on_its_way(broker: Broker, disk: Disk) -> None:
    stage = stage_of(broker)
    disk.hold("sync")
    writing = asyncio.ensure_future(stage.write(VALUES))
    await disk.reached()
    more = asyncio.ensure_future(stage_of(broker, 2).write(VALUES))
    await turns()
    deleting = asyncio.ensure_future(broker.delete("t"))
    await turns()
    disk.go_on()
    await deleting
    for one in (writing, more):
        with pytest.raises(StageEnded, match="its topic was deleted"):
            await one
    assert (journal_of(broker).ledger.stages, staging_of(broker).bytes, len(staging_of(broker))) == ({}, 0, 0)


# -- expiring, and other ends -----------------------------------------------------------------------------------


async def test_what_is_being_written_or_committed_does_not_expire(tmp_path: Path, disk: Disk) -> None:
    clock = JumpingClock()
    async with open_on(disk, tmp_path, clock, stage_expiry=10.0, **LARGE) as broker:
        stage = stage_of(broker)
        await stage.write(VALUES)
        disk.hold("sync")
        writing = asyncio.ensure_future(stage.write(VALUES))
        await disk.reached()
        await clock.advance(100)
        disk.go_on()
        assert await writing == 16
        disk.hold("sync")
        committing = asyncio.ensure_future(commit(broker, stage))
        await disk.reached()
        await clock.advance(100)
        disk.go_on()
        await committing
        assert log_of(broker, "t").end == 16


async def test_two_attempts_that_a_crash_left_open_are_one_in_the_next_life(tmp_path: Path, disk: Disk) -> None:
    async with open_on(disk, tmp_path, **LARGE) as broker:
        await stage_of(broker).write(VALUES)
        ledger = journal_of(broker).ledger
        state = ledger.stages[1]
        later = type(state)(2, "w", 1, 0, 1, state.topic, state.time)
        ledger.stages[2], ledger.next_stage = later, 3
        ledger.changed_stages.add(2)
    async with open_on(disk, tmp_path, **LARGE) as broker:
        assert [info.attempt for info in await broker.stages()] == [1]
        await commits_of(broker).flushed()
        assert list(journal_of(broker).ledger.stages) == [2]


async def test_a_stage_has_only_so_many_batches(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_BATCHES", 2)
    stage = stage_of(broker)
    await stage.write(VALUES)
    await stage.write(VALUES)
    with pytest.raises(TooLarge, match="write longer lists, or begin another part"):
        await stage.write(VALUES)
    await commit(broker, stage)
    assert log_of(broker, "t").end == 16


async def test_statistics_tell_how_much_is_staged(broker: Broker) -> None:
    stage = stage_of(broker)
    await stage.write(VALUES)
    journal = broker.statistics().journal
    assert journal is not None
    assert (journal.stages, journal.staged_bytes) == (1, stage.bytes)


async def test_only_so_many_ends_are_remembered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "REMEMBERED_ENDS", 2)
    for batch in range(4):
        await stage_of(broker, batch).write(VALUES)
        await stage_of(broker, batch).drop()
    assert [staging_of(broker).why_over(StageKey("w", batch, 0, 0)) for batch in range(4)] == [
        None,
        None,
        "it was dropped",
        "it was dropped",
    ]
    assert "attempt 0" in str(staging_of(broker).why_over(StageKey("w", 3, 0, -1)))
    assert staging_of(broker).why_over(StageKey("w", 3, 0, 1)) is None


async def test_a_timer_of_a_closed_broker_does_nothing(tmp_path: Path, disk: Disk) -> None:
    clock = JumpingClock()
    async with open_on(disk, tmp_path, clock, stage_expiry=10.0) as broker:
        await stage_of(broker).write(VALUES)
    assert staging_of(broker)._timer is None
    staging_of(broker)._expire()
    assert len(staging_of(broker)) == 1


async def test_it_shows_what_it_holds(broker: Broker) -> None:
    await stage_of(broker).write(VALUES)
    assert repr(staging_of(broker)).startswith("<StagingArea, 1 open, ")
    (stage,) = staging_of(broker)
    assert repr(stage) == "<Stage 'w' batch 1 part 0 attempt 0 of 't', 8 records>"
    assert repr(stage_of(broker)) == "<Stage 'w' batch 1 part 0 attempt 0 of 't'>"
    assert stage_name(stage.key) == "'w' batch 1 part 0 attempt 0"
    await until(lambda: not stage.flights)


# -- A small stage, written as a publish: every record with what it carries, read from memory or from disk ----


RECORDS = st.tuples(st.binary(max_size=5), st.none() | st.builds(Meta, key=st.binary(min_size=1, max_size=3)))
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=5)


def stage(*bodies: bytes, counts: list[int]) -> OpenStage:
    one = OpenStage(StageState(1, "w", 1, 0, 0, 1, 0), make_log(), announced=True)
    one.kept, one.state.counts = list(bodies), counts
    return one


@given(BATCHES)
def test_all_records_come_in_order_with_what_they_carry(batches: list[list[tuple[bytes, Meta | None]]]) -> None:
    bodies = [pack([value for value, _ in batch], columns_of([meta for _, meta in batch])) for batch in batches]
    entry = append_of_stage(stage(*bodies, counts=[len(batch) for batch in batches]))
    assert entry is not None
    expected = [record for batch in batches for record in batch]
    assert list(zip(entry.values, metas_of(entry.columns, len(entry.values)), strict=True)) == expected
    assert entry.size == sum(len(value) for value, _ in expected)
    assert entry.extra == sum(meta.weight for _, meta in expected if meta is not None)
    assert entry.checked


def test_what_is_not_in_memory_or_only_half_of_it_is_no_entry() -> None:
    assert append_of_stage(stage(counts=[])) is None
    assert append_of_stage(stage(pack([b"x"]), counts=[1, 1])) is None
    gone = stage(counts=[1])
    gone.kept = None
    assert append_of_stage(gone) is None
    large = pack([b"x" * 100], compression="zstd")
    assert append_of_stage(stage(large, counts=[1]), len(large)) is None  # in memory it is not that small
    assert append_of_stage(stage(large, counts=[1]), 200) is not None


def test_a_batch_that_does_not_decode_is_reported() -> None:
    with pytest.raises(StageEnded, match="cannot be read any more"):
        append_of_stage(stage(pack([b"x"])[:-1], counts=[1]))


async def test_batches_are_read_again_from_wherever_they_lie(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 14}
    async with open_on(Disk(), tmp_path, **options) as broker:
        one, other = (broker.stage("t", writer="w", batch=batch) for batch in (1, 2))
        for number in range(30):
            await one.write([b"%d" % number * 400])
            await other.write([b"other" * 200])
        journal = journal_of(broker)
        assert len(journal.manifest.segments) > 3
        state = journal.ledger.stages[1]
        assert [unpack(body).values for body in stage_batches(journal, state)] == [
            (b"%d" % number * 400,) for number in range(30)
        ]
        missing = StageState(1, "w", 1, 0, 0, 1, 0, [1] * 31)
        with pytest.raises(OSError, match="batch 30 of 31 is missing or damaged"):
            list(stage_batches(journal, missing))
