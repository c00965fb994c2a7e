"""What peers and principals use: failed logins that make the next one slower, and rates of publishing.

Bounded: of very many peers the oldest are forgotten. Time is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections import OrderedDict

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds that a failed login waits for its answer
FORGET_AFTER = 300.0  # seconds after which failures of a peer count no more
MAX_PEERS = 10_000
BURST_SECONDS = 1.0  # how much of a rate may be used at once


class FailedLogins:
    """How often each peer failed to log in lately."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def delay(self, peer: str, now: float) -> float:
        """Count a failed login of `peer`; the seconds that its answer has to wait. Each doubles it."""
        count, last = self._failed.pop(peer, (0, now))
        if now - last > FORGET_AFTER:
            count = 0
        self._failed[peer] = count + 1, now
        if len(self._failed) > MAX_PEERS:
            self._failed.popitem(last=False)
        return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(count, 16)))

    def succeeded(self, peer: str) -> None:
        """A login of `peer` succeeded: it starts anew."""
        self._failed.pop(peer, None)


class Rate:
    """A bucket that fills at `rate` a second. What is taken beyond its contents has to be waited for."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate, self._left = rate, rate * BURST_SECONDS
        self._at: float | None = None

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; the seconds until the next may be taken, 0 if at once."""
        if self._at is not None:
            self._left = min(self._rate * BURST_SECONDS, self._left + (now - self._at) * self._rate)
        self._at = now
        self._left -= amount
        return 0.0 if self._left >= 0 else -self._left / self._rate
