"""The runner: starts a pipeline's streams and checks, watches them, and stops them when a batch has ended.

A query that fails after it had worked is started again, after growing pauses: what it committed stays, so nothing is
lost or written twice. One that never worked, or that runs once, ends the pipeline with an error. The first signal lets
the batch under way end, the second one does not.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.errors import InvalidOption, PipelineFailed, RunnelError
from runnel.core.statistics import PipelineStatistics
from runnel.spark.pipelines.access import FiguresReporter
from runnel.spark.pipelines.pipeline import OBSERVED, Check, Context, Finding, Pipeline, Stream
from runnel.spark.pipelines.registry import send_to_tasks
from runnel.spark.pipelines.state import PipelineStatus, StateFolder

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("runnel.spark.pipelines")

LOOK_SECONDS = 0.1  # between two looks at the queries
REPORT_SECONDS = 1.0  # between two reports
PAUSES = (1.0, 60.0)  # before a query that failed is started again: the first and the longest
SETTLED_SECONDS = 60.0  # after which a query counts as one that works, though no record came
STOP_SECONDS = 300.0  # for which a stop waits for the batch under way

SETTINGS: dict[str, Any] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 8,
    "spark.sql.streaming.stopTimeout": "60s",
}
"""Of the session that a runner makes; a pipeline's own settings and those of the user go before them."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a pipeline is run.

    - `broker`: the options of `format("runnel")` that say where topics are: `{"url": …}` or `{"path": …}`.
    - `lake`, `storage_options`: the lake, a folder or the address of object storage.
    - `state`: the folder of lock, status and (without `checkpoint`) checkpoints.
    - `checkpoint`: where checkpoints are instead; on a cluster, a place that every node reaches.
    - `once`: process what is there now, do every check, and end.
    - `interval`: seconds between the starts of two micro-batches; 0: as soon as the last one has ended.
    - `master`, `settings`: of the Spark session; without `master` it is that of `spark-submit`, or this process.
    """

    broker: Mapping[str, str]
    lake: str
    state: StateFolder
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    once: bool = False
    interval: float = 1.0
    master: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def run_pipeline(
    pipeline: Pipeline,
    options: RunOptions,
    *,
    show: Callable[[PipelineStatus], object] | None = None,
    tell: Callable[[Finding], object] | None = None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> bool:
    """Run a pipeline until it has ended or is stopped; False if a check found something wrong.

    SIGTERM and Ctrl-C stop it, if this is the main thread; `stop` does, too. `show` is called with the status about
    once a second, `tell` with each finding of a check. With `spark` the session is the caller's, and stays open.
    """
    if options.interval < 0:
        raise InvalidOption("interval", options.interval, "expected 0 seconds or more")
    with options.state.held():
        return _Run(pipeline, options, show, tell, stop or threading.Event(), spark).run()


class _Query:
    """A streaming query as the runner sees it: started, watched, started again."""

    def __init__(self, stream: Stream, checkpoint: str, options: RunOptions) -> None:
        self.stream, self._options = stream, options
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self.figures = PipelineStatistics(name=stream.name, state="starting")
        self._failures = 0  # in a row
        self._again_at: float | None = None
        self._seen = -1  # the last batch whose progress was counted
        self._begun = monotonic()

    def start(self) -> None:
        writer = self.stream.writer.queryName(self.stream.name).option("checkpointLocation", self._checkpoint)
        if self._options.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(self._options.interval * 1000)} milliseconds")
        self._again_at, self._seen = None, -1
        self._query = writer.start()
        self._set(state="running")

    def _set(self, **changes: Any) -> None:
        self.figures = msgspec.structs.replace(self.figures, **changes)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and will not be started again."""
        return (self._query is None or not self._query.isActive) and self._again_at is None

    def look(self, now: float) -> str | None:
        """Take up its progress; the error, if it has ended with one and is not to be started again."""
        query = self._query
        if query is None:
            return None
        is_active = query.isActive  # before the progress: that of the last batch is not missed
        self._count(query)
        if is_active:
            return None
        if self._again_at is not None:
            if now >= self._again_at:
                self.start()
            return None
        error = query.exception()
        if error is None:
            self._set(state="stopped", records_per_second=0.0)
            return None
        why = reason_of(str(error))
        self._set(state="waiting", records_per_second=0.0, last_error=why)
        if self._options.once or (not self.figures.records and now - self._begun < SETTLED_SECONDS):
            return why
        self._failures += 1
        first, longest = PAUSES
        pause = min(first * 2 ** min(self._failures - 1, 16), longest) * random.uniform(0.5, 1.0)
        self._again_at = now + pause
        self._set(restarts=self.figures.restarts + 1)
        log.warning("query %r failed: %s; starting it again in %.1f s", self.stream.name, why, pause)
        return None

    def _count(self, query: StreamingQuery) -> None:
        last: Any = query.lastProgress
        if last is None or last["batchId"] == self._seen:
            if last is not None and last["numInputRows"] == 0:
                self._set(records_per_second=0.0, behind=_behind(last, self.figures.behind))
            return
        recent: Any = [last] if last["batchId"] == self._seen + 1 else query.recentProgress
        for one in recent:
            if one["batchId"] > self._seen:
                self._seen = one["batchId"]
                self._failures = 0
                records, seconds = _records(one), one["batchDuration"] / 1000
                self._set(
                    batch=one["batchId"],
                    records=self.figures.records + records,
                    records_per_second=records / seconds if seconds else 0.0,
                    batch_seconds=seconds,
                    behind=_behind(one, self.figures.behind),
                )

    def finish(self, hurry: threading.Event) -> None:
        """Let the batch under way end, and stop."""
        self._again_at = None
        query = self._query
        if query is None:
            return
        self._set(state="stopping")
        seen, late = self._seen, monotonic() + STOP_SECONDS
        while query.isActive and query.status["isTriggerActive"] and not hurry.is_set() and monotonic() < late:
            self._count(query)
            if self._seen > seen:
                break  # the next one has begun, perhaps: it is done again by the next start
            hurry.wait(0.02)
        query.stop()
        self._count(query)
        self._set(state="stopped", records_per_second=0.0)


