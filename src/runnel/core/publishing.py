"""Checks of what is published: values, keys, headers and times, before anything leaves the caller.

Pure: the time is an argument. The result is ready to be appended, or packed and sent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from runnel.core.batch_format import MAX_BATCH_RECORDS
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, TooLarge
from runnel.core.options import Seconds as Seconds  # those who publish find it here
from runnel.core.options import check_message_id, check_offset, check_priority, check_seconds
from runnel.core.payload import frozen_headers, key_bytes, value_bytes
from runnel.core.position import Position, Span
from runnel.core.record import NO_HEADERS, Meta
from runnel.core.schema import Codec

MAX_RECORD_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 64 * 1024 * 1024
MAX_ENTRY_RECORDS = MAX_BATCH_RECORDS

Headers = Mapping[str, str] | Sequence[Mapping[str, str] | None]
"""Of every record of a list; or a list of those of each."""

# Values, what each carries besides (None: none of them anything), bytes of the values, bytes of keys and headers.
CheckedRecords = tuple[Sequence[bytes], Sequence[Meta | None] | None, int, int]


def checked_record(
    topic: str,
    codec: Codec[Any] | None,
    value: object,
    key: object = None,
    headers: Mapping[str, str] | None = None,
    delay: Seconds | None = None,
    expires: Seconds | None = None,
    priority: int = 0,
    message_id: str | None = None,
    now: float = 0.0,
    *,
    tombstones: bool = False,
) -> CheckedRecords:
    """One record, if it may be published; `now` counts where there is a `delay` or `expires`.

    With `tombstones`, which a compacted topic has, no value beside a key means that the key is gone.
    """
    if value is None and key is not None and tombstones:
        data = b""
    else:
        data = value_bytes(topic, value) if codec is None else codec.encode(topic, value)
    size = len(data)
    if size > MAX_RECORD_BYTES:
        raise TooLarge(f"a record for {topic!r}", size, "max_record_bytes", MAX_RECORD_BYTES)
    if message_id is not None:
        check_message_id("message_id", message_id)
    meta = meta_of(topic, key, headers, delay, expires, priority, now)
    if meta is None:
        return (data,), None, size, 0
    extra = meta.weight
    if extra > MAX_RECORD_BYTES:
        raise TooLarge(f"the key and headers of a record for {topic!r}", extra, "max_record_bytes", MAX_RECORD_BYTES)
    return (data,), (meta,), size, extra


def checked_records(
    topic: str,
    codec: Codec[Any] | None,
    values: Sequence[object],
    keys: Sequence[object] | None = None,
    headers: Headers | None = None,
    delay: Seconds | None = None,
    expires: Seconds | None = None,
    priority: int = 0,
    now: float = 0.0,
) -> CheckedRecords:
    """Many records, in order, if all of them may be published. The values may still be the caller's own list.

    `headers` are those of every record, or a list with the headers of each.
    """
    if isinstance(values, bytes | bytearray | memoryview | str) or not isinstance(values, Sequence):
        raise InvalidValue(topic, "list of values", values, "publish_many takes a sequence; use publish for one value")
    if not values:
        raise InvalidOption("values", values, "publish_many needs at least one value")
    if len(values) > MAX_ENTRY_RECORDS:
        raise TooLarge(f"a batch for {topic!r}", len(values), "max_entry_records", MAX_ENTRY_RECORDS)
    data: Sequence[bytes]
    if codec is not None:
        data = [codec.encode(topic, value) for value in values]
    elif list(map(type, values)).count(bytes) == len(values):
        data = values  # type: ignore[assignment]  # just checked
    else:
        data = [value_bytes(topic, value) for value in values]
    size = sum(map(len, data))
    if size > MAX_RECORD_BYTES and (largest := max(map(len, data))) > MAX_RECORD_BYTES:
        raise TooLarge(f"a record for {topic!r}", largest, "max_record_bytes", MAX_RECORD_BYTES)
    if size > MAX_ENTRY_BYTES:
        raise TooLarge(f"a batch for {topic!r}", size, "max_entry_bytes", MAX_ENTRY_BYTES)
    each: Iterable[Mapping[str, str] | None]
    if isinstance(headers, Sequence) and not isinstance(headers, str | bytes):
        each = headers_of_each(headers, len(data))
    elif keys is None:
        meta = meta_of(topic, None, headers, delay, expires, priority, now)
        if meta is None:
            return data, None, size, 0
        shared = [meta] * len(data)
        return data, shared, size, _weight(topic, size, shared)
    else:
        each = repeat(headers)
    if keys is not None and len(keys) != len(data):
        raise InvalidOption("keys", len(keys), f"there are {len(data)} values; give a key or None for each")
    metas = [
        meta_of(topic, key, own, delay, expires, priority, now)
        for key, own in zip(repeat(None, len(data)) if keys is None else keys, each, strict=False)
    ]
    return data, metas, size, _weight(topic, size, metas)


def headers_of_each(headers: Sequence[Mapping[str, str] | None], count: int) -> Sequence[Mapping[str, str] | None]:
    """`headers`, if they are one for each of `count` values."""
    if len(headers) != count:
        raise InvalidOption("headers", len(headers), f"there are {count} values; give headers or None for each")
    return headers


def _weight(topic: str, size: int, metas: Sequence[Meta | None]) -> int:
    """What keys and headers weigh, if that is not too much beside `size` bytes of values."""
    extra = sum(meta.weight for meta in metas if meta is not None)
    if size + extra > MAX_ENTRY_BYTES:
        what = f"a batch for {topic!r}, with its keys and headers,"
        raise TooLarge(what, size + extra, "max_entry_bytes", MAX_ENTRY_BYTES)
    return extra


def meta_of(
    topic: str,
    key: object,
    headers: Mapping[str, str] | None,
    delay: Seconds | None,
    expires: Seconds | None,
    priority: int,
    now: float,
) -> Meta | None:
    """What a record carries besides its value; None: nothing."""
    if key is None and not headers and delay is None and expires is None and priority == 0:
        return None
    if priority != 0 or priority.__class__ is not int:  # most say nothing, and a call costs more than this
        check_priority("priority", priority)
    return Meta(
        key_bytes(topic, key),
        frozen_headers(topic, headers) if headers else NO_HEADERS,
        None if delay is None else now + check_seconds("delay", delay),
        None if expires is None else now + check_seconds("expires", expires),
        priority,
    )


def check_expected_offset(offset: int | None) -> int | None:
    """`offset`, when a record can have it; None: none is expected."""
    return None if offset is None else check_offset("expected_offset", offset)


# -- A publish inside a transaction ----------------------------------------------------------------------


class Publication:
    """One publish in a transaction; where it is, once that is committed. Awaiting it is over at once."""

    __slots__ = ("_count", "_first", "topic")

    def __init__(self, topic: str, count: int) -> None:
        self.topic, self._count = topic, count
        self._first: Position | None = None

    def __repr__(self) -> str:
        where = "not committed" if self._first is None else f"from {self._first}"
        return f"<Publication of {self._count} records to {self.topic!r}, {where}>"

    def __await__(self) -> Generator[Any, None, Publication]:
        return self
        yield  # makes this a generator

    @property
    def position(self) -> Position:
        """The position of its record; of several, of the first."""
        if self._first is None:
            why = "it is known when the block is left, and only if the transaction was applied (`tx.applied`)"
            raise NotSupported(f"the position of a publish to {self.topic!r}", why)
        return self._first

    @property
    def span(self) -> Span:
        """The positions of its first and its last record."""
        first = self.position
        return Span(first, Position(first.epoch, first.offset + self._count - 1))

    def holds(self, topic: str, count: int) -> None:
        """It is a stage, of which only now is known for which topic it is, and how large."""
        self.topic, self._count = topic, count

    def put(self, first: Position) -> None:
        """It was committed."""
        self._first = first
