"""What a broker did and holds, as a frozen snapshot. Counters never go back while it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.broker.read.reader import LocalReader
from runnel.core.position import Position
from runnel.core.statistics import (
    ArchiveStatistics,
    CursorStatistics,
    HolderStatistics,
    JournalStatistics,
    Statistics,
    SubscriptionStatistics,
    TopicStatistics,
)

if TYPE_CHECKING:
    from runnel.broker.durable.store import Store
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.log import Log


def journal_statistics(store: Store) -> JournalStatistics:
    """The journal as it is now."""
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


def topic_statistics(backend: BrokerParts, log: Log) -> TopicStatistics:
    """A topic as it is now."""
    return TopicStatistics(
        log.name,
        log.epoch,
        log.end,
        log.count_bytes(),
        backend.timeline.first(log),
        log.end,
        log.live_bytes,
        sum(reader.members for reader in log.topic_readers or ()),
    )


def open_readers(backend: BrokerParts) -> list[LocalReader]:
    """Those that users have open, here and at the other end of connections."""
    return [one for one in backend.readers if isinstance(one, LocalReader) and one.pattern[0] != "$"]


def subscription_statistics(one: LocalReader) -> SubscriptionStatistics:
    """A subscription as it is now."""
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
    )


def cursor_statistics(backend: BrokerParts, name: str) -> CursorStatistics:
    """A name under which nobody reads, as it stands."""
    pattern, place = backend.positions.stored[name]
    hold = backend.store is not None and name in backend.store.holding.holds
    if not isinstance(place, Position):
        return CursorStatistics(name, pattern, place, None, hold)
    log = backend.catalog.logs.get(pattern)
    if log is None:
        return CursorStatistics(name, pattern, place.offset, 0, hold)
    read = place.offset if place.epoch == log.epoch else 0  # of an earlier topic of that name: nothing of this one
    return CursorStatistics(name, pattern, read, max(0, log.end - read), hold)


def waiting_publishers(backend: BrokerParts) -> int:
    """Publishes that wait for room."""
    return sum(len(log.topic_readers.blocked or ()) for log in backend.publisher.blocked if log.topic_readers)


def snapshot(backend: BrokerParts) -> Statistics:
    """The broker as it is now. It knows of no handlers: those are of the handle that users hold."""
    topics = {}
    for log in backend.catalog.logs.values():
        if log.name[0] != "$":
            topics[log.name] = topic_statistics(backend, log)
    open_ones = open_readers(backend)
    sums = backend.totals.with_open(open_ones)
    return Statistics(
        topics,
        tuple(map(subscription_statistics, open_ones)),
        tuple(reader.statistics() for reader in backend.groups),
        (),
        sums,
        backend.totals.published + sum(topic.published for topic in topics.values()),
        backend.totals.published_bytes + sum(topic.published_bytes for topic in topics.values()),
        sum(each.delivered for each in sums.values()),
        sum(each.dropped for each in sums.values()),
        waiting_publishers(backend),
        None if backend.store is None else journal_statistics(backend.store),
        tuple(
            cursor_statistics(backend, name)
            for name in sorted(backend.positions.stored.keys() - backend.positions.open.keys())
            if name[0] != "$"
        ),
    )
