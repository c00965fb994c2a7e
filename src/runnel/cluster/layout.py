"""How topics lie in the stream: subjects, units of messages, and offsets.

One publish, or what one loop iteration publishes to a topic, is a unit: one message or several with consecutive stream
sequences, written as one atomic batch. A record has the offset, and the sequence, `first stream sequence of its unit *
4096 + index in the unit`. A message holds the records of one bucket, chosen by key, so that a group can keep the order
of a key with one consumer for each bucket; bucket 0 is for records without a key. Readers put the messages of a unit
together again. A unit has at least one message for every 4,096 records, so no two units share an offset.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from secrets import token_hex
from typing import NamedTuple
from zlib import crc32

from runnel.core.batch import Slice, SliceRun
from runnel.core.batch_format import UnpackedBatch, pack, unpack
from runnel.core.clock import from_micros
from runnel.core.columns import EXPIRES, KEYS, Columns
from runnel.core.errors import BadBatch
from runnel.core.lone_record import unpack_lone
from runnel.core.pattern import matches
from runnel.core.record import MissedRange

INDEX_BITS = 12
PER_MESSAGE = 1 << INDEX_BITS
MAX_BATCH = 1000  # messages in an atomic batch
BUCKETS = 8

UNIT = "Rn"  # the header of every message of records: see `unit_header`
GONE = "no longer kept (trimmed, or past its retention)"
MAX_WRITERS = 4096  # of which a reader remembers how much they wrote
MESSAGE_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"


def first_offset(sequence: int) -> int:
    """The offset of the first record of a unit whose first message has this stream sequence."""
    return sequence << INDEX_BITS


def schedule_id(topic: str, message_id: str | None) -> str:
    """The first token of the subject of a delayed record, by which it can be found again if it has a message id."""
    return (
        token_hex(12) if message_id is None else blake2b(f"{topic}\0{message_id}".encode(), digest_size=12).hexdigest()
    )


def stream_sequence(offset: int) -> int:
    """The stream sequence of a message of the unit that the record at `offset` belongs to, or a later one."""
    return offset >> INDEX_BITS


# -- subjects --------------------------------------------------------------------------------------------


class Subjects:
    """The subjects of one stream, below its prefix."""

    def __init__(self, stream: str) -> None:
        self.prefix = "r" if stream == "RUNNEL" else f"r-{stream}"
        self.everything = f"{self.prefix}.>"
        self.all_catalog = f"{self.prefix}.c.>"
        self.all_positions = f"{self.prefix}.p.>"
        self.all_markers = f"{self.prefix}.m.>"
        self._at = len(self.prefix) + 3

    def records(self, bucket: int, topic: str) -> str:
        """Records of a topic, by bucket."""
        return f"{self.prefix}.t.{bucket}.{topic}"

    def every_bucket(self, pattern: str) -> str:
        """All records of a topic or pattern."""
        return f"{self.prefix}.t.*.{pattern}"

    def topic_of(self, subject: str) -> str:
        """The topic of a subject of records."""
        return subject[self._at :].partition(".")[2]

    def catalog(self, topic: str) -> str:
        """The entry of a topic in the catalog."""
        return f"{self.prefix}.c.{topic}"

    def catalog_topic(self, subject: str) -> str:
        """The topic of an entry in the catalog."""
        return subject[self._at :]

    def position(self, name: str) -> str:
        """The position of a named subscription."""
        return f"{self.prefix}.p.{token(name)}"

    def marker(self, name: str) -> str:
        """The value of a marker."""
        return f"{self.prefix}.m.{token(name)}"

    def named(self, subject: str) -> str:
        """The name in the subject of a position or a marker."""
        return untoken(subject[self._at :])

    def schedule(self, id: str, last: str) -> str:
        """A record that is due later: two tokens, of which the first is by the message id."""
        return f"{self.prefix}.s.{id}.{last}"

    def fence(self, id: str) -> str:
        """The fields that prove the commit of a transaction."""
        return f"{self.prefix}.x.{id}"

    def settled(self, group: str, sequence: int) -> str:
        """Which records of a message a group has settled."""
        return f"{self.prefix}.g.{group}.{sequence}"

    def presence(self, pattern: str) -> str:
        """Where subscribers answer to a requester; not in the stream."""
        return f"{self.prefix}-live.{pattern}"


def token(name: str) -> str:
    """Any text as one token of a subject."""
    return urlsafe_b64encode(name.encode()).rstrip(b"=").decode() or "-"


def untoken(text: str) -> str:
    """The text of a token."""
    return "" if text == "-" else urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode(errors="replace")


def group_id(name: str, pattern: str) -> str:
    """The names of a group's consumers: group names may contain characters that consumer names may not."""
    return blake2b(f"{name}\0{pattern}".encode(), digest_size=9).hexdigest()


