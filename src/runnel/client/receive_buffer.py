"""Records received for a subscription and not yet consumed, in order, with the gaps between them.

The buffer knows the position after the last record received. After a lost connection the subscription continues there,
and records that arrive twice are dropped. Batches are unpacked only when they are consumed. No event loop, no clock, no
socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from runnel.core.batch import PackedSlice, Slice, SliceRun
from runnel.core.batch_format import (
    BYTES,
    HEADER_SIZE,
    JSON,
    MSGPACK,
    VALUES,
    check_crc,
    read_batch_header,
    unpack,
)
from runnel.core.clock import from_micros
from runnel.core.errors import BadBatch
from runnel.core.lone_record import unpack_lone
from runnel.core.record import Gap, MissedRange, joined_missed
from runnel.wire.binary_messages import DeliverPayload, GrantPayload, read_deliver
from runnel.wire.frames import FRAME_HEADER_SIZE

ENCODINGS = {BYTES: None, JSON: "json", MSGPACK: "msgpack"}

_COUNT = slice(8, 12)  # of the header of a batch


class SharedBatch:
    """The records of a frame for several subscriptions: unpacked once, by the first that reads them."""

    __slots__ = ("_found", "where")

    def __init__(self, where: DeliverPayload) -> None:
        self.where = where
        self._found: dict[bool, tuple[Slice, str | None]] = {}

    def opened(self, *, verify: bool, packed: bool) -> tuple[Slice, str | None]:
        """Its records, and how their values are written; or `BadBatch`."""
        found = self._found.get(packed)
        if found is None:
            open_frame = packed_frame if packed else unpack_frame
            found = self._found[packed] = open_frame(self.where, verify=verify)
        return found


class ReceivedBatch:
    """One frame's records. `count` is from its header; its contents are known when it was `opened`."""

    __slots__ = ("_shared", "_skipped", "_slice", "_where", "cost", "count", "encoding", "size")

    def __init__(
        self,
        where: DeliverPayload | GrantPayload,
        cost: int,
        count: int,
        skipped: int = 0,
        shared: SharedBatch | None = None,
    ) -> None:
        self._where: DeliverPayload | GrantPayload | None = where
        self._shared = shared
        self._slice: Slice | None = None
        self._skipped = skipped  # records at its beginning that are known already
        self.size = self.cost = cost  # bytes; and of the credit that it came on
        self.count = count - skipped
        self.encoding: str | None = None  # how its values are written, once it was opened

    def __repr__(self) -> str:
        return f"<ReceivedBatch of {self.count} records>"

    def place(self, *, is_pattern: bool) -> int:
        """The place of its first record, before it was opened."""
        assert self._where is not None
        return (self._where.sequence if is_pattern else self._where.offset) + self._skipped

    def opened(self, *, verify: bool, packed: bool = False) -> Slice:
        """Its records, or `BadBatch`. `packed`: they are forwarded, and not decoded before a value is accessed."""
        if self._slice is None:
            assert self._where is not None, "it is opened once"
            if self._shared is not None:
                found, self.encoding = self._shared.opened(verify=verify, packed=packed)
            else:
                open_frame = packed_frame if packed else unpack_frame
                found, self.encoding = open_frame(self._where, verify=verify)
            if self._skipped:
                found = found.cut(found.start + self._skipped, found.end)
            self._slice, self._where, self._shared = found, None, None
        return self._slice

    def first(self, count: int) -> Slice:
        """The first `count` of its records, which it holds no longer. It was opened, and has more than that."""
        assert self._slice is not None
        whole = self._slice
        middle = whole.start + count
        self._slice = whole.cut(middle, whole.end)
        self.count -= count
        return whole.cut(whole.start, middle)


def record_count(batch: bytes) -> int:
    """How many records a batch has, as its header says. Whether that is so shows when it is unpacked."""
    return int.from_bytes(batch[_COUNT], "little") if len(batch) >= HEADER_SIZE else 0


