"""Counts of the past: subscriptions that ended, topics that were deleted, records that became dead letters.

Counters never go back while a broker is open.
"""

from __future__ import annotations

from collections.abc import Iterable

from runnel.broker.read.reader import LocalReader
from runnel.core.statistics import Histogram, SubscriberTotals
from runnel.core.telemetry import LATENCY_BOUNDS

ANONYMOUS = "anonymous"
OTHER = "(other)"
MAX_FLOWS = 1000  # pairs of pattern and subscriber that are counted apart
MAX_REASONS = 1000  # of dead letters, by pattern and subscriber, that are counted apart


class Tally:
    """Records received and lost by one pattern and subscriber, over ended subscriptions."""

    __slots__ = ("delivered", "dropped", "expired", "lag", "latency")

    def __init__(self) -> None:
        self.delivered = self.dropped = self.expired = self.lag = 0
        self.latency: Histogram | None = None  # from publish to delivery, of all of them, if that is measured

    def add(self, other: Tally | SubscriberTotals) -> None:
        """Count another in."""
        self.delivered += other.delivered
        self.dropped += other.dropped
        self.expired += other.expired
        self.lag += other.lag


class Totals:
    """Sums over the past: subscriptions that ended, topics that were deleted.

    The first `MAX_FLOWS` pairs of pattern and subscriber have a sum of their own, for good, so
    that counters never go back; all later ones share one.
    """

    def __init__(self) -> None:
        self.published = self.published_bytes = 0  # of deleted topics
        self._tallies: dict[tuple[str, str], Tally] = {}
        self.letters: dict[tuple[str, str, str], int] = {}  # by pattern, subscriber and reason

    def count_letter(self, pattern: str, subscriber: str, reason: str) -> None:
        """A record became a dead letter. Its reason is counted up to the first colon: the rest varies."""
        key = (pattern, subscriber, " ".join(reason.partition(":")[0].split())[:100] or "no reason given")
        if key not in self.letters and len(self.letters) >= MAX_REASONS:
            key = (OTHER, OTHER, OTHER)
        self.letters[key] = self.letters.get(key, 0) + 1

    def latency_of(self, reader: LocalReader) -> Histogram:
        """Where to count how long records took to be delivered to `reader`, and to others of its pattern and name."""
        tally = self._tally(reader)
        if tally.latency is None:
            tally.latency = Histogram(LATENCY_BOUNDS)
        return tally.latency

    def add(self, reader: LocalReader) -> None:
        """Count in a subscription that ended, unless it is internal: there is one for each request."""
        if reader.pattern[0] != "$":
            ended = tally_of(reader)
            ended.lag = 0
            self._tally(reader).add(ended)

    def with_open(self, readers: Iterable[LocalReader]) -> dict[tuple[str, str], SubscriberTotals]:
        """The sums, with those counted in that are still open."""
        tallies: dict[int, Tally] = {}
        for one in readers:
            tally = self._tally(one)
            tallies.setdefault(id(tally), Tally()).add(tally_of(one))
        sums = {}
        for key, tally in self._tallies.items():
            both = Tally()
            both.add(tally)
            if (still_open := tallies.get(id(tally))) is not None:
                both.add(still_open)
            sums[key] = SubscriberTotals(both.delivered, both.dropped, both.expired, both.lag)
        return sums

    def ended(self) -> dict[tuple[str, str], Tally]:
        """The sums of those that ended, by pattern and subscriber."""
        return self._tallies

    def key_of(self, reader: LocalReader) -> tuple[str, str]:
        """Under which pattern and subscriber `reader` is counted."""
        key = (reader.pattern, reader.name or ANONYMOUS)
        return key if key in self._tallies or len(self._tallies) < MAX_FLOWS else (OTHER, OTHER)

    def sum(self) -> Tally:
        """All of it together, of those that ended."""
        total = Tally()
        for tally in self._tallies.values():
            total.add(tally)
        return total

    def _tally(self, reader: LocalReader) -> Tally:
        return self._tallies.setdefault(self.key_of(reader), Tally())


def tally_of(reader: LocalReader) -> Tally:
    """Records received and lost by one subscription so far."""
    tally = Tally()
    tally.delivered, tally.expired, tally.lag = reader.delivered, reader.expired, reader.lag
    tally.dropped = reader.dropped_count + reader.overflow.drops()
    return tally
