"""Checks of publishes: values, keys, headers and times, before anything leaves the caller.

Pure: the time is an argument. The result, an `Append`, is ready to be appended, or packed and sent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from runnel.core.batch_format import DELTAS, MAX_BATCH_RECORDS, TIMES, UnpackedBatch, unpack_untrusted
from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.errors import BadBatch, InvalidOption, InvalidValue, NotSupported, TooLarge
from runnel.core.options import Headers as Headers  # found here by publishers
from runnel.core.options import Seconds as Seconds
from runnel.core.options import check_message_id, check_offset, check_priority, check_seconds
from runnel.core.payload import checked_headers, key_bytes, value_bytes
from runnel.core.position import Position, Span
from runnel.core.record import MESSAGE_ID, header_of_id
from runnel.core.schema import Codec, Schema

MAX_RECORD_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 64 * 1024 * 1024
MAX_ENTRY_RECORDS = MAX_BATCH_RECORDS

# Values, what they carry besides (None: nothing), bytes of the values, bytes of keys and headers.
CheckedRecords = tuple[Sequence[bytes], Columns | None, int, int]


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

    With `tombstones`, which a compacted topic has, a key without a value deletes the key.
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
        if delay is not None:  # so that it can be cancelled after the window of message ids, too
            headers = {**(headers or {}), MESSAGE_ID: header_of_id(message_id)}
    if key is None and not headers and delay is None and expires is None and priority == 0:
        return (data,), None, size, 0
    columns, weight = Columns(), 0
    if key is not None:
        key = key if key.__class__ is bytes else key_bytes(topic, key)
        columns[KEYS], weight = [key], len(key)  # type: ignore[arg-type]  # it is bytes now
    if headers:
        own, more = checked_headers(topic, headers)
        columns[HEADERS] = [own]
        weight += more
    check_weight(topic, weight)
    _share(columns, 1, delay, expires, priority, now)
    return (data,), columns, size, weight


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
        data = codec.encode_all(topic, values)
    elif list(map(type, values)).count(bytes) == len(values):
        data = values  # type: ignore[assignment]  # just checked
    else:
        data = [value_bytes(topic, value) for value in values]
    size = sum(map(len, data))
    if size > MAX_RECORD_BYTES and (largest := max(map(len, data))) > MAX_RECORD_BYTES:
        raise TooLarge(f"a record for {topic!r}", largest, "max_record_bytes", MAX_RECORD_BYTES)
    if size > MAX_ENTRY_BYTES:
        raise TooLarge(f"a batch for {topic!r}", size, "max_entry_bytes", MAX_ENTRY_BYTES)
    if keys is None and not headers and delay is None and expires is None and priority == 0:
        return data, None, size, 0
    count, columns, extra = len(data), Columns(), 0
    if keys is not None:
        if len(keys) != count:
            raise InvalidOption("keys", len(keys), f"there are {count} values; give a key or None for each")
        columns[KEYS] = _keys(topic, keys)
        extra = sum(map(len, filter(None, columns[KEYS])))
    if isinstance(headers, Sequence) and not isinstance(headers, str | bytes):
        columns[HEADERS] = column = []
        for one in headers_of_each(headers, count):
            own, weight = checked_headers(topic, one) if one else (None, 0)
            column.append(own)
            extra += weight
    elif headers:
        shared, weight = checked_headers(topic, headers)
        columns[HEADERS] = [shared] * count
        extra += weight * count
    _share(columns, count, delay, expires, priority, now)
    if size + extra > MAX_ENTRY_BYTES:
        what = f"a batch for {topic!r}, with its keys and headers,"
        raise TooLarge(what, size + extra, "max_entry_bytes", MAX_ENTRY_BYTES)
    return data, columns, size, extra


def headers_of_each(headers: Sequence[Mapping[str, str] | None], count: int) -> Sequence[Mapping[str, str] | None]:
    """`headers`, if they are one for each of `count` values."""
    if len(headers) != count:
        raise InvalidOption("headers", len(headers), f"there are {count} values; give headers or None for each")
    return headers


def _keys(topic: str, keys: Sequence[object]) -> list[bytes | None]:
    """A column of keys."""
    if list(map(type, keys)).count(bytes) == len(keys):
        return list(keys)  # type: ignore[arg-type]  # just checked
    return [key if key.__class__ is bytes else key_bytes(topic, key) for key in keys]


def _share(
    columns: Columns, count: int, delay: Seconds | None, expires: Seconds | None, priority: int, now: float
) -> None:
    """Give `count` records the same times and the same priority."""
    if delay is not None:
        columns[DUE] = [now + check_seconds("delay", delay)] * count
    if expires is not None:
        columns[EXPIRES] = [now + check_seconds("expires", expires)] * count
    if check_priority("priority", priority):
        columns[PRIORITIES] = [priority] * count


def check_weight(topic: str, weight: int) -> None:
    """Raise if the key and headers of one record take too many bytes."""
    if weight > MAX_RECORD_BYTES:
        raise TooLarge(f"the key and headers of a record for {topic!r}", weight, "max_record_bytes", MAX_RECORD_BYTES)


def check_expected_offset(offset: int | None) -> int | None:
    """`offset`, when a record can have it; None: none is expected."""
    return None if offset is None else check_offset("expected_offset", offset)


# -- What one publish appends ----------------------------------------------------------------------------


class Append(msgspec.Struct, eq=False):  # with gc: a failed publish is part of a cycle, through its error
    """The records of one publish, appended all or none. A backend's writer takes it and stores the outcome in it."""

    values: Sequence[bytes]
    columns: Columns | None  # what they carry besides
    size: int
    message_id: str | None = None
    checked: bool = False  # against the type of its topic
    extra: int = 0  # bytes of keys and headers
    producer: int = 0  # the id of the producer that numbers its records; 0: they have no numbers
    producer_sequence: int = 0  # the number of the first; below 0: the next one, or -1 - n where none is known
    expected_offset: int | None = None  # what its first record must get, or nothing is appended
    packed: bytes | None = None  # the packed batch as received over a network: stored and forwarded unchanged
    sent: float | None = None  # of a retry: the broker's time, in seconds, when it was sent first
    # Of the backend that it is in:
    known: Position | None = None  # where it was stored before, says its number
    is_awaited: bool = False  # whether the task that publishes it waits until there is room
    landed: Any = None  # a future, done when it is durable, if a task waited for room
    appended: bool = False  # or handed over: it cannot be taken back any more
    pending_batch: Any = None  # the batch that it is on its way to the disk in

    def span(self, first: Position) -> Span:
        """The positions of its records, of which the first is at `first`."""
        return Span(first, Position(first.epoch, first.offset + len(self.values) - 1))