def unpack_frame(where: DeliverPayload | GrantPayload, *, verify: bool) -> tuple[Slice, str | None]:
    """The records of a frame, and how their values are written; or `BadBatch`."""
    start, time = where.offset, from_micros(where.time)
    if (lone := unpack_lone(where.batch, verify=verify)) is not None:
        runs = [SliceRun(start, where.sequence, time)]
        return Slice(where.topic, where.epoch, start, lone[:1], runs, None, [where.batch]), ENCODINGS[lone[1]]
    batch = unpack(where.batch, verify=verify)
    if batch.deltas is not None:
        raise BadBatch("its records do not lie side by side")
    stretches: Sequence[SliceRun] = [SliceRun(start, where.sequence, time)]
    if batch.times is not None:
        stretches = _by_time(start, where.sequence, time, batch.times)
    encoding = ENCODINGS[batch.header.content_type]
    packs: list[bytes | None] | None = [where.batch] if len(stretches) == 1 else None  # to be sent on as it came
    return Slice(where.topic, where.epoch, start, batch.values, stretches, batch.columns, packs), encoding


def packed_frame(where: DeliverPayload | GrantPayload, *, verify: bool) -> tuple[Slice, str | None]:
    """The same for a frame to forward: batches of values alone stay packed."""
    header = read_batch_header(where.batch)
    if header.columns != VALUES:
        return unpack_frame(where, verify=verify)
    if verify:
        check_crc(header, where.batch)
    runs = [SliceRun(where.offset, where.sequence, from_micros(where.time))]
    part = PackedSlice(where.topic, where.epoch, where.offset, header.count, runs, [where.batch])
    return part, ENCODINGS[header.content_type]


def _by_time(start: int, sequence: int, time: datetime, times: Sequence[int | None]) -> list[SliceRun]:
    """Records that have times of their own: a stretch for each run of the same."""
    found: list[SliceRun] = []
    for at, own in enumerate(times):
        when = time if own is None else from_micros(own)
        if not found or found[-1].time != when:
            found.append(SliceRun(start + at, sequence + at, when))
    return found


# -- The buffer ------------------------------------------------------------------------------------------


class ReceivedRecords(NamedTuple):
    """The next items: the gap, then records, whose values all have one encoding; and their end."""

    slices: list[Slice]
    missed: MissedRange | None
    encoding: str | None
    end: int


LARGE = 256  # records: so many are handed out as they came, if the user gave no number


