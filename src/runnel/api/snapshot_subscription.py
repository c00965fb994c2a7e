"""A subscription that begins where a snapshot of a database ends: what the snapshot saw is left out."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from runnel.api.subscription import Subscription
from runnel.core.backend import ReadableBackend, Taken
from runnel.core.batch import Batch, Slice
from runnel.core.columns import HEADERS
from runnel.core.errors import InvalidOption
from runnel.core.options import SubscribeOptions
from runnel.core.position import SnapshotStart
from runnel.core.record import MissedRange
from runnel.core.schema import Codec

T = TypeVar("T")


class SnapshotSubscription(Subscription[T]):
    """Reads one topic from a `SnapshotStart`."""

    def __init__(
        self,
        backend: ReadableBackend,
        pattern: str,
        options: SubscribeOptions,
        codec: Codec[T] | None,
        start: SnapshotStart,
    ) -> None:
        super().__init__(backend, pattern, options, codec)
        for option in ("group", "name"):
            if getattr(options, option) is not None:
                why = f"a {option} has a position of its own; leave one of the two out"
                raise InvalidOption("start", start, why)
        if pattern != start.topic:
            raise InvalidOption("start", start, f"it is for {start.topic!r}, not for {pattern!r}")
        self._backend: Any = backend
        self._start: SnapshotStart | None = start  # None: all that comes now is new

    async def __aenter__(self) -> Self:
        assert self._start is not None, "it is entered once"
        position, why = await self._start.find(self._backend)
        if position is not None:
            options = msgspec.structs.replace(self._options, start=position)
            self._source = self._backend.reader(self.pattern, options, self.wake)
            self._source.in_hand = self._in_hand
        if why is not None and position is not None:
            self._miss(MissedRange(position.offset, position.offset, 0, why))
        return await super().__aenter__()

    def _open(self, taken: Taken) -> Batch[T]:
        if self._start is not None:
            slices: list[Slice] = []
            for part in taken.slices:
                slices += part.without(self._seen(part))
            taken = Taken(slices, taken.missed)
        return super()._open(taken)

    def _seen(self, part: Slice) -> list[int]:
        """The offsets of records that the snapshot saw."""
        found = []
        headers = () if part.columns is None or self._start is None else part.columns.get(HEADERS, ())
        for offset, of_record in enumerate(headers, part.start):
            if of_record and self._start is not None:
                seen = self._start.seen(of_record)
                if seen is None:
                    self._start = None
                    break
                if seen:
                    found.append(offset)
        return found
