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


class _Event(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=str.lower):
    at: float


class Intended(_Event, frozen=True):
    """A publisher is about to hand a value over."""

    topic: str
    id: Id
    publisher: str


class Acknowledged(_Event, frozen=True):
    """The publish returned, with this position."""

    topic: str
    id: Id
    epoch: Epoch
    offset: int


class Failed(_Event, frozen=True):
    """The publish was refused: the value is surely not written."""

    topic: str
    id: Id


class Unknown(_Event, frozen=True):
    """The publish timed out, was cancelled or crashed: the value may or may not be written."""

    topic: str
    id: Id


class Subscribed(_Event, frozen=True):
    """A plain subscription is open and is owed everything from `start` on."""

    subscriber: str
    topic: str
    start: int | None
    epoch: Epoch | None


class Resumed(_Event, frozen=True):
    """A durable name is open again: it may see old records once more, and must skip none."""

    subscriber: str
    topic: str


class Delivered(_Event, frozen=True):
    """A plain subscriber got a record."""

    subscriber: str
    topic: str
    epoch: Epoch
    offset: int
    id: Id
    sequence: int | None = None


class GapTold(_Event, frozen=True, tag="gap"):
    """A subscriber got the report that `count` records (None: not known) in [first, end) will not come."""

    subscriber: str
    topic: str
    epoch: Epoch
    first: int
    end: int
    count: int | None


class SequencesTold(_Event, frozen=True, tag="sequences"):
    """A pattern's subscriber got the report that `count` records with sequences in [first, end) will not come."""

    subscriber: str
    first: int
    end: int
    count: int | None


class Ended(_Event, frozen=True):
    """A subscriber or group stopped, having read up to `end` (None: up to what it last saw)."""

    reader: str
    topic: str | None
    end: int | None


class Grouped(_Event, frozen=True):
    """A consumer group exists and is owed everything from `start` on."""

    group: str
    topic: str
    start: int
    epoch: Epoch | None


class _OfLease(_Event, frozen=True):
    group: str
    member: str
    topic: str
    epoch: Epoch
    offset: int


class Leased(_OfLease, frozen=True):
    """A member of a group got a delivery; it is its own until `until` (None: until it lets go)."""

    id: Id
    attempt: int
    until: float | None


class Extended(_OfLease, frozen=True):
    """A member's lease now lasts until `until`."""

    until: float


class Acked(_OfLease, frozen=True):
    """A member's ack was accepted: the group must never get the record again."""


class Nacked(_OfLease, frozen=True):
    """A member is giving a delivery back."""


class Rejected(_OfLease, frozen=True):
    """A delivery was refused for good: the group is done with the record."""


class Left(_Event, frozen=True):
    """A member is gone, by leaving or by dying: whatever it held is free."""

    group: str
    member: str


class Drained(_Event, frozen=True):
    """The group was read until nothing was left: every record must be acked or rejected."""

    group: str
    topic: str


class Cleaned(_Event, frozen=True):
    """Retention, compaction or expiry took [first, end): no reader is owed these records."""

    topic: str
    epoch: Epoch
    first: int
    end: int


class Restarted(_Event, frozen=True):
    """The broker died and came back: every lease is void, attempts may count anew."""


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
