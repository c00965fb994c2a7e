"""The usage of peers and principals: failed logins that make the next one slower, and rates of publishing.

A publish beyond a rate is taken and paid for by a pause. One that comes while the debt is long is refused.

Bounded: of very many peers the oldest are forgotten. Time is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections import OrderedDict

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds that a failed login waits for its answer
FORGET_AFTER = 300.0  # seconds after which failures of a peer count no more
MAX_PEERS = 10_000
BURST_SECONDS = 1.0  # how much of a rate may be used at once
LONGEST_PAUSE = 5.0  # seconds that a peer is not read from; shorter than a ping takes to be missed


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
    """A bucket that fills at `rate` a second. Taking more than its contents requires a wait."""

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: float) -> None:
        self.rate, self._left = rate, rate * BURST_SECONDS
        self._at: float | None = None

    def debt(self, now: float) -> float:
        """The seconds until the next may be taken, 0 if at once."""
        if self._at is not None:
            self._left = min(self.rate * BURST_SECONDS, self._left + max(0.0, now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._left >= 0 else -self._left / self.rate

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; the seconds until the next may be taken, 0 if at once."""
        self.debt(now)
        self._left -= amount
        return self.debt(now)
