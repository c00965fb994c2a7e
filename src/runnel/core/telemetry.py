"""Telemetry: what a broker publishes about itself, as rows, and the topics that hold them.

A row counts what happened in one interval, so rows may be summed over time, topics and subscribers. Lag is what it was
at the end of the interval. Rows are JSON objects; a field that is zero is left out. Fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.options import TopicOptions
from runnel.core.pattern import ANALYTICS_PREFIX, TELEMETRY_PREFIX

KINDS = ("topics", "subscribers", "dead_letters")  # of rows; each has a topic below both prefixes
DEFAULT_INTERVAL = 10.0  # seconds between two samples of a server
MIN_INTERVAL = 0.1
MAX_ROWS = 50  # rows of a kind in a sample; the rest are summed in one more
OTHER = "(other)"  # the name of that one
DROP_WARNING = 0.01  # a larger share of dropped records is worth a warning
SLOW_LAG = 10  # records that a subscriber may always lag by without counting as slow

DAY = 86400.0
TELEMETRY_OPTIONS = TopicOptions(retention_age=7 * DAY, retention_bytes=128 << 20)
ANALYTICS_OPTIONS = TopicOptions(retention_age=30 * DAY, retention_bytes=256 << 20)

# Seconds. A delivery in one process takes microseconds; a client that was away for a night, hours.
LATENCY_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)


def telemetry_topic(kind: str) -> str:
    """The topic of the rows of that kind that the broker publishes."""
    return TELEMETRY_PREFIX + kind


def analytics_topic(kind: str) -> str:
    """The topic of the windows that a pipeline computes of rows of that kind."""
    return ANALYTICS_PREFIX + kind


class TopicRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The publishes to a topic in an interval of `seconds` that ended at `time` (seconds since 1970).

    `kept_bytes` is what the topic held in memory at its end. `topics` is 1, or how many the row `(other)` sums.
    """

    time: float
    seconds: float
    topic: str
    published: int = 0
    published_bytes: int = 0
    kept_bytes: int = 0
    topics: int = 1


class SubscriberRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records received by the subscribers of one name on one topic or pattern in an interval, and their lag.

    - `kind`: "subscription", "group", or "position": a stored position of a name that no subscription has open here.
    - `subscriber`: the name; all subscriptions without one on a topic are "anonymous".
    - `lag`, `in_flight`, `members`: at the end of the interval. `members` is how many were open or had joined.
    - `deliver`: how many of the sampled records were delivered within each of `LATENCY_BOUNDS` after they were
      published; the last number has no bound. Records published before the subscription began do not count.
    - `ack`: the same from delivery to ack, of a group.
    """

    time: float
    seconds: float
    topic: str
    subscriber: str
    kind: str = "subscription"
    delivered: int = 0
    acked: int = 0
    dropped: int = 0
    expired: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    lag: int = 0
    in_flight: int = 0
    members: int = 0
    deliver: tuple[int, ...] = ()
    ack: tuple[int, ...] = ()


class DeadLetterRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many dead letters the subscriber on a topic or pattern left in an interval, for one reason.

    `reason` is the code or the class of the error, without its text: "ValueError", "rejected", "dropped".
    """

    time: float
    seconds: float
    topic: str
    subscriber: str
    reason: str
    count: int = 0


Row = TopicRow | SubscriberRow | DeadLetterRow
ROWS: dict[str, type[Row]] = {"topics": TopicRow, "subscribers": SubscriberRow, "dead_letters": DeadLetterRow}


# -- Latency ---------------------------------------------------------------------------------------------


def added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Two histograms of the same bounds as one; () is one without counts."""
    if not one or not other:
        return tuple(one or other)
    return tuple(a + b for a, b in zip(one, other, strict=True))


def latency_quantile(counts: Sequence[int], share: float) -> float | None:
    """Seconds that about `share` of the counted records did not exceed; None: there were none.

    Inside of a bucket they are taken to lie evenly; above the last bound, at that bound.
    """
    rank, before = share * sum(counts), 0
    for index, count in enumerate(counts):
        if count and before + count >= rank:
            if index >= len(LATENCY_BOUNDS):
                return LATENCY_BOUNDS[-1]
            low = LATENCY_BOUNDS[index - 1] if index else 0.0
            return low + (LATENCY_BOUNDS[index] - low) * max(0.0, rank - before) / count
        before += count
    return None


# -- Options and limits ---------------------------------------------------------------------------------


def check_interval(interval: object) -> float | None:
    """The interval that `telemetry=` asks for, in seconds; None: there is no telemetry."""
    if interval is None or interval is False:
        return None
    if interval is True:
        return DEFAULT_INTERVAL
    if not isinstance(interval, int | float) or not MIN_INTERVAL <= interval <= DAY:
        raise InvalidOption("telemetry", interval, f"expected seconds between samples, {MIN_INTERVAL} or more, or None")
    return float(interval)


def largest_topics(rows: Sequence[TopicRow], most: int = MAX_ROWS) -> list[TopicRow]:
    """The rows with the most records, and the sum of the others."""
    if len(rows) <= most:
        return list(rows)
    ordered = sorted(rows, key=lambda row: row.published, reverse=True)
    rest = ordered[most:]
    other = TopicRow(
        rest[0].time,
        rest[0].seconds,
        OTHER,
        sum(row.published for row in rest),
        sum(row.published_bytes for row in rest),
        sum(row.kept_bytes for row in rest),
        len(rest),
    )
    return [*ordered[:most], other]


def largest_subscribers(rows: Sequence[SubscriberRow], most: int = MAX_ROWS) -> list[SubscriberRow]:
    """The rows with the most drops, then lag, then deliveries, and the sum of the others."""
    if len(rows) <= most:
        return list(rows)
    ordered = sorted(rows, key=lambda row: (row.dropped, row.lag, row.delivered), reverse=True)
    rest = ordered[most:]
    other = SubscriberRow(rest[0].time, rest[0].seconds, OTHER, OTHER)
    return [*ordered[:most], summed_subscribers(other, rest)]


SUMMED = ("delivered", "acked", "dropped", "expired", "redelivered", "dead_lettered", "lag", "in_flight", "members")


def summed_subscribers(row: SubscriberRow, others: Iterable[SubscriberRow]) -> SubscriberRow:
    """`row` with the figures of others of the same interval added."""
    figures = {name: getattr(row, name) for name in SUMMED}
    deliver, ack = row.deliver, row.ack
    for other in others:
        for name in SUMMED:
            figures[name] += getattr(other, name)
        deliver, ack = added(deliver, other.deliver), added(ack, other.ack)
    return msgspec.structs.replace(row, **figures, deliver=deliver, ack=ack)


def largest_letters(rows: Sequence[DeadLetterRow], most: int = MAX_ROWS) -> list[DeadLetterRow]:
    """The rows with the most dead letters, and the sum of the others."""
    if len(rows) <= most:
        return list(rows)
    ordered = sorted(rows, key=lambda row: row.count, reverse=True)
    rest = ordered[most:]
    other = DeadLetterRow(rest[0].time, rest[0].seconds, OTHER, OTHER, OTHER, sum(row.count for row in rest))
    return [*ordered[:most], other]