def covering(patterns: Sequence[str]) -> list[str]:
    """Patterns without those that others cover; just `>` if two of them overlap, which JetStream refuses."""
    found = list(dict.fromkeys(patterns))
    found = [one for one in found if not any(other != one and _covers(other, one) for other in found)]
    for at, one in enumerate(found):
        if any(_overlap(one.split("."), other.split(".")) for other in found[at + 1 :]):
            return [">"]
    return found


def _covers(wide: str, narrow: str) -> bool:
    return matches(wide, narrow) if not narrow.startswith("$") else False


def _overlap(one: list[str], two: list[str]) -> bool:
    for left, right in zip(one, two, strict=False):
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(one) == len(two)


# -- units -----------------------------------------------------------------------------------------------


def bucket_of(key: bytes | None, buckets: int = BUCKETS) -> int:
    """The bucket of a record: 0 without a key, else 1 to `buckets`."""
    return 0 if key is None else crc32(key) % buckets + 1


class Part(NamedTuple):
    """One message of a unit: its bucket, and its records as a batch."""

    bucket: int
    payload: bytes
    expires: float | None  # when all of its records have expired; None: some do not
    records: int


def unit_parts(
    values: Sequence[bytes],
    columns: Columns | None,
    max_payload: int,
    *,
    compression: str | None = None,
    content_type: int = 0,
    buckets: int = BUCKETS,
) -> list[Part]:
    """Records as the messages of one unit."""
    about = {"compression": compression, "content_type": content_type}
    keys = None if columns is None else columns.get(KEYS)
    if not keys or (len(values) == 1 and len(keys) == 1):
        bucket = bucket_of(keys[0], buckets) if keys else 0
        if len(values) <= PER_MESSAGE:
            payload = pack(values, columns, **about)  # type: ignore[arg-type]
            if len(payload) <= max_payload or len(values) == 1:
                return [Part(bucket, payload, _expiry(columns, len(values)), len(values))]
        chosen: dict[int, Sequence[int]] = {bucket: range(len(values))}
    else:
        by_bucket: dict[int, list[int]] = {}
        for index in range(len(values)):
            key = keys[index] if index < len(keys) else None
            by_bucket.setdefault(bucket_of(key, buckets), []).append(index)
        if len(by_bucket) == 1 and len(values) <= PER_MESSAGE:
            payload = pack(values, columns, **about)  # type: ignore[arg-type]
            if len(payload) <= max_payload:
                return [Part(next(iter(by_bucket)), payload, _expiry(columns, len(values)), len(values))]
        chosen = dict(by_bucket)
    parts: list[Part] = []
    for bucket, indexes in chosen.items():
        parts += _cut(bucket, indexes, values, columns, max_payload, about)
    return parts


def _cut(
    bucket: int,
    indexes: Sequence[int],
    values: Sequence[bytes],
    columns: Columns | None,
    max_payload: int,
    about: Mapping[str, object],
) -> list[Part]:
    """The records at `indexes` as one message, or as several if they are too many or too large."""
    if len(indexes) <= PER_MESSAGE:
        base = indexes[0]
        carried = None
        if columns is not None:
            carried = Columns()
            for kind, column in columns.items():
                items = [column[index] if index < len(column) else None for index in indexes]
                if items.count(None) != len(items):
                    carried[kind] = items
        payload = pack(
            [values[index] for index in indexes],
            carried or None,
            deltas=[index - base for index in indexes],
            schema=base,
            **about,  # type: ignore[arg-type]
        )
        if len(payload) <= max_payload or len(indexes) == 1:
            return [Part(bucket, payload, _expiry(carried, len(indexes)), len(indexes))]
    half = len(indexes) // 2
    return _cut(bucket, indexes[:half], values, columns, max_payload, about) + _cut(
        bucket, indexes[half:], values, columns, max_payload, about
    )


def _expiry(columns: Columns | None, count: int) -> float | None:
    """When the last of the records expires; None: some do not."""
    column = None if columns is None else columns.get(EXPIRES)
    if not column or len(column) < count or None in column:
        return None
    return float(max(column))


class WriterLink(NamedTuple):
    """The writer's reference, in a unit, to the units that it stored before in the same topic.

    A reader that has not reached `previous` when it receives the unit has missed records: retention or a trim removed
    them. Units whose records all have an expiry are not counted: expired records are not missed.
    """

    previous: int = 0  # the place behind the writer's previous unit
    written: int = 0  # records that the writer stored before
    writer: str = ""


NO_LINK = WriterLink()


def unit_header(epoch: int, number: int, messages: int, records: int, own: int, link: WriterLink = NO_LINK) -> str:
    """The part of a unit that a message holds: `number` of `messages` in it, with `own` of its `records`."""
    return f"{epoch},{number},{messages},{records},{own},{link.previous},{link.written},{link.writer}"


