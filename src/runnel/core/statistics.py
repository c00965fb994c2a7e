"""Statistics of a broker, as frozen snapshots, and the histograms in them.

Counters never decrease while a broker is open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from runnel.core.backend import DeadLetterTopic
from runnel.core.options import TopicOptions

# Of work: handlers.
DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Of a disk: a fast one syncs in a tenth of a millisecond, and one that is in trouble takes seconds.
SYNC_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class HistogramSnapshot(msgspec.Struct, frozen=True):
    """How many durations fell at or below each bound (the last count has no bound), and their sum in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many durations there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """A bound that at least `share` of the durations do not exceed; 0 when there were none."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= rank:
                return bound
        return 0.0

    def since(self, earlier: HistogramSnapshot) -> HistogramSnapshot:
        """What was counted after `earlier`, a snapshot of the same histogram."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return HistogramSnapshot(self.bounds, counts, self.sum - earlier.sum)


class Histogram:
    """Counts durations. One thread adds; any may take a snapshot."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def snapshot(self) -> HistogramSnapshot:
        """What was counted so far."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)


# -- Snapshots -------------------------------------------------------------------------------------------


class HandlerStatistics(msgspec.Struct, frozen=True):
    """One handler: what it did, and how long it took."""

    name: str
    pattern: str
    group: str | None
    handled: int
    failed: int
    running: int
    durations: HistogramSnapshot


class CleanerStatistics(msgspec.Struct, frozen=True):
    """What the cleaner did since the broker was opened, and what it sees: bytes, unless it says otherwise.

    `amplification` is all that was written, by publishing and by cleaning, for each byte that was published (0 when
    nothing was).
    """

    read: int
    written: int
    given_back: int
    segments: int  # cleaned
    live: int  # of what lies in sealed segments, about
    on_disk: int
    amplification: float
    error: str | None = None  # the last one


class HolderStatistics(msgspec.Struct, frozen=True):
    """A named subscription that holds: `bytes` lie at its position and behind it, and are kept for it."""

    name: str
    pattern: str
    bytes: int


class ArchiveStatistics(msgspec.Struct, frozen=True):
    """An archive that holds: segments behind `through` stay until it comes by. Times are in seconds since 1970."""

    place: str
    through: int
    since: float
    seen: float


class JournalStatistics(msgspec.Struct, frozen=True):
    """The journal of a durable broker at one moment.

    `free_bytes` is as of the last look, a few seconds ago at most (None: there was none yet). The disk is `low`
    below twice `min_free`, and `full` when no new segment may begin. `damage` is what scrubbing found.
    `sync_durations` has one for each of `syncs`, in seconds.
    """

    segments: int
    disk_bytes: int
    pending_bytes: int
    syncs: int
    free_bytes: int | None
    min_free: int
    low: bool
    full: bool
    failed: str | None
    holders: tuple[HolderStatistics, ...]
    scrubbed_bytes: int
    scrubbed_segments: int
    damage: tuple[str, ...]
    cleaner: CleanerStatistics | None = None
    stages: int = 0  # that are open, and what they hold
    staged_bytes: int = 0
    archives: tuple[ArchiveStatistics, ...] = ()  # that hold, as of the last look
    sync_durations: HistogramSnapshot = HistogramSnapshot((), (0,), 0.0)


class TopicStatistics(msgspec.Struct, frozen=True):
    """One topic: what was ever published to it, and what is kept."""

    name: str
    epoch: int
    published: int
    published_bytes: int
    first: int
    end: int
    kept_bytes: int
    subscribers: int


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """One open subscription: how far it is, and what it lost."""

    label: str
    pattern: str
    name: str | None
    policy: str
    buffer: int
    lag: int
    delivered: int
    dropped: int
    expired: int


class CursorStatistics(msgspec.Struct, frozen=True):
    """One name under which nobody reads now, and where it stands: it was left there, or it reads elsewhere (Spark).

    `place` is an offset; of a pattern it is a sequence, and `lag` is None. `hold`: nothing behind it is taken away.
    """

    name: str
    pattern: str
    place: int
    lag: int | None
    hold: bool


class MemberStatistics(msgspec.Struct, frozen=True):
    """One member of a group: what it holds, was granted and acked."""

    name: str
    held: int
    prefetch: int
    granted: int
    acked: int


class GroupStatistics(msgspec.Struct, frozen=True):
    """One group: how far it is, what is out, and what went wrong. Ages are in seconds."""

    name: str
    pattern: str
    lag: int
    in_flight: int
    scheduled: int
    oldest_unacked_age: float
    acked: int
    redelivered: int
    dead_lettered: int
    expired: int
    missed: int
    paused: bool
    members: tuple[MemberStatistics, ...]


class SubscriberTotals(msgspec.Struct, frozen=True):
    """What all subscriptions of one pattern and name, open and ended, received and lost; the lag of the open ones."""

    delivered: int
    dropped: int
    expired: int
    lag: int


class Statistics(msgspec.Struct, frozen=True):
    """A broker at one moment.

    `flowed` sums by (pattern, subscriber) over open and ended subscriptions; those without
    a name count together as "anonymous", and those beyond the first 1,000 pairs as "(other)",
    so that it stays small however many come and go.
    """

    topics: Mapping[str, TopicStatistics]
    subscriptions: tuple[SubscriptionStatistics, ...]
    groups: tuple[GroupStatistics, ...]
    handlers: tuple[HandlerStatistics, ...]
    flowed: Mapping[tuple[str, str], SubscriberTotals]
    published: int
    published_bytes: int
    delivered: int
    dropped: int
    waiting_publishers: int
    journal: JournalStatistics | None = None  # of a durable broker
    cursors: tuple[CursorStatistics, ...] = ()  # names under which nobody reads now


# -- What a console shows --------------------------------------------------------------------------------


class TopicSample(msgspec.Struct, frozen=True):
    """One topic: its figures, its options, and whether it is on disk."""

    figures: TopicStatistics
    options: TopicOptions
    durable: bool


class SubscriptionSample(msgspec.Struct, frozen=True):
    """One open subscription. `id` is the same in every sample as long as it is open, and no other's."""

    id: int
    figures: SubscriptionStatistics


class SegmentSample(msgspec.Struct, frozen=True):
    """One segment of the journal. Times are in seconds since 1970; of the active one the last is not known."""

    number: int
    name: str
    bytes: int
    sealed: bool
    records: int | None
    first_time: float
    last_time: float | None
    generation: int


class JournalSample(msgspec.Struct, frozen=True):
    """The journal: its figures, when it syncs, and its segments, the oldest first."""

    figures: JournalStatistics
    fsync: str
    segments: tuple[SegmentSample, ...]


class BackendSample(msgspec.Struct, frozen=True):
    """All that a console shows, of about one moment. The sums count what has ended, too; they never go back."""

    topics: tuple[TopicSample, ...]
    subscriptions: tuple[SubscriptionSample, ...]
    groups: tuple[GroupStatistics, ...]
    dead_letters: tuple[DeadLetterTopic, ...]
    published: int
    published_bytes: int
    delivered: int
    dropped: int
    waiting_publishers: int
    journal: JournalSample | None = None
