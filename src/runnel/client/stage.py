"""Write to a stage of a server: records that are durable there, and invisible until a transaction commits them.

Each piece of a write is a call. It says which record of the stage it starts with, so a piece whose answer was lost is
sent again and stored once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from runnel.client.writer import RemoteWriter
from runnel.core.backend import StagePieces, StageRun, StageRuns
from runnel.core.batch_format import UnpackedBatch
from runnel.core.columns import Columns
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.publishing import Append
from runnel.core.stages import StageKey, stage_name, values_staged

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

_turns: WeakKeyDictionary[ServerLink, WeakValueDictionary[StageKey, asyncio.Lock]] = WeakKeyDictionary()

_NOTHING = Append((), None, 0)


class _RemoteStage:
    """The common part of writers of a stage on a server, of one topic or of many."""

    __slots__ = ("_held", "_key", "_link")

    def __init__(self, link: ServerLink, key: StageKey) -> None:
        self._link, self._key = link, key
        self._held: tuple[int, int] | None = None  # records and bytes, if known in this process

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {stage_name(self._key)}>"

    def state(self) -> tuple[int, int]:
        """The number of records and bytes in it. If not known here, a round trip that blocks the thread."""
        if self._held is None:
            if not self._link.welcome.durable:
                return 0, 0
            found = self._link.ask("stage_state", self._named())
            self._held = found["records"], found["bytes"]
        return self._held

    async def read_state(self) -> tuple[int, int]:
        """The number of records and bytes in it, according to the server."""
        if not self._link.welcome.durable:
            return 0, 0
        return await self._call("stage_state", self._named())

    def check_usable(self, doing: str) -> None:
        """Raise unless the backend supports stages and is open."""
        self._link.loop_owner.check_usable(doing)
        if not self._link.welcome.durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")

    async def drop(self) -> None:
        """Discard the stage."""
        await self._ask("stage_drop", self._named())

    def _named(self) -> dict[str, Any]:
        return {"topic": None, "key": self._key}

    async def _ask(self, method: str, said: dict[str, Any]) -> Any:
        return await self._link.call(method, said)

    async def _call(self, method: str, said: dict[str, Any]) -> tuple[int, int]:
        """A call that answers with the records and bytes that the stage holds then."""
        self._held = None
        found = await self._ask(method, said)
        self._held = held = found["records"], found["bytes"]
        return held

    def _turn(self) -> asyncio.Lock:
        """One write at a time to one stage, over all its handles: the second continues after the first."""
        turns = _turns.setdefault(self._link, WeakValueDictionary())
        turn = turns.get(self._key)
        if turn is None:
            turn = turns[self._key] = asyncio.Lock()
        return turn


class RemoteStageWriter(_RemoteStage):
    """The `StageWriter` of one stage."""

    __slots__ = ("_writer",)

    def __init__(self, link: ServerLink, writer: RemoteWriter, key: StageKey) -> None:
        super().__init__(link, key)
        self._writer = writer

    async def write(self, pieces: StagePieces, ordinal: int | None) -> int:
        """Stage records piece by piece; return their total."""
        async with self._turn():
            there = at = (await self._call("stage_state", self._named()))[0]
            pieces.at = 0 if ordinal is None else values_staged(self._key, ordinal, there)
            for piece in pieces:
                await self._put(self._writer.pack(piece), at)
                at += len(piece.values)
            if at == there:
                await self._put(None, at)  # opens it, or raises why it has ended
            return self.state()[0]

    async def write_packed(self, data: bytes, batch: UnpackedBatch, ordinal: int | None, *, typed: bool) -> int:
        """Stage a batch unchanged. The server holds it against the type of the topic."""
        self.check_usable("staging")
        async with self._turn():
            return await self._put(data, ordinal)

    def _named(self) -> dict[str, Any]:
        return {"topic": self._writer.topic, "key": self._key}

    async def _put(self, batch: bytes | None, ordinal: int | None) -> int:
        """Stage one piece, or open the stage; return how many records it holds."""
        details = self._writer.details(_NOTHING)
        said = {**self._named(), "batch": batch, "ordinal": ordinal}
        return (await self._call("stage_write", {**said, "options": details.options, "schema": details.schema}))[0]


# -- Stages of many topics -------------------------------------------------------------------------------


class RemoteMixedStageWriter(_RemoteStage):
    """The `MixedStageWriter` of one stage of many topics: each piece of a write is a call."""

    __slots__ = ()

    async def write(self, pieces: StageRuns, ordinal: int | None) -> int:
        """Stage records piece by piece; return their total."""
        async with self._turn():
            there = at = (await self.read_state())[0]
            pieces.at = 0 if ordinal is None else values_staged(self._key, ordinal, there)
            for piece in pieces:
                await self._put(piece, at)
                at += sum(len(run.append.values) for run in piece)
            if at == there:
                await self._put([], at)  # opens it, or raises why it has ended
            return self.state()[0]

    async def _ask(self, method: str, said: dict[str, Any]) -> Any:
        try:
            return await self._link.call(method, said)
        except InvalidOption as error:
            if error.option not in ("method", method):  # how earlier servers answer
                raise
            why = "the server is of an earlier version; give each topic a stage of its own"
            raise NotSupported("a stage of many topics", why) from None

    async def _put(self, piece: list[StageRun], ordinal: int) -> None:
        """Stage one piece, or open the stage: a batch for each topic, and which records of the piece are in it."""
        batches: dict[int, tuple[RemoteWriter, Columns, list[bytes], list[int]]] = {}  # by writer
        number = 0
        for writer, append in piece:
            batch = batches.get(id(writer))
            if batch is None:
                batch = batches[id(writer)] = (writer, Columns(), [], [])
            _, columns, values, numbers = batch
            if append.columns is not None:
                columns.extend(len(values), append.columns)
            values += append.values
            numbers += (number, len(append.values))
            number += len(append.values)
        topics = []
        for writer, columns, values, numbers in batches.values():
            details = writer.details(_NOTHING)
            packed = writer.pack(Append(values, columns or None, 0))
            topics.append([writer.topic, packed, numbers, details.options, details.schema])
        await self._call("stage_block", {"key": self._key, "topics": topics, "ordinal": ordinal})
