"""Records, and the gaps between them, as subscribers receive them.

Records are immutable and shared by all subscribers of a topic; a decoded value, which can be mutated,
is made for each subscriber.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec

from runnel.core import trace_context
from runnel.core.position import Position

T = TypeVar("T", covariant=True)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

REPLY_TO = "runnel-reply-to"
INBOX = "$runnel.inbox."  # begins the name of an inbox, which only a receiver of the request knows
NATS_INBOX = f"{INBOX}nats."  # and the reply subject of a NATS client, which takes replies from other listeners
MESSAGE_ID = "runnel-message-id"  # of a delayed record that can be cancelled: `header_of_id`
FAILURE = "runnel-error"  # of a reply: the code of the error with which the responder failed


def header_of_id(message_id: str) -> str:
    """A message id as the value of a header, which takes no control characters."""
    return quote(message_id, safe=" !#$&'()*+,/:;=?@[]", errors="surrogatepass")


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Records that this subscriber will not see, and why.

    `first` and `end` (not included) are offsets of the topic, or sequences of the
    broker when the subscription is a pattern. `count` is how many of *this*
    subscriber's records lay between them; None where it is not known any more.
    """

    topic: str
    first: int
    end: int
    count: int | None
    reason: str

    def __str__(self) -> str:
        many = "an unknown number of" if self.count is None else f"{self.count:,}"
        return f"missed {many} records of {self.topic!r} in [{self.first}, {self.end}): {self.reason}"


class Record(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One published message, as every subscriber sees it.

    `gap` is None, or the records that this subscriber missed right before this one.
    """

    topic: str
    offset: int
    sequence: int
    epoch: int
    key: bytes | None
    value: T
    headers: Mapping[str, str]
    time: datetime
    gap: Gap | None = None

    @property
    def position(self) -> Position:
        """The record's place in its topic; pass it as `start=` to read on from it."""
        return Position(self.epoch, self.offset)

    @property
    def traceparent(self) -> str:
        """The W3C trace context: the publisher's, else one that is the same for every subscriber."""
        return self.headers.get(trace_context.TRACEPARENT) or trace_context.derived_traceparent(self.epoch, self.offset)

    @property
    def reply_to(self) -> str | None:
        """The topic that waits for a reply, when this record is a request."""
        return self.headers.get(REPLY_TO)


class Meta(msgspec.Struct, frozen=True, gc=False):
    """Key, headers and times, which only some records have. The log stores none for the rest.

    `due` and `expires` are wall-clock seconds.
    """

    key: bytes | None = None
    headers: Mapping[str, str] = NO_HEADERS
    due: float | None = None
    expires: float | None = None
    priority: int = 0

    @property
    def weight(self) -> int:
        """About how many bytes the key and the headers take."""
        weight = 0 if self.key is None else len(self.key)
        if self.headers is NO_HEADERS:
            return weight
        for name, text in self.headers.items():
            weight += len(name) + len(text)
        return weight


# -- Missed ranges, before they are delivered as a Gap ---------------------------------------------------


TOO_SLOW = "the subscriber was too slow"


class MissedRange(msgspec.Struct, frozen=True, gc=False):
    """Records passed over: [first, end) as offsets or sequences, and how many of the reader's lay there."""

    first: int
    end: int
    count: int
    reason: str


def joined_missed(one: MissedRange | None, two: MissedRange | None) -> MissedRange | None:
    """Two stretches that were missed one after the other, reported as one."""
    if one is None or two is None:
        return one or two
    reason = one.reason if two.reason in one.reason else f"{one.reason}; {two.reason}"
    return MissedRange(min(one.first, two.first), max(one.end, two.end), one.count + two.count, reason)
