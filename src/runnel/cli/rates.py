"""What happened between two looks at a broker: counters that became rates, and what stands now.

Below: core.statistics. Above: top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from runnel.core.statistics import Statistics


class TopicRow(msgspec.Struct, frozen=True):
    """A topic: what came in per second, and what it holds."""

    topic: str
    published: float
    published_bytes: float
    end: int
    kept_bytes: int
    subscribers: int


class ReaderRow(msgspec.Struct, frozen=True):
    """All subscriptions of one pattern and name: what went out per second, what was lost, how far they are behind."""

    reads: str
    subscriber: str
    delivered: float
    dropped: float
    dropped_ever: int
    lag: int


class GroupRow(msgspec.Struct, frozen=True):
    """A group: what was done per second, and what is to do."""

    group: str
    reads: str
    acked: float
    lag: int
    in_flight: int
    redelivered: float
    dead_lettered: int
    oldest: float
    members: int
    paused: bool


class View(msgspec.Struct, frozen=True):
    """A broker between two looks. Rates are per second."""

    seconds: float
    published: float
    published_bytes: float
    delivered: float
    dropped: float
    dropped_ever: int
    waiting_publishers: int
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    readers: tuple[ReaderRow, ...]


def places(statistics: Statistics) -> dict[tuple[str, str], int]:
    """Where the names stand under which nobody reads now."""
    return {(one.pattern, one.name): one.place for one in statistics.cursors}


def between(before: Statistics, now: Statistics, seconds: float) -> View:
    """The view, the busiest of each first. What was not there before counts from 0; a restarted server, too."""

    def rate(new: int, old: int) -> float:
        return (new - old if new >= old else new) / seconds

    def topic_rows() -> list[TopicRow]:
        rows = []
        for name, one in now.topics.items():
            old = before.topics.get(name)
            if old is not None and old.epoch != one.epoch:
                old = None
            published = rate(one.published, old.published if old else 0)
            size = rate(one.published_bytes, old.published_bytes if old else 0)
            rows.append(TopicRow(name, published, size, one.end, one.kept_bytes, one.subscribers))
        return rows

    def reader_rows() -> list[ReaderRow]:
        rows = []
        parked = {(one.pattern, one.name): one.lag for one in now.cursors if one.lag is not None}
        for (pattern, subscriber), one in now.flowed.items():
            old = before.flowed.get((pattern, subscriber))
            delivered = rate(one.delivered, old.delivered if old else 0)
            dropped = rate(one.dropped, old.dropped if old else 0)
            lag = parked.pop((pattern, subscriber), one.lag)
            rows.append(ReaderRow(pattern, subscriber, delivered, dropped, one.dropped, lag))
        return rows + [ReaderRow(*key, passed(*key), 0.0, 0, lag) for key, lag in parked.items()]

    def passed(pattern: str, name: str) -> float:
        """How fast a name moves under which nobody reads here: it reads elsewhere, and says where it is."""
        new, old = places(now).get((pattern, name), 0), places(before).get((pattern, name))
        return 0.0 if old is None else max(0, new - old) / seconds

    def group_rows() -> list[GroupRow]:
        known = {(one.name, one.pattern): one for one in before.groups}
        rows = []
        for one in now.groups:
            old = known.get((one.name, one.pattern))
            rows.append(
                GroupRow(
                    one.name,
                    one.pattern,
                    rate(one.acked, old.acked if old else 0),
                    one.lag,
                    one.in_flight,
                    rate(one.redelivered, old.redelivered if old else 0),
                    one.dead_lettered,
                    one.oldest_unacked_age,
                    len(one.members),
                    one.paused,
                )
            )
        return rows

    return View(
        seconds,
        rate(now.published, before.published),
        rate(now.published_bytes, before.published_bytes),
        rate(now.delivered, before.delivered),
        rate(now.dropped, before.dropped),
        now.dropped,
        now.waiting_publishers,
        tuple(sorted(topic_rows(), key=lambda row: (-row.published, row.topic))),
        tuple(sorted(group_rows(), key=lambda row: (-row.lag, row.group, row.reads))),
        tuple(sorted(reader_rows(), key=lambda row: (-row.dropped, -row.lag, row.reads, row.subscriber))),
    )