class Traces(Protocol):
    """Puts the current span into headers: `runtime.tracing.Tracing`."""

    @property
    def is_active(self) -> bool:
        """Whether a publish may happen inside of a span."""

    def traced(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """`headers` with the current span."""

    def traced_all(self, headers: Headers | None) -> Headers | None:
        """The same for the headers of many records."""


class AppendTarget(Protocol):
    """The facts of a topic that checks of its publishes need; a `Writer` provides them."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def codec(self) -> Codec[Any] | None:
        """How values are encoded and validated; None: they are bytes."""

    @property
    def tracing(self) -> Traces:
        """The source of the current span."""

    def now(self) -> float:
        """The backend's time: delays and expiries refer to its clock."""

    def has_tombstones(self) -> bool:
        """Whether a key without a value deletes the key, as far as is known now."""


def append_of(
    target: AppendTarget,
    value: object,
    key: object = None,
    headers: Mapping[str, str] | None = None,
    delay: Seconds | None = None,
    expires: Seconds | None = None,
    priority: int = 0,
    message_id: str | None = None,
    expected_offset: int | None = None,
) -> Append:
    """The checked append of one record."""
    tracing, codec = target.tracing, target.codec
    if tracing.is_active:
        headers = tracing.traced(headers)
    values, columns, size, extra = checked_record(
        target.topic,
        codec,
        value,
        key,
        headers,
        delay,
        expires,
        priority,
        message_id,
        0.0 if delay is None and expires is None else target.now(),
        tombstones=value is None and target.has_tombstones(),
    )
    append = Append(values, columns, size, message_id, codec is not None, extra)
    if expected_offset is not None:
        append.expected_offset = check_offset("expected_offset", expected_offset)
    return append


def append_of_many(
    target: AppendTarget,
    values: Sequence[object],
    keys: Sequence[object] | None = None,
    headers: Headers | None = None,
    delay: Seconds | None = None,
    expires: Seconds | None = None,
    priority: int = 0,
    expected_offset: int | None = None,
) -> Append:
    """The checked append of many records. The values may be the caller's own."""
    tracing, codec = target.tracing, target.codec
    if tracing.is_active:
        headers = tracing.traced_all(headers)
    now = 0.0 if delay is None and expires is None else target.now()
    data, columns, size, extra = checked_records(
        target.topic, codec, values, keys, headers, delay, expires, priority, now
    )
    append = Append(data, columns, size, None, codec is not None, extra)
    if expected_offset is not None:
        append.expected_offset = check_offset("expected_offset", expected_offset)
    return append


# -- A packed batch, as it comes over a network ----------------------------------------------------------


class PublishDetails(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Options of a packed publish beside its records. Most publishes have none.

    - `message_id`, `expected_offset`: see `Topic.publish`.
    - `options`: the topic's, as `TopicOptions.given()`; `schema`: of its type.
    - `reads`: the ids of `block` subscriptions that the publishing task itself reads.
    - `wait`, `timeout`: answer when all current subscribers have passed it (`publish_and_wait`).
    - `sent`: it was sent before, first at this time of the server, and not answered: it may be stored already.
    """

    message_id: str | None = None
    expected_offset: int | None = None
    options: dict[str, Any] | None = None
    schema: Schema | None = None
    reads: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    wait: bool = False
    timeout: float | None = None
    sent: float | None = None  # seconds since 1970


def checked_batch(topic: str, data: bytes) -> UnpackedBatch:
    """A batch that came over a network, if its records may be published. Nothing in it is trusted.

    Checksum, columns, lengths and limits are looked at. Whether the values fit the type of their topic is not.
    """
    batch = unpack_untrusted(data)
    if batch.header.columns & (DELTAS | TIMES):
        raise BadBatch("it says which offsets or times its records have; these are the broker's to give")
    if batch.header.raw_length > MAX_RECORD_BYTES:
        if (largest := max(map(len, batch.values))) > MAX_RECORD_BYTES:
            raise TooLarge(f"a record for {topic!r}", largest, "max_record_bytes", MAX_RECORD_BYTES)
        if (size := sum(map(len, batch.values))) > MAX_ENTRY_BYTES:
            raise TooLarge(f"a batch for {topic!r}", size, "max_entry_bytes", MAX_ENTRY_BYTES)
    return batch


def append_of_batch(topic: str, data: bytes, batch: UnpackedBatch, details: PublishDetails | None) -> Append:
    """The append of a checked batch, in the received bytes."""
    header, values = batch.header, batch.values
    size = sum(map(len, values))
    append = Append(values, None, size, packed=data)
    if header.producer:
        append.producer, append.producer_sequence = header.producer, header.producer_sequence
    if details is not None:
        append.message_id = details.message_id
        append.expected_offset = check_expected_offset(details.expected_offset)
        if details.message_id is not None and header.count > 1:
            raise BadBatch(f"it has a message id and {header.count} records; an id is for one")
    if (columns := batch.columns) is not None:
        append.columns, append.extra = columns, columns.weight
    if size + append.extra > MAX_ENTRY_BYTES:
        raise TooLarge(f"a batch for {topic!r}", size + append.extra, "max_entry_bytes", MAX_ENTRY_BYTES)
    return append


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
