"""Reading from disk for a cursor that is behind the records in memory: a chunk in hand, a chunk on its way.

Reading the bytes happens in a thread, decoding on the loop in short pieces; the cursor's owner is
woken when there is something to take.
Below: journal.history. Above: cursor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from runnel.broker.log import Log
from runnel.core.batch import Slice, Stretch
from runnel.core.errors import BadBatch
from runnel.core.packing import unpack
from runnel.core.record import Meta
from runnel.journal.history import Found, Lost, Plan
from runnel.journal.index import IndexBuilder

if TYPE_CHECKING:
    from runnel.broker.store import Store

SLICE = 4096

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class End(Enum):
    """There is nothing more on disk."""

    END = 0


END: Final = End.END


class CatchUp:
    """One way through the journal, from a place on: an offset of one topic, or a sequence of several.

    It only goes forward; a cursor that is moved begins another.
    """

    __slots__ = ("_data", "_items", "_last", "_next", "_plan", "_position", "_sequence", "_store", "_topics", "_wake")

    def __init__(
        self, store: Store, topics: Callable[[], Mapping[int, Log]], wake: Callable[[], None], *, sequence: bool
    ) -> None:
        self._store, self._topics, self._wake, self._sequence = store, topics, wake, sequence
        self._items: deque[Slice | Lost] = deque()
        self._next = 0  # the place that the next chunk is asked for at
        self._last: Plan | None = None  # the chunk that was parsed last, up to `_position`
        self._position = 0
        self._plan: Plan | None = None  # the chunk that is on its way, or here
        self._data: bytes | OSError | None = None

    def take(self, place: int, limit: int) -> Slice | Lost | Literal[End.END] | None:
        """What comes at `place` or next behind it, up to `limit` records. None: not yet, the owner will be woken."""
        while True:
            while self._items and self._end(self._items[0]) <= place:
                self._items.popleft()
            if self._items:
                break
            if self._plan is None:
                self._next = max(self._next, place)
                if not self._ask():
                    return END
            if self._data is None:
                return None
            self._parse()
        found = self._items.popleft()
        if isinstance(found, Lost):
            return Lost(max(found.first, place), found.end, found.reason)
        start = found.start + max(0, place - self._place(found))
        if start > found.start or found.end - start > limit:
            if found.end - start > limit:
                self._items.appendleft(found.cut(start + limit, found.end))
            found = found.cut(start, min(found.end, start + limit))
        return found

    def put_back(self, found: Slice | Lost) -> None:
        """Take it again later."""
        self._items.appendleft(found)

    def _place(self, item: Slice | Lost) -> int:
        if isinstance(item, Lost):
            return item.first
        return item.sequence if self._sequence else item.start

    def _end(self, item: Slice | Lost) -> int:
        return item.end if isinstance(item, Lost) else self._place(item) + len(item)

    # -- chunks -------------------------------------------------------------------------------------------------

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
        self._plan, self._data = plan, None
        self._store.read(plan, self._came)
        return True

    def _came(self, plan: Plan, data: bytes | OSError) -> None:
        """A chunk was read, or will not be: then the broker closed, and nothing is lost but the chance to read on."""
        if plan is self._plan:
            if isinstance(data, bytes) or not self._store.is_closed:
                self._data = data
            self._wake()

    def _parse(self) -> None:
        """Find the batches in the chunk that came, and ask for the next one while they are worked on."""
        plan, data = self._plan, self._data
        assert plan is not None
        self._plan = self._data = None
        topics = self._topics()
        self._last = plan
        if isinstance(data, bytes):
            try:
                parsed = self._store.journal.history.parse(plan, data, topics, by_sequence=self._sequence)
            except OSError as error:  # it looked for what follows some damage
                self._give_up(plan, topics, error)
                return
            self._items.extend(slices(parsed.items, topics, by_sequence=self._sequence))
            self._next, self._position = max(self._next, parsed.place), parsed.position
            if parsed.position > plan.position or not plan.size:  # the index may be ahead of what may be read yet
                self._ask()
                return
            data = OSError("the file is shorter than it was")
        self._give_up(plan, topics, data)

    def _give_up(self, plan: Plan, topics: Mapping[int, Log], error: OSError | None) -> None:
        """The rest of this segment cannot be read: say so, and go on behind it."""
        source, index = plan.source, plan.source.index
        if self._sequence:
            end = (
                index.end_sequence
                if isinstance(index, IndexBuilder) and not source.info.sealed
                else source.info.end_sequence
            )
        else:
            ranges = [found for topic in topics if (found := index.range_of(topic)) is not None]
            end = max((found.end for found in ranges), default=0)
        first = max(self._next, plan.place)
        if end > first:
            self._items.append(Lost(first, end, f"{source.info.name} cannot be read: {error}"))
        self._next, self._position = max(self._next, end), source.written


def slices(items: list[Found | Lost], topics: Mapping[int, Log], *, by_sequence: bool) -> Iterator[Slice | Lost]:
    """Batches from disk as slices; neighbours of one topic become one, and what cannot be decoded is lost."""
    run: list[Found] = []
    values: list[bytes] = []
    stretches: list[Stretch] = []
    metas: dict[int, Meta] = {}

    def closed() -> Iterator[Slice]:
        if run:
            log = topics[run[0].topic]
            yield Slice(log.name, log.epoch, run[0].base, tuple(values), list(stretches), dict(metas))
            run.clear()
            values.clear()
            stretches.clear()
            metas.clear()

    for item in items:
        if isinstance(item, Lost):
            yield from closed()
            yield item
            continue
        try:
            batch = unpack(item.body, verify=False)  # the crc was checked when it was found
        except BadBatch as error:
            yield from closed()
            first = item.sequence if by_sequence else item.base
            yield Lost(first, first + item.last - item.base + 1, f"cannot be decoded: {error.why}")
            continue
        if run and (
            item.topic != run[-1].topic
            or item.base != run[-1].last + 1
            or len(values) >= SLICE
            or (by_sequence and item.sequence != run[-1].sequence + run[-1].last - run[-1].base + 1)
        ):
            yield from closed()
        run.append(item)
        values.extend(batch.values)
        stretches.append(Stretch(item.base, item.sequence, _EPOCH + timedelta(microseconds=item.time)))
        if batch.metas:
            metas.update((item.base + at, meta) for at, meta in batch.metas.items())
    yield from closed()
