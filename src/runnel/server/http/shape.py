"""A record as the web sees it: the same JSON object in history and in events.

Values and keys that are not UTF-8 are in base64, and say so; so does the JSON door.
Below: core, wire.lines_events. Above: history, sse.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from runnel.core.record import Gap, Record
from runnel.wire.lines_events import as_text


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record. Fields without meaning are left out."""

    topic: str
    offset: int
    epoch: int
    sequence: int
    time: datetime
    payload: str
    encoding: str | None = None
    key: str | None = None
    key_encoding: str | None = None
    headers: Mapping[str, str] | None = None


class GapShape(msgspec.Struct, frozen=True, gc=False):
    """What is missing, and why. `count` is null where nobody can know."""

    topic: str
    first: int
    end: int
    count: int | None
    reason: str


encode = msgspec.json.Encoder().encode


def shape(record: Record[bytes]) -> Shape:
    """`record`, to be encoded."""
    payload, encoding = as_text(record.value)
    key, key_encoding = (None, None) if record.key is None else as_text(record.key)
    headers = dict(record.headers) or None
    topic, offset, epoch, sequence, time = record.topic, record.offset, record.epoch, record.sequence, record.time
    return Shape(topic, offset, epoch, sequence, time, payload, encoding, key, key_encoding, headers)


def gap_shape(gap: Gap) -> GapShape:
    """`gap`, to be encoded. That nothing is known of how many there were is no count."""
    return GapShape(gap.topic, gap.first, gap.end, gap.count or None, gap.reason)