def _records(progress: Mapping[str, Any]) -> int:
    """How many records a batch had: its rows, unless the query says that they stand for more."""
    observed = progress["observedMetrics"].get(OBSERVED)
    return int(progress["numInputRows"] if observed is None else observed["records"])


def _behind(progress: Mapping[str, Any], known: int | None) -> int | None:
    """How many records were published and not processed when a batch was planned."""
    found = known
    for source in progress["sources"]:
        latest = source["latestOffset"]
        if isinstance(latest, str):
            try:
                latest = msgspec.json.decode(latest)
            except msgspec.DecodeError:
                continue
        if isinstance(latest, Mapping) and "behind" in latest:
            found = int(latest["behind"]["records"])
    return found


_OURS = re.compile(r"^(?:\w+\.)*(?:runnel|_internal|deltalake|psycopg)[\w.]*: (.+)$", re.MULTILINE)

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?$", re.MULTILINE)
"""The line behind a traceback with the error: the only one that is not indented."""


def reason_of(text: str) -> str:
    """Of what Spark says about an error, the line that a person needs: that of the innermost Python error, if any."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    _, traceback, python = text.rpartition("Traceback (most recent call last):")
    if traceback and (raised := _RAISED.search(python)):
        return raised[0].strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")


class _Checks:
    """Does the checks one after the other, in a thread of its own: a query does not wait for them."""

    def __init__(
        self, checks: Sequence[Check], tell: Callable[[Finding], object] | None = None, *, with_streams: bool = False
    ) -> None:
        now = monotonic()
        self._due = {one.name: now + (one.every or 0.0) if with_streams else 0.0 for one in checks}
        self._checks, self._tell = checks, tell
        self.findings: dict[str, Finding] = {}
        self.alerts = 0
        self.is_fine = True
        self._thread: threading.Thread | None = None

    def do(self, check: Check) -> None:
        """Do it now. A check that fails is one that found something wrong."""
        try:
            found = check.work()
        except Exception as error:
            log.exception("the check %r failed", check.name)
            found = Finding(False, f"it could not be done: {reason_of(str(error) or type(error).__name__)}")
        self.findings[check.name] = found
        self._due[check.name] = monotonic() + (check.every or float("inf"))
        if not found.is_fine:
            self.is_fine = False
            self.alerts += 1
            log.error("%s: %s", check.name, found.summary)
            if check.alert is not None:
                try:
                    check.alert(found)
                except RunnelError as error:
                    log.error("the alert of %r could not be published: %s", check.name, error)
        if self._tell is not None:
            self._tell(found)

    def do_all(self) -> None:
        """Do every one, once."""
        for one in self._checks:
            self.do(one)

    def do_due(self, now: float) -> None:
        """Begin with the next one whose time has come, unless one is under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        for one in self._checks:
            if self._due[one.name] <= now:
                self._due[one.name] = float("inf")
                self._thread = threading.Thread(target=self.do, args=(one,), name=f"check {one.name}", daemon=True)
                self._thread.start()
                return

    @property
    def is_over(self) -> bool:
        """Whether each was done, and none will be done again."""
        is_idle = self._thread is None or not self._thread.is_alive()
        return is_idle and all(one.every is None and one.name in self.findings for one in self._checks)

    def finish(self) -> None:
        """Wait for the one that is under way."""
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)


