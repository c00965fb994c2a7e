"""Statistics of a broker, as frozen snapshots, and the histograms in them.

Counters never decrease while a broker is open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from runnel.core.backend import DeadLetterTopic
from runnel.core.errors import InvalidOption
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_pattern, is_pattern, matches

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
        """The counts since `earlier`, a snapshot of the same histogram."""
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
        """A snapshot of the counts."""
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


def summed_handlers(handlers: Iterable[HandlerStatistics]) -> tuple[HandlerStatistics, ...]:
    """One entry for each handler, whichever processes run it: those with the same name, pattern and group are added."""
    found: dict[tuple[str, str, str | None], HandlerStatistics] = {}
    for one in handlers:
        key = (one.name, one.pattern, one.group)
        known = found.get(key)
        found[key] = one if known is None else _added(known, one)
    return tuple(found.values())


def _added(one: HandlerStatistics, other: HandlerStatistics) -> HandlerStatistics:
    counts = tuple(a + b for a, b in zip(one.durations.counts, other.durations.counts, strict=True))
    return msgspec.structs.replace(
        one,
        handled=one.handled + other.handled,
        failed=one.failed + other.failed,
        running=one.running + other.running,
        durations=HistogramSnapshot(DURATION_BOUNDS, counts, one.durations.sum + other.durations.sum),
    )


class HandlerReports:
    """Statistics of clients' handlers: the last report of each client, in memory.

    A report counts from the start of the client, so that a repeated one changes nothing.
    """

    MOST = 1000  # clients, and handlers of each; what older clients did stays in the sums
    SILENT = 15.0  # seconds without a report after which no call of a client counts as running

    def __init__(self) -> None:
        self._reports: dict[str, tuple[tuple[HandlerStatistics, ...], float]] = {}
        self._forgotten: tuple[HandlerStatistics, ...] = ()

    def take(self, client: str, handlers: Sequence[HandlerStatistics], now: float) -> None:
        """Take the report of a client."""
        for one in handlers:
            bounds, counts = one.durations.bounds, one.durations.counts
            if bounds != DURATION_BOUNDS or len(counts) != len(bounds) + 1 or min(counts) < 0:
                raise InvalidOption("handlers", one.name[:200], "its durations do not have the bounds of this version")
        kept = tuple(map(_bounded, handlers[: self.MOST]))
        client = client[:64]
        self._reports.pop(client, None)
        self._reports[client] = kept, now
        if len(self._reports) > self.MOST:
            old, _ = self._reports.pop(next(iter(self._reports)))
            self._forgotten = summed_handlers((*self._forgotten, *map(_at_rest, old)))[: self.MOST]

    def current(self, now: float) -> tuple[HandlerStatistics, ...]:
        """The sum of all reports."""
        reported = (
            one if now - at < self.SILENT else _at_rest(one) for found, at in self._reports.values() for one in found
        )
        return summed_handlers((*self._forgotten, *reported))


def _bounded(one: HandlerStatistics) -> HandlerStatistics:
    """It came over a network, and is kept."""
    group = one.group and one.group[:200]
    return msgspec.structs.replace(one, name=one.name[:200], pattern=one.pattern[:200], group=group)


def _at_rest(one: HandlerStatistics) -> HandlerStatistics:
    return msgspec.structs.replace(one, running=0)


class CleanerStatistics(msgspec.Struct, frozen=True):
    """The work of the cleaner since the broker was opened, and its findings: bytes, unless stated otherwise.

    `amplification` is all that was written, by publishing and by cleaning, for each byte that was published (0 when
    nothing was).
    """

    read: int
    written: int
    given_back: int
    segments: int  # cleaned
    live: int  # of the sealed segments, about
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


class HistoryStatistics(msgspec.Struct, frozen=True):
    """Reading from the sources of history since the broker was opened.

    `readers` read old records now; `waiting` of them wait for a source that failed. `records` were handed out, and
    `errors` calls failed; `last_error` is the last of them.
    """

    readers: int
    waiting: int
    records: int
    errors: int
    last_error: str | None = None


class TopicArchiveStatistics(msgspec.Struct, frozen=True, gc=False):
    """How far a topic with `retention_until="archived"` has left the journal; see `TopicFloors`.

    About `unconfirmed_bytes` on disk stay until the archive has confirmed them.
    """

    confirmed: int
    moved: int
    gone: int
    unconfirmed_bytes: int


class TopicStatistics(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One topic: what was ever published to it, and what is kept. `archive`: of one that is kept until archived."""

    name: str
    epoch: int
    published: int
    published_bytes: int
    first: int
    end: int
    kept_bytes: int
    subscribers: int
    archive: TopicArchiveStatistics | None = None
    records: int | None = None  # that are kept, where offsets have holes; None: `end - first`, about

    @property
    def total(self) -> int:
        """How many records it ever had, about: its end, unless offsets have holes."""
        return self.end if self.records is None else self.published

    @property
    def kept(self) -> int:
        """How many records it has, about."""
        return self.end - self.first if self.records is None else self.records


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """One open subscription: how far it is, and what it lost.

    `last_ack`: when the position of a named subscription last moved, in seconds since 1970; None: it has no name, or
    has not moved since it was opened.
    """

    label: str
    pattern: str
    name: str | None
    policy: str
    buffer: int
    lag: int
    delivered: int
    dropped: int
    expired: int
    last_ack: float | None = None


