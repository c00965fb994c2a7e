"""What a broker did and holds, as frozen snapshots. Counters never go back while a broker is open.

Only the shapes: broker.statistics fills them in, the client reads them off the wire, observe prints them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runnel.core.histogram import HistogramSnapshot


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


class Flowed(msgspec.Struct, frozen=True):
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
    flowed: Mapping[tuple[str, str], Flowed]
    published: int
    published_bytes: int
    delivered: int
    dropped: int
    waiting_publishers: int
    journal: JournalStatistics | None = None  # of a durable broker
    cursors: tuple[CursorStatistics, ...] = ()  # names under which nobody reads now
