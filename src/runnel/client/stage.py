"""A handle on one stage: records that are durable on the server and invisible until a transaction commits them.

A long write is sent in chunks of about 1 MB. Each chunk says which record of the stage it starts with, so a chunk whose
answer was lost is sent again and stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from runnel.client import publishing
from runnel.client.publishing import PreparedPublish
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, TooLarge
from runnel.core.publishing import Headers, Seconds, headers_of_each
from runnel.core.stages import StageKey, checked_stage_key, stage_name

if TYPE_CHECKING:
    from runnel.client.broker import RemoteBroker
    from runnel.client.server_link import ServerLink
    from runnel.client.topic import RemoteTopic

T = TypeVar("T")
Value = bytes | str  # said here: in `RemoteStage`, `bytes` is how many there are

PIECE = 1024 * 1024  # bytes of values in a piece; a larger value is a piece of its own
STEP = 65_536  # values in a piece

_turns: WeakKeyDictionary[ServerLink, WeakValueDictionary[StageKey, asyncio.Lock]] = WeakKeyDictionary()


class RemoteStage(Generic[T]):
    """One part of a batch that a writer stages. Made by `broker.stage(...)`; making it does nothing yet.

    It is known by its key. Whoever names the same key, in this life of the broker or the next, goes on with
    the same stage; whoever names a later attempt takes its place.
    """

    __slots__ = ("_broker", "_held", "_topic", "key")

    def __init__(self, broker: RemoteBroker, topic: RemoteTopic[T], key: StageKey) -> None:
        self._broker, self._topic, self.key = broker, topic, checked_stage_key(key)
        self._held: tuple[int, int] | None = None  # records and bytes, as far as this handle was told

    def __repr__(self) -> str:
        return f"<Stage {stage_name(self.key)} of {self.topic!r}>"

    @property
    def topic(self) -> str:
        """The topic that its records are for."""
        return self._topic.name

    @property
    def records(self) -> int:
        """How many records are in it, durable. If this handle does not know, the server is asked."""
        return self._state()[0]

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return self._state()[1]

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
        loop_owner = self._broker.link.loop_owner
        if not loop_owner.is_here():
            again = self.write(
                values, keys=keys, headers=headers, delay=delay, expires=expires, priority=priority, ordinal=ordinal
            )
            return await loop_owner.visit(again)
        loop_owner.check_usable("staging")
        self._check_durable()
        if isinstance(values, Value | bytearray | memoryview) or not isinstance(values, Sequence):
            why = "a stage takes a sequence; put one value in a list"
            raise InvalidValue(self.topic, "list of values", values, why)
        if keys is not None and len(keys) != len(values):
            raise InvalidOption("keys", len(keys), f"there are {len(values)} values; give a key or None for each")
        if isinstance(headers, list | tuple):
            headers_of_each(headers, len(values))
        async with self._turn():
            self._held = None
            there = int((await self._broker.link.call("stage_state", self._named()))["records"])
            at = there if ordinal is None else self._checked(ordinal, there)
            records = 0 if values else await self._put(None, at)
            for piece in self._pieces(values, keys, headers, (delay, expires, priority)):
                records = await self._put(piece, at)
                at += piece.records
            return records

    async def drop(self) -> None:
        """Give it up: its records are never seen, and their space comes back. A stage that is over is left alone."""
        loop_owner = self._broker.link.loop_owner
        if not loop_owner.is_here():
            await loop_owner.visit(self.drop())
            return
        loop_owner.check_usable("dropping a stage")
        self._check_durable()
        await self._broker.link.call("stage_drop", self._named())

    # -- inside -------------------------------------------------------------------------------------------------

    def _named(self) -> dict[str, Any]:
        return {"topic": self.topic, "key": self.key}

    def _checked(self, ordinal: int, records: int) -> int:
        """`ordinal`, if a write to a stage of so many records can begin there."""
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or not 0 <= ordinal <= records:
            why = f"the stage {stage_name(self.key)} holds {records} records: the next is {records}"
            raise InvalidOption("ordinal", ordinal, why)
        return ordinal

    async def _put(self, piece: PreparedPublish | None, ordinal: int) -> int:
        """Have one piece staged, or the stage opened; how many records it holds then."""
        about = publishing.prepare_weighed(self._topic, ((), None, 0, 0)).about
        said: dict[str, Any] = {
            **self._named(),
            "batch": None if piece is None else piece.pack(),
            "ordinal": ordinal,
            "options": None if about is None else about.options,
            "schema": None if about is None else about.schema,
        }
        found = await self._broker.link.call("stage_write", said)
        self._held = found["records"], found["bytes"]
        return self._held[0]

    def _pieces(
        self,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Headers | None,
        rest: tuple[Seconds | None, Seconds | None, int],
    ) -> Iterator[PreparedPublish]:
        """The values a few at a time: as many as the last ones suggest."""
        at, step = 0, 1
        while at < len(values):
            try:
                found = self._some(values, keys, headers, rest, at, at + step)
            except TooLarge:
                if step == 1:
                    raise
                step = 1  # together they are; perhaps none of them alone
                continue
            if found.size > PIECE and found.records > 1:
                step = max(1, found.records // 2)  # larger values than before
                continue
            at += found.records
            yield found
            fitting = PIECE * found.records // max(1, found.size)
            step = max(1, min(STEP, 16 * found.records, fitting))

    def _some(
        self,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Headers | None,
        rest: tuple[Seconds | None, Seconds | None, int],
        first: int,
        end: int,
    ) -> PreparedPublish:
        some = None if keys is None else keys[first:end]
        theirs = headers[first:end] if isinstance(headers, list | tuple) else headers
        return publishing.prepare_many(self._topic, values[first:end], some, theirs, *rest)

    def _state(self) -> tuple[int, int]:
        if self._held is None:
            if not self._broker.link.welcome.durable:
                return 0, 0
            found = self._broker.link.ask("stage_state", self._named())
            self._held = found["records"], found["bytes"]
        return self._held

    def _check_durable(self) -> None:
        if not self._broker.link.welcome.durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")

    def _turn(self) -> asyncio.Lock:
        """One write at a time to one stage, whatever its handle: whoever comes second writes behind."""
        turns = _turns.setdefault(self._broker.link, WeakValueDictionary())
        turn = turns.get(self.key)
        if turn is None:
            turn = turns[self.key] = asyncio.Lock()
        return turn
