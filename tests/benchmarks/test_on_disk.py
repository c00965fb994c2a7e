"""The questions that need a disk, with loads so small that they say nothing about speed, only that they measure."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import runnel
from benchmarks import catch_up, durable, history, idempotent, idle, staging, telemetry, transactions
from benchmarks.__main__ import main
from benchmarks.disk import FSYNC, PER_SYNC, PREFIX, Unsuitable, Writes, scratch, watching, where
from benchmarks.disk import file_system as kind_of
from benchmarks.harness import Answer, Question, ask, measured
from benchmarks.load import BATCH, Lossy
from benchmarks.peers.bare_files import bare_file
from benchmarks.report import report

ASKED: list[Callable[[Path], Question]] = [
    lambda folder: durable.question(folder=folder, loads=durable.Loads(alone=2, each=1, lists=4, topics=70, fsyncs=1)),
    lambda folder: idempotent.question(folder=folder, loads=idempotent.Loads(2, 1, 4, turn=2, fsyncs=1)),
    lambda folder: transactions.question(folder=folder, loads=transactions.Loads(alone=2, each=1, turn=1, fsyncs=1)),
    lambda folder: staging.question(folder=folder, loads=staging.Loads(lists=3, seconds=0.05, fsyncs=1)),
    lambda folder: catch_up.question(folder=folder, loads=catch_up.Loads(records=5_000, seconds=0.02, fsyncs=1)),
]


def asked(question: Question) -> Answer:
    answer = ask(question, 1)
    assert [result.error for result in answer.results if result.error] == []
    return answer


@pytest.mark.parametrize("question", ASKED, ids=["durable", "idempotent", "transactions", "staging", "catch_up"])
def test_every_contender_of_a_question_about_a_disk_gives_its_figures(
    question: Callable[[Path], Question], tmp_path: Path
) -> None:
    answer = asked(question(tmp_path))
    assert all(FSYNC in result.figures for result in answer.results)
    assert all(reached.value is not None for reached in answer.aims())
    assert where(tmp_path) in report(answer)


def test_idle_things_are_measured_by_the_cpu_of_the_loop(tmp_path: Path) -> None:
    answer = asked(idle.question(folder=tmp_path, groups=5, rounds=200, topics=50))
    assert all(reached.value is not None for reached in answer.aims())


def test_telemetry_is_measured_against_the_same_load_without_it(tmp_path: Path) -> None:
    answer = asked(telemetry.question(folder=tmp_path, loads=dict.fromkeys(telemetry.LOADS, 200)))
    assert all(reached.value is not None for reached in answer.aims())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_history_is_written_read_killed_and_opened_again_by_processes_of_their_own(tmp_path: Path) -> None:
    loads = history.Loads(records=3_000, few=1_000, tail=200, along=1_000, topics=20, fsyncs=1)
    answer = asked(history.question(folder=tmp_path, loads=loads))
    figures = {result.contender.name: result.figures for result in answer.results}
    assert figures["3,000 records"][BATCH].median > 1
    assert figures["nothing"][history.MEGABYTES].median > 1
    assert all(reached.value is not None for reached in answer.aims())


def test_a_folder_that_lacks_something_fails_the_measurement(tmp_path: Path) -> None:
    folder = history.Folder(tmp_path / "f", 1_000)
    lacking = partial(history._measured, folder, "open", history.Loads(fsyncs=1))
    assert measured(lacking)[history.SECONDS] > 0
    folder.records += 1
    with pytest.raises(RuntimeError, match=r"open of .* ended with 1, not 0"):
        measured(lacking)


async def test_history_does_not_begin_on_a_disk_without_room(tmp_path: Path) -> None:
    with pytest.raises(history.NoRoom, match=r"1\d{5}\.\d GB are needed; try --quick"):
        await history.Folder(tmp_path / "f", 10**12).written()


async def test_what_a_journal_asks_of_its_disk_is_noted_without_the_zeros_ahead(tmp_path: Path) -> None:
    writes = Writes()
    async with runnel.open(tmp_path) as broker:
        topic = broker.topic("t")
        await topic.declare()
        with watching(writes):
            for _ in range(3):
                await topic.publish(bytes(100))
    assert writes.syncs == 3
    assert [step == 0 for step in writes.steps] == [False, True] * 3
    assert 300 < writes.bytes < 3_000


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_bare_file_is_asked_for_the_same(zeroed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    with bare_file(tmp_path, 5_400, zeroed=zeroed) as file:
        assert file.replay([100, 0, 5_000, 200, 0]) > 0
        assert len(syncs) == 2
        with pytest.raises(ValueError, match="101 bytes do not fit behind 5,300 of 5,400"):
            file.replay([101])
    assert len(syncs) == 2
    assert list(tmp_path.iterdir()) == []


async def test_a_bare_file_needs_something_to_write_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="runnel wrote nothing"):
        await durable._bare(tmp_path, durable.Loads(), 1, Writes(), zeroed=True)
    with pytest.raises(ValueError, match="runnel wrote nothing"):
        await durable.Turns().figures()


async def test_records_that_were_not_stored_fail_the_measurement(tmp_path: Path) -> None:
    loads = durable.Loads(fsyncs=1)
    with pytest.raises(Lossy, match="should have got 6 values"):
        await durable._published(tmp_path, loads, 6, partial(durable._one_by_one, "100 B", 5), Writes())
    figures = await durable._published(tmp_path, loads, 5, partial(durable._one_by_one, "100 B", 5), Writes())
    assert figures[PER_SYNC] == 1


def test_a_scratch_folder_lies_where_it_should_and_is_gone_afterwards(tmp_path: Path) -> None:
    if kind_of(tmp_path) == "tmpfs":
        pytest.skip("temporary files lie in memory here")
    with scratch(tmp_path) as made:
        (made / "file").touch()
        assert made.parent == tmp_path
        assert made.name.startswith(PREFIX)
    assert not made.exists()
    with scratch() as made:
        assert made.stat().st_dev == Path.cwd().stat().st_dev


def test_a_folder_in_memory_or_none_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unsuitable, match="is not a folder"), scratch(tmp_path / "nowhere"):
        pass
    memory = Path("/dev/shm")
    if not memory.is_dir() or kind_of(memory) != "tmpfs":
        pytest.skip("no file system in memory here")
    with pytest.raises(SystemExit):
        main(["durable", "--folder", str(memory)])
    assert "/dev/shm lies in memory (tmpfs)" in capsys.readouterr().err
