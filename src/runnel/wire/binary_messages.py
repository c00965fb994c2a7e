"""Payloads with a fixed binary layout: those that carry records, and those that are sent very often.

Record batches are not decoded: writers return the bytes before the batch, readers cut it off unchanged for
`core.batch_format` to check. A length that does not fit raises `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from runnel.core.errors import LimitExceeded, ProtocolError
from runnel.wire.frames import (
    ASK,
    DROPPED,
    FRAME_HEADER_SIZE,
    HAS_COUNTS,
    HAS_DETAILS,
    HAS_POSITION,
    HEADER,
    MAX_CONTROL_FRAME,
    MORE,
    SHARED,
    FrameKind,
    frame,
)
from runnel.wire.msgpack_messages import PublishDetails, decode_message, encode_message

_LENGTH = Struct("<I")  # of the About of a PUBLISH
_PUBLISHED = Struct("<QQQ")  # epoch, first offset, last offset
_CREDIT = Struct("<IQ")  # bytes, place
_COUNTS = Struct("<IQIQQQ")  # the same; records that one take may have; taken up, expired, unreadable
_PLACE = Struct("<Q")
_SHARES = Struct("<H")  # how many other subscriptions share a DELIVER
_DELIVER = Struct("<QQQq")  # epoch, first offset, first sequence, time
_GRANT = Struct("<QQQqQQI")  # and lease, first place, attempt

_PUBLISHED_FRAME = Struct(HEADER.format + _PUBLISHED.format[1:])
_COUNTS_FRAME = Struct(HEADER.format + _COUNTS.format[1:])
_DELIVER_HEAD = Struct(HEADER.format + _DELIVER.format[1:])
_GRANT_HEAD = Struct(HEADER.format + _GRANT.format[1:])
_BEHIND_LENGTH = FRAME_HEADER_SIZE - 4
_PUBLISH_KIND = int(FrameKind.PUBLISH)
_PUBLISHED_KIND = int(FrameKind.PUBLISHED)

DELIVER_COST = FRAME_HEADER_SIZE + _DELIVER.size
"""The size of a DELIVER beside its topic and its batch."""
GRANT_COST = FRAME_HEADER_SIZE + _GRANT.size
"""The size of a GRANT beside its topic and its batch."""


class PublishPayload(NamedTuple):
    """The contents of a PUBLISH. The batch was not checked."""

    topic: str
    about: PublishDetails | None
    batch: bytes


class DeliverPayload(NamedTuple):
    """Records of one topic: the first of them lies here, the others right behind it. The batch was not looked at."""

    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    topic: str
    batch: bytes


class GrantPayload(NamedTuple):
    """Records of one topic, leased to a member: record i has place `place` + i. The batch was not looked at."""

    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    lease: int
    place: int
    attempt: int
    topic: str
    batch: bytes


# -- publishing -------------------------------------------------------------------------------------------------


def publish_frame(id: int, topic: bytes, batch: bytes, about: PublishDetails | bytes | None = None) -> list[bytes]:
    """A PUBLISH in two parts, the second of them the batch itself. `about` may be encoded already."""
    size = len(topic)
    if about is None:
        return [HEADER.pack(_BEHIND_LENGTH + size + len(batch), FrameKind.PUBLISH, 0, size, id) + topic, batch]
    said = about if isinstance(about, bytes) else encode_message(about)
    whole = _BEHIND_LENGTH + size + 4 + len(said) + len(batch)
    header = HEADER.pack(whole, FrameKind.PUBLISH, HAS_DETAILS, size, id)
    return [b"".join((header, topic, _LENGTH.pack(len(said)), said)), batch]


def small_publish_frame(id: int, topic: bytes, batch: bytes) -> bytes:
    """The same in one piece, which copies the batch: for one that is small, and says nothing about itself."""
    size = len(topic)
    return HEADER.pack(_BEHIND_LENGTH + size + len(batch), _PUBLISH_KIND, 0, size, id) + topic + batch


def read_publish(flags: int, extra: int, payload: bytes | memoryview) -> PublishPayload:
    """The topic, the options, and the batch. Whether the topic is a valid name is not checked."""
    at, about = extra, None
    if len(payload) < at + (4 if flags & HAS_DETAILS else 0):
        raise _short("PUBLISH", payload)
    if flags & HAS_DETAILS:
        (length,) = _LENGTH.unpack_from(payload, at)
        at += 4 + length
        if len(payload) < at:
            raise _short("PUBLISH", payload)
        if length > MAX_CONTROL_FRAME:
            raise LimitExceeded("max_frame", length, MAX_CONTROL_FRAME)
        about = decode_message(PublishDetails, bytes(payload[at - length : at]))
    return PublishPayload(_topic("PUBLISH", payload, 0, extra), about, bytes(payload[at:]))


def read_plain_publish(extra: int, payload: bytes | memoryview) -> tuple[str, bytes]:
    """The topic and the batch of a PUBLISH that has no flags."""
    try:
        if extra <= len(payload):
            return str(payload[:extra], "utf-8"), bytes(payload[extra:])
    except UnicodeDecodeError:
        pass
    topic, _, batch = read_publish(0, extra, payload)  # raises the error
    return topic, batch


def published_frame(id: int, epoch: int, first: int, last: int) -> bytes:
    """Where the records of a PUBLISH are."""
    return _PUBLISHED_FRAME.pack(_BEHIND_LENGTH + _PUBLISHED.size, _PUBLISHED_KIND, 0, 0, id, epoch, first, last)


def read_published(payload: bytes) -> tuple[int, int, int]:
    """(epoch, first offset, last offset)."""
    if len(payload) != _PUBLISHED.size:
        _exactly("PUBLISHED", _PUBLISHED, payload)
    return _PUBLISHED.unpack(payload)


# -- subscribing ------------------------------------------------------------------------------------------------


class ReaderCounts(NamedTuple):
    """The reader's report: how many records it wants at once, and totals of the records that it received."""

    limit: int  # records that one take may have; 0: as many as the server sends
    taken: int  # records that its user took up, whatever became of them:
    expired: int  # those whose time ran out on the way
    unreadable: int  # those that it could not decode


