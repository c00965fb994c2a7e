"""One transaction a batch: done once, however often; refused when somebody is ahead; and swept behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from runnel.core.errors import Fenced, OutcomeUnknown, StageEnded, UnknownStage
from runnel.core.stages import StageKey
from runnel.spark.connection import BrokerConnection, open_connection
from runnel.spark.options import BrokerLocation
from runnel.spark.staging import (
    TaskStaging,
    WriterId,
    commit_batch,
    commit_job,
    drop_stages_of_other_runs,
    drop_stale_stages,
)
from runnel.wire.errors import wire_error
from runnel.wire.frames import FrameKind
from runnel.wire.msgpack_messages import encode_message
from tests.patience import PATIENCE
from tests.spark.plain_peer import a_plain_peer
from tests.spark.rig import Served

OLD, NEW, OTHER = WriterId("q", "old"), WriterId("q", "new"), WriterId("qq", "other")


def stage(line: BrokerConnection, writer: WriterId, batch: int, task: int = 1, rows: int = 3) -> list[StageKey]:
    staging = TaskStaging(line, writer, batch, task, "t")
    staging.write([pa.record_batch({"value": pa.array([b"x"] * rows)})])
    return staging.keys


def end(served: Served) -> int:
    return served.broker.statistics().topics["t"].end


def left(line: BrokerConnection) -> list[tuple[str, int, int]]:
    return [(one["writer"], one["batch"], one["part"] >> 20) for one in line.ask("stages")]


def test_a_batch_is_committed_with_its_number(served: Served, line: BrokerConnection) -> None:
    keys = stage(line, NEW, 0) + stage(line, NEW, 0, task=2)
    assert commit_batch(line, NEW, 0, keys)
    assert (end(served), line.ask("mark", name="spark:q")) == (6, 0)
    assert commit_batch(line, NEW, 1, [])  # without rows, too: its number is what counts
    assert line.ask("mark", name="spark:q") == 1


def test_a_batch_that_comes_again_is_a_no_op_and_its_stages_go(served: Served, line: BrokerConnection) -> None:
    commit_batch(line, OLD, 7, stage(line, OLD, 7))
    assert not commit_batch(line, NEW, 7, stage(line, NEW, 7))  # after a crash, another life
    assert end(served) == 3
    assert left(line) == []
    assert commit_batch(line, NEW, 8, stage(line, NEW, 8))
    assert end(served) == 6


def test_a_driver_that_is_behind_gets_an_error_and_writes_nothing(served: Served, line: BrokerConnection) -> None:
    for batch in range(3):
        commit_batch(line, NEW, batch, stage(line, NEW, batch))
    with pytest.raises(Fenced, match=r"batch 1 of 'spark:q'.*batch 2 is committed.*new checkpoint") as told:
        commit_batch(line, OLD, 1, stage(line, OLD, 1))
    assert (told.value.batch, told.value.ahead) == (1, 2)
    assert end(served) == 9


def test_leftovers_of_failed_attempts_are_swept_and_no_other_files(line: BrokerConnection) -> None:
    keys = stage(line, NEW, 5)
    stage(line, NEW, 5, task=9)  # an attempt that failed, or came second
    stage(line, NEW, 4, task=8)
    stage(line, OLD, 4)
    stage(line, OLD, 5)  # perhaps it is being written to: it is swept with the next batch
    stage(line, OTHER, 1)  # whose name begins alike
    commit_batch(line, NEW, 5, keys)
    assert left(line) == [("spark:q:old", 5, 1), ("spark:qq:other", 1, 1)]
    commit_batch(line, NEW, 6, [])
    assert left(line) == [("spark:qq:other", 1, 1)]


def test_room_is_made_at_the_cost_of_other_lives_alone(line: BrokerConnection) -> None:
    stage(line, NEW, 5)
    stage(line, OLD, 5)
    stage(line, OTHER, 5)
    drop_stages_of_other_runs(line, NEW)
    assert left(line) == [("spark:q:new", 5, 1), ("spark:qq:other", 5, 1)]
    drop_stale_stages(line, NEW, 5)
    assert left(line) == [("spark:qq:other", 5, 1)]


def test_a_job_is_committed_once_with_a_mark_and_every_time_without(served: Served, line: BrokerConnection) -> None:
    job = WriterId("job", "job")
    assert commit_job(line, job, stage(line, job, 0), ("nightly", 20261115))
    again = WriterId("again", "job")
    assert not commit_job(line, again, stage(line, again, 0), ("nightly", 20261115))
    assert (end(served), left(line)) == (3, [])
    third = WriterId("third", "job")
    assert commit_job(line, third, stage(line, third, 0), None)
    assert end(served) == 6
    assert commit_job(line, WriterId("empty", "job"), [], None)


def test_a_stage_that_is_gone_is_an_error(line: BrokerConnection) -> None:
    with pytest.raises(UnknownStage):
        commit_job(line, NEW, [StageKey("spark:q:new", 0, 1, 0)], None)
    keys = stage(line, NEW, 0)
    drop_stale_stages(line, NEW, 0)
    with pytest.raises(StageEnded, match="dropped"):
        commit_job(line, NEW, keys, None)


@pytest.mark.parametrize(
    "error", [UnknownStage("it"), StageEnded("it", "it was committed")], ids=["another life", "this life"]
)
def test_a_job_whose_answer_was_lost_finds_that_it_was_done(error: Exception) -> None:
    with (
        a_plain_peer() as peer,
        ThreadPoolExecutor(1) as pool,
        open_connection(BrokerLocation(url=str(peer.address))) as line,
    ):
        done = pool.submit(commit_job, line, NEW, [StageKey("spark:q:new", 0, 1, 0)], None)
        first = peer.accept()
        assert first.call()[1] == "transact"
        first.close()  # it was committed, and the answer never came
        second = peer.accept()
        id, method, _ = second.call()
        assert method == "transact"
        second.send(FrameKind.ERROR, id, encode_message(wire_error(error)))
        id, method, _ = second.call()
        assert method == "stages"
        second.reply(id, [])
        assert done.result(PATIENCE) is True


@pytest.mark.parametrize(("before", "after"), [("os", "os"), ("interval", "commit"), ("commit", "os")])
def test_a_stage_that_a_power_failure_may_have_taken_is_not_taken_for_committed(before: str, after: str) -> None:
    with (
        a_plain_peer() as peer,
        ThreadPoolExecutor(1) as pool,
        open_connection(BrokerLocation(url=str(peer.address))) as line,
    ):
        done = pool.submit(commit_job, line, NEW, [StageKey("spark:q:new", 0, 1, 0)], None)
        first = peer.accept(fsync=before)
        first.call()
        first.close()
        second = peer.accept(fsync=after)
        second.send(FrameKind.ERROR, second.call()[0], encode_message(wire_error(UnknownStage("it"))))
        with pytest.raises(OutcomeUnknown, match="does not know what was staged"):
            done.result(PATIENCE)


def test_a_stage_that_was_dropped_meanwhile_is_not_taken_for_committed() -> None:
    with (
        a_plain_peer() as peer,
        ThreadPoolExecutor(1) as pool,
        open_connection(BrokerLocation(url=str(peer.address))) as line,
    ):
        done = pool.submit(commit_job, line, NEW, [StageKey("spark:q:new", 0, 1, 0)], None)
        first = peer.accept()
        first.call()
        first.close()
        second = peer.accept()
        second.send(
            FrameKind.ERROR, second.call()[0], encode_message(wire_error(StageEnded("it", "its topic was deleted")))
        )
        with pytest.raises(StageEnded):
            done.result(PATIENCE)
