"""The journal writer: what is put while it writes is written together, and failures are told once, to all concerned."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from runnel.broker.durable.commit import PendingCommit
from runnel.broker.durable.journal_writer import JournalWriter, WakeupPipe, WriteResult
from runnel.core.errors import DiskFull, JournalFailed
from runnel.journal.format.entry import Draft, WriteFailed
from runnel.journal.format.ledger import Ledger
from runnel.journal.options import JournalOptions
from tests.broker.durable_broker import until
from tests.patience import PATIENCE


class FakeJournal:
    """Takes notes instead of writing; can be held, and can fail."""

    def __init__(self, **options: Any) -> None:
        self.options = JournalOptions(**options)
        self.failed: JournalFailed | None = None
        self.written: list[list[int]] = []  # the times of the drafts of each write
        self.fail: list[Exception | None] = []  # what the next writes raise
        self.reached, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.synced = threading.Event()
        self.sync_fails = self.retain_fails = False
        self.ledger = Ledger()
        self.retained = 0
        self.end = (1, 64)

    def write(self, drafts: list[Draft]) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE)
        self.written.append([draft.time for draft in drafts])
        if self.fail and (error := self.fail.pop(0)) is not None:
            raise error

    def retain(self, now: int) -> None:
        self.retained += 1
        if self.retain_fails:
            raise OSError("no")

    def sync(self) -> None:
        self.synced.set()
        if self.sync_fails:
            raise OSError("no")


class Put(PendingCommit):
    """A commit, known by its number."""

    def __init__(self, number: int, *, records: bool = True, round: int = 0, frees: bool = False) -> None:
        super().__init__(Draft([], number), [], 0, round)
        self.holds_records, self.frees = records, frees

    def __repr__(self) -> str:
        return f"<Put {self.draft.time}>"


class Rig:
    def __init__(self, journal: Any) -> None:
        self.journal: FakeJournal = journal
        self.told = 0
        self.committer = JournalWriter(journal, asyncio.get_running_loop(), self._landed)
        self.committer.start()

    def _landed(self) -> None:
        self.told += 1

    async def results(self, count: int) -> list[WriteResult]:
        await until(lambda: len(self.committer.results) >= count)
        return list(self.committer.results)


@pytest.fixture
async def rig() -> Any:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(FakeJournal(**options)))
        return rigs[-1]

    yield make
    for one in rigs:
        one.journal.go.set()
        if one.committer._thread.is_alive():
            one.committer.stop()


def numbers(results: list[WriteResult]) -> Iterator[list[int]]:
    return ([commit.draft.time for commit in result.commits] for result in results)


async def test_what_is_put_while_one_is_written_is_written_together(rig: Any) -> None:
    it: Rig = rig()
    it.journal.go.clear()
    it.committer.put(Put(0))
    await asyncio.to_thread(it.journal.reached.wait, PATIENCE)
    for number in range(1, 5):
        it.committer.put(Put(number))
    it.journal.go.set()
    results = await it.results(2)
    assert it.journal.written == [[0], [1, 2, 3, 4]]
    assert list(numbers(results)) == [[0], [1, 2, 3, 4]]
    await until(lambda: it.told >= 1)
    assert it.told <= 2, "once for each write at most, not for each commit"


async def test_what_was_made_before_a_failure_is_refused_since_it_builds_on_it(rig: Any) -> None:
    it: Rig = rig()
    full = DiskFull(1, 2)
    it.journal.fail = [WriteFailed(0, 0, full)]
    it.journal.go.clear()
    it.committer.put(Put(0))
    await asyncio.to_thread(it.journal.reached.wait, PATIENCE)
    it.committer.put(Put(1))
    it.committer.put(Put(2, records=False))
    it.journal.go.set()
    failed, refused = await it.results(2)
    assert (failed.round, failed.failed is not None) == (1, True)
    assert list(numbers([refused])) == [[1, 2]]
    assert refused.failed is not None
    assert (refused.failed.done, refused.failed.begun, refused.failed.cause) == (0, 0, full)
    assert refused.round == 1, "one failure, one round, however many are refused"
    it.committer.put(Put(3, round=1))
    assert (await it.results(3))[-1].failed is None
    assert it.journal.written == [[0], [3]]


async def test_state_that_fails_begins_a_new_round_too(rig: Any) -> None:
    it: Rig = rig()
    it.journal.fail = [WriteFailed(0, 0, DiskFull(0, 0))]
    it.committer.put(Put(0, records=False))
    (failed,) = await it.results(1)
    assert failed.round == 1
    it.committer.put(Put(1))
    assert (await it.results(2))[-1].failed is not None
    it.committer.put(Put(2, round=1))
    assert (await it.results(3))[-1].failed is None


async def test_after_a_journal_failed_the_reason_is_its_own(rig: Any) -> None:
    it: Rig = rig()
    it.journal.fail = [WriteFailed(0, 1, OSError("broken"))]
    it.committer.put(Put(0))
    await it.results(1)
    it.journal.failed = JournalFailed("broken")
    it.committer.put(Put(1))
    refused = (await it.results(2))[-1]
    assert refused.failed is not None
    assert refused.failed.cause is it.journal.failed


async def test_a_bug_leaves_everything_unknown_and_poisons_the_journal(
    rig: Any, caplog: pytest.LogCaptureFixture
) -> None:
    it: Rig = rig()
    it.journal.fail = [ZeroDivisionError("a bug")]
    it.committer.put(Put(0))
    (result,) = await it.results(1)
    assert result.failed is not None
    assert (result.failed.done, result.failed.begun) == (0, 1)
    assert it.journal.failed is not None
    assert "the journal failed" in caplog.text


async def test_stopping_writes_what_was_put(rig: Any) -> None:
    it: Rig = rig()
    for number in range(3):
        it.committer.put(Put(number))
    it.committer.stop()
    assert list(chain(*it.journal.written)) == list(chain(*numbers(list(it.committer.results)))) == [0, 1, 2]


@pytest.mark.parametrize("fails", [False, True])
async def test_with_an_interval_a_sync_follows_what_was_written(
    rig: Any, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    it: Rig = rig(fsync="interval", fsync_interval=0.001)
    it.journal.sync_fails = fails
    it.committer.put(Put(0))
    assert await asyncio.to_thread(it.journal.synced.wait, PATIENCE)
    it.committer.put(Put(1))
    await it.results(2)  # it goes on, whatever came of that
    it.committer.stop()
    assert ("refuses writes" in caplog.text) is fails


async def test_without_one_it_never_syncs_by_itself(rig: Any) -> None:
    it: Rig = rig(fsync="os")
    it.committer.put(Put(0))
    await it.results(1)
    it.committer.stop()
    assert not it.journal.synced.is_set()


def test_results_are_kept_when_the_loop_is_gone() -> None:
    journal: Any = FakeJournal()
    loop = asyncio.new_event_loop()
    committer = JournalWriter(journal, loop, lambda: None)
    committer.start()
    loop.close()
    committer.put(Put(0))
    committer.stop()
    assert list(numbers(list(committer.results))) == [[0]]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_space_that_a_deletion_frees_is_given_back_before_it_is_confirmed(
    rig: Any, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    it: Rig = rig()
    it.committer.put(Put(0))
    await it.results(1)
    before = it.journal.retained
    it.journal.retain_fails = fails
    it.committer.put(Put(1, frees=True))
    assert (await it.results(2))[-1].failed is None
    assert it.journal.retained == before + 1
    assert ("could not be removed" in caplog.text) is fails


async def test_a_call_is_made_on_the_commit_thread_between_two_commits(rig: Any) -> None:
    it: Rig = rig()
    it.journal.go.clear()
    it.committer.put(Put(0))
    await asyncio.to_thread(it.journal.reached.wait, PATIENCE)
    made = it.committer.call(lambda: (threading.current_thread().name, list(it.journal.written)))
    it.committer.put(Put(1))
    assert not made.done()
    it.journal.go.set()
    name, written = await asyncio.wrap_future(made)
    assert name == "runnel-commit"
    assert written == [[0]]
    await it.results(2)
    assert it.journal.written == [[0], [1]]


async def test_an_exception_of_a_call_goes_to_its_caller(rig: Any) -> None:
    it: Rig = rig()

    def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await asyncio.wrap_future(it.committer.call(fails))
    it.committer.put(Put(0))
    assert (await it.results(1))[0].failed is None


async def test_a_call_that_is_cancelled_before_its_turn_is_not_made_and_harms_nothing(rig: Any) -> None:
    it: Rig = rig()
    it.journal.go.clear()
    it.committer.put(Put(0))
    await asyncio.to_thread(it.journal.reached.wait, PATIENCE)
    made: list[int] = []
    cancelled = asyncio.wrap_future(it.committer.call(lambda: made.append(1)))
    cancelled.cancel()
    await asyncio.sleep(0)
    it.journal.go.set()
    await asyncio.wrap_future(it.committer.call(lambda: made.append(2)))
    assert made == [2]
    assert it.journal.failed is None
    it.committer.put(Put(1))
    assert (await it.results(2))[1].failed is None


async def test_calls_are_made_before_the_end_and_cancelled_after_it(rig: Any) -> None:
    it: Rig = rig()
    early = it.committer.call(lambda: 5)
    it.committer.stop()
    assert early.result(0) == 5
    assert it.committer.call(lambda: 6).cancelled()


# -- The wake-up pipe: written by any thread, read once ------------------------------------------------------


@pytest.fixture
def bell() -> Iterator[WakeupPipe]:
    bell = WakeupPipe()
    yield bell
    bell.close()


def test_a_ring_before_the_wait_is_heard(bell: WakeupPipe) -> None:
    bell.signal()
    assert bell.wait()
    assert not bell.wait(0), "and only once"


def test_a_waiter_is_woken_by_another_thread(bell: WakeupPipe) -> None:
    heard = threading.Event()

    def waiting() -> None:
        bell.wait()
        heard.set()

    thread = threading.Thread(target=waiting)
    thread.start()
    bell.signal()
    assert heard.wait(PATIENCE)
    thread.join()


def test_a_wait_with_a_limit_ends_and_one_that_rang_says_so(bell: WakeupPipe) -> None:
    assert not bell.wait(0.001)
    assert not bell.wait(-1), "a limit that has passed is none at all"
    bell.signal()
    assert bell.wait(PATIENCE)


def test_it_can_be_rung_without_end_and_is_heard_once(bell: WakeupPipe) -> None:
    for _ in range(70_000):  # more than a pipe holds
        bell.signal()
    heard = 0
    while bell.wait(0):
        heard += 1
    assert 1 <= heard <= 17