def credit_frame(
    id: int, given: int, place: int | None = None, *, ask: bool = False, counts: tuple[int, int, int, int] | None = None
) -> bytes:
    """Credit for subscription `id`; `place`: all before it was processed; `ask`: one take may be sent.

    `counts` are those of `ReaderCounts`.
    """
    flags = (ASK if ask else 0) | (0 if place is None else HAS_POSITION)
    if counts is None:
        return frame(FrameKind.CREDIT, id, _CREDIT.pack(given, place or 0), flags)
    length = _BEHIND_LENGTH + _COUNTS.size
    return _COUNTS_FRAME.pack(length, FrameKind.CREDIT, flags | HAS_COUNTS, 0, id, given, place or 0, *counts)


def read_credit(flags: int, payload: bytes) -> tuple[int, int | None, bool, ReaderCounts | None]:
    """(bytes given back, place or None, whether one take is requested, the reader's report or None)."""
    counts = None
    if flags & HAS_COUNTS:
        given, place, *counted = _exactly("CREDIT", _COUNTS, payload)
        counts = ReaderCounts(*counted)
    else:
        given, place = _exactly("CREDIT", _CREDIT, payload)
    return given, place if flags & HAS_POSITION else None, bool(flags & ASK), counts


def unsubscribe_frame(id: int, place: int | None = None) -> bytes:
    """The end of subscription `id`; `place`: all before it was processed."""
    return frame(FrameKind.UNSUBSCRIBE, id, _PLACE.pack(place or 0), 0 if place is None else HAS_POSITION)


def read_unsubscribe(flags: int, payload: bytes) -> int | None:
    """The place before which all was processed, or None."""
    (place,) = _exactly("UNSUBSCRIBE", _PLACE, payload)
    return place if flags & HAS_POSITION else None


def deliver_head(
    id: int, topic: bytes, epoch: int, offset: int, sequence: int, time: int, size: int, *, dropped: bool = False
) -> bytes:
    """A DELIVER up to its batch, which has `size` bytes and follows. `time`: microseconds since 1970."""
    name = len(topic)
    whole = _BEHIND_LENGTH + _DELIVER.size + name + size
    flags = DROPPED if dropped else 0
    return _DELIVER_HEAD.pack(whole, FrameKind.DELIVER, flags, name, id, epoch, offset, sequence, time) + topic


