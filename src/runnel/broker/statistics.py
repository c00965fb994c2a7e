"""What a broker did and holds, as a frozen snapshot. Counters never go back while a broker is open.

Below: broker. Above: observe, which prints it; the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.broker.handler import HandlerStatistics
from runnel.broker.subscription import Subscription

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

ANONYMOUS = "anonymous"


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
    """What all subscriptions of one pattern and name, open and ended, received and lost."""

    delivered: int
    dropped: int
    expired: int


class Statistics(msgspec.Struct, frozen=True):
    """A broker at one moment.

    `flowed` sums by (pattern, subscriber) over open and ended subscriptions; those without
    a name count together as "anonymous", so that it stays small however many come and go.
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


class Totals:
    """Sums over subscriptions that ended."""

    def __init__(self) -> None:
        self.delivered: Counter[tuple[str, str]] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.expired: Counter[tuple[str, str]] = Counter()
        self.published = self.published_bytes = 0  # of deleted topics

    def add(self, subscription: Subscription[Any]) -> None:
        """Count a subscription in, unless it is internal: there is one for each request."""
        if subscription.pattern[0] == "$":
            return
        key = (subscription.pattern, subscription.name or ANONYMOUS)
        self.delivered[key] += subscription.delivered
        self.dropped[key] += subscription.dropped_count + subscription.flow.drops()
        self.expired[key] += subscription.expired


def snapshot(broker: Broker) -> Statistics:
    """The broker as it is now."""
    topics = {}
    for log in broker.catalog.logs.values():
        if log.name[0] != "$":
            topics[log.name] = TopicStatistics(
                log.name,
                log.epoch,
                log.end,
                log.count_bytes(),
                broker.timeline.first(log),
                log.end,
                log.live_bytes,
                sum(reader.members for reader in log.gate or ()),
            )
    sums = Totals()
    for total, ended in (
        (sums.delivered, broker.ended.delivered),
        (sums.dropped, broker.ended.dropped),
        (sums.expired, broker.ended.expired),
    ):
        total.update(ended)
    subscriptions = []
    for one in broker.readers:
        if not isinstance(one, Subscription) or one.pattern[0] == "$":
            continue
        sums.add(one)
        flow = one.flow
        subscriptions.append(
            SubscriptionStatistics(
                one.label,
                one.pattern,
                one.name,
                str(flow.policy),
                flow.buffer,
                flow.lag(),
                one.delivered,
                one.dropped_count + flow.drops(),
                one.expired,
            )
        )
    flowed = {key: Flowed(sums.delivered[key], sums.dropped[key], sums.expired[key]) for key in sums.delivered}
    return Statistics(
        topics,
        tuple(subscriptions),
        tuple(reader.statistics() for reader in broker.groups),
        broker.handlers(),
        flowed,
        broker.ended.published + sum(topic.published for topic in topics.values()),
        broker.ended.published_bytes + sum(topic.published_bytes for topic in topics.values()),
        sum(sums.delivered.values()),
        sum(sums.dropped.values()),
        sum(len(log.gate.blocked or ()) for log in broker.publisher.blocked if log.gate),
    )
