"""Replies to one request from many responders: `Replies`, what `request_many` returns, and how they are gathered.

The deadline is the normal end. Count and bytes are bounded, since responders decide how much they send.
"""

from __future__ import annotations

from typing import TypeVar

from runnel.core.errors import InvalidOption, RunnelError
from runnel.core.options import above_zero, positive
from runnel.core.record import Record

V = TypeVar("V")

MAX_REPLIES = 10_000  # to one request
MAX_REPLY_BYTES = 8 << 20  # and their values; but always one reply


class Replies(list[Record[V]]):
    """The replies to `request_many`, in the order in which they came.

    `failures` are the responders that raised (`RequestFailed`) and the replies that do not decode as the requested type
    (`ValidationFailed`).

    >>> replies = await broker.request_many("prices", "tea", type=Price, timeout=0.5)
    >>> best = min(reply.value.cents for reply in replies)
    """

    failures: list[RunnelError]

    def __init__(self) -> None:
        super().__init__()
        self.failures = []


class Gathering:
    """The replies so far, and whether more are accepted."""

    def __init__(self, limit: int) -> None:
        self.replies: list[Record[bytes]] = []
        self._limit, self._bytes = limit, 0

    def add(self, reply: Record[bytes]) -> bool:
        """Take one reply; whether more may follow."""
        self.replies.append(reply)
        self._bytes += len(reply.value)
        return len(self.replies) < self._limit and self._bytes < MAX_REPLY_BYTES


def checked_gathering(timeout: float, limit: int | None) -> tuple[float, int]:
    """How long to gather, and how many replies at most."""
    if limit is not None and positive("limit", limit) > MAX_REPLIES:
        raise InvalidOption("limit", limit, f"one request takes at most {MAX_REPLIES:,} replies")
    return above_zero("timeout", timeout), MAX_REPLIES if limit is None else limit
