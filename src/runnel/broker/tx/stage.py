"""Write to a stage of this process: records that are durable and invisible until a transaction commits them.

A long write comes in pieces. They are handed over through a window of their own, and rest beside other publishers, so
that the commits of those stay short.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from runnel.broker.durable.staging import AnyStage, OpenBlockStage, OpenStage, PendingStageBatch, StagingArea
from runnel.broker.parts import BrokerParts
from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import PendingBatch, PendingBytes
from runnel.broker.writer import LocalWriter
from runnel.core.backend import StagePieces, StageRun, StageRuns
from runnel.core.batch_format import UnpackedBatch, pack_columns
from runnel.core.errors import InvalidOption, NotSupported, StageEnded, StagingFull
from runnel.core.publishing import append_of_batch
from runnel.core.stages import STAGE_PIECE_BYTES, StageInfo, StageKey, stage_name, values_staged
from runnel.journal.format import staged_block
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.staged_block import TopicRuns

S = TypeVar("S", bound=AnyStage)

SMALL_PIECE_BYTES = 256 * 1024  # of a piece while there are other publishers, which share its commit
REST = 0.001  # seconds of pause after each piece while there are other publishers


class PackedPiece(Protocol):
    """Some records of a stage that are written in one batch."""

    @property
    def count(self) -> int:
        """How many records."""

    def pack(self) -> bytes:
        """The batch."""


class Cut(Protocol):
    """The records of one call: `at` is the first one to stage, `size` about the bytes of a piece."""

    at: int
    size: int


class _LocalStage:
    """The common part of writers of a stage, of one topic or of many. The first write opens the stage."""

    __slots__ = ("_key", "_parts", "_stage")

    def __init__(self, parts: BrokerParts, key: StageKey) -> None:
        self._parts, self._key = parts, key
        self._stage: AnyStage | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {stage_name(self._key)}>"

    def state(self) -> tuple[int, int]:
        """The number of durable records and bytes in it."""
        found = self._known()
        return (0, 0) if found is None else (found.records, found.state.bytes)

    async def read_state(self) -> tuple[int, int]:
        """The same."""
        return self.state()

    def check_usable(self, doing: str) -> None:
        """Raise unless the backend supports stages and is open."""
        self._parts.loop_owner.check_usable(doing)
        staging_of(self._parts)

    async def drop(self) -> None:
        """Discard the stage."""
        await staging_of(self._parts).drop(self._key)

    async def _put(
        self,
        opened: Callable[[StagingArea], S],
        cut: Cut,
        pieces: Callable[[S], Iterator[PackedPiece]],
        ordinal: int | None,
    ) -> int:
        """Write all pieces to the stage that `opened` finds or opens; return how many records it holds."""
        staging = staging_of(self._parts)
        while True:
            stage = opened(staging)
            async with stage.turn:
                if stage.ended is None and staging.find(self._key) is not stage:
                    continue  # the write that was to open it has failed while this one waited
                try:
                    await stage.settled()
                    stage.check()
                    cut.at = 0 if ordinal is None else values_staged(self._key, ordinal, stage.records)
                    await _write(staging, stage, cut, pieces(stage))
                finally:
                    staging.give_up(stage)
                return stage.records

    def _known(self) -> AnyStage | None:
        if self._stage is None and self._parts.store is not None:
            self._stage = self._parts.store.staging.find(self._key)
        return self._stage

    def _found(self, staging: StagingArea, log: Log | None) -> AnyStage:
        """The stage of this key; a new one of `log`, or of many topics, if there is none."""
        stage = self._known()
        if stage is None or not (stage.announced or stage.ended or staging.find(self._key) is stage):
            stage = self._stage = staging.opened(self._key, log)
        return stage


class LocalStageWriter(_LocalStage):
    """The `StageWriter` of one stage."""

    __slots__ = ("_writer",)

    def __init__(self, parts: BrokerParts, writer: LocalWriter, key: StageKey) -> None:
        super().__init__(parts, key)
        self._writer = writer

    async def write(self, pieces: StagePieces, ordinal: int | None) -> int:
        """Stage records piece by piece; return their total."""
        log = self._writer.resolve()
        return await self._put(self._opener(log), pieces, lambda _: self._batches(log, pieces), ordinal)

    async def write_packed(self, data: bytes, batch: UnpackedBatch, ordinal: int | None, *, typed: bool) -> int:
        """Stage a checked batch in the bytes in which it arrived, or cut by columns if it is too large."""
        self.check_usable("staging")
        log = self._writer.resolve()
        if not typed:
            self._parts.publisher.check_type(log, append_of_batch(log.name, data, batch, None))
        pieces = BatchPieces(data, batch)
        return await self._put(self._opener(log), pieces, lambda _: iter(pieces), ordinal)

    def _batches(self, log: Log, pieces: StagePieces) -> Iterator[PendingBatch]:
        """Values as batches that can be packed, each checked against the type of the topic when its turn comes."""
        loop = self._parts.loop_owner.loop
        assert loop is not None, "writers are on the broker's loop"
        for append in pieces:
            self._parts.publisher.check_type(log, append)
            batch = PendingBatch(log, 0, PendingBytes(0, loop))
            batch.add(append)
            yield batch

    def _opener(self, log: Log) -> Callable[[StagingArea], OpenStage]:
        def opened(staging: StagingArea) -> OpenStage:
            stage = self._found(staging, _durable(log))
            if isinstance(stage, OpenStage) and (stage.log is log or stage.ended is not None):
                return stage
            other = f"the stage {stage_name(self._key)} is of {stage.topic!r}; use another part for another topic"
            raise InvalidOption("topic", log.name, other)

        return opened


async def _write(staging: StagingArea, stage: AnyStage, cut: Cut, pieces: Iterator[PackedPiece]) -> None:
    """Hand over one piece after the other, as the window has room, and wait until the last one landed."""
    flights: deque[PendingStageBatch] = deque()
    window = staging.commits.staged
    cut.size = STAGE_PIECE_BYTES if window.limit > 1 else SMALL_PIECE_BYTES
    for piece in pieces:
        if not window.has_room():
            await window.room()
        body = piece.pack()
        cut.size = STAGE_PIECE_BYTES if window.limit > 1 else SMALL_PIECE_BYTES  # for the next one
        _check_landed(flights)  # nothing may come behind a piece that did not
        flights.append(staging.put(stage, body, piece.count))
        # A commit takes what there is at the end of a turn: so pieces come one by one, and beside others with a rest.
        await asyncio.sleep(0 if window.limit > 1 else REST)
    _check_landed(flights)
    if not stage.announced:
        flights.append(staging.put(stage, b"", 0))
    await stage.settled()
    _check_landed(flights)
    stage.check()


def _check_landed(flights: deque[PendingStageBatch]) -> None:
    """Raise the error of a piece that failed; forget those that landed."""
    while flights and flights[0].done.done():
        if (error := flights.popleft().error) is not None:
            raise error


# -- Stages of many topics -------------------------------------------------------------------------------

MAX_TOPICS = 16_384  # of one stage: the journal remembers each of them while the topic keeps the records


class LocalMixedStageWriter(_LocalStage):
    """The `MixedStageWriter` of one stage of many topics."""

    __slots__ = ()

    async def write(self, pieces: StageRuns, ordinal: int | None) -> int:
        """Stage records block by block; return their total."""
        return await self._put(
            self._opened, pieces, lambda stage: (StageBlock(self._parts, stage, runs) for runs in pieces), ordinal
        )

    def _opened(self, staging: StagingArea) -> OpenBlockStage:
        stage = self._found(staging, None)
        if not isinstance(stage, OpenBlockStage):
            why = f"the stage {stage_name(self._key)} is of {stage.topic!r}; use another part for many topics"
            raise InvalidOption("topic", None, why)
        return stage


class StageBlock:
    """Records of many topics that are staged together, each checked against the type of its topic."""

    def __init__(self, parts: BrokerParts, stage: OpenBlockStage, runs: list[StageRun]) -> None:
        loop = parts.loop_owner.loop
        assert loop is not None, "writers are on the broker's loop"
        self._stage, self.count = stage, 0
        self._batches: dict[Log, PendingBatch] = {}
        self._runs: dict[Log, list[tuple[int, int]]] = {}  # number in the block, and how many
        logs: dict[int, Log] = {}  # by writer: to resolve it looks at the options each time
        nowhere = PendingBytes(0, loop)
        for writer, append in runs:
            log = logs.get(id(writer))
            if log is None:
                log = logs[id(writer)] = _durable(writer.resolve())
            parts.publisher.check_type(log, append)
            batch = self._batches.get(log)
            if batch is None:
                batch = self._batches[log] = PendingBatch(log, 0, nowhere)
                self._runs[log] = []
            batch.add(append)
            self._runs[log].append((self.count, len(append.values)))
            self.count += len(append.values)

    def pack(self) -> bytes:
        """The block, behind all that is staged and on its way."""
        stage = self._stage
        self._admit(stage)
        first = stage.following
        contents: list[TopicRuns] = []
        for log, batch in self._batches.items():
            assert log.stored is not None, "only a durable topic has stages"
            offset = stage.records_of(log.stored.id)
            runs: list[RecordRun] = []
            for number, count in self._runs[log]:
                if runs and runs[-1].sequence + runs[-1].count == first + number:
                    runs[-1] = runs[-1]._replace(count=runs[-1].count + count)
                else:
                    runs.append(RecordRun(offset, first + number, 0, count))
                offset += count
            contents.append(TopicRuns(log.stored.id, runs, batch.pack()))
        return staged_block.encode(first, contents)

    def _admit(self, stage: OpenBlockStage) -> None:
        """Note the topics, and which of them have no type yet."""
        for log in self._batches:
            if log.deleted:
                raise StageEnded(stage_name(stage.key), f"the topic {log.name!r} was deleted meanwhile")
            assert log.stored is not None, "only a durable topic has stages"
            if log.stored.id not in stage.logs and len(stage.logs) >= MAX_TOPICS:
                raise StagingFull("topics of one stage", len(stage.logs) + 1, "MAX_TOPICS", MAX_TOPICS)
            stage.logs[log.stored.id] = log
            if log.type is None:
                stage.unchecked.add(log.stored.id)


def _durable(log: Log) -> Log:
    if log.stored is None:
        raise NotSupported(f"staging for {log.name!r}", "the topic is kept in memory only (durable=False)")
    return log


# -- Packed batches from a connection --------------------------------------------------------------------


class PackedBatch:
    """A packed batch, and how many records it has."""

    __slots__ = ("_body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self._body, self.count = body, count

    def pack(self) -> bytes:
        """It is packed."""
        return self._body


class BatchPieces:
    """The records of a packed batch from number `at` on, as batches of about `size` bytes at most."""

    def __init__(self, data: bytes, batch: UnpackedBatch) -> None:
        self.at = 0
        self.size = STAGE_PIECE_BYTES
        self._data, self._batch = data, batch

    def __iter__(self) -> Iterator[PackedBatch]:
        count = len(self._batch)
        while self.at < count:
            if not self.at and len(self._data) <= self.size:
                self.at = count
                yield PackedBatch(self._data, count)
            else:
                some = max(1, self.size * count // max(1, self._batch.header.raw_length))
                first, self.at = self.at, min(self.at + some, count)
                yield self._cut(first, self.at)

    def _cut(self, first: int, end: int) -> PackedBatch:
        if first == 0 and end == len(self._batch):
            return PackedBatch(self._data, end)
        batch, header = self._batch, self._batch.header
        columns = (batch.values, batch.keys, batch.headers, None, batch.due, batch.expires, batch.priorities)
        body = pack_columns(
            [None if column is None else column[first:end] for column in columns],
            compression=header.compression,
            content_type=header.content_type,
        )
        return PackedBatch(body, end - first)


# -- All stages ------------------------------------------------------------------------------------------


def staging_of(parts: BrokerParts) -> StagingArea:
    """The stages of a broker; `NotSupported` in memory."""
    if parts.store is None:
        raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
    return parts.store.staging


def stage_infos(parts: BrokerParts) -> list[StageInfo]:
    """The open stages, sorted by key."""
    now = parts.clock.time()
    found = [stage for stage in staging_of(parts) if stage.announced]
    return [
        StageInfo(
            stage.state.id,
            *stage.key,
            stage.topic,
            stage.records,
            stage.state.bytes,
            max(0.0, now - stage.state.time / 1e6),
        )
        for stage in sorted(found, key=lambda one: one.key)
    ]
