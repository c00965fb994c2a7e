"""W3C trace context: one `traceparent` per record, computed on demand.

The traceparent of a record published without one is derived from (epoch, offset), so every subscriber in
any process derives the same value, and publishing pays nothing.
"""

from __future__ import annotations

import re
from hashlib import blake2b

TRACEPARENT = "traceparent"

_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: str) -> bool:
    """Whether `text` is a version-00 traceparent with non-zero ids."""
    return _SHAPE.fullmatch(text) is not None


def derived_traceparent(epoch: int, offset: int) -> str:
    """The traceparent of a record that was published without one (not sampled: flags 00)."""
    digest = blake2b(b"%d:%d" % (epoch, offset), digest_size=24, person=b"runnel-trace").hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"
