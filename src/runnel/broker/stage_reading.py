"""Following a commit of staged records to where they lie: chunk after chunk, as slices of their topic.

Below: chunks, slicing, journal.staged. Above: catch_up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    __slots__ = ("_chunks", "_items", "_log", "_placing", "_sequence", "_staged")

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
        self._staged, self._log, self._sequence = staged, log, sequence
        self._placing = Placing(staged, place, by_sequence=sequence)
        self._items: Iterator[Slice | Staged | Lost] = iter(())
        topics = (topic_of(staged),)
        self._chunks = Chunks(store, lambda: topics, wake, sequence=False, on_demand=on_demand)

    @property
    def _is_gone(self) -> bool:
        """Whether retention took all of it meanwhile: then the reader is told by its topic."""
        return self._log.first > self._staged.last

    def take(self) -> Slice | Lost | Literal[End.END] | None:
        """What comes next of it. None: not yet, the reader will be woken."""
        while True:
            for item in self._items:
                if isinstance(item, Slice) or (isinstance(item, Lost) and not self._is_gone):
                    return item
            if self._placing.done:
                return END
            came = self._chunks.take(self._placing.ordinal)
            if came is None:
                return None
            if came is END:
                found: Iterator[Found | Lost] = self._placing.rest()
            else:
                found = self._placing.placed(came)
            self._items = slices(found, {self._staged.topic: self._log}, by_sequence=self._sequence)
