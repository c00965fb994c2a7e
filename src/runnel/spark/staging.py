"""Exactly-once writes: stages on executors, one small transaction on the driver.

A task packs its rows into batches and stages them on the broker, durable but invisible, one stage per topic. The
driver's transaction lists the stage keys and sets a marker with the batch number, so a repeated commit is a no-op and
an outdated driver is refused. Loads neither pyspark nor asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from runnel.core.batch_format import pack_columns
from runnel.core.errors import (
    Fenced,
    InvalidName,
    InvalidValue,
    OutcomeUnknown,
    RunnelError,
    StageEnded,
    StagingFull,
    UnknownStage,
)
from runnel.core.pattern import check_name
from runnel.core.stages import StageKey
from runnel.spark.connection import BrokerConnection, PendingCall

BATCH_BYTES = 256 * 1024  # bytes of a batch: what a broker takes from a stage at once while others publish
BUFFER_BYTES = 32 * 1024 * 1024  # of rows that wait for their batch to become large enough, for all topics of a task
TOPICS = 1 << 20  # that one task can write to; a stage's part is the task and the topic

ADVICE = (
    "a batch of Spark is staged as a whole before it is committed: have a stream read less at a time with the source's "
    "option maxBytesPerTrigger (or maxRecordsPerTrigger), write a large table in parts, or raise the limit"
)


class TaskStaging:
    """The stages of one task. `writer` and `batch` are the same for all tasks of a batch, `task` is this attempt's."""

    def __init__(
        self, connection: BrokerConnection, writer: WriterId, batch: int, task: int, topic: str | None
    ) -> None:
        self._connection, self._writer, self._batch, self._task, self._topic = connection, writer, batch, task, topic
        self._stages: dict[str, TopicStage] = {}
        self._held = 0

    def __repr__(self) -> str:
        return (
            f"<TaskStaging of {str(self._writer)!r} batch {self._batch} task {self._task}, {len(self._stages)} topics>"
        )

    @property
    def keys(self) -> list[StageKey]:
        """The staged rows, for the driver to commit: in the order in which rows of the topics came."""
        return [stage.key for stage in self._stages.values()]

    @property
    def records(self) -> int:
        """How many rows there were."""
        return sum(stage.records for stage in self._stages.values())

    def write(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Stage all rows; durable when it returns. If it fails, nothing of them stays."""
        try:
            self._connection.check_durable()
            for batch in rows:
                for topic, some in self._by_topic(batch):
                    self._add(self._stage(topic), some)
            for stage in self._stages.values():
                stage.send()
            self._connection.settle()
            for stage in self._stages.values():
                stage.check()
        except StagingFull as error:
            self.drop()
            drop_stages_of_other_runs(self._connection, self._writer)  # for the next attempt
            raise StagingFull(error.what, error.amount, error.limit_name, error.limit, ADVICE) from error
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Drop the staged rows where possible now: the rest is swept later, or expires."""
        try:
            self._connection.settle()
            for stage in self._stages.values():
                self._connection.ask("stage_drop", topic=stage.topic, key=stage.key)
        except (RunnelError, OSError):
            pass  # the earlier error is the one to report

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each topic, in order."""
        if not batch.num_rows:
            return
        if self._topic is not None:
            yield self._topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise InvalidName(None, "a row has no topic, and no option topic says where it goes")
        coded = column.dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], batch
            return
        order = pc.sort_indices(coded.indices)  # stable: rows of one topic stay in order
        sorted_rows, first = batch.take(order), 0
        for at, count in enumerate(pc.value_counts(coded.indices.take(order)).field("counts").to_pylist()):
            yield names[at], sorted_rows.slice(first, count)
            first += count

    def _stage(self, topic: str) -> TopicStage:
        found = self._stages.get(topic)
        if found is None:
            number = len(self._stages)
            if number >= TOPICS:
                raise StagingFull("topics in one task", number + 1, "TOPICS", TOPICS)
            key = StageKey(str(self._writer), self._batch, self._task * TOPICS + number, 0)
            found = self._stages[topic] = TopicStage(self._connection, check_name(topic), key)
        return found

    def _add(self, stage: TopicStage, rows: pa.RecordBatch) -> None:
        before = stage.held
        stage.add(rows)
        self._held += stage.held - before
        while self._held > BUFFER_BYTES:
            largest = max(self._stages.values(), key=lambda one: one.held)
            self._held -= largest.held
            largest.send()


class TopicStage:
    """One stage: rows that wait to become a batch, and how many were sent."""

    def __init__(self, connection: BrokerConnection, topic: str, key: StageKey) -> None:
        self._connection, self.topic, self.key = connection, topic, key
        about = connection.ask("describe", topic=topic) or {}
        options: dict[str, Any] = about.get("options") or {}
        self._compression: str | None = options.get("compression")
        self._compacted = bool(options.get("compact"))
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._headers: list[dict[str, str] | None] = []
        self._has_keys = self._has_headers = False
        self._told: list[PendingCall] = []
        self.records = 0  # that were sent
        self.held = 0  # bytes that were not

    def __repr__(self) -> str:
        return f"<TopicStage of {self.topic!r}, {self.records} records sent, {self.held:,} bytes held>"

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows in, and send full pieces."""
        columns = {name: rows.column(name) for name in rows.schema.names if name != "topic"}
        weight = sum(column.nbytes for column in columns.values())
        step = max(1, BATCH_BYTES * rows.num_rows // max(1, weight))
        for first in range(0, rows.num_rows, step):
            count = min(step, rows.num_rows - first)
            self._take({name: column.slice(first, count) for name, column in columns.items()}, count)
            self.held += weight * count // rows.num_rows
            if self.held >= BATCH_BYTES // 2:
                self.send()

    def send(self) -> None:
        """Send the collected rows, as one batch."""
        self.check()
        if not self._values:
            return
        batch = pack_columns(
            (
                self._values,
                self._keys if self._has_keys else None,
                self._headers if self._has_headers else None,
            ),
            compression=self._compression,
        )
        told = self._connection.tell("stage_write", topic=self.topic, key=self.key, batch=batch, ordinal=self.records)
        self._told.append(told)
        self.records += len(self._values)
        self._values, self._keys, self._headers = [], [], []
        self._has_keys = self._has_headers = False
        self.held = 0

    def check(self) -> None:
        """Raise what the server had against a piece."""
        for question in self._told:
            if question.error is not None:
                raise question.error
        self._told = [question for question in self._told if not question.is_over]

    def _take(self, columns: dict[str, pa.Array], count: int) -> None:
        keys, headers, values = columns.get("key"), columns.get("headers"), columns["value"]
        if values.null_count:
            values = self._tombstones(values, keys)
        self._values += _bytes(values)
        if keys is not None and keys.null_count < count:
            self._has_keys = True
            self._keys += _bytes(keys)
        else:
            self._keys += [None] * count
        if headers is not None and headers.null_count < count:
            self._has_headers = True
            self._headers += self._texts(headers)
        else:
            self._headers += [None] * count

    def _tombstones(self, values: pa.Array, keys: pa.Array | None) -> pa.Array:
        """Values of which some are missing: in a compacted topic, with a key, that deletes the key."""
        bare = values.is_null() if keys is None else pc.and_(values.is_null(), keys.is_null())
        if not self._compacted or pc.any(bare).as_py():
            why = "a row has none; in a compacted topic a row with a key and without a value means that the key is gone"
            raise InvalidValue(self.topic, "value", None, why)
        return pc.fill_null(values, "" if pa.types.is_string(values.type) else b"")

    def _texts(self, headers: pa.MapArray | pa.ListArray) -> list[dict[str, str] | None]:
        """The headers of each row. Made from all names and texts at once: Arrow takes ten times as long row by row."""
        offsets: list[int] = headers.offsets.to_pylist()
        first, count = offsets[0], offsets[-1] - offsets[0]
        if is_list := not isinstance(headers, pa.MapArray):
            names, texts = headers.values.slice(first, count).flatten()
            try:
                texts = texts.cast(pa.string())
            except pa.ArrowInvalid:
                raise InvalidValue(self.topic, "header", b"", "a header is text, and a value is not UTF-8") from None
        else:
            names, texts = headers.keys.slice(first, count), headers.items.slice(first, count)
        if texts.null_count or names.null_count:
            raise InvalidValue(self.topic, "header", None, "a header is text; leave out those that have no value")
        pairs = [*zip(names.to_pylist(), texts.to_pylist(), strict=True)]
        found: list[dict[str, str] | None] = [dict(pairs[at - first : end - first]) for at, end in pairwise(offsets)]
        if is_list and sum(map(len, filter(None, found))) < count:
            why = "a record has one header of a name; put several values into one text"
            raise InvalidValue(self.topic, "header", [], f"a row repeats a name: {why}")
        if headers.null_count:  # the values under nulls are undefined
            found = [one if said else None for one, said in zip(found, headers.is_valid().to_pylist(), strict=True)]
        return found


def _bytes(column: pa.Array) -> list[Any]:
    """A column of bytes or text as bytes. Text is UTF-8 in Arrow already, so nothing is encoded."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[Any] = column.to_pylist()
    return found


# -- Committing on the driver ----------------------------------------------------------------------------
# Only the keys of stages come here, never a row. The marker in the same transaction says which batch of which
# query it was.


class WriterId(NamedTuple):
    """The writer of stages: a query (or a job), and which run of it. Stages of two runs are never mixed up."""

    query: str
    life: str

    def __str__(self) -> str:
        return f"{self.family}{self.life}"

    @property
    def family(self) -> str:
        """The prefix of the names of all lives of the query."""
        return f"{self.mark}:"

    @property
    def mark(self) -> str:
        """Under what the query's last batch is remembered."""
        return f"spark:{self.query}"


def commit_batch(connection: BrokerConnection, writer: WriterId, batch: int, keys: Sequence[StageKey]) -> bool:
    """Make the stages of a query's batch visible; False: they were before, and this is a repetition.

    If a later batch was committed before, `Fenced` is raised: another driver runs this query.
    """
    applied = _transact(connection, keys, [[writer.mark, batch]])
    if not applied:
        there = connection.ask("mark", name=writer.mark)
        if there is not None and there > batch:
            raise Fenced(writer.mark, batch, there)
    drop_stale_stages(connection, writer, batch)
    return applied


def commit_job(
    connection: BrokerConnection, writer: WriterId, keys: Sequence[StageKey], mark: tuple[str, int] | None
) -> bool:
    """Make the stages of a job visible; False: `mark` (its name and value) says that they were before."""
    applied = True
    if keys or mark is not None:
        applied = _transact(connection, keys, [] if mark is None else [[*mark]])
    drop_stale_stages(connection, writer, 0)
    return applied


def drop_stale_stages(connection: BrokerConnection, writer: WriterId, batch: int) -> None:
    """Drop the stages of failed attempts: of this writer up to `batch`, which is over, and of other lives before it.

    Another life may be at this very batch, and detects that it is too late.
    """
    _drop_stages(
        connection,
        lambda name, number: (
            number <= batch if name == str(writer) else name.startswith(writer.family) and number < batch
        ),
    )


def drop_stages_of_other_runs(connection: BrokerConnection, writer: WriterId) -> None:
    """Drop the stages of all other lives of the query: there is no room for two."""
    _drop_stages(connection, lambda name, _: name.startswith(writer.family) and name != str(writer))


def _drop_stages(connection: BrokerConnection, unwanted: Callable[[str, int], bool]) -> None:
    """Drop the stages of such writers and batches, where possible now: the rest expires."""
    try:
        for one in connection.ask("stages"):
            if unwanted(one["writer"], one["batch"]):
                connection.ask("stage_drop", topic=one["topic"], key=_stage_key(one))
    except RunnelError:
        pass  # the caller is done, or has a worse error to raise


def _transact(connection: BrokerConnection, keys: Sequence[StageKey], marks: list[list[Any]]) -> bool:
    """One transaction; whether it was applied. If the connection is lost meanwhile it is repeated."""
    losses, fsync = connection.losses, connection.fsync
    try:
        return bool(connection.ask("transact", commits=list(keys), marks=marks)["applied"])
    except (StageEnded, UnknownStage) as error:
        if connection.losses == losses or marks:  # with a mark, a repetition is not answered with an error
            raise
        if isinstance(error, StageEnded):
            if "commit" not in error.why:
                raise
        elif not fsync == connection.fsync == "commit":
            # The server was started again. If it syncs staged rows before it answers, only the commit can have ended
            # the stage. If it does not, a power failure may have taken the stage, and nothing is committed.
            why = f"it was started again and does not know what was staged; fsync={fsync!r} may lose that"
            raise OutcomeUnknown(why, committing=True) from error
        return True


def _stage_key(one: dict[str, Any]) -> StageKey:
    return StageKey(one["writer"], one["batch"], one["part"], one["attempt"])
