"""The `Table` handle: a topic read as a key-value table, in which the newest record of a key is its value.

A handle keeps a view of the table and brings it up to date before it answers, so what any process has put is seen. A
conditional write is appended only if the topic still ends where the view ends: the backend compares, so of several
writers that expect the same, one succeeds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from runnel.api.subscription import Subscription
from runnel.api.topic import Topic
from runnel.core.errors import (
    InvalidOption,
    InvalidValue,
    KeyConflict,
    NotSupported,
    OffsetConflict,
    SubscriptionMisused,
    TooLarge,
    TopicDeleted,
    UnknownTopic,
)
from runnel.core.markers import ANYTHING, NoExpectation
from runnel.core.options import SubscribeOptions, TopicOptions, positive
from runnel.core.payload import key_bytes, value_bytes
from runnel.core.position import Position
from runnel.core.record import Record
from runnel.core.schema import Codec, ObjectCodec

if TYPE_CHECKING:
    from runnel.core.backend import Backend, HistoryPage

V = TypeVar("V")

MAX_BYTES = 256 * 1024 * 1024  # keys and values that a handle holds, unless an option says otherwise
ENTRY_COST = 300  # bytes of memory that an entry takes besides
REVISION = "runnel-revision"  # header of a record that was moved: the offset at which its value was put
PAGE, PAGE_BYTES = 1000, 1024 * 1024  # records per read
UNLIMITED = 1 << 40  # for a topic in memory, which keeps the newest 65,536 records otherwise
MOVED = 256  # entries moved at a time
SLACK = 1024  # superseded records that are left alone


class TableEntry(msgspec.Struct, Generic[V], frozen=True):
    """A key of a table with its value. In a watch, `value` is None when the key was deleted.

    `offset` says which put it is from, and is what `expected=` takes.
    """

    key: str
    value: V | None
    offset: int
    time: datetime


class _Held(msgspec.Struct):
    """An entry of a view, with its encoded value."""

    value: bytes
    revision: int  # the offset of the put
    place: int  # the offset of the record: later, if it was moved
    time: datetime


Change = tuple[bytes, _Held]  # with an empty value if the key was deleted


class _View:
    """The entries of a table up to an offset, in the order of their records."""

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name, self.max_bytes = name, max_bytes
        self.entries: dict[bytes, _Held] = {}
        self.epoch: int | None = None  # None: the topic is not known to exist
        self.first = self.next = 0  # of the topic; the next unread offset
        self.size = 0
        self.superseded = 0  # records that were replaced, and may still be in the topic

    async def advance(self, backend: Backend) -> Iterable[Change]:
        """Read up to the end of the topic, and return the newest change of each key that changed."""
        changes: dict[bytes, _Held] = {}
        while True:
            start = "earliest" if self.epoch is None else Position(self.epoch, self.next)
            try:
                page = await backend.history(self.name, start, PAGE, PAGE_BYTES)
            except (UnknownTopic, TopicDeleted):
                self._clear(changes)
                return changes.items()
            if page.epoch != self.epoch:
                if self.epoch is not None:  # the topic was deleted and made again: begin anew
                    self._clear(changes)
                    continue
                self.epoch = page.epoch
            for record in page.records:
                if (change := self.apply(record)) is not None:
                    changes.pop(change[0], None)
                    changes[change[0]] = change[1]
            self.next = max(self.next, page.next)
            if self.next >= page.end:
                self._prune(page, changes)
                return changes.items()

    def apply(self, record: Record[bytes]) -> Change | None:
        """Take in the next record; the change, if it is one."""
        self.next = record.offset + 1
        key = record.key
        if key is None:
            return None
        earlier = self.entries.pop(key, None)  # a changed entry comes last: they stay in order
        if earlier is not None:
            self.size -= len(key) + len(earlier.value) + ENTRY_COST
            self.superseded += 1
        held = _Held(record.value, _revision(record), record.offset, record.time)
        if not held.value:
            self.superseded += 1
            return None if earlier is None else (key, held)
        self.entries[key] = held
        self.size += len(key) + len(held.value) + ENTRY_COST
        if self.size > self.max_bytes:
            advice = "give broker.table() a larger max_bytes, or split the table by topic"
            raise TooLarge(f"the table {self.name!r}", self.size, "max_bytes", self.max_bytes, advice)
        return None if earlier is not None and earlier.revision == held.revision else (key, held)

    def _prune(self, page: HistoryPage, changes: dict[bytes, _Held]) -> None:
        """Drop entries whose records have left the topic: by retention, or trimmed after they were moved."""
        if page.first > self.first:
            self.first, self.superseded = page.first, 0
        while self.entries:
            key = next(iter(self.entries))
            if self.entries[key].place >= page.first:
                return
            self._remove(key, changes)

    def _clear(self, changes: dict[bytes, _Held]) -> None:
        for key in list(self.entries):
            self._remove(key, changes)
        self.epoch, self.first, self.next, self.superseded = None, 0, 0, 0

    def _remove(self, key: bytes, changes: dict[bytes, _Held]) -> None:
        held = self.entries.pop(key)
        self.size -= len(key) + len(held.value) + ENTRY_COST
        changes[key] = _Held(b"", self.next, self.next, held.time)


def _revision(record: Record[bytes]) -> int:
    said = record.headers.get(REVISION)
    return int(said) if said is not None and said.isascii() and said.isdigit() else record.offset


class Table(Generic[V]):
    """A topic as a key-value table, from `broker.table(name, type)`. Creating the handle does no I/O.

    >>> settings = broker.table("settings", int)
    >>> await settings.put("limit", 10)
    >>> await settings.get("limit")
    10

    The topic is compacted, so that it keeps the newest record of each key. Where a backend has no compaction (memory
    and clusters), the handles that put move the entries forward and trim the records before them.
    """

    def __init__(
        self,
        backend: Callable[[], Backend],
        name: str,
        codec: Codec[V] | None,
        options: TopicOptions,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if isinstance(codec, ObjectCodec):
            raise InvalidOption("type", object, "a table stores its values; name the type that they have")
        if options.compact is False:
            raise InvalidOption("compact", False, "a table is a compacted topic; leave the option out")
        self.name, self._codec, self._options = name, codec, options
        self._get_backend = backend
        self._max_bytes = positive("max_bytes", max_bytes)
        self._topic: Topic[Any] | None = None  # once it is declared
        self._compacts = True  # whether the backend does
        self._view = _View(name, self._max_bytes)
        self._reading = asyncio.Lock()
        self._asked = self._answered = 0
        self._puts = 0
        self._moving_to: int | None = None  # entries before this offset are being moved

    def __repr__(self) -> str:
        return f"<Table {self.name!r}{f' of {self._codec.name}' if self._codec else ''}>"

    # -- reading ------------------------------------------------------------------------------------------------

    async def get(self, key: str, default: V | None = None) -> V | None:
        """The value of `key`, or `default`. Every put that returned before this call is seen, of any process."""
        found = await self.entry(key)
        return default if found is None else found.value

    async def entry(self, key: str) -> TableEntry[V] | None:
        """The value of `key` with its offset, which `put(expected=)` takes; None: there is no such key."""
        raw = _raw(self.name, key)
        await self._refresh()
        held = self._view.entries.get(raw)
        return None if held is None else self._opened(raw, held)

    async def items(self) -> dict[str, V]:
        """All keys with their values, in the order in which they were put last."""
        await self._refresh()
        found = (self._opened(key, held) for key, held in self._view.entries.items())
        return {entry.key: entry.value for entry in found if entry.value is not None}

    def watch(self, key: str | None = None, *, initial: bool = True) -> TableWatch[V]:
        """Follow the table, or one key: first the entries that are there, then every change, without a gap between.

        With `initial=False` only the changes. A slow reader gets the newest value of each key, not every value.

        >>> async with settings.watch() as changes:
        ...     async for entry in changes:
        ...         print(entry.key, entry.value)
        """
        return TableWatch(self, None if key is None else _raw(self.name, key), initial=initial)

    async def _refresh(self) -> None:
        """Read all records published before this call into the view; concurrent calls share one read."""
        asked = self._asked = self._asked + 1
        async with self._reading:
            if self._answered < asked:
                covered = self._asked
                await self._view.advance(self._get_backend())
                self._answered = covered

    def _opened(self, key: bytes, held: _Held) -> TableEntry[V]:
        value: Any = held.value or None
        if value is not None and self._codec is not None:
            value = self._codec.decode(self.name, value)
        return TableEntry(key.decode(errors="surrogateescape"), value, held.revision, held.time)

    # -- writing ------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: V, *, expected: int | NoExpectation | None = ANYTHING) -> int:
        """Set the value of `key`, and return its offset. With a folder or a server with one, it is then on disk.

        With `expected`, only if the key's last put has that offset (None: if there is no such key); else
        `KeyConflict` is raised, with the offset that it has.
        """
        data = value_bytes(self.name, value) if self._codec is None else self._codec.encode(self.name, value)
        if not data:
            raise InvalidValue(self.name, "value of a table", value, "an empty value means that the key is deleted")
        return await self._write(_raw(self.name, key), value, data, expected)

    async def delete(self, key: str, *, expected: int | NoExpectation | None = ANYTHING) -> None:
        """Remove `key`; harmless if there is no such key. `expected`: see `put`."""
        await self._write(_raw(self.name, key), None, b"", expected)

    async def update(self, key: str, function: Callable[[V | None], V | None]) -> V | None:
        """Replace the value of `key` by what `function` makes of it, and return that. None: no key before, or after.

        If another writer comes first, the function is called again with the newer value.
        """
        while True:
            entry = await self.entry(key)
            value = function(None if entry is None else entry.value)
            expected = None if entry is None else entry.offset
            try:
                if value is not None:
                    await self.put(key, value, expected=expected)
                elif entry is not None:
                    await self.delete(key, expected=expected)
            except KeyConflict:
                continue
            return value

    async def _write(self, key: bytes, value: V | None, data: bytes, expected: int | NoExpectation | None) -> int:
        topic = await self._declared()
        sent: Any = value if self._compacts else data
        if isinstance(expected, NoExpectation):
            position = await topic.publish(sent, key=key)
        else:
            position = await self._write_expecting(topic, key, sent, expected)
        if not self._compacts:
            await self._tidy(topic)
        return position.offset

    async def _write_expecting(self, topic: Topic[Any], key: bytes, sent: Any, expected: int | None) -> Position:
        while True:
            await self._refresh()
            held = self._view.entries.get(key)
            actual = None if held is None else held.revision
            if actual != expected:
                raise KeyConflict(self.name, key.decode(errors="replace"), expected, actual)
            try:
                return await topic.publish(sent, key=key, expected_offset=self._view.next)
            except OffsetConflict:
                continue  # something was put meanwhile, perhaps another key: look again

    async def _declared(self) -> Topic[Any]:
        """The topic, with the options of a table as far as the backend supports them."""
        if self._topic is not None:
            return self._topic
        options = self._options
        plain = msgspec.structs.replace(options, encoding=None)
        kept = msgspec.structs.replace(
            plain,
            retention_count=plain.retention_count or UNLIMITED,
            retention_bytes=plain.retention_bytes or UNLIMITED,
        )
        compacted = msgspec.structs.replace(options, compact=True)
        # Not typed without compaction: a tombstone is a value of no type. A cluster keeps all.
        for wanted, codec in ((compacted, self._codec), (kept, None), (plain, None)):
            try:
                topic: Topic[Any] = Topic(self._get_backend(), self.name, codec, wanted)
                await topic.declare()
            except NotSupported:
                if wanted is plain:
                    raise
                continue
            self._topic, self._compacts = topic, wanted is compacted
            return topic
        raise AssertionError("the last attempt returns or raises")

    # -- where the backend does not compact ---------------------------------------------------------------------

    async def _tidy(self, topic: Topic[Any]) -> None:
        """Now and then move entries to the end of the topic, and trim the superseded records before them.

        At most `MOVED` entries at a time, and none while others put: a concurrent publish makes it fail.
        """
        self._puts += 1
        if self._puts % MOVED != 1:  # with the first one, too: programs may put a little each
            return
        await self._refresh()
        view = self._view
        if self._moving_to is None:
            if view.superseded <= len(view.entries) + SLACK:
                return
            self._moving_to = view.next
        moved: list[tuple[bytes, _Held]] = []
        for key, held in view.entries.items():
            if held.place >= self._moving_to or len(moved) == MOVED:
                break
            moved.append((key, held))
        if moved:
            try:
                await topic.publish_many(
                    [held.value for _, held in moved],
                    keys=[key for key, _ in moved],
                    headers=[{REVISION: str(held.revision)} for _, held in moved],
                    expected_offset=view.next,
                )
            except OffsetConflict:
                return  # with the next puts
        if len(moved) < MOVED:
            await self._refresh()
            first = next((held.place for held in view.entries.values()), view.next)
            self._moving_to = None
            await topic.trim(first)


def _raw(table: str, key: str | bytes) -> bytes:
    if isinstance(key, str):
        return key.encode(errors="surrogateescape")
    return key_bytes(table, key) or b""


# -- Following a table -----------------------------------------------------------------------------------


class TableWatch(Generic[V]):
    """The changes of a table, from `table.watch()`. Use it with `async with`."""

    def __init__(self, table: Table[V], key: bytes | None, *, initial: bool) -> None:
        self._table, self._key, self._initial = table, key, initial
        self._view = _View(table.name, table._max_bytes)
        self._changes: deque[Change] = deque()
        self._subscription: Subscription[bytes] | None = None
        # The records behind a gap, and the read of those inside it: kept for a read that is cancelled and repeated.
        self._behind_gap: tuple[Record[bytes], asyncio.Task[Iterable[Change]]] | None = None

    async def __aenter__(self) -> Self:
        backend = self._table._get_backend()
        await self._view.advance(backend)
        if self._initial:
            self._changes.extend(self._wanted(self._view.entries.items()))
        start: Any = "earliest" if self._view.epoch is None else Position(self._view.epoch, self._view.next)
        self._subscription = Subscription(backend, self._table.name, SubscribeOptions(start=start), None)
        await self._subscription.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._behind_gap is not None:
            self._behind_gap[1].cancel()
        if self._subscription is not None:
            await self._subscription.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableEntry[V]:
        if self._subscription is None:
            raise SubscriptionMisused(self._table.name, "enter it first: `async with table.watch() as changes`")
        while not self._changes:
            if self._behind_gap is None:
                record = await anext(self._subscription)
                if record.gap is None:
                    self._take(record)
                    continue
                # It was too slow, or the table was tidied: the missing records are read again.
                reading = asyncio.ensure_future(self._view.advance(self._table._get_backend()))
                self._behind_gap = record, reading
            record, reading = self._behind_gap
            await asyncio.wait([reading])
            self._behind_gap = None
            self._changes.extend(self._wanted(reading.result()))
            self._take(record)
        return self._table._opened(*self._changes.popleft())

    def _take(self, record: Record[bytes]) -> None:
        if record.offset >= self._view.next and (change := self._view.apply(record)) is not None:
            self._changes.extend(self._wanted([change]))

    def _wanted(self, changes: Iterable[Change]) -> list[Change]:
        return [change for change in changes if self._key in (None, change[0])]
