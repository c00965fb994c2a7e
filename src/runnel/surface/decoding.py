"""A record with a value of its own: decoded for one reader, so that nobody meets another's changes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from runnel.core.codec import Codec
from runnel.core.record import Gap, Record

T = TypeVar("T")


def decoded(codec: Codec[T], encoding: str | None, record: Record[bytes], gap: Gap | None = None) -> Record[T]:
    """`record` with its value decoded, or ValidationFailed; `encoding` is how it is written (None: as `codec` says)."""
    value = codec.encoded_as(encoding).value_of(record)
    return Record(**(msgspec.structs.asdict(record) | {"value": value, "gap": gap}))
