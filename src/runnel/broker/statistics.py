"""The counters and contents of a broker, as a frozen snapshot. Counters never go back while it is open."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from runnel.broker.read.reader import LocalReader
from runnel.core.position import Position
from runnel.core.statistics import (
    ArchiveStatistics,
    CursorStatistics,
    HolderStatistics,
    JournalStatistics,
    OtherTopics,
    Statistics,
    SubscriptionStatistics,
    TopicArchiveStatistics,
    TopicStatistics,
    chosen_topics,
)
from runnel.journal.format.removed_offsets import count_skipped

if TYPE_CHECKING:
    from runnel.broker.durable.store import Store
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.log import Log


def journal_statistics(store: Store) -> JournalStatistics:
    """A snapshot of the journal."""
    journal, watch, scrubber = store.journal, store.disk_monitor, store.scrubber
    sources = tuple(journal.history.sources)
    cleaner = store.cleaner
    return JournalStatistics(
        len(sources),
        sum(source.written for source in sources),
        store.commits.pending.bytes,
        journal.syncs,
        watch.free,
        journal.options.min_free,
        watch.is_low,
        watch.free is not None and watch.free < journal.needed(0),
        None if journal.failed is None else str(journal.failed),
        tuple(
            HolderStatistics(hold.name, hold.pattern, watch.held.get(hold.name, 0))
            for hold in store.holding.holds.values()
        ),
        scrubber.scrub.bytes,
        scrubber.scrub.segments,
        scrubber.damage(),
        None if cleaner is None else cleaner.statistics(),
        len(store.staging),
        store.staging.bytes,
        tuple(ArchiveStatistics(one.place, one.through, one.since / 1e6, one.seen / 1e6) for one in watch.archives),
        journal.sync_durations.snapshot(),
    )


# -- The broker ------------------------------------------------------------------------------------------


def topic_statistics(backend: BrokerParts, log: Log, sizes: tuple[int, int] | None = None) -> TopicStatistics:
    """A snapshot of a topic. `sizes`: bytes published and kept, where they are not those of the values."""
    end, readers, first = log.end, log.topic_readers, backend.timeline.first(log)
    archive = None
    if log.options.retention_until is not None and backend.store is not None:
        waiting = backend.store.holding.unconfirmed_bytes(log)
        archive = TopicArchiveStatistics(log.confirmed, first, log.trimmed, waiting)
    return TopicStatistics(
        log.name,
        log.epoch,
        log.published,
        log.count_bytes() if sizes is None else sizes[0],
        first,
        end,
        log.live_bytes if sizes is None else sizes[1],
        0 if readers is None else sum(reader.members for reader in readers),
        archive,
    )


def other_topics(logs: Mapping[str, Log], chosen: Container[str]) -> OtherTopics:
    """The sums over topics that are not `chosen`. There may be very many: no object is made for each."""
    count = published = published_bytes = kept_bytes = subscribers = 0
    for name, log in logs.items():
        if name not in chosen and name[0] != "$":
            count += 1
            published += log.published
            published_bytes += log.count_bytes()
            kept_bytes += log.live_bytes
            if log.topic_readers is not None:
                subscribers += sum(reader.members for reader in log.topic_readers)
    return OtherTopics(count, published, published_bytes, kept_bytes, subscribers)


def open_readers(backend: BrokerParts) -> list[LocalReader]:
    """Those that users have open, here and at the other end of connections."""
    return [one for one in backend.readers if isinstance(one, LocalReader) and one.pattern[0] != "$"]


def subscription_statistics(one: LocalReader) -> SubscriptionStatistics:
    """A snapshot of a subscription."""
    overflow = one.overflow
    return SubscriptionStatistics(
        one.label,
        one.pattern,
        one.name,
        str(overflow.policy),
        overflow.buffer,
        one.lag,
        one.delivered,
        one.dropped_count + overflow.drops(),
        one.expired,
        one.last_ack,
    )


def unread_names(backend: BrokerParts, limit: int | None = None) -> tuple[CursorStatistics, ...]:
    """The names without a reader, sorted; at most `limit` of them."""
    names = sorted(backend.positions.stored.keys() - backend.positions.open.keys())
    return tuple(cursor_statistics(backend, name) for name in islice((one for one in names if one[0] != "$"), limit))


def cursor_statistics(backend: BrokerParts, name: str) -> CursorStatistics:
    """A name without a reader, and its position."""
    pattern, place = backend.positions.stored[name]
    hold = backend.store is not None and name in backend.store.holding.holds
    if not isinstance(place, Position):
        return CursorStatistics(name, pattern, place, None, hold)
    log = backend.catalog.logs.get(pattern)
    if log is None:
        return CursorStatistics(name, pattern, place.offset, 0, hold)
    read = place.offset if place.epoch == log.epoch else 0  # of an earlier topic of that name: nothing of this one
    return CursorStatistics(name, pattern, read, max(0, log.end - read - _skipped(backend, log, read)), hold)


def _skipped(backend: BrokerParts, log: Log, first: int) -> int:
    """How many offsets from `first` on no record ever had."""
    if not log.skipped or backend.store is None or log.stored is None:
        return 0
    known = backend.store.journal.ledger.topics.get(log.stored.id)
    return 0 if known is None else count_skipped(known.gone, first, log.end)


def waiting_publishers(backend: BrokerParts) -> int:
    """Publishes that wait for room."""
    return sum(len(log.topic_readers.blocked or ()) for log in backend.publisher.blocked if log.topic_readers)


def snapshot(backend: BrokerParts, pattern: str | None = None, limit: int | None = None) -> Statistics:
    """A snapshot of the broker. It has the handlers that clients reported; the others belong to `api.Broker`."""
    logs = backend.catalog.logs
    topics = {name: topic_statistics(backend, logs[name]) for name in chosen_topics(logs, pattern, limit)}
    other = OtherTopics() if pattern is None and limit is None else other_topics(logs, topics)
    totals = backend.totals
    published = totals.published + other.published + sum(topic.published for topic in topics.values())
    published_bytes = totals.published_bytes + other.published_bytes
    published_bytes += sum(topic.published_bytes for topic in topics.values())
    open_ones = open_readers(backend)
    sums = backend.totals.with_open(open_ones)
    return Statistics(
        topics,
        tuple(map(subscription_statistics, open_ones)),
        tuple(reader.statistics() for reader in backend.groups),
        backend.handler_reports.current(backend.clock.time()),
        sums,
        published,
        published_bytes,
        sum(each.delivered for each in sums.values()),
        sum(each.dropped for each in sums.values()),
        waiting_publishers(backend),
        None if backend.store is None else journal_statistics(backend.store),
        unread_names(backend),
        other,
        backend.relay_reports.current(backend.clock.time()),
        None if backend.history_reads is None else backend.history_reads.statistics(),
        backend.pipeline_reports.current(backend.clock.time()),
        None if (replication := backend.replication) is None else replication.statistics(),
    )