class _Run:
    """One run of a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        show: Callable[[PipelineStatus], object] | None,
        tell: Callable[[Finding], object] | None,
        stop: threading.Event,
        spark: SparkSession | None,
    ) -> None:
        self._pipeline, self._options, self._show, self._stop = pipeline, options, show, stop
        self._given, self._tell = spark, tell
        self._hurry = threading.Event()
        self._started = time()
        self._queries: list[_Query] = []
        self._checks = _Checks(())
        self._reporter = FiguresReporter(options.broker)
        self._state = "starting"
        self._error: str | None = None
        self._next_report = 0.0

    def run(self) -> bool:
        with ExitStack() as held:
            held.callback(self._reporter.close)
            self._report(force=True)
            try:
                self._translated(held)
            except BaseException as error:
                self._error = reason_of(str(error)) if str(error) else type(error).__name__
                self._state = "failed"
                self._report(force=True)
                raise
            self._state = "stopped"
            self._report(force=True)
        return self._checks.is_fine

    def _translated(self, held: ExitStack) -> None:
        """Errors of Spark, which say a lot, as one of runnel's that says why."""
        try:
            self._follow(held)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
                raise
            raise PipelineFailed(self._pipeline.name, self._pipeline.name, reason_of(str(error))) from error

    def _follow(self, held: ExitStack) -> None:
        spark = self._session(held)
        context = Context(
            spark,
            self._pipeline.name,
            dict(self._options.broker),
            self._options.lake,
            self._pipeline.values(self._options.options),
            dict(self._options.storage_options),
            self._options.once,
        )
        send_to_tasks(self._pipeline)
        parts = self._pipeline.build(context)
        held.callback(self._handle_signals())
        self._queries = [
            _Query(one, self._checkpoint(one.name), self._options) for one in parts if isinstance(one, Stream)
        ]
        checks = [one for one in parts if isinstance(one, Check)]
        self._checks = _Checks(checks, self._tell, with_streams=bool(self._queries))
        try:
            for query in self._queries:
                query.start()
            self._state = "running"
            self._watch()
        finally:
            self._state = "stopping"
            self._report(force=True)
            for query in self._queries:
                query.finish(self._hurry)
            self._checks.finish()
        if self._options.once and not self._stop.is_set():
            self._checks.do_all()

    def _session(self, held: ExitStack) -> SparkSession:
        import runnel.spark
        from runnel.arrow.reading import opened
        from runnel.spark.options import broker_location
        from runnel.spark.session import activate

        if self._given is not None:
            return activate(self._given)

        opened(broker_location(self._options.broker)).close()  # a missing path is an error before Spark has started
        settings = {**SETTINGS, **self._pipeline.settings, **self._options.settings}
        made = runnel.spark.session(f"runnel {self._pipeline.name}", self._options.master, **settings)
        held.callback(made.stop)
        return made

    def _checkpoint(self, query: str) -> str:
        if self._options.checkpoint is None:
            return self._options.state.checkpoint(query)
        return f"{self._options.checkpoint.rstrip('/')}/{query}"

    def _handle_signals(self) -> Callable[[], None]:
        """Have signals stop it; what puts back how they were handled before."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop.is_set():
                self._hurry.set()
            self._stop.set()

        before = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for one, handler in before.items():
                signal.signal(one, handler)

        return restore

    def _watch(self) -> None:
        """Until it is stopped, or all of it has ended."""
        while not self._stop.is_set():
            now = monotonic()
            for query in self._queries:
                if (why := query.look(now)) is not None:
                    raise PipelineFailed(self._pipeline.name, query.stream.name, why)
            if not self._options.once:
                self._checks.do_due(now)
            self._report()
            if all(query.is_over for query in self._queries) and (
                self._options.once or self._queries or self._checks.is_over
            ):
                return
            self._stop.wait(LOOK_SECONDS)

    def _report(self, *, force: bool = False) -> None:
        now = monotonic()
        if now < self._next_report and not force:
            return
        self._next_report = now + REPORT_SECONDS
        status = self._status()
        self._options.state.write(status)
        self._reporter.report(status.statistics)
        if self._show is not None:
            self._show(status)

    def _status(self) -> PipelineStatus:
        queries = tuple(one.figures for one in self._queries)
        counted = [one.figures for one in self._queries if one.stream.counts]
        behind = [one.behind for one in counted if one.behind is not None]
        errors = [one.last_error for one in queries if one.last_error is not None]
        errors += [one.summary for one in self._checks.findings.values() if not one.is_fine]
        is_waiting = self._state == "running" and any(one.state == "waiting" for one in queries)
        total = PipelineStatistics(
            name=self._pipeline.name,
            state="waiting" if is_waiting else self._state,
            batch=max((one.batch for one in counted), default=-1),
            records=sum(one.records for one in counted),
            records_per_second=sum(one.records_per_second for one in counted),
            behind=sum(behind) if behind else None,
            batch_seconds=max((one.batch_seconds for one in counted), default=0.0),
            restarts=sum(one.restarts for one in queries),
            alerts=self._checks.alerts,
            last_error=self._error or (errors[-1] if errors else None),
        )
        return PipelineStatus(
            statistics=total,
            pid=os.getpid(),
            broker=self._options.broker.get("url") or self._options.broker.get("path", ""),
            lake=self._options.lake,
            started=self._started,
            updated=time(),
            queries=queries if len(queries) > 1 else (),
            checks={name: found.summary for name, found in self._checks.findings.items()},
        )
