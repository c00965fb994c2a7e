"""W3C trace context: one `traceparent` per record, made only when somebody looks.

A record that was published without a trace still has one: it is derived from
(epoch, offset), which names the record everywhere and for ever, so that every
subscriber, in any process, derives the same value and the publisher pays nothing.
"""

from __future__ import annotations

import re
from hashlib import blake2b

HEADER = "traceparent"

_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: str) -> bool:
    """Whether `text` is a version-00 traceparent with non-zero ids."""
    return _SHAPE.fullmatch(text) is not None


def derived(epoch: int, offset: int) -> str:
    """The traceparent of a record that was published without one (not sampled: flags 00)."""
    digest = blake2b(b"%d:%d" % (epoch, offset), digest_size=24, person=b"runnel-trace").hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"
