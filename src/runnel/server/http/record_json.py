"""Records and gaps as JSON: the same objects in history, events and dead letters.

Values and keys that are not UTF-8 are sent as base64, and say so, and numbers beyond 2^53 are strings, as with JSON
lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from runnel.core.record import Gap, Record
from runnel.wire.json_events import JsonNumber, as_text, json_number


class RecordJson(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record. Fields without meaning are left out."""

    topic: str
    offset: JsonNumber
    epoch: JsonNumber
    sequence: JsonNumber
    time: datetime
    value: str
    encoding: str | None = None
    key: str | None = None
    key_encoding: str | None = None
    headers: Mapping[str, str] | None = None


class GapJson(msgspec.Struct, frozen=True, gc=False):
    """The missing records, and the reason. `count` is null where it cannot be known."""

    topic: str
    first: JsonNumber
    end: JsonNumber
    count: int | None
    reason: str


class ReplyJson(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The result of a responder."""

    value: str
    encoding: str | None = None
    headers: Mapping[str, str] | None = None


encode_json = msgspec.json.Encoder().encode


def record_as_json(record: Record[bytes]) -> RecordJson:
    """`record`, to be encoded."""
    value, encoding = as_text(record.value)
    key, key_encoding = (None, None) if record.key is None else as_text(record.key)
    headers = dict(record.headers) or None
    offset, epoch, sequence = json_number(record.offset), json_number(record.epoch), json_number(record.sequence)
    return RecordJson(record.topic, offset, epoch, sequence, record.time, value, encoding, key, key_encoding, headers)


def gap_as_json(gap: Gap) -> GapJson:
    """`gap`, to be encoded. That nothing is known of how many there were is no count."""
    return GapJson(gap.topic, json_number(gap.first), json_number(gap.end), gap.count or None, gap.reason)


def reply_as_json(record: Record[bytes]) -> ReplyJson:
    """A reply, to be encoded."""
    value, encoding = as_text(record.value)
    return ReplyJson(value, encoding, dict(record.headers) or None)
