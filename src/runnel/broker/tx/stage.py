"""The `Stage` handle: write records that stay invisible until a transaction commits them.

A long write is cut into batches of bounded size, encoded a few values at a time, so that the loop never belongs to one
writer for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.broker.durable.staging import OpenStage, PendingStageBatch
from runnel.broker.topic.pending_batch import PendingBatch, PendingBytes
from runnel.broker.topic.readers import Append
from runnel.core.batch_format import UnpackedBatch, pack_columns
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, TooLarge
from runnel.core.publishing import headers_of_each
from runnel.core.stages import StageInfo, StageKey, checked_stage_key, stage_name

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend
    from runnel.broker.durable.staging import StagingArea
    from runnel.broker.topic.log import Log
    from runnel.broker.topic_handle import Topic
    from runnel.core.publishing import Headers, Seconds
    from runnel.core.schema import Codec


STAGE_BATCH_BYTES = 1024 * 1024  # bytes of values in a batch; a larger value is a batch of its own
SMALL_STAGE_BATCH_BYTES = 256 * 1024  # the same while others write, who share a commit with it
STEP = 1024  # values looked at in one go


class StageWrite:
    """The values of one write from number `at` on, as batches ready to be packed."""

    def __init__(
        self,
        backend: LocalBackend,
        log: Log,
        codec: Codec[Any] | None,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Headers | None,
        delay: Seconds | None,
        expires: Seconds | None,
        priority: int,
    ) -> None:
        if isinstance(values, bytes | bytearray | memoryview | str) or not isinstance(values, Sequence):
            raise InvalidValue(log.name, "list of values", values, "a stage takes a sequence; put one value in a list")
        if keys is not None and len(keys) != len(values):
            raise InvalidOption("keys", len(keys), f"there are {len(values)} values; give a key or None for each")
        if isinstance(headers, list | tuple):
            headers_of_each(headers, len(values))
        self.at = 0
        self.piece = STAGE_BATCH_BYTES  # may change on the way
        self._backend, self._log, self._codec = backend, log, codec
        self._values, self._keys, self._headers = values, keys, headers
        self._rest = (delay, expires, priority)

    def __iter__(self) -> Iterator[PendingBatch]:
        batch = self._batch()
        for entry in self._entries():
            if batch.count and batch.weight + entry.size + entry.extra > self.piece:
                yield batch
                batch = self._batch()
            batch.add(entry)
        if batch.count:
            yield batch

    def _batch(self) -> PendingBatch:
        assert self._backend.loop_owner.loop is not None, "whoever writes is on the broker's loop"
        return PendingBatch(self._log, 0, PendingBytes(0, self._backend.loop_owner.loop))

    def _entries(self) -> Iterator[Append]:
        """Some values at a time, few enough for a batch: as many as the last ones suggest."""
        step = 1
        while self.at < len(self._values):
            entry = self._some(step)
            weight = entry.size + entry.extra
            if weight > self.piece and len(entry.values) > 1:
                step = 1  # larger values than before
                continue
            self.at += len(entry.values)
            fitting = self.piece * len(entry.values) // (2 * max(1, weight))
            step = max(1, min(STEP, 4 * len(entry.values), fitting))
            yield entry

    def _some(self, count: int) -> Append:
        publisher, end = self._backend.publisher, self.at + count
        keys = None if self._keys is None else self._keys[self.at : end]
        headers = self._headers[self.at : end] if isinstance(self._headers, list | tuple) else self._headers
        try:
            entry = publisher.many(self._log.name, self._codec, self._values[self.at : end], keys, headers, *self._rest)
        except TooLarge:
            if count == 1:
                raise
            return self._some(1)  # together they are; perhaps none of them alone
        publisher.check_type(self._log, entry)
        return entry


# -- Packed batches from a connection --------------------------------------------------------------------
# Written in the bytes that they came in, or cut by columns where that is too much at once.


class PackedStageBatch:
    """A packed batch, and how many records it has."""

    __slots__ = ("_body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self._body, self.count = body, count

    def pack(self) -> bytes:
        """It is packed."""
        return self._body


class PackedStageWrite:
    """The records of a batch from number `at` on, as batches of about `piece` bytes at most."""

    def __init__(self, data: bytes, batch: UnpackedBatch) -> None:
        self.at = 0
        self.piece = STAGE_BATCH_BYTES  # may change on the way
        self._data, self._batch = data, batch

    def __iter__(self) -> Iterator[PackedStageBatch]:
        count = len(self._batch)
        while self.at < count:
            if not self.at and len(self._data) <= self.piece:
                self.at = count
                yield PackedStageBatch(self._data, count)
            else:
                some = max(1, self.piece * count // max(1, self._batch.header.raw_length))
                first, self.at = self.at, min(self.at + some, count)
                yield self._cut(first, self.at)

    def _cut(self, first: int, end: int) -> PackedStageBatch:
        if first == 0 and end == len(self._batch):
            return PackedStageBatch(self._data, end)
        batch, header = self._batch, self._batch.header
        columns = (batch.values, batch.keys, batch.headers, None, batch.due, batch.expires, batch.priorities)
        body = pack_columns(
            [None if column is None else column[first:end] for column in columns],
            compression=header.compression,
            content_type=header.content_type,
        )
        return PackedStageBatch(body, end - first)


# -- The handle ------------------------------------------------------------------------------------------


T = TypeVar("T")
Packed = bytes
Value = bytes | str  # said here: in `Stage`, `bytes` is how many there are

REST = 0.001  # seconds after each piece while others write: the disk, and the loop, are theirs too


class Stage(Generic[T]):
    """One part of a batch that a writer stages. Made by `broker.stage(...)`; making it does nothing yet.

    It is known by its key. Whoever names the same key, in this life of the broker or the next, goes on with
    the same stage; whoever names a later attempt takes its place.
    """

    __slots__ = ("_backend", "_stage", "_topic", "key")

    def __init__(self, backend: LocalBackend, topic: Topic[T], key: StageKey) -> None:
        self._backend, self._topic, self.key = backend, topic, checked_stage_key(key)
        self._stage: OpenStage | None = None

    def __repr__(self) -> str:
        return f"<Stage {stage_name(self.key)} of {self.topic!r}>"

    @property
    def topic(self) -> str:
        """The topic that its records are for."""
        return self._topic.name

    @property
    def records(self) -> int:
        """How many records are in it, durable."""
        return 0 if (found := self._known()) is None else found.records

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return 0 if (found := self._known()) is None else found.state.bytes

    async def write(
        self,
        values: Sequence[T | Value],
        *,
        keys: Sequence[Value | None] | None = None,
        headers: Headers | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        ordinal: int | None = None,
    ) -> int:
        """Stage more records; how many there are now. They are on disk when this returns, and nobody sees them.

        However long `values` is, it goes out in short pieces, so that nobody else waits for it. If it fails or is
        cancelled half way, the pieces before are staged: `records` says how far it came.

        `ordinal` says which record of the stage the first of `values` is, counted from 0. Those that are staged
        already are passed over, so a write whose outcome is unknown can be repeated as it was. `headers` are those of
        every record, or a list of those of each. Other options as in `Topic.publish_many`. Writing nothing opens the
        stage, so that it can be committed.
        """
        backend = self._backend
        if not backend.loop_owner.is_here():
            again = self.write(
                values, keys=keys, headers=headers, delay=delay, expires=expires, priority=priority, ordinal=ordinal
            )
            return await backend.loop_owner.visit(again)
        backend.loop_owner.check_usable("staging")
        staging, log = self._staging(), self._topic._resolve()
        cut = StageWrite(backend, log, self._topic._codec, values, keys, headers, delay, expires, priority)
        return await self._put(staging, log, cut, ordinal)

    async def _take(self, data: Packed, batch: UnpackedBatch, ordinal: int | None = None) -> int:
        """Stage a batch from afar that was looked at already, in the bytes that it came in; how many records there are.

        On the broker's own loop. `ordinal` as in `write`.
        """
        backend = self._backend
        backend.loop_owner.check_usable("staging")
        staging, log = self._staging(), self._topic._resolve()
        backend.publisher.check_type(log, Append(batch.values, None, 0))
        return await self._put(staging, log, PackedStageWrite(data, batch), ordinal)

    async def _put(
        self, staging: StagingArea, log: Log, pieces: StageWrite | PackedStageWrite, ordinal: int | None
    ) -> int:
        while True:
            stage = self._opened(staging, log)
            async with stage.turn:
                if stage.ended is None and staging.find(self.key) is not stage:
                    continue  # whoever was to open it has failed while this one waited
                try:
                    await stage.settled()
                    stage.check()
                    pieces.at = 0 if ordinal is None else self._passed(stage, ordinal)
                    await _write(staging, stage, pieces, self._backend)
                finally:
                    staging.give_up(stage)
                return stage.records

    async def drop(self) -> None:
        """Give it up: its records are never seen, and their space comes back. A stage that is over is left alone."""
        backend = self._backend
        if not backend.loop_owner.is_here():
            await backend.loop_owner.visit(self.drop())
            return
        backend.loop_owner.check_usable("dropping a stage")
        await self._staging().drop(self.key)

    def _known(self) -> OpenStage | None:
        if self._stage is None and self._backend.store is not None:
            self._stage = self._backend.store.staging.find(self.key)
        return self._stage

    def _staging(self) -> StagingArea:
        return staging_of(self._backend)

    def _opened(self, staging: StagingArea, log: Log) -> OpenStage:
        if log.stored is None:
            raise NotSupported(f"staging for {log.name!r}", "the topic is kept in memory only (durable=False)")
        stage = self._known()
        if stage is None or not (stage.announced or stage.ended or staging.find(self.key) is stage):
            stage = self._stage = staging.opened(self.key, log)
        if stage.log is not log and stage.ended is None:
            other = f"the stage {stage_name(self.key)} is of {stage.log.name!r}; use another part for another topic"
            raise InvalidOption("topic", log.name, other)
        return stage

    def _passed(self, stage: OpenStage, ordinal: int) -> int:
        """How many values of a write that begins at `ordinal` are staged already."""
        records = stage.records
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or not 0 <= ordinal <= records:
            why = f"the stage {stage_name(self.key)} holds {records} records: the next is {records}"
            raise InvalidOption("ordinal", ordinal, why)
        return records - ordinal


async def _write(
    staging: StagingArea, stage: OpenStage, cut: StageWrite | PackedStageWrite, backend: LocalBackend
) -> None:
    """Hand over one piece after the other, as the window has room, and wait until the last one landed."""
    flights: deque[PendingStageBatch] = deque()
    assert backend.store is not None
    window = backend.store.commits.staged
    cut.piece = STAGE_BATCH_BYTES if window.limit > 1 else SMALL_STAGE_BATCH_BYTES
    for batch in cut:
        if not window.has_room():
            await window.room()
        body = batch.pack()
        cut.piece = STAGE_BATCH_BYTES if window.limit > 1 else SMALL_STAGE_BATCH_BYTES  # for the next one
        _check_landed(flights)  # nothing may come behind a piece that did not
        flights.append(staging.put(stage, body, batch.count))
        # A commit takes what there is at the end of a turn: so pieces come one by one, and beside others with a rest.
        await asyncio.sleep(0 if window.limit > 1 else REST)
    _check_landed(flights)
    if not stage.announced:
        flights.append(staging.put(stage, b"", 0))
    await stage.settled()
    _check_landed(flights)
    stage.check()


def _check_landed(flights: deque[PendingStageBatch]) -> None:
    """Raise what kept a piece from landing; forget those that did."""
    while flights and flights[0].done.done():
        if (error := flights.popleft().error) is not None:
            raise error


def staging_of(backend: LocalBackend) -> StagingArea:
    """The stages of a broker, if it can have any."""
    if backend.store is None:
        raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
    return backend.store.staging


def stage_infos(backend: LocalBackend) -> list[StageInfo]:
    """Every stage that is open, by its key."""
    now = backend.clock.time()
    found = [stage for stage in staging_of(backend) if stage.announced]
    return [
        StageInfo(
            stage.state.id,
            *stage.key,
            stage.log.name,
            stage.records,
            stage.state.bytes,
            max(0.0, now - stage.state.time / 1e6),
        )
        for stage in sorted(found, key=lambda one: one.key)
    ]
