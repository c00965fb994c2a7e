"""A handle on one stage: records that are durable and that nobody sees, until a transaction commits them.

Below: staging, stage_cutting, stage_arrival. Above: the user.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from runnel.broker.gate import Entry
from runnel.broker.open_stage import Flight, OpenStage
from runnel.broker.stage_arrival import Arrival
from runnel.broker.stage_cutting import PIECE, SMALL_PIECE, Cut
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.stage import StageInfo, StageKey, checked_key, name_of

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log
    from runnel.broker.staging import Staging
    from runnel.broker.topic import Topic
    from runnel.core.packing import Unpacked
    from runnel.core.publishing import Headers, Seconds

T = TypeVar("T")
Packed = bytes
Value = bytes | str  # said here: in `Stage`, `bytes` is how many there are

REST = 0.001  # seconds after each piece while others write: the disk, and the loop, are theirs too


class Stage(Generic[T]):
    """One part of a batch that a writer stages. Made by `broker.stage(...)`; making it does nothing yet.

    It is known by its key. Whoever names the same key, in this life of the broker or the next, goes on with
    the same stage; whoever names a later attempt takes its place.
    """

    __slots__ = ("_bus", "_stage", "_topic", "key")

    def __init__(self, bus: Bus, topic: Topic[T], key: StageKey) -> None:
        self._bus, self._topic, self.key = bus, topic, checked_key(key)
        self._stage: OpenStage | None = None

    def __repr__(self) -> str:
        return f"<Stage {name_of(self.key)} of {self.topic!r}>"

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
        bus = self._bus
        if not bus.home.is_here():
            again = self.write(
                values, keys=keys, headers=headers, delay=delay, expires=expires, priority=priority, ordinal=ordinal
            )
            return await bus.home.visit(again)
        bus.home.check_usable("staging")
        staging, log = self._staging(), self._topic._resolve()
        cut = Cut(bus, log, self._topic._codec, values, keys, headers, delay, expires, priority)
        return await self._put(staging, log, cut, ordinal)

    async def _take(self, data: Packed, batch: Unpacked, ordinal: int | None = None) -> int:
        """Stage a batch from afar that was looked at already, in the bytes that it came in; how many records there are.

        On the broker's own loop. `ordinal` as in `write`.
        """
        bus = self._bus
        bus.home.check_usable("staging")
        staging, log = self._staging(), self._topic._resolve()
        bus.publisher._check_type(log, Entry(batch.values, None, 0))
        return await self._put(staging, log, Arrival(data, batch), ordinal)

    async def _put(self, staging: Staging, log: Log, pieces: Cut | Arrival, ordinal: int | None) -> int:
        while True:
            stage = self._opened(staging, log)
            async with stage.turn:
                if stage.ended is None and staging.find(self.key) is not stage:
                    continue  # whoever was to open it has failed while this one waited
                try:
                    await stage.settled()
                    stage.check()
                    pieces.at = 0 if ordinal is None else self._passed(stage, ordinal)
                    await _write(staging, stage, pieces, self._bus)
                finally:
                    staging.give_up(stage)
                return stage.records

    async def drop(self) -> None:
        """Give it up: its records are never seen, and their space comes back. A stage that is over is left alone."""
        bus = self._bus
        if not bus.home.is_here():
            await bus.home.visit(self.drop())
            return
        bus.home.check_usable("dropping a stage")
        await self._staging().drop(self.key)

    def _known(self) -> OpenStage | None:
        if self._stage is None and self._bus.store is not None:
            self._stage = self._bus.store.staging.find(self.key)
        return self._stage

    def _staging(self) -> Staging:
        return staging_of(self._bus)

    def _opened(self, staging: Staging, log: Log) -> OpenStage:
        if log.stored is None:
            raise NotSupported(f"staging for {log.name!r}", "the topic is kept in memory only (durable=False)")
        stage = self._known()
        if stage is None or not (stage.announced or stage.ended or staging.find(self.key) is stage):
            stage = self._stage = staging.opened(self.key, log)
        if stage.log is not log and stage.ended is None:
            other = f"the stage {name_of(self.key)} is of {stage.log.name!r}; use another part for another topic"
            raise InvalidOption("topic", log.name, other)
        return stage

    def _passed(self, stage: OpenStage, ordinal: int) -> int:
        """How many values of a write that begins at `ordinal` are staged already."""
        records = stage.records
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or not 0 <= ordinal <= records:
            why = f"the stage {name_of(self.key)} holds {records} records: the next is {records}"
            raise InvalidOption("ordinal", ordinal, why)
        return records - ordinal


async def _write(staging: Staging, stage: OpenStage, cut: Cut | Arrival, bus: Bus) -> None:
    """Hand over one piece after the other, as the window has room, and wait until the last one landed."""
    flights: deque[Flight] = deque()
    assert bus.store is not None
    window = bus.store.commits.staged
    cut.piece = PIECE if window.limit > 1 else SMALL_PIECE
    for batch in cut:
        if not window.has_room():
            await window.room()
        body = batch.pack()
        cut.piece = PIECE if window.limit > 1 else SMALL_PIECE  # for the next one
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


def _check_landed(flights: deque[Flight]) -> None:
    """Raise what kept a piece from landing; forget those that did."""
    while flights and flights[0].done.done():
        if (error := flights.popleft().error) is not None:
            raise error


def staging_of(bus: Bus) -> Staging:
    """The stages of a broker, if it can have any."""
    if bus.store is None:
        raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
    return bus.store.staging


def infos(bus: Bus) -> list[StageInfo]:
    """Every stage that is open, by its key."""
    now = bus.clock.time()
    found = [stage for stage in staging_of(bus) if stage.announced]
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