class CursorStatistics(msgspec.Struct, frozen=True):
    """One name without a reader, and its position: it was left there, or it is read elsewhere (Spark).

    `place` is an offset; of a pattern it is a sequence, and `lag` is None. `hold`: records after it are kept.
    """

    name: str
    pattern: str
    place: int
    lag: int | None
    hold: bool


class MemberStatistics(msgspec.Struct, frozen=True):
    """One member of a group: what it holds, was granted and acked.

    `last_ack`: when it last acked a record, in seconds since 1970; None: never.
    """

    name: str
    held: int
    prefetch: int
    granted: int
    acked: int
    last_ack: float | None = None


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
    """Totals of all subscriptions of one pattern and name, open and ended; the lag of the open ones."""

    delivered: int
    dropped: int
    expired: int
    lag: int


class OtherTopics(msgspec.Struct, frozen=True):
    """The topics that a `pattern` or `limit` of `statistics` left out: how many, and their figures summed."""

    count: int = 0
    published: int = 0
    published_bytes: int = 0
    kept_bytes: int = 0
    subscribers: int = 0


class SnapshotStatistics(msgspec.Struct, frozen=True):
    """How far a relay's snapshot of a table is, since it connected."""

    table: str
    rows: int  # read
    estimated: int  # in the table; -1: PostgreSQL does not know
    is_done: bool


RELAY, ARCHIVE = "relay", "archive"
_LONGEST_NAMES = {RELAY: 63, ARCHIVE: 127}  # names in PostgreSQL have 63 bytes; that of a table is `schema.table`


class RelayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How far a relay is; or an archive of PostgreSQL, as it reports to its broker.

    - `slot`: the name of its slot; of an archive, its table.
    - `state`: "starting", "standby" (another relay holds the slot), "streaming", "paused", or "waiting" to connect
      again; of an archive "copying"; of a report also "failed" (it ended with `last_error`) and "silent" (none came
      for 10 seconds).
    - `published`: the last row that was published, as (commit LSN, number in its transaction).
    - `confirmed`: the LSN before which PostgreSQL may forget its log.
    - `lag_bytes`: bytes of PostgreSQL's log that are not confirmed.
    - `lag_seconds`: the age of the oldest transaction that was received and is not published, or of the oldest record
      that an archive has read and not written; 0 if there is none.
    - `rows`, `transactions`, `dead_letters`: how many were routed, or written, since this object was made.
    - `rows_per_second`: in the last seconds, between two calls.
    - `wal_status`: of the slot: reserved, extended, unreserved or lost.
    - `retained_bytes`: bytes of log that PostgreSQL keeps for the slot.
    - `safe_wal_bytes`: bytes of log until the slot is lost; None: never, or not known.
    - `snapshots`: of tables that are being read, or were.
    - `errors`: how often it had to connect again.
    - `last_error`: why it connected again the last time.
    - `kind`: "relay", or "archive".
    - `missed`: records that were gone before an archive read them.
    - `misfits`: fields of typed values that did not fit their column in an archive's table.
    """

    slot: str
    state: str
    published: tuple[int, int] = (0, 0)
    confirmed: int = 0
    lag_bytes: int = 0
    lag_seconds: float = 0.0
    rows: int = 0
    rows_per_second: float = 0.0
    transactions: int = 0
    dead_letters: int = 0
    wal_status: str | None = None
    retained_bytes: int | None = None
    safe_wal_bytes: int | None = None
    snapshots: tuple[SnapshotStatistics, ...] = ()
    errors: int = 0
    last_error: str | None = None
    kind: str = RELAY
    missed: int = 0
    misfits: int = 0


class PipelineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pipeline is.

    - `name`: of the pipeline; one that runs twice on a broker has one name for each.
    - `state`: "starting" (Spark takes seconds), "running", "waiting" to start a query again, "stopping"; of a report
      also "failed" (it ended with `last_error`) and "silent" (none came for 10 seconds).
    - `batch`: the number of the last micro-batch that was committed; -1: none yet.
    - `records`: read since it was started, and `records_per_second`, in the last batches.
    - `behind`: records that are published and not processed; None: not known.
    - `batch_seconds`: how long the last micro-batch took.
    - `restarts`: how often a query failed and was started again.
    - `alerts`: how often a check found something wrong.
    - `last_error`: why a query was started again, or what a check found, the last time.
    """

    name: str
    state: str
    batch: int = -1
    records: int = 0
    records_per_second: float = 0.0
    behind: int | None = None
    batch_seconds: float = 0.0
    restarts: int = 0
    alerts: int = 0
    last_error: str | None = None


class PipelineReports:
    """Reports of pipelines to the broker whose topics they read: the last report of each, in memory."""

    MOST = 64  # pipelines
    SILENT = 10.0  # seconds without a report after which a pipeline counts as silent
    FORGOTTEN = 3600.0

    def __init__(self) -> None:
        self._reports: dict[str, tuple[PipelineStatistics, float]] = {}

    def take(self, report: PipelineStatistics, now: float) -> None:
        """Take a report; one with the state "stopped" is the last."""
        error = report.last_error and report.last_error[:1000]  # it came over a network: it is kept, so it is bounded
        report = msgspec.structs.replace(report, name=report.name[:63], last_error=error)
        self._reports.pop(report.name, None)
        if report.state != "stopped":
            self._reports[report.name] = report, now
        while len(self._reports) > self.MOST:
            del self._reports[next(iter(self._reports))]

    def current(self, now: float) -> tuple[PipelineStatistics, ...]:
        """The pipelines, sorted by name."""
        return tuple(
            one
            if now - at < self.SILENT or one.state == "failed"
            else msgspec.structs.replace(one, state="silent", records_per_second=0.0)
            for _, (one, at) in sorted(self._reports.items())
            if now - at < self.FORGOTTEN
        )


class RelayReports:
    """Reports of relays and archives to their broker: the last report of each slot or table, in memory.

    Several may share one. A standby, or one that cannot connect, does not hide one that works.
    """

    MOST = 64  # slots and tables
    SILENT = 10.0  # seconds without a report after which a relay counts as silent
    FORGOTTEN = 3600.0
    WORKING = ("streaming", "paused", "copying")

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], tuple[RelayStatistics, float]] = {}

    def take(self, report: RelayStatistics, now: float) -> None:
        """Take a report; one with the state "stopped" is the last."""
        error = report.last_error and report.last_error[:1000]  # it came over a network: it is kept, so it is bounded
        kind = report.kind if report.kind in _LONGEST_NAMES else RELAY
        report = msgspec.structs.replace(
            report,
            kind=kind,
            slot=report.slot[: _LONGEST_NAMES[kind]],
            last_error=error,
            snapshots=report.snapshots[:100],
        )
        key = kind, report.slot
        known = self._reports.get(key)
        is_hidden = known is not None and now - known[1] < self.SILENT and known[0].state in self.WORKING
        if report.state == "stopped":
            self._reports.pop(key, None)
        elif not (is_hidden and report.state not in self.WORKING):
            self._reports.pop(key, None)
            self._reports[key] = report, now
            while len(self._reports) > self.MOST:
                del self._reports[next(iter(self._reports))]

    def current(self, now: float) -> tuple[RelayStatistics, ...]:
        """The archives and the relays, each sorted by name."""
        known = sorted(self._reports.items())
        return tuple(
            one if now - at < self.SILENT else msgspec.structs.replace(one, state="silent", rows_per_second=0.0)
            for _, (one, at) in known
            if now - at < self.FORGOTTEN
        )


class FollowerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A standby, as its primary sees it.

    - `name`, `id`: of the standby and of its folder.
    - `state`: "copying", "following", "disk full", or "away": nothing was heard of it for some seconds.
    - `mode`: "sync": the primary acknowledges nothing that this standby has not confirmed.
    - `lag_bytes`, `lag_records`, `lag_seconds`: what the primary has and it has not confirmed; the age of that.
    - `lease`: seconds left of its promise not to be promoted; 0: none.
    - `left`: bytes that it has still to copy before it can follow.
    """

    name: str
    id: str
    state: str
    mode: str
    lag_bytes: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    lease: float = 0.0
    left: int = 0


class ReplicationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a server in a warm standby.

    - `role`: "primary", "standby", or "superseded": a standby of it was promoted.
    - `mode`: "async" or "sync". `generation`: how often a standby was promoted.
    - `holding`: a primary that acknowledges nothing now, since its synchronous standby is away or full.
    - `followers`: of a primary.
    - `primary`, `state`, `lag_bytes`, `lag_records`, `lag_seconds`: of a standby: whom it follows, "connecting",
      "copying", "following", "disk full", "promoting", and how far it is behind.
    - `copied`, `to_copy`: bytes of the copy that is under way. `verified`: bytes that it checked and stored.
    - `errors`, `last_error`: how often it had to begin again, and why the last time.
    """

    role: str
    mode: str
    generation: int = 0
    holding: bool = False
    followers: tuple[FollowerStatistics, ...] = ()
    primary: str | None = None
    state: str = ""
    lag_bytes: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    copied: int = 0
    to_copy: int = 0
    verified: int = 0
    errors: int = 0
    last_error: str | None = None


class Statistics(msgspec.Struct, frozen=True):
    """A broker at one moment. `published` and `published_bytes` count those in `other` and deleted topics, too.

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
    cursors: tuple[CursorStatistics, ...] = ()  # names without a reader
    other: OtherTopics = OtherTopics()
    relays: tuple[RelayStatistics, ...] = ()  # relays and archives of PostgreSQL that report to this broker
    history: HistoryStatistics | None = None  # of a broker with a source of history
    pipelines: tuple[PipelineStatistics, ...] = ()  # that read this broker's topics
    replication: ReplicationStatistics | None = None  # of a primary with a standby, or of a standby


def chosen_topics(names: Mapping[str, Any], pattern: str | None, limit: int | None) -> Iterator[str]:
    """The names that `statistics(pattern, limit)` asks for, in the order of `names`; internal ones are left out."""
    if pattern is not None:
        check_pattern(pattern)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidOption("limit", limit, "expected a number of topics, 0 or more")
    found: Iterable[str]
    if pattern is None:
        found = names
    elif is_pattern(pattern):
        found = (name for name in names if matches(pattern, name))
    else:
        found = (pattern,) if pattern in names else ()
    return islice((name for name in found if name[0] != "$"), limit)


# -- What a console shows --------------------------------------------------------------------------------


class TopicSample(msgspec.Struct, frozen=True):
    """One topic: its figures, its options, and whether it is on disk.

    Bytes of one on disk are those of its batches, with keys and headers; so they mean the same after a restart.
    """

    figures: TopicStatistics
    options: TopicOptions
    durable: bool


class SubscriptionSample(msgspec.Struct, frozen=True):
    """One open subscription. `id` is the same in every sample as long as it is open, and no other's."""

    id: int
    figures: SubscriptionStatistics


class SegmentSample(msgspec.Struct, frozen=True):
    """One segment of the journal. Times are in seconds since 1970; of the active one the last is not known.

    `records` lie in it, wanted or not; None: not counted yet, which takes a while after a folder with many was opened.
    """

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
    relays: tuple[RelayStatistics, ...] = ()
    pipelines: tuple[PipelineStatistics, ...] = ()
    cursors: tuple[CursorStatistics, ...] = ()  # names without a reader
