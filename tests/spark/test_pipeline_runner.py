"""The runner: a pipeline is followed, reported, restarted and stopped; its archive is confirmed to the broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest

from runnel.core.errors import InvalidOption, PipelineFailed, PipelineNotRunning, PipelineRunning
from runnel.core.statistics import PipelineStatistics
from runnel.journal.read.inspection import NoJournal
from runnel.lake.history_source import LakeHistory
from runnel.spark.pipelines import (
    Check,
    Context,
    Finding,
    Option,
    Pipeline,
    PipelineStatus,
    RunOptions,
    StateFolder,
    find_pipeline,
    run_pipeline,
)
from runnel.spark.pipelines.runner import reason_of
from tests.patience import PATIENCE
from tests.spark.pipeline_rig import in_lake
from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def until(happened: Callable[[], object]) -> None:
    late = monotonic() + 60.0
    while not happened():
        assert monotonic() < late
        sleep(0.02)


def test_an_archive_follows_reports_confirms_and_stops_when_its_batch_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, state = tmp_path / "lake", StateFolder(tmp_path / "state")
    with Served(tmp_path / "data", history=LakeHistory(lake)) as served:
        served.run(served.broker.topic("orders", retention_until="archived").declare())
        served.publish_many("orders", [b"one"] * 10)
        options = RunOptions(broker={"url": served.url}, lake=str(lake), state=state, interval=0.0)
        stop, failures = threading.Event(), []

        def run() -> None:
            try:
                run_pipeline(find_pipeline("archive"), options, stop=stop, spark=spark)
            except BaseException as error:
                failures.append(error)

        running = threading.Thread(target=run)
        running.start()
        try:
            until(lambda: failures or served.broker.statistics().pipelines)
            (report,) = served.broker.statistics().pipelines
            assert (report.name, report.state) in (("archive", "starting"), ("archive", "running"))
            until(lambda: failures or served.run(served.broker.floors("orders"))[0].confirmed == 10)
            served.publish_many("orders", [b"two"] * 5)
            until(lambda: failures or served.run(served.broker.floors("orders"))[0].confirmed == 15)
            with pytest.raises(PipelineRunning):
                run_pipeline(find_pipeline("archive"), options, spark=spark)
            until(lambda: failures or served.broker.statistics().pipelines[0].records == 15)
        finally:
            stop.set()
            running.join(PATIENCE)
        assert not failures
        assert served.broker.statistics().pipelines == ()  # it said that it stopped
    found = state.read()
    assert found is not None
    assert (found.statistics.state, found.statistics.records, found.statistics.behind) == ("stopped", 15, 0)
    assert [row["offset"] for row in in_lake(tmp_path, "orders")] == list(range(15))


def checking(work: Callable[[], Finding], every: float | None = None, alert: object = None) -> Pipeline:
    def build(context: Context) -> Sequence[Check]:
        return [Check("look", work, every, alert)]  # type: ignore[arg-type]

    return Pipeline("looking", "look", build)


def options(folder: Path, *, once: bool = True) -> RunOptions:
    return RunOptions(
        broker={"path": str(folder / "data")}, lake=str(folder / "lake"), state=StateFolder(folder / "state"), once=once
    )


def test_a_check_that_finds_a_problem_reports_counts_and_alerts(spark: SparkSession, tmp_path: Path) -> None:
    alerts: list[Finding] = []
    told: list[Finding] = []
    bad = Finding(False, "not so")
    assert not run_pipeline(
        checking(lambda: bad, None, alerts.append), options(tmp_path), tell=told.append, spark=spark
    )
    assert alerts == told == [bad]
    found = StateFolder(tmp_path / "state").read()
    assert found is not None
    assert (found.statistics.alerts, found.statistics.last_error) == (1, "not so")
    assert found.checks == {"look": "not so"}


def test_a_check_that_fails_is_one_that_found_something_wrong(spark: SparkSession, tmp_path: Path) -> None:
    def work() -> Finding:
        raise OSError("the disk is gone")

    assert not run_pipeline(checking(work), options(tmp_path), spark=spark)


def test_a_check_on_a_schedule_is_done_again_until_a_signal_stops_it(spark: SparkSession, tmp_path: Path) -> None:
    count = 0

    def work() -> Finding:
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return Finding(True, "fine")

    assert run_pipeline(checking(work, every=0.01), options(tmp_path, once=False), spark=spark)
    assert count >= 3


def test_a_query_that_never_worked_ends_the_pipeline_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    from runnel.spark.pipelines import Stream

    def build(context: Context) -> Sequence[Stream]:
        rows = context.spark.readStream.format("rate").load().selectExpr("raise_error('no such thing') as value")
        return [Stream("bad", rows.writeStream.format("noop"))]

    with pytest.raises(PipelineFailed, match="no such thing") as caught:
        run_pipeline(Pipeline("bad", "bad", build), options(tmp_path, once=False), spark=spark)
    assert caught.value.query == "bad"
    found = StateFolder(tmp_path / "state").read()
    assert found is not None
    assert found.statistics.state == "failed"


# -- without Spark ---------------------------------------------------------------------------------------------


def test_a_folder_without_a_journal_is_an_error_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("runnel.spark.session")
    place = {"path": str(tmp_path / "none")}
    options = RunOptions(broker=place, lake=str(tmp_path / "lake"), state=StateFolder(tmp_path / "state"))
    with pytest.raises(NoJournal) as error:
        run_pipeline(find_pipeline("archive"), options)
    found = options.state.read()
    assert found is not None
    assert (found.statistics.state, found.statistics.last_error) == ("failed", str(error.value))


def test_a_status_whose_process_is_gone_says_so(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "words")
    running = PipelineStatus(
        statistics=PipelineStatistics(name="words", state="running"),
        pid=1,
        broker="data",
        lake="lake",
        started=0.0,
        updated=0.0,
    )
    assert state.read() is None
    with state.held():
        state.write(running)
        assert state.read() == running
    found = state.read()
    assert found is not None
    assert found.statistics.state == "died"
    with pytest.raises(PipelineNotRunning):
        state.stop(1.0)


def test_options_have_defaults_and_unknown_ones_are_refused() -> None:
    pipeline = Pipeline("words", "count", lambda context: (), (Option("topic", "which", "orders"),))
    assert pipeline.values({}) == {"topic": "orders"}
    assert pipeline.values({"topic": "payments"}) == {"topic": "payments"}
    with pytest.raises(InvalidOption, match="topic"):
        pipeline.values({"topik": "payments"})


def test_of_what_spark_says_the_innermost_error_is_kept() -> None:
    said = (
        "[STREAM_FAILED] Query terminated\nTraceback:\nrunnel.core.errors.UnknownTopic: there is no topic 'x'\n\tat org"
    )
    assert reason_of(said) == "there is no topic 'x'"
    traceback = "Traceback (most recent call last):\n  File x, line 1\n    f()\nKeyError: 'y'\n\n\tat org"
    assert reason_of(f"[STREAM_FAILED] failed: {traceback}") == "KeyError: 'y'"
    assert reason_of("\nplain\nmore") == "plain"
