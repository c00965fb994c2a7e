"""Reading from disk for a cursor that is behind the records in memory: a chunk in hand, a chunk on its way.

Reading the bytes happens in a thread, decoding on the loop in short pieces; the cursor's owner is
woken when there is something to take.
Below: chunks, slicing, stage_reading. Above: cursor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from runnel.broker.chunks import END, Chunks, End
from runnel.broker.log import Log
from runnel.broker.slicing import SLICE, slices
from runnel.broker.stage_reading import StageReading
from runnel.core.batch import Slice
from runnel.journal.found import Lost, Staged

if TYPE_CHECKING:
    from runnel.broker.store import Store

__all__ = ["END", "SLICE", "CatchUp", "End", "slices"]


class CatchUp:
    """One way through the journal, from a place on: an offset of one topic, or a sequence of several.

    It only goes forward; a cursor that is moved begins another.
    """

    __slots__ = (
        "_chunks",
        "_held",
        "_items",
        "_logs",
        "_on_demand",
        "_sequence",
        "_stage",
        "_store",
        "_topics",
        "_wake",
    )

    def __init__(
        self,
        store: Store,
        topics: Callable[[], Mapping[int, Log]],
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool = False,
    ) -> None:
        self._store, self._topics, self._wake, self._sequence = store, topics, wake, sequence
        self._on_demand = on_demand  # read no chunk before somebody asks for what is in it
        self._chunks = Chunks(store, topics, wake, sequence=sequence, on_demand=on_demand)
        self._held: deque[Slice | Lost] = deque()  # what was cut off, or put back
        self._logs: Mapping[int, Log] = {}
        self._items: Iterator[Slice | Staged | Lost] = iter(())  # of the chunk in hand
        self._stage: StageReading | None = None  # while records are read from where they were staged

    def take(self, place: int, limit: int) -> Slice | Lost | Literal[End.END] | None:
        """What comes at `place` or next behind it, up to `limit` records. None: not yet, the owner will be woken."""
        while True:
            if not self._held:
                came = self._following(place)
                if came is None or came is END:
                    return came
                self._held.append(came)
            if self._end(self._held[0]) > place:
                break
            self._held.popleft()
        found = self._held.popleft()
        if isinstance(found, Lost):
            return Lost(max(found.first, place), found.end, found.reason)
        start = found.start + max(0, place - self._place(found))
        if start > found.start or found.end - start > limit:
            if found.end - start > limit:
                self._held.appendleft(found.cut(start + limit, found.end))
            found = found.cut(start, min(found.end, start + limit))
        return found

    @property
    def reach(self) -> int:
        """Up to which place it has read; what comes before, and was not taken, is in hand."""
        return self._chunks.reach

    def put_back(self, found: Slice | Lost) -> None:
        """Take it again later."""
        self._held.appendleft(found)

    def _place(self, item: Slice | Staged | Lost) -> int:
        if isinstance(item, Lost):
            return item.first
        if isinstance(item, Staged):
            return item.sequence if self._sequence else item.base
        return item.sequence if self._sequence else item.start

    def _end(self, item: Slice | Staged | Lost) -> int:
        if isinstance(item, Lost):
            return item.end
        return self._place(item) + (item.last - item.base + 1 if isinstance(item, Staged) else len(item))

    def _following(self, place: int) -> Slice | Lost | Literal[End.END] | None:
        """What comes next, wherever it lies."""
        while True:
            if self._stage is not None:
                found = self._stage.take()
                if found is not END:
                    return found
                self._stage = None
            item = next(self._items, None)
            if item is None:
                came = self._chunks.take(place)
                if came is None or came is END:
                    return came
                self._logs = self._topics()
                packed = self._store.keeps_packed
                self._items = slices(came, self._logs, by_sequence=self._sequence, packed=packed)
            elif not isinstance(item, Staged):
                return item
            elif self._end(item) > place and self._logs[item.topic].first <= item.last:  # or nobody wants it any more
                self._stage = StageReading(
                    self._store,
                    item,
                    self._logs[item.topic],
                    place,
                    self._wake,
                    sequence=self._sequence,
                    on_demand=self._on_demand,
                )
