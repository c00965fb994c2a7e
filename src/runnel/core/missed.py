"""Records that a reader passed over, from when that is noticed to when it is told as a `Gap`.

Above: broker.cursor and broker.flow, which notice; surface.record_reading, which tells.
"""

from __future__ import annotations

import msgspec

TOO_SLOW = "the subscriber was too slow"


class Missed(msgspec.Struct, frozen=True, gc=False):
    """Records passed over: [first, end) as offsets or sequences, and how many of the reader's lay there."""

    first: int
    end: int
    count: int
    reason: str


def joined(one: Missed | None, two: Missed | None) -> Missed | None:
    """Two stretches that were missed one after the other, told as one."""
    if one is None or two is None:
        return one or two
    reason = one.reason if two.reason in one.reason else f"{one.reason}; {two.reason}"
    return Missed(min(one.first, two.first), max(one.end, two.end), one.count + two.count, reason)
