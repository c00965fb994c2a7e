"""What a broker did and holds, as a frozen snapshot. Counters never go back while it is open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from runnel.broker.read.subscription import Subscription
from runnel.core.position import Position
from runnel.core.statistics import (
    ArchiveStatistics,
    CursorStatistics,
    HolderStatistics,
    JournalStatistics,
    Statistics,
    SubscriberTotals,
    SubscriptionStatistics,
    TopicStatistics,
)

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.durable.store import Store
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


ANONYMOUS = "anonymous"
OTHER = "(other)"
MAX_FLOWS = 1000  # pairs of pattern and subscriber that are counted apart


class Tally:
    """What one pattern and subscriber received and lost, over subscriptions that ended."""

    __slots__ = ("delivered", "dropped", "expired", "lag")

    def __init__(self) -> None:
        self.delivered = self.dropped = self.expired = self.lag = 0

    def add(self, other: Tally | SubscriberTotals) -> None:
        """Count another in."""
        self.delivered += other.delivered
        self.dropped += other.dropped
        self.expired += other.expired
        self.lag += other.lag


class Totals:
    """Sums over what is no more: subscriptions that ended, topics that were deleted.

    The first `MAX_FLOWS` pairs of pattern and subscriber have a sum of their own, for good, so
    that counters never go back; all later ones share one.
    """

    def __init__(self) -> None:
        self.published = self.published_bytes = 0  # of deleted topics
        self._tallies: dict[tuple[str, str], Tally] = {}

    def add(self, subscription: Subscription[Any]) -> None:
        """Count in a subscription that ended, unless it is internal: there is one for each request."""
        if subscription.pattern[0] != "$":
            ended = tally_of(subscription)
            ended.lag = 0
            self._tally(subscription).add(ended)

    def with_open(self, subscriptions: Iterable[Subscription[Any]]) -> dict[tuple[str, str], SubscriberTotals]:
        """The sums, with those counted in that are still open."""
        tallies: dict[int, Tally] = {}
        for one in subscriptions:
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

    def sum(self) -> Tally:
        """All of it together, of those that ended."""
        total = Tally()
        for tally in self._tallies.values():
            total.add(tally)
        return total

    def _tally(self, subscription: Subscription[Any]) -> Tally:
        key = (subscription.pattern, subscription.name or ANONYMOUS)
        if key not in self._tallies and len(self._tallies) >= MAX_FLOWS:
            key = (OTHER, OTHER)
        return self._tallies.setdefault(key, Tally())


def tally_of(subscription: Subscription[Any]) -> Tally:
    """What one subscription received and lost so far."""
    tally, overflow = Tally(), subscription.overflow
    tally.delivered, tally.expired, tally.lag = subscription.delivered, subscription.expired, subscription.lag
    tally.dropped = subscription.dropped_count + overflow.drops()
    return tally


def topic_statistics(bus: Bus, log: Log) -> TopicStatistics:
    """A topic as it is now."""
    return TopicStatistics(
        log.name,
        log.epoch,
        log.end,
        log.count_bytes(),
        bus.timeline.first(log),
        log.end,
        log.live_bytes,
        sum(reader.members for reader in log.topic_readers or ()),
    )


def open_subscriptions(bus: Bus) -> list[Subscription[Any]]:
    """Those that users have open, here and at the other end of connections."""
    return [one for one in bus.readers if isinstance(one, Subscription) and one.pattern[0] != "$"]


def subscription_statistics(one: Subscription[Any]) -> SubscriptionStatistics:
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


def cursor_statistics(bus: Bus, name: str) -> CursorStatistics:
    """A name under which nobody reads, as it stands."""
    pattern, place = bus.positions[name]
    hold = bus.store is not None and name in bus.store.holding.holds
    if not isinstance(place, Position):
        return CursorStatistics(name, pattern, place, None, hold)
    log = bus.catalog.logs.get(pattern)
    if log is None:
        return CursorStatistics(name, pattern, place.offset, 0, hold)
    read = place.offset if place.epoch == log.epoch else 0  # of an earlier topic of that name: nothing of this one
    return CursorStatistics(name, pattern, read, max(0, log.end - read), hold)


def snapshot(bus: Bus) -> Statistics:
    """The broker as it is now."""
    topics = {}
    for log in bus.catalog.logs.values():
        if log.name[0] != "$":
            topics[log.name] = topic_statistics(bus, log)
    open_ones = open_subscriptions(bus)
    sums = bus.ended.with_open(open_ones)
    return Statistics(
        topics,
        tuple(map(subscription_statistics, open_ones)),
        tuple(reader.statistics() for reader in bus.groups),
        tuple(handler.statistics() for handler in bus.handlers),
        sums,
        bus.ended.published + sum(topic.published for topic in topics.values()),
        bus.ended.published_bytes + sum(topic.published_bytes for topic in topics.values()),
        sum(each.delivered for each in sums.values()),
        sum(each.dropped for each in sums.values()),
        sum(len(log.topic_readers.blocked or ()) for log in bus.publisher.blocked if log.topic_readers),
        None if bus.store is None else journal_statistics(bus.store),
        tuple(
            cursor_statistics(bus, name) for name in sorted(bus.positions.keys() - bus.named.keys()) if name[0] != "$"
        ),
    )