class ReceiveBuffer:
    """Records on this side of the wire. A place is an offset or, for a pattern, a sequence."""

    def __init__(self, credit: int, *, verify: bool, packed: bool = False) -> None:
        self.credit, self._verify, self._packed = credit, verify, packed
        self.is_pattern = False
        self.next = 0  # the place behind all that was received
        self.records = 0  # received and not taken
        self.bytes = 0  # of credit that they hold
        self.returned = 0  # bytes of credit that can be given back
        self.taken = 0  # records that came over the present connection and are taken, whatever becomes of them
        self._known = 0  # records before this place were received over an earlier connection
        self._items: deque[ReceivedBatch | MissedRange] = deque()

    def __repr__(self) -> str:
        return f"<ReceiveBuffer {self.records} records, next {self.next}>"

    def __len__(self) -> int:
        """How many frames and gaps wait."""
        return len(self._items)

    # -- connections --------------------------------------------------------------------------------------------

    def begin(self, place: int, *, is_pattern: bool) -> None:
        """The server confirmed the subscription for the first time: at `place`."""
        self.next, self.is_pattern = place, is_pattern

    def resume(self) -> None:
        """There is another connection, over which the server may repeat received records: they are left out.

        Records that wait here hold no credit any more: the connection that gave it was lost.
        """
        if self.kept:
            self._let_go()
        self._known, self.bytes, self.returned, self.taken = self.next, 0, 0, 0
        for item in self._items:
            if isinstance(item, ReceivedBatch):
                item.cost = 0

    def _let_go(self) -> None:
        """Have the excess sent again: a user that does not read would keep more with every connection."""
        items, held = self._items, sum(item.size for item in self._items if isinstance(item, ReceivedBatch))
        while held > self.credit and not (isinstance(items[-1], ReceivedBatch) and not items[-1].cost):
            last = items.pop()
            if isinstance(last, MissedRange):
                self.next = last.first
            else:
                held -= last.size
                self.records -= last.count
                self.next = last.place(is_pattern=self.is_pattern)

    def clear(self) -> None:
        """Reading has ended."""
        self._items.clear()
        self.records = self.bytes = 0

    # -- received frames ----------------------------------------------------------------------------------------

    def deliver(self, extra: int, payload: bytes) -> None:
        """The records of a DELIVER."""
        self.add(read_deliver(extra, payload), len(payload))

    def add(self, where: DeliverPayload, size: int, shared: SharedBatch | None = None) -> None:
        """The same, read already: its payload has `size` bytes, and it may be `shared` with other subscriptions."""
        cost = FRAME_HEADER_SIZE + size
        place, count = where.sequence if self.is_pattern else where.offset, record_count(where.batch)
        skipped = 0
        if place < self._known:
            skipped = min(count, self._known - place)
            self.taken += skipped
            if skipped == count:
                self.returned += cost
                return
        elif not count:
            self._items.append(MissedRange(place, place + 1, 1, "a batch came without its records"))
            self.returned += cost
            self.next = max(self.next, place + 1)
            return
        self._items.append(ReceivedBatch(where, cost, count, skipped, shared))
        self.records += count - skipped
        self.bytes += cost
        self.next = place + count

    def miss(self, gap: Gap) -> None:
        """Apply a GAP. Records in it that were received were not missed."""
        first, count = gap.first, gap.count or 0
        if first < self._known:
            if gap.end <= self._known:
                return
            first = self._known
            count = min(count, gap.end - first)
        self._items.append(MissedRange(first, gap.end, count, gap.reason))
        self.next = max(self.next, gap.end)

    # -- taking records -----------------------------------------------------------------------------------------

    @property
    def kept(self) -> int:
        """Records that came over an earlier connection, and wait here: the server knows nothing of them any more."""
        return sum(item.count for item in self._items if isinstance(item, ReceivedBatch) and not item.cost)

    @property
    def is_full(self) -> bool:
        """Whether all credit is out: nothing more comes before some of this is taken."""
        return self.bytes >= self.credit

    def take(self, limit: int, *, as_it_came: bool = False) -> ReceivedRecords | None:
        """Up to `limit` records, and the gap before them; None: there are none.

        `as_it_came`: a large batch is not joined to others, which would only copy it.
        """
        items = self._items
        if not items:
            return None
        slices: list[Slice] = []
        missed: MissedRange | None = None
        encoding: str | None = None
        end = 0
        while items and limit > 0:
            item = items[0]
            found = item if isinstance(item, MissedRange) else self._opened(item)
            if isinstance(found, MissedRange):
                items[0] = found
                if slices:
                    break  # reported with the following records
                missed = joined_missed(missed, found)
                end = max(end, found.end)
                items.popleft()
                continue
            assert isinstance(item, ReceivedBatch)
            if slices and item.encoding != encoding:
                break
            encoding = item.encoding
            count = len(found)
            if count > limit:
                found, count = item.first(limit), limit
            else:
                items.popleft()
                self.bytes -= item.cost
                self.returned += item.cost
            slices.append(found)
            self.records -= count
            self.taken += count if item.cost else 0
            limit -= count
            end = (found.sequence if self.is_pattern else found.start) + count
            if as_it_came and count >= LARGE:
                break
        return ReceivedRecords(slices, missed, encoding, end)

    def _opened(self, item: ReceivedBatch) -> Slice | MissedRange:
        """Its records; or, where they cannot be read, that they were missed."""
        try:
            return item.opened(verify=self._verify, packed=self._packed)
        except BadBatch as error:
            place = item.place(is_pattern=self.is_pattern)
            self.bytes -= item.cost
            self.returned += item.cost
            self.records -= item.count
            self.taken += item.count if item.cost else 0
            return MissedRange(place, place + item.count, item.count, f"what came could not be read: {error.why}")
