"""Following a commit of staged records to where they lie: chunk after chunk, as slices of their topic.

The cleaner may put them into their topic meanwhile, and let go of where they were staged: then the rest is read there.
Below: chunks, slicing, journal.staged. Above: catch_up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from runnel.broker.chunks import END, Chunks, End
from runnel.broker.log import Log
from runnel.broker.slicing import slices
from runnel.core.batch import Slice
from runnel.journal.found import Found, Lost, Staged
from runnel.journal.staged import Placing, topic_of

if TYPE_CHECKING:
    from runnel.broker.store import Store


class StageReading:
    """The way through one committed stage, from a place of its reader on."""

    __slots__ = (
        "_chunks",
        "_items",
        "_log",
        "_moved",
        "_on_demand",
        "_placing",
        "_sequence",
        "_staged",
        "_store",
        "_wake",
    )

    def __init__(
        self,
        store: Store,
        staged: Staged,
        log: Log,
        place: int,
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool,
    ) -> None:
        self._store, self._wake, self._on_demand = store, wake, on_demand
        self._staged, self._log, self._sequence = staged, log, sequence
        self._placing = Placing(staged, place, by_sequence=sequence)
        self._items: Iterator[Slice | Staged | Lost] = iter(())
        self._chunks = self._chunks_of(topic_of(staged))
        self._moved: int | None = None  # the offset from which on it is read in its topic

    def _chunks_of(self, topic: int) -> Chunks:
        return Chunks(self._store, lambda: (topic,), self._wake, sequence=False, on_demand=self._on_demand)

    @property
    def _is_gone(self) -> bool:
        """Whether retention took all of it meanwhile: then the reader is told by its topic."""
        return self._log.first > self._staged.last

    @property
    def _is_placed(self) -> bool:
        """Whether the cleaner put it into its topic meanwhile."""
        return self._staged.stage not in self._store.journal.ledger.committed

    def take(self) -> Slice | Lost | Literal[End.END] | None:
        """What comes next of it. None: not yet, the reader will be woken."""
        while True:
            for item in self._items:
                if isinstance(item, Slice):
                    return item
                if isinstance(item, Lost) and not self._is_gone:
                    if self._moved is not None or not self._is_placed:
                        return item
                    self._move_on(item.first)
                    break
            if self._is_gone and self._moved is not None:
                return END
            came = self._next()
            if came is None or came is END:
                return came
            self._items = slices(came, {self._staged.topic: self._log}, by_sequence=self._sequence)

    def _next(self) -> Iterable[Found | Lost] | Literal[End.END] | None:
        if self._moved is not None:
            if max(self._moved, self._chunks.reach) > self._staged.last:
                return END
            found = self._chunks.take(self._moved)
            return found if found is None or found is END else self._of_stage(found)
        if self._placing.done:
            return END
        came = self._chunks.take(self._placing.ordinal)
        if came is None:
            return None
        return self._placing.rest() if came is END else self._placing.placed(came)

    # -- where the cleaner put it -------------------------------------------------------------------------------

    def _move_on(self, place: int) -> None:
        """Read what is left of it, from `place` on, in its topic."""
        staged = self._staged
        self._moved = place - staged.sequence + staged.base if self._sequence else place
        self._items = iter(())
        self._chunks = self._chunks_of(staged.topic)

    def _of_stage(self, items: Iterable[Found | Staged | Lost]) -> Iterator[Found | Lost]:
        """Of what was found in the topic, that which was staged."""
        staged, end = self._staged, self._staged.last + 1
        for item in items:
            if isinstance(item, Lost):
                if item.first < end:
                    ahead = staged.sequence - staged.base if self._sequence else 0
                    yield Lost(item.first + ahead, min(item.end, end) + ahead, item.reason)
            elif isinstance(item, Found) and item.base < end:
                yield item if item.last < end else _before(item, end)


def _before(item: Found, end: int) -> Found:
    """The records of a merged batch below an offset."""
    runs = [run._replace(count=min(run.count, end - run.offset)) for run in item.runs or () if run.offset < end]
    return item._replace(runs=runs, last=end - 1) if runs else item