# -- reading ---------------------------------------------------------------------------------------------


_new = tuple.__new__  # half the time of the constructor that a NamedTuple has


class StoredMessage(NamedTuple):
    """One message of records, as read."""

    topic: str
    sequence: int  # in the stream
    epoch: int
    number: int  # in its unit
    messages: int  # of its unit
    records: int  # of its unit
    own: int  # records of this message
    link: WriterLink
    time: datetime
    payload: bytes

    @property
    def first(self) -> int:
        """The stream sequence of the first message of its unit."""
        return self.sequence - self.number


def stored_message(topic: str, sequence: int, nanoseconds: int, head: bytes | None, payload: bytes) -> StoredMessage:
    """A message of records; `BadBatch` for one that runnel did not write."""
    time = from_micros(nanoseconds // 1000)
    return _new(StoredMessage, (topic, sequence, *read_unit_header(head), time, payload))


def read_unit_header(head: bytes | None) -> tuple[int, int, int, int, int, WriterLink]:
    """The result of `unit_header`, parsed from the headers of a message; `BadBatch` for foreign ones."""
    at = -1 if head is None else head.find(b"\nRn:")
    if head is None or at < 0:
        raise BadBatch("it was not published by runnel: it has no header Rn")
    try:
        *numbers, writer = head[at + 4 : head.find(b"\r", at)].decode().split(",")
        epoch, number, messages, records, own, previous, written = map(int, numbers)
    except ValueError:
        raise BadBatch("its header Rn is not seven numbers and a name") from None
    return epoch, number, messages, records, own, _new(WriterLink, (previous, written, writer))


def slices_of(unit: Sequence[StoredMessage], *, verify: bool = True) -> tuple[list[Slice], int]:
    """The records of a unit, in their order, and the content type of the values. Missing messages leave holes."""
    head = unit[0]
    base = first_offset(head.first)
    if head.messages == 1 and (lone := unpack_lone(head.payload, verify=verify)) is not None:
        return [Slice(head.topic, head.epoch, base, (lone[0],), (SliceRun(base, base, head.time),))], lone[1]
    if len(unit) == 1:
        batch = unpack(head.payload, verify=verify)
        if batch.deltas is None:
            start = base + batch.header.schema
            run = SliceRun(start, start, head.time)
            return [
                Slice(head.topic, head.epoch, start, batch.values, (run,), batch.columns)
            ], batch.header.content_type
        batches = [batch]
    else:
        batches = [unpack(one.payload, verify=verify) for one in unit]
    rows: dict[int, tuple[UnpackedBatch, int]] = {}
    for batch in batches:
        from_index = batch.header.schema
        deltas = batch.deltas or range(len(batch.values))
        for at, delta in enumerate(deltas):
            rows[from_index + delta] = (batch, at)
    found: list[Slice] = []
    indexes = sorted(rows)
    at = 0
    while at < len(indexes):
        end = at
        while end + 1 < len(indexes) and indexes[end + 1] == indexes[end] + 1:
            end += 1
        chosen = [rows[index] for index in indexes[at : end + 1]]
        columns = Columns()
        for batch in batches:
            for kind in batch.columns or ():
                if kind not in columns:
                    columns[kind] = [
                        None if (own := b.columns) is None or kind not in own else own[kind][i] for b, i in chosen
                    ]
        start = base + indexes[at]
        run = SliceRun(start, start, head.time)
        values = tuple(batch.values[i] for batch, i in chosen)
        found.append(Slice(head.topic, head.epoch, start, values, (run,), columns or None))
        at = end + 1
    return found, batches[0].header.content_type


class UnitFollower:
    """Detects missing records before a unit, from its writers' references to earlier units.

    `reached`: every record before this place was received; None: the start of reading is unknown.
    """

    def __init__(self, reached: int | None = None) -> None:
        self.reached = reached
        self._written: dict[str, int] = {}  # by writer: its records up to the last that was received

    def missed(self, unit: Sequence[StoredMessage]) -> MissedRange | None:
        """The missing records before the next unit."""
        head = unit[0]
        first, (previous, written, writer) = first_offset(head.first), head.link
        known = self._written.get(writer, written)
        gap: MissedRange | None = None
        # Of a pattern another topic may have come since: then only the count of a known writer shows.
        if self.reached is not None and (previous > self.reached or written > known):
            gap = MissedRange(self.reached, first, max(1, written - known), GONE)
        end = first + head.records
        if self.reached is None or end > self.reached:
            self.reached = end
        if writer:
            if len(self._written) >= MAX_WRITERS:
                self._written.clear()
            self._written[writer] = (known if known > written else written) + head.records
        return gap
