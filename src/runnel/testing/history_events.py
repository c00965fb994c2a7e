"""The events of a history: one small value for each thing a client did or saw.

Each event is one JSON line, an array whose first item names its kind, so several programs may append to files of
their own and one checker reads them all. `at` is the recorder's clock. Nothing here judges.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Id: TypeAlias = int | str
"""What names one published value; unique within its topic. Bytes are recorded as UTF-8 text."""

Epoch: TypeAlias = int | str
"""Which life of a topic an offset belongs to. Compared, never ordered."""


class Intended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="intended"):
    """A publisher is about to hand a value over."""

    at: float
    topic: str
    id: Id
    publisher: str


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="acknowledged"):
    """The publish returned, with this position."""

    at: float
    topic: str
    id: Id
    epoch: Epoch
    offset: int


class Failed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="failed"):
    """The publish was refused: the value is surely not written."""

    at: float
    topic: str
    id: Id


class Unknown(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="unknown"):
    """The publish timed out, was cancelled or crashed: the value may or may not be written."""

    at: float
    topic: str
    id: Id


class Subscribed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="subscribed"):
    """A plain subscription is open and is owed everything from `start` on."""

    at: float
    subscriber: str
    topic: str
    start: int | None
    epoch: Epoch | None


class Resumed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="resumed"):
    """A durable name is open again: it may see old records once more, and must skip none."""

    at: float
    subscriber: str
    topic: str


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="delivered"):
    """A plain subscriber got a record."""

    at: float
    subscriber: str
    topic: str
    epoch: Epoch
    offset: int
    id: Id
    sequence: int | None = None


class GapTold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="gap"):
    """A subscriber got the report that `count` records (None: not known) in [first, end) will not come."""

    at: float
    subscriber: str
    topic: str
    epoch: Epoch
    first: int
    end: int
    count: int | None


class SequencesTold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="sequences"):
    """A pattern's subscriber got the report that `count` records with sequences in [first, end) will not come."""

    at: float
    subscriber: str
    first: int
    end: int
    count: int | None


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ended"):
    """A subscriber or group stopped, having read up to `end` (None: up to what it last saw)."""

    at: float
    reader: str
    topic: str | None
    end: int | None


class Grouped(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="grouped"):
    """A consumer group exists and is owed everything from `start` on."""

    at: float
    group: str
    topic: str
    start: int
    epoch: Epoch | None


class Leased(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="leased"):
    """A member of a group got a delivery; it is its own until `until` (None: until it lets go)."""

    at: float
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int
    id: Id
    attempt: int
    until: float | None


class Extended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="extended"):
    """A member's lease now lasts until `until`."""

    at: float
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int
    until: float


class Acked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="acked"):
    """A member's ack was accepted: the group must never get the record again."""

    at: float
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int


class Nacked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="nacked"):
    """A member is giving a delivery back."""

    at: float
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int


class Rejected(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="rejected"):
    """A delivery was refused for good: the group is done with the record."""

    at: float
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="left"):
    """A member is gone, by leaving or by dying: whatever it held is free."""

    at: float
    group: str
    member: str


class Drained(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="drained"):
    """The group was read until nothing was left: every record must be acked or rejected."""

    at: float
    group: str
    topic: str


class Cleaned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="cleaned"):
    """Retention, compaction or expiry took [first, end): no reader is owed these records."""

    at: float
    topic: str
    epoch: Epoch
    first: int
    end: int


class Restarted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="restarted"):
    """The broker died and came back: every lease is void, attempts may count anew."""

    at: float


Event: TypeAlias = (
    Intended
    | Acknowledged
    | Failed
    | Unknown
    | Subscribed
    | Resumed
    | Delivered
    | GapTold
    | SequencesTold
    | Ended
    | Grouped
    | Leased
    | Extended
    | Acked
    | Nacked
    | Rejected
    | Left
    | Drained
    | Cleaned
    | Restarted
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode  # mypy knows the union through the alias