def shared_deliver_head(
    ids: Sequence[int], topic: bytes, epoch: int, offset: int, sequence: int, time: int, size: int
) -> bytes:
    """The same for several subscriptions: the first in the header, the others before the rest."""
    name, others = len(topic), len(ids) - 1
    whole = _BEHIND_LENGTH + _SHARES.size + 4 * others + _DELIVER.size + name + size
    return b"".join(
        (
            HEADER.pack(whole, FrameKind.DELIVER, SHARED, name, ids[0]),
            pack(f"<H{others}I", others, *ids[1:]),
            _DELIVER.pack(epoch, offset, sequence, time),
            topic,
        )
    )


def read_shares(payload: bytes | memoryview) -> tuple[Sequence[int], bytes | memoryview]:
    """Of a DELIVER with the flag SHARED: the ids of the other subscriptions, and the payload without them."""
    count = _SHARES.unpack_from(payload)[0] if len(payload) >= _SHARES.size else 0
    start = _SHARES.size + 4 * count
    if not count or len(payload) < start:
        raise _short("DELIVER", payload)
    return unpack_from(f"<{count}I", payload, _SHARES.size), payload[start:]


def read_deliver(extra: int, payload: bytes | memoryview) -> DeliverPayload:
    """Where the records lie, and the batch. Whether they were dropped say the flags: `flags & DROPPED`."""
    if len(payload) < _DELIVER.size + extra:
        raise _short("DELIVER", payload)
    topic = _topic("DELIVER", payload, _DELIVER.size, extra)
    batch = bytes(payload[_DELIVER.size + extra :])
    return tuple.__new__(DeliverPayload, (*_DELIVER.unpack_from(payload), topic, batch))  # saves a call in Python


def grant_head(
    id: int,
    topic: bytes,
    epoch: int,
    offset: int,
    sequence: int,
    time: int,
    lease: int,
    place: int,
    attempt: int,
    size: int,
    *,
    more: bool = False,
) -> bytes:
    """A GRANT up to its batch, which has `size` bytes and follows. `more`: another of this lease comes."""
    name = len(topic)
    whole = _BEHIND_LENGTH + _GRANT.size + name + size
    flags = MORE if more else 0
    where = (epoch, offset, sequence, time, lease, place, attempt)
    return _GRANT_HEAD.pack(whole, FrameKind.GRANT, flags, name, id, *where) + topic


def read_grant(extra: int, payload: bytes | memoryview) -> GrantPayload:
    """The lease, where its records lie, and the batch. Whether more of it follows say the flags: `flags & MORE`."""
    if len(payload) < _GRANT.size + extra:
        raise _short("GRANT", payload)
    epoch, offset, sequence, time, lease, place, attempt = _GRANT.unpack_from(payload)
    topic = _topic("GRANT", payload, _GRANT.size, extra)
    return GrantPayload(
        epoch, offset, sequence, time, lease, place, attempt, topic, bytes(payload[_GRANT.size + extra :])
    )


# -- what does not fit ------------------------------------------------------------------------------------------


def _topic(kind: str, payload: bytes | memoryview, at: int, size: int) -> str:
    try:
        return str(payload[at : at + size], "utf-8")
    except UnicodeDecodeError:
        raise ProtocolError(f"{kind}.topic: it is not UTF-8") from None


def _exactly(kind: str, layout: Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise ProtocolError(f"the payload of a {kind} frame is {len(payload)} bytes, not {layout.size}")
    return layout.unpack(payload)


def _short(kind: str, payload: bytes | memoryview) -> ProtocolError:
    return ProtocolError(f"the payload of a {kind} frame ends after {len(payload)} bytes, before its batch begins")


# -- What a publish weighs -------------------------------------------------------------------------------


PUBLISH_OVERHEAD = 1 << 10  # about what a publish under way takes besides its bytes
_RAW_LENGTH = slice(16, 20)  # in the header of a batch: see core.batch_format


def batch_weight(batch: bytes) -> int:
    """Bytes that a batch counts while it is not answered: its uncompressed size, if that is more, and some overhead."""
    return PUBLISH_OVERHEAD + max(len(batch), int.from_bytes(batch[_RAW_LENGTH], "little"))
