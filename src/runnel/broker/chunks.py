"""Chunks of the journal for one reader: one in hand, one on its way, in order.

Reading the bytes happens in a thread; the reader is woken when they are here.
Below: journal.history. Above: catch_up, stage_reading.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from runnel.broker.recent import Key
from runnel.journal.found import Found, Lost, Parsed, Staged
from runnel.journal.history import Plan
from runnel.journal.opened import Opened

if TYPE_CHECKING:
    from runnel.broker.store import Store


class End(Enum):
    """There is nothing more on disk."""

    END = 0


END: Final = End.END


class Chunks:
    """One way through the journal, from a place on: an offset of one topic, or a sequence of several."""

    __slots__ = (
        "_data",
        "_last",
        "_next",
        "_on_demand",
        "_plan",
        "_position",
        "_sequence",
        "_store",
        "_topics",
        "_wake",
    )

    def __init__(
        self,
        store: Store,
        topics: Callable[[], Collection[int]],
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool = False,
    ) -> None:
        self._store, self._topics, self._wake, self._sequence = store, topics, wake, sequence
        self._on_demand = on_demand  # read no chunk before somebody asks for what is in it
        self._next = 0  # the place that the next chunk is asked for at
        self._last: Plan | None = None  # the chunk that was parsed last, up to `_position`
        self._position = 0
        self._plan: Plan | None = None  # the chunk that is on its way, or here
        self._data: bytes | Opened | Parsed | OSError | None = None

    @property
    def reach(self) -> int:
        """Up to which place it has read."""
        return self._next

    def take(self, place: int) -> Iterable[Found | Staged | Lost] | Literal[End.END] | None:
        """What the next chunk holds, from `place` on. None: not yet, the reader will be woken."""
        if self._plan is None:
            self._next = max(self._next, place)
            if not self._ask():
                return END
        return None if self._data is None else self._parse()

    def _ask(self) -> bool:
        """Have the next chunk read; False: there is none."""
        history = self._store.journal.history
        if self._sequence:
            plan = history.plan_sequence(self._next, self._last, self._position)
        else:
            (topic,) = self._topics()
            plan = history.plan(topic, self._next, self._last, self._position)
        if plan is None:
            return False
        key = self._key(plan)
        self._plan, self._data = plan, None if key is None else self._store.recent.find(key)
        if self._data is None:
            self._store.read(plan, self._came)
        return True

    def _key(self, plan: Plan) -> Key | None:
        """By what others know the same chunk; None: nobody else reads it like that."""
        if self._sequence or self._on_demand or plan.suspect or plan.source.is_cleaned:
            return None
        (topic,) = self._topics()
        return plan.source.info.id, plan.position, topic, plan.place

    def _came(self, plan: Plan, data: bytes | Opened | OSError) -> None:
        """A chunk was read, or will not be: then the broker closed, and nothing is lost but the chance to read on."""
        if plan is self._plan:
            if not isinstance(data, OSError) or not self._store.is_closed:
                self._data = data
            self._wake()

    def _parse(self) -> Iterable[Found | Staged | Lost]:
        """Find the batches in the chunk that came, and ask for the next one while they are worked on."""
        plan, data = self._plan, self._data
        assert plan is not None
        self._plan = self._data = None
        topics = self._topics()
        self._last = plan
        if isinstance(data, OSError) or data is None:
            return self._give_up(plan, topics, data)
        try:
            parsed = data if isinstance(data, Parsed) else self._parsed(plan, data, topics)
        except OSError as error:  # it looked for what follows some damage
            return self._give_up(plan, topics, error)
        self._next, self._position = max(self._next, parsed.place), parsed.position
        if parsed.position <= plan.position and plan.size:  # without a size, the index was ahead of what may be read
            return [*parsed.items, *self._give_up(plan, topics, OSError("the file is shorter than it was"))]
        is_block = self._sequence and isinstance(data, Opened)  # large: a slow reader holds one at a time
        if not self._on_demand and not is_block:
            self._ask()
        return parsed.items

    def _parsed(self, plan: Plan, data: bytes | Opened, topics: Collection[int]) -> Parsed:
        parsed = self._store.journal.history.parse(plan, data, topics, by_sequence=self._sequence)
        if (key := self._key(plan)) is not None:
            self._store.recent.keep(key, parsed)
        return parsed

    def _give_up(self, plan: Plan, topics: Collection[int], error: OSError | None) -> list[Lost]:
        """The rest of this segment cannot be read: say so, and go on behind it."""
        source = plan.source
        if self._sequence:
            end = source.end_sequence
        else:
            ranges = [found for topic in topics if (found := source.index.range_of(topic)) is not None]
            end = max((found.end for found in ranges), default=0)
        first = max(self._next, plan.place)
        self._next, self._position = max(self._next, end), source.written
        return [Lost(first, end, f"{source.info.name} cannot be read: {error}")] if end > first else []
