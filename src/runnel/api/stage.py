"""The `Stage` and `MixedStage` handles: write records that stay invisible until a transaction commits them.

A `Stage` is of one topic, a `MixedStage` of many. A long write is cut into pieces of bounded size, each encoded when
its turn comes, so that no writer has the event loop, or a connection, for itself for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from runnel.api.topic import Topic
from runnel.core.backend import StageRun
from runnel.core.columns import Columns
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, TooLarge
from runnel.core.options import NO_TOPIC_OPTIONS, PublishOptions, RecordKeywords, RecordsKeywords, spell_out
from runnel.core.pattern import check_name
from runnel.core.publishing import Append, append_of, append_of_many, headers_of_each
from runnel.core.stages import STAGE_PIECE_BYTES, StageKey, checked_stage_key, stage_name

if TYPE_CHECKING:
    from runnel.core.backend import Backend, MixedStageWriter, StageWriter, Writer
    from runnel.core.publishing import AppendTarget

T = TypeVar("T")
Value = bytes | str  # an alias: inside `Stage`, `bytes` is a property

STEP = 1024  # values looked at in one go
CACHED_WRITERS = 65_536  # of topics that a stage of many topics was given by name
MAX_PIECE_RECORDS = 65_536  # of a piece: many values may be empty


class Stage(Generic[T]):
    """One part of a batch that a writer stages. Made by `broker.stage(...)`; making it does nothing yet.

    It is known by its key. A handle with the same key, in this life of the broker or the next, continues the same
    stage; the first write of a later attempt supersedes it.
    """

    __slots__ = ("_backend", "_stage", "_topic", "key")

    def __init__(self, backend: Backend, topic: Topic[T], key: StageKey) -> None:
        self._backend = backend
        self._topic, self.key = topic, checked_stage_key(key)
        self._stage: StageWriter = backend.stage(topic._writer, self.key)

    def __repr__(self) -> str:
        return f"<Stage {stage_name(self.key)} of {self.topic!r}>"

    @property
    def topic(self) -> str:
        """The topic that its records are for."""
        return self._topic.name

    @property
    def records(self) -> int:
        """The number of durable records in it. May be a round trip to the server."""
        return self._stage.state()[0]

    @property
    def bytes(self) -> int:
        """The number of bytes that they take on disk."""
        return self._stage.state()[1]

    @spell_out(RecordsKeywords, PublishOptions)
    async def write(
        self, values: Sequence[T | Value], *, ordinal: int | None = None, **options: Unpack[RecordsKeywords]
    ) -> int:
        """Stage more records, and return their total. They are on disk when this returns, and not visible.

        A long list is written in short pieces, so that other publishers do not wait for it. If it fails or is
        cancelled in between, the pieces before are staged: `records` says how many.

        `ordinal` says which record of the stage the first of `values` is, counted from 0. Records that are
        staged already are skipped, so a write with an unknown outcome can be repeated unchanged. `headers` are those
        of all records, or a list with those of each. Other options as in `Topic.publish_many`. Writing nothing
        opens the stage, so that it can be committed.
        """
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            found: int = await loop_owner.visit(self.write(values, ordinal=ordinal, **options))
            return found
        self._stage.check_usable("staging")
        return await self._stage.write(StageCut(self._topic._writer, values, options), ordinal)

    async def drop(self) -> None:
        """Discard the stage: its records never become visible, and their space is freed. Harmless if it has ended."""
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            await loop_owner.visit(self.drop())
            return
        self._stage.check_usable("dropping a stage")
        await self._stage.drop()


class MixedStage:
    """Records of many topics that are staged in one order. Made by `broker.stage(...)` without a topic.

    >>> stage = broker.stage(writer="import", batch=7)
    >>> for row in rows:
    ...     stage.publish(f"chat.{row.channel}", row.text)
    >>> await stage.write()
    >>> async with broker.transaction() as tx:
    ...     tx.commit(stage)

    When the transaction is committed, all records are visible at once. Readers of a pattern get them in exactly the
    order in which they were staged, also where the topic changes with every record. Like a `Stage` it is known by its
    key: a handle with the same key continues it.
    """

    __slots__ = ("_backend", "_records", "_runs", "_stage", "_writers", "key")

    def __init__(self, backend: Backend, key: StageKey) -> None:
        self._backend, self.key = backend, checked_stage_key(key)
        self._stage: MixedStageWriter = backend.mixed_stage(self.key)
        self._runs: list[StageRun] = []  # collected, and not written
        self._records = 0
        self._writers: dict[str, Writer] = {}  # by topic name

    def __repr__(self) -> str:
        return f"<MixedStage {stage_name(self.key)}, {self._records} records to be written>"

    @property
    def records(self) -> int:
        """The number of durable records in it. May be a round trip to the server."""
        return self._stage.state()[0]

    @property
    def bytes(self) -> int:
        """The number of bytes that they take on disk."""
        return self._stage.state()[1]

    @property
    def pending(self) -> int:
        """The number of records that were collected since the last `write`."""
        return self._records

    @spell_out(RecordKeywords, PublishOptions)
    def publish(self, topic: str | Topic[T], value: T | Value | None, **options: Unpack[RecordKeywords]) -> None:
        """Collect one record; the next `write` stages it. Options as in `broker.publish`."""
        writer = self._writer(topic)
        self._collect(writer, append_of(writer, value, **options))

    @spell_out(RecordsKeywords, PublishOptions)
    def publish_many(
        self, topic: str | Topic[T], values: Sequence[T | Value], **options: Unpack[RecordsKeywords]
    ) -> None:
        """Collect many records of one topic, side by side; the next `write` stages them."""
        writer = self._writer(topic)
        append = append_of_many(writer, values, **options)
        append.values = tuple(append.values)  # the caller may change its list later
        self._collect(writer, append)

    async def write(self, *, ordinal: int | None = None) -> int:
        """Stage all records that were collected, and return the total. They are on disk then, and not visible.

        If it fails or is cancelled, records may be staged in part: `records` says how many. They are collected no
        more. `ordinal` says which record of the stage the first one is, counted from 0: those that are staged already
        are skipped, so a write with an unknown outcome can be collected and repeated unchanged. Writing nothing opens
        the stage, so that it can be committed.
        """
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            found: int = await loop_owner.visit(self.write(ordinal=ordinal))
            return found
        self._stage.check_usable("staging")
        runs, self._runs, self._records = self._runs, [], 0
        return await self._stage.write(RunsCut(runs), ordinal)

    async def drop(self) -> None:
        """Discard the stage: its records never become visible, and their space is freed. Harmless if it has ended."""
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            await loop_owner.visit(self.drop())
            return
        self._stage.check_usable("dropping a stage")
        await self._stage.drop()

    def _collect(self, writer: Writer, append: Append) -> None:
        self._runs.append(StageRun(writer, append))
        self._records += len(append.values)

    def _writer(self, topic: str | Topic[T]) -> Writer:
        if isinstance(topic, str):
            if (writer := self._writers.get(topic)) is None:
                if len(self._writers) >= CACHED_WRITERS:
                    self._writers.clear()
                writer = self._writers[topic] = self._backend.writer(check_name(topic), None, NO_TOPIC_OPTIONS)
            return writer
        if topic._backend is not self._backend:
            why = "it has a journal of its own, so the two cannot be written in one"
            raise NotSupported(f"staging for {topic.name!r} of another broker", why)
        return topic._writer


class RunsCut:
    """The records of one write to a stage of many topics, from number `at` on, in pieces of about `size` bytes."""

    def __init__(self, runs: Sequence[StageRun]) -> None:
        self.at = 0
        self.size = STAGE_PIECE_BYTES
        self._runs = runs

    def allowed(self, check: Callable[[StageRun], StageRun]) -> RunsCut:
        """The same records, each run as `check` returns it; it raises for invalid records."""
        return RunsCut([check(run) for run in self._runs])

    def __iter__(self) -> Iterator[list[StageRun]]:
        piece: list[StageRun] = []
        size = records = passed = 0
        for run in self._runs:
            for one in self._parts_of(run, passed):
                weight = one.append.size + one.append.extra
                if piece and (size + weight > self.size or records + len(one.append.values) > MAX_PIECE_RECORDS):
                    self.at += records
                    yield piece
                    piece, size, records = [], 0, 0
                piece.append(one)
                size, records = size + weight, records + len(one.append.values)
            passed += len(run.append.values)
        if piece:
            self.at += records
            yield piece

    def _parts_of(self, run: StageRun, passed: int) -> Iterator[StageRun]:
        """The unstaged part of a run whose first `passed` records are staged; cut if it is too large for one piece."""
        append = run.append
        count, skipped = len(append.values), max(0, self.at - passed)
        weight = append.size + append.extra
        if not skipped and weight <= self.size and count <= MAX_PIECE_RECORDS:
            yield run
            return
        step = max(1, min(MAX_PIECE_RECORDS, self.size * count // max(1, weight)))
        for first in range(skipped, count, step):
            values = append.values[first : first + step]
            columns = None if append.columns is None else append.columns.part(first, first + step)
            extra = 0 if columns is None else columns.weight
            yield StageRun(run.writer, Append(values, columns, sum(map(len, values)), None, append.checked, extra))


class StageCut:
    """The values of one write from number `at` on, as appends of about `size` bytes at most."""

    def __init__(self, target: AppendTarget, values: Sequence[object], options: RecordsKeywords) -> None:
        if isinstance(values, Value | bytearray | memoryview) or not isinstance(values, Sequence):
            why = "a stage takes a sequence; put one value in a list"
            raise InvalidValue(target.topic, "list of values", values, why)
        keys, headers = options.get("keys"), options.get("headers")
        if keys is not None and len(keys) != len(values):
            raise InvalidOption("keys", len(keys), f"there are {len(values)} values; give a key or None for each")
        if isinstance(headers, list | tuple):
            headers_of_each(headers, len(values))
        self.at = 0
        self.size = STAGE_PIECE_BYTES
        self._target, self._values = target, values
        self._options, self._keys, self._headers = options, keys, headers

    def __iter__(self) -> Iterator[Append]:
        piece = Piece(self._target)
        for some in self._steps():
            if piece.values and not piece.takes(some, self.size):
                yield piece.append()
                piece = Piece(self._target)
            piece.add(some)
        if piece.values:
            yield piece.append()

    def _steps(self) -> Iterator[Append]:
        """Some values at a time, few enough for a piece: as many as the last ones suggest."""
        step = 1
        while self.at < len(self._values):
            some = self._some(step)
            count, weight = len(some.values), some.size + some.extra
            if weight > self.size and count > 1:
                step = 1  # larger values than before
                continue
            self.at += count
            fitting = self.size * count // (2 * max(1, weight))
            step = max(1, min(STEP, 4 * count, fitting))
            yield some

    def _some(self, count: int) -> Append:
        end, options = self.at + count, self._options.copy()
        if self._keys is not None:
            options["keys"] = self._keys[self.at : end]
        if isinstance(self._headers, list | tuple):
            options["headers"] = self._headers[self.at : end]
        try:
            return append_of_many(self._target, self._values[self.at : end], **options)
        except TooLarge:
            if count == 1:
                raise
            return self._some(1)  # together they are; perhaps none of them alone


class Piece:
    """Values that are staged together."""

    __slots__ = ("_checked", "_columns", "_extra", "_size", "values")

    def __init__(self, target: AppendTarget) -> None:
        self.values: list[bytes] = []
        self._columns: Columns | None = None
        self._size = self._extra = 0
        self._checked = target.codec is not None

    def takes(self, some: Append, size: int) -> bool:
        """Whether it stays below `size` bytes with `some`."""
        weight = self._size + self._extra + some.size + some.extra
        return weight <= size and len(self.values) + len(some.values) <= MAX_PIECE_RECORDS

    def add(self, some: Append) -> None:
        """Take `some` in."""
        if some.columns is not None:
            if self._columns is None:
                self._columns = Columns()
            self._columns.extend(len(self.values), some.columns)
        self.values.extend(some.values)
        self._size += some.size
        self._extra += some.extra

    def append(self) -> Append:
        """The number of records staged so far."""
        return Append(self.values, self._columns, self._size, None, self._checked, self._extra)
