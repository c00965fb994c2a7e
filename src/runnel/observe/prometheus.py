"""Statistics as Prometheus text, format 0.0.4.

Labels are bounded: beyond `max_topics` topics the rest are summed under one label, subscribers without a
name count together, and statistics themselves bound the pairs of pattern and subscriber.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from runnel.core.statistics import ARCHIVE, RELAY

if TYPE_CHECKING:
    from runnel.core.statistics import (
        CleanerStatistics,
        FollowerStatistics,
        GroupStatistics,
        HandlerStatistics,
        HistogramSnapshot,
        HistoryStatistics,
        JournalStatistics,
        PipelineStatistics,
        RelayStatistics,
        ReplicationStatistics,
        Statistics,
        TopicArchiveStatistics,
        TopicStatistics,
    )

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "runnel_"  # of every metric, so that they stand together among those of other systems
MAX_TOPICS = 1000
OTHER = "(other)"
MAX_MEMBERS = 1000  # of groups that are listed one by one

Labels = tuple[tuple[str, str], ...]


class ServerFigures(NamedTuple):
    """Figures that a server adds to the statistics of its broker. `started` is in seconds since 1970.

    `nats`: figures of the NATS listener, as `/varz` names them; None: it has none. `certificate_end`: when the one that
    it shows is no longer in force, in seconds since 1970; None: it speaks no TLS.
    """

    started: float
    connections: int
    accepted: int
    refused: int
    nats: Mapping[str, int] | None = None
    certificate_end: float | None = None


NATS_FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("nats_connections", "gauge", "Open connections of NATS clients.", "connections"),
    ("nats_subscriptions", "gauge", "Subscriptions of NATS clients.", "subscriptions"),
    ("nats_messages_in_total", "counter", "Messages that NATS clients sent.", "in_msgs"),
    ("nats_bytes_in_total", "counter", "Bytes of messages that NATS clients sent.", "in_bytes"),
    ("nats_messages_out_total", "counter", "Messages that were sent to NATS clients.", "out_msgs"),
    ("nats_bytes_out_total", "counter", "Bytes of messages that were sent to NATS clients.", "out_bytes"),
    (
        "nats_slow_consumers_total",
        "counter",
        "NATS clients cut off: they read too little.",
        "slow_consumers",
    ),
)


GROUP_FAMILIES: tuple[tuple[str, str, str, Callable[[GroupStatistics], float]], ...] = (
    ("group_lag", "gauge", "Records published for a group and not settled.", lambda group: group.lag),
    ("group_in_flight", "gauge", "Records at members of a group.", lambda group: group.in_flight),
    ("group_members", "gauge", "Members of a group.", lambda group: len(group.members)),
    (
        "group_oldest_unacked_age_seconds",
        "gauge",
        "Age of the oldest record of a group that is not settled.",
        lambda group: group.oldest_unacked_age,
    ),
    ("group_acked_total", "counter", "Records acked in a group.", lambda group: group.acked),
    ("group_redelivered_total", "counter", "Records handed out again in a group.", lambda group: group.redelivered),
    ("group_dead_lettered_total", "counter", "Records of a group that failed for good.", lambda g: g.dead_lettered),
)


JOURNAL_FAMILIES: tuple[tuple[str, str, str, Callable[[JournalStatistics], float | None]], ...] = (
    ("journal_segments", "gauge", "Segments of the journal.", lambda journal: journal.segments),
    ("journal_disk_bytes", "gauge", "Bytes of the journal's segments.", lambda journal: journal.disk_bytes),
    ("journal_pending_bytes", "gauge", "Bytes handed over and not durable yet.", lambda journal: journal.pending_bytes),
    ("journal_stages", "gauge", "Stages that are open.", lambda journal: journal.stages),
    ("journal_staged_bytes", "gauge", "Bytes staged and not committed.", lambda journal: journal.staged_bytes),
    ("journal_syncs_total", "counter", "Syncs of the journal.", lambda journal: journal.syncs),
    ("journal_free_bytes", "gauge", "Bytes free on the journal's disk.", lambda journal: journal.free_bytes),
    ("journal_disk_low", "gauge", "1 while less than twice min_free is free.", lambda journal: journal.low),
    ("journal_disk_full", "gauge", "1 while no new segment may begin.", lambda journal: journal.full),
    ("journal_failed", "gauge", "1 once the journal takes no more writes.", lambda journal: journal.failed is not None),
    ("journal_scrubbed_bytes_total", "counter", "Bytes read to find damage.", lambda journal: journal.scrubbed_bytes),
    ("journal_damaged_segments", "gauge", "Segments found to be damaged.", lambda journal: len(journal.damage)),
)

HISTORY_FAMILIES: tuple[tuple[str, str, str, Callable[[HistoryStatistics], float]], ...] = (
    ("history_readers", "gauge", "Subscriptions that read from a source of history.", lambda history: history.readers),
    ("history_waiting", "gauge", "Those that wait for a source that failed.", lambda history: history.waiting),
    ("history_records_total", "counter", "Records read from sources of history.", lambda history: history.records),
    ("history_errors_total", "counter", "Calls to sources of history that failed.", lambda history: history.errors),
)

ARCHIVE_FAMILIES: tuple[tuple[str, str, str, Callable[[TopicArchiveStatistics], int]], ...] = (
    ("topic_confirmed_offset", "gauge", "Below it the archive has all records.", lambda one: one.confirmed),
    ("topic_moved_offset", "gauge", "Below it records are in the archive only.", lambda one: one.moved),
    ("topic_gone_offset", "gauge", "Below it nothing can be read any more.", lambda one: one.gone),
    ("topic_unconfirmed_bytes", "gauge", "Bytes that wait for the archive.", lambda one: one.unconfirmed_bytes),
)

CLEANER_FAMILIES: tuple[tuple[str, str, str, Callable[[CleanerStatistics], float]], ...] = (
    ("cleaner_read_bytes_total", "counter", "Bytes that the cleaner read.", lambda cleaner: cleaner.read),
    ("cleaner_written_bytes_total", "counter", "Bytes that the cleaner wrote.", lambda cleaner: cleaner.written),
    ("cleaner_freed_bytes_total", "counter", "Bytes that cleaning gave back.", lambda cleaner: cleaner.given_back),
    ("cleaner_segments_total", "counter", "Segments that were cleaned.", lambda cleaner: cleaner.segments),
    ("cleaner_live_bytes", "gauge", "Bytes of sealed segments that are wanted.", lambda cleaner: cleaner.live),
    ("journal_write_amplification", "gauge", "Bytes written per byte published.", lambda one: one.amplification),
)

RELAY_FAMILIES: tuple[tuple[str, str, str, Callable[[RelayStatistics], float | None]], ...] = (
    ("relay_streaming", "gauge", "1 while rows can arrive.", lambda relay: relay.state == "streaming"),
    ("relay_lag_bytes", "gauge", "Bytes of PostgreSQL's log that are not confirmed.", lambda relay: relay.lag_bytes),
    ("relay_lag_seconds", "gauge", "Age of the oldest unpublished transaction.", lambda relay: relay.lag_seconds),
    ("relay_rows_total", "counter", "Rows, messages and reads that were routed.", lambda relay: relay.rows),
    ("relay_rows_per_second", "gauge", "Rows in the last seconds.", lambda relay: relay.rows_per_second),
    ("relay_transactions_total", "counter", "Transactions with published rows.", lambda relay: relay.transactions),
    ("relay_dead_letters_total", "counter", "Rows that could not be published.", lambda relay: relay.dead_letters),
    ("relay_errors_total", "counter", "Times that a relay had to connect again.", lambda relay: relay.errors),
    ("relay_retained_wal_bytes", "gauge", "Bytes of log kept for the slot.", lambda relay: relay.retained_bytes),
    ("relay_safe_wal_bytes", "gauge", "Bytes of log until the slot is lost.", lambda relay: relay.safe_wal_bytes),
    ("relay_slot_lost", "gauge", "1 if PostgreSQL removed log of the slot.", lambda relay: relay.wal_status == "lost"),
)

POSTGRES_ARCHIVE_FAMILIES: tuple[tuple[str, str, str, Callable[[RelayStatistics], float]], ...] = (
    ("archive_copying", "gauge", "1 while rows can be written.", lambda archive: archive.state == "copying"),
    ("archive_rows_total", "counter", "Rows that were written.", lambda archive: archive.rows),
    ("archive_batches_total", "counter", "Transactions that wrote rows.", lambda archive: archive.transactions),
    ("archive_lag_seconds", "gauge", "Age of the oldest unwritten record.", lambda archive: archive.lag_seconds),
    ("archive_missed_total", "counter", "Records that were gone before they were read.", lambda one: one.missed),
    ("archive_misfits_total", "counter", "Fields that did not fit their column.", lambda archive: archive.misfits),
    ("archive_errors_total", "counter", "Times that an archive had to connect again.", lambda archive: archive.errors),
)

FOLLOWER_FAMILIES: tuple[tuple[str, str, str, Callable[[FollowerStatistics], float]], ...] = (
    ("standby_follower_up", "gauge", "1 while the standby follows.", lambda one: one.state == "following"),
    ("standby_follower_lag_bytes", "gauge", "Bytes that it has not confirmed.", lambda one: one.lag_bytes),
    ("standby_follower_lag_records", "gauge", "Records that it has not confirmed.", lambda one: one.lag_records),
    ("standby_follower_lag_seconds", "gauge", "How old what it confirmed is.", lambda one: one.lag_seconds),
    ("standby_follower_lease_seconds", "gauge", "Left of its promise not to be promoted.", lambda one: one.lease),
    ("standby_follower_copy_bytes", "gauge", "Bytes that it has still to copy.", lambda one: one.left),
)

STANDBY_FAMILIES: tuple[tuple[str, str, str, Callable[[ReplicationStatistics], float]], ...] = (
    ("standby_lag_bytes", "gauge", "Bytes of the primary that are not here.", lambda part: part.lag_bytes),
    ("standby_lag_records", "gauge", "Records of the primary that are not here.", lambda part: part.lag_records),
    ("standby_lag_seconds", "gauge", "Since when it lacks something.", lambda part: part.lag_seconds),
    ("standby_copy_bytes", "gauge", "Bytes that are still to be copied.", lambda part: part.to_copy - part.copied),
    ("standby_verified_bytes_total", "counter", "Bytes that were checked and stored.", lambda part: part.verified),
    ("standby_errors_total", "counter", "Times that following failed and began again.", lambda part: part.errors),
    ("standby_disk_full", "gauge", "1 while its disk is full.", lambda part: part.state == "disk full"),
)

PIPELINE_FAMILIES: tuple[tuple[str, str, str, Callable[[PipelineStatistics], float | None]], ...] = (
    ("pipeline_running", "gauge", "1 while records can be processed.", lambda one: one.state == "running"),
    ("pipeline_records_total", "counter", "Records that were read.", lambda one: one.records),
    ("pipeline_records_per_second", "gauge", "Records in the last batches.", lambda one: one.records_per_second),
    ("pipeline_behind_records", "gauge", "Records that are published and not processed.", lambda one: one.behind),
    ("pipeline_batch_seconds", "gauge", "How long the last micro-batch took.", lambda one: one.batch_seconds),
    ("pipeline_restarts_total", "counter", "Times that a query was started again.", lambda one: one.restarts),
    ("pipeline_alerts_total", "counter", "Times that a check found something wrong.", lambda one: one.alerts),
)


def render(statistics: Statistics, *, max_topics: int = MAX_TOPICS, server: ServerFigures | None = None) -> str:
    """The text that a Prometheus server scrapes.

    >>> from runnel.observe import prometheus
    >>> print(prometheus.render(broker.statistics(limit=prometheus.MAX_TOPICS)))
    """
    return "".join(f"{line}\n" for line in _lines(statistics, max_topics, server))


def _lines(statistics: Statistics, max_topics: int, server: ServerFigures | None) -> Iterator[str]:
    if server is not None:
        yield from _server(server)
    # The oldest, not the busiest: a counter that changed its label would seem to go back.
    oldest = sorted(statistics.topics.values(), key=lambda topic: topic.epoch)
    shown = {topic.name for topic in oldest[:max_topics]}

    other = statistics.other

    def by_topic(values: Iterable[tuple[str, int]], rest: int) -> Mapping[Labels, int]:
        sums: Counter[Labels] = Counter()
        for name, value in values:
            sums[(("topic", name if name in shown else OTHER),)] += value
        if other.count:
            sums[(("topic", OTHER),)] += rest
        return sums

    def by_flow(value: str) -> Mapping[Labels, int]:
        return {
            (("topic", pattern), ("subscriber", subscriber)): getattr(flowed, value)
            for (pattern, subscriber), flowed in statistics.flowed.items()
        }

    topics = statistics.topics.values()
    published = by_topic(((t.name, t.published) for t in topics), other.published)
    yield from _family("events_published_total", "counter", "Records published.", published)
    yield from _family(
        "events_published_bytes_total",
        "counter",
        "Bytes of values published.",
        by_topic(((t.name, t.published_bytes) for t in topics), other.published_bytes),
    )
    yield from _family("events_delivered_total", "counter", "Records handed to subscribers.", by_flow("delivered"))
    yield from _family("events_dropped_total", "counter", "Records that subscribers missed.", by_flow("dropped"))
    yield from _family("events_expired_total", "counter", "Records skipped past their time.", by_flow("expired"))
    lags = {**by_flow("lag"), **_lags(statistics, max_topics)}
    yield from _family("subscriber_lag", "gauge", "Records published and not yet consumed.", lags)
    acked: dict[Labels, float] = {
        (("topic", one.pattern), ("subscriber", one.name)): one.last_ack
        for one in statistics.subscriptions
        if one.name is not None and one.last_ack is not None
    }
    yield from _family(
        "subscriber_last_ack_timestamp_seconds", "gauge", "When a named subscription last moved its position.", acked
    )
    subscribers = by_topic(((t.name, t.subscribers) for t in topics), other.subscribers)
    yield from _family("subscribers", "gauge", "Open subscriptions.", subscribers)
    yield from _family("topics", "gauge", "Topics.", {(): len(statistics.topics) + other.count})
    kept = other.kept_bytes + sum(topic.kept_bytes for topic in topics)
    yield from _family("kept_bytes", "gauge", "Bytes of values held in memory.", {(): kept})
    yield from _family(
        "publishers_waiting", "gauge", "Publishes that wait for room.", {(): statistics.waiting_publishers}
    )
    yield from _journal(statistics)
    yield from _history(statistics)
    yield from _archives([topic for topic in oldest[:max_topics] if topic.archive is not None])
    yield from _groups(statistics)
    yield from _handlers(statistics)
    if relays := tuple(one for one in statistics.relays if one.kind == RELAY):
        yield from _relays(relays)
    if archives := tuple(one for one in statistics.relays if one.kind == ARCHIVE):
        yield from postgres_archives(archives)
    if statistics.pipelines:
        yield from _pipelines(statistics.pipelines)
    if statistics.replication is not None:
        yield from _replication(statistics.replication)


def _server(server: ServerFigures) -> Iterator[str]:
    yield from _family("start_time_seconds", "gauge", "When the server started.", {(): server.started})
    yield from _family("connections", "gauge", "Open connections.", {(): server.connections})
    yield from _family("connections_accepted_total", "counter", "Connections accepted.", {(): server.accepted})
    yield from _family("connections_refused_total", "counter", "Connections beyond a limit.", {(): server.refused})
    if (end := server.certificate_end) is not None:
        yield from _family("certificate_end_timestamp_seconds", "gauge", "When the certificate ends.", {(): end})
    if server.nats is not None:
        for name, kind, text, figure in NATS_FAMILIES:
            yield from _family(name, kind, text, {(): server.nats[figure]})


def _lags(statistics: Statistics, most: int) -> Mapping[Labels, int]:
    """The lags of names that have no reader at this broker now: those of the first `most`."""
    known = [one for one in statistics.cursors if one.lag is not None]
    return {(("topic", one.pattern), ("subscriber", one.name)): one.lag or 0 for one in known[:most]}


def _journal(statistics: Statistics) -> Iterator[str]:
    journal = statistics.journal
    if journal is None:
        return
    for name, kind, text, value in JOURNAL_FAMILIES:
        if (found := value(journal)) is not None:
            yield from _family(name, kind, text, {(): +found})
    yield f"# HELP {PREFIX}journal_sync_duration_seconds How long syncs of the journal took."
    yield f"# TYPE {PREFIX}journal_sync_duration_seconds histogram"
    yield from _histogram("journal_sync_duration_seconds", "", journal.sync_durations)
    if journal.cleaner is not None:
        for name, kind, text, figure in CLEANER_FAMILIES:
            yield from _family(name, kind, text, {(): figure(journal.cleaner)})
    held: dict[Labels, float] = {
        (("subscriber", one.name), ("topic", one.pattern)): one.bytes for one in journal.holders
    }
    yield from _family("journal_held_bytes", "gauge", "Bytes kept for a subscription that holds.", held)
    came: dict[Labels, float] = {(("archive", one.place),): one.seen for one in journal.archives}
    yield from _family("journal_archive_timestamp_seconds", "gauge", "When a backup that holds last came by.", came)


def _history(statistics: Statistics) -> Iterator[str]:
    if (history := statistics.history) is not None:
        for name, kind, text, value in HISTORY_FAMILIES:
            yield from _family(name, kind, text, {(): value(history)})


def _archives(topics: Sequence[TopicStatistics]) -> Iterator[str]:
    for name, kind, text, value in ARCHIVE_FAMILIES if topics else ():
        found: dict[Labels, float] = {
            (("topic", topic.name),): value(topic.archive) for topic in topics if topic.archive is not None
        }
        yield from _family(name, kind, text, found)


def _groups(statistics: Statistics) -> Iterator[str]:
    def each(value: Callable[[GroupStatistics], float]) -> Mapping[Labels, float]:
        return {(("group", group.name), ("topic", group.pattern)): value(group) for group in statistics.groups}

    for name, kind, text, value in GROUP_FAMILIES:
        yield from _family(name, kind, text, each(value))
    acked: dict[Labels, float] = {
        (("group", group.name), ("topic", group.pattern), ("member", member.name)): member.last_ack
        for group in statistics.groups
        for member in group.members
        if member.last_ack is not None
    }
    first = dict(islice(acked.items(), MAX_MEMBERS))
    yield from _family("group_member_last_ack_timestamp_seconds", "gauge", "When a member last acked a record.", first)


def _relays(relays: tuple[RelayStatistics, ...]) -> Iterator[str]:
    for name, kind, text, value in RELAY_FAMILIES:
        known = {(("slot", one.slot),): found for one in relays if (found := value(one)) is not None}
        yield from _family(name, kind, text, {labels: +found for labels, found in known.items()})
    states: dict[Labels, float] = {
        (("slot", one.slot), ("state", one.state), ("wal_status", one.wal_status or "")): 1 for one in relays
    }
    yield from _family("relay_state", "gauge", "What a relay does, and the state of its slot.", states)
    errors: dict[Labels, float] = {
        (("slot", one.slot), ("error", one.last_error[:200])): 1 for one in relays if one.last_error is not None
    }
    yield from _family("relay_last_error_info", "gauge", "Why a relay connected again the last time.", errors)


def postgres_archives(archives: tuple[RelayStatistics, ...]) -> Iterator[str]:
    """`runnel_archive_*` of archives in PostgreSQL."""
    for name, kind, text, value in POSTGRES_ARCHIVE_FAMILIES:
        yield from _family(name, kind, text, {(("table", one.slot),): +value(one) for one in archives})
    states: dict[Labels, float] = {(("table", one.slot), ("state", one.state)): 1 for one in archives}
    yield from _family("archive_state", "gauge", "What an archive does.", states)
    errors: dict[Labels, float] = {
        (("table", one.slot), ("error", one.last_error[:200])): 1 for one in archives if one.last_error is not None
    }
    yield from _family("archive_last_error_info", "gauge", "Why an archive connected again the last time.", errors)


def _replication(part: ReplicationStatistics) -> Iterator[str]:
    roles: dict[Labels, float] = {(("role", part.role), ("mode", part.mode), ("state", part.state)): 1}
    yield from _family("standby_role", "gauge", "The part of the server in a warm standby.", roles)
    yield from _family("standby_generation", "gauge", "How often a standby was promoted.", {(): part.generation})
    if part.role == "standby":
        for name, kind, text, of_standby in STANDBY_FAMILIES:
            yield from _family(name, kind, text, {(): +of_standby(part)})
        return
    yield from _family(
        "standby_holding", "gauge", "1 while nothing is acknowledged without the standby.", {(): +part.holding}
    )
    for name, kind, text, value in FOLLOWER_FAMILIES:
        followers: dict[Labels, float] = {(("standby", one.name),): +value(one) for one in part.followers}
        yield from _family(name, kind, text, followers)


def _pipelines(pipelines: tuple[PipelineStatistics, ...]) -> Iterator[str]:
    for name, kind, text, value in PIPELINE_FAMILIES:
        known = {(("pipeline", one.name),): found for one in pipelines if (found := value(one)) is not None}
        yield from _family(name, kind, text, {labels: +found for labels, found in known.items()})
    states: dict[Labels, float] = {(("pipeline", one.name), ("state", one.state)): 1 for one in pipelines}
    yield from _family("pipeline_state", "gauge", "What a pipeline does.", states)
    errors: dict[Labels, float] = {
        (("pipeline", one.name), ("error", one.last_error[:200])): 1 for one in pipelines if one.last_error is not None
    }
    yield from _family("pipeline_last_error_info", "gauge", "What went wrong the last time.", errors)


def _handlers(statistics: Statistics) -> Iterator[str]:
    yield f"# HELP {PREFIX}handler_duration_seconds How long handlers took."
    yield f"# TYPE {PREFIX}handler_duration_seconds histogram"
    for handler in statistics.handlers:
        yield from _histogram("handler_duration_seconds", _inside(_of_handler(handler)), handler.durations)
    failed: Counter[Labels] = Counter()
    for handler in statistics.handlers:
        failed[_of_handler(handler)] += handler.failed
    yield from _family("handler_failures_total", "counter", "Calls of handlers that raised.", failed)


def _histogram(name: str, labels: str, durations: HistogramSnapshot) -> Iterator[str]:
    name = PREFIX + name
    before, inside = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    seen = 0
    for bound, count in zip((*durations.bounds, "+Inf"), durations.counts, strict=True):
        seen += count
        yield f'{name}_bucket{{{before}le="{bound}"}} {seen}'
    yield f"{name}_sum{inside} {durations.sum}"
    yield f"{name}_count{inside} {seen}"


def _family(name: str, kind: str, help_text: str, samples: Mapping[Labels, float]) -> Iterator[str]:
    name = PREFIX + name
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples.items():
        inside = _inside(labels)
        yield f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _of_handler(handler: HandlerStatistics) -> Labels:
    return (("handler", handler.name), ("topic", handler.pattern), ("group", handler.group or ""))


def _inside(labels: Labels) -> str:
    return ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
