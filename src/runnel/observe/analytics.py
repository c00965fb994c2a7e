"""Series over time out of telemetry: throughput, latency, lag, drops and dead letters, for the console and reports.

Rows of telemetry and windows of the analytics pipeline have the same fields, so both are added up here in the same way.
What is read and kept is bounded, however much telemetry there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from runnel.core.errors import UnknownTopic
from runnel.core.telemetry import (
    DROP_WARNING,
    KINDS,
    LATENCY_BOUNDS,
    OTHER,
    ROWS,
    SLOW_LAG,
    DeadLetterRow,
    Row,
    SubscriberRow,
    TopicRow,
    analytics_topic,
    latency_quantile,
    telemetry_topic,
)

if TYPE_CHECKING:
    from runnel.core.backend import Backend

MAX_KEYS = 500  # topics, and subscribers, that have a series of their own
MAX_READ = 200_000  # rows of a kind that are looked at, the newest
PAGE, PAGE_BYTES = 2_000, 1 << 20  # rows between which others on the loop have their turn
STALE = 180.0  # seconds without a row after which a lag is not believed any more: it is repeated every minute
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

K = TypeVar("K")


class Span(NamedTuple):
    """The length of series, and of one of their points, in seconds."""

    seconds: float
    bucket: float


SPANS = {
    "minutes": Span(15 * 60.0, 10.0),
    "hours": Span(24 * 3600.0, 15 * 60.0),
    "days": Span(7 * 86400.0, 2 * 3600.0),
}


class _Figures:
    """One topic or subscriber: a value for each bucket, by name, and sums."""

    __slots__ = ("buckets", "kind", "lags", "sums")

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.buckets: dict[str, list[float]] = {}
        self.kind = ""
        self.lags: list[tuple[float, int]] = []


class AnalyticsSeries:
    """Series from `start` on, in buckets. Add rows in any order; `document()` is what plots show."""

    def __init__(self, start: float, bucket: float, count: int) -> None:
        self.start, self.bucket, self.count = start, bucket, count
        self._all = _Figures()
        self._topics: dict[str, _Figures] = {}
        self._subscribers: dict[tuple[str, str, str], _Figures] = {}
        self._letters: dict[tuple[str, str, str], float] = {}
        self._latency: dict[str, list[list[int]]] = {}  # by name, a histogram for each bucket
        self._latencies: dict[tuple[str, str, str], dict[str, list[int]]] = {}
        self.rows = 0

    @property
    def end(self) -> float:
        """The time behind the last bucket."""
        return self.start + self.bucket * self.count

    # -- adding -------------------------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Count a row, if its interval lies in the series."""
        if row.time <= self.start or row.time - row.seconds >= self.end:
            return
        self.rows += 1
        if isinstance(row, TopicRow):
            self._add_topic(row)
        elif isinstance(row, SubscriberRow):
            self._add_subscriber(row)
        else:
            self._add_letters(row)

    def _add_topic(self, row: TopicRow) -> None:
        mine = _of(self._topics, row.topic, OTHER)
        for name, value in (("published", row.published), ("published_bytes", row.published_bytes)):
            if value:
                self._spread(mine, name, value, row)
                self._spread(self._all, name, value, row)

    def _add_subscriber(self, row: SubscriberRow) -> None:
        key = _key(self._subscribers, (row.topic, row.subscriber, row.kind), (OTHER, OTHER, "subscription"))
        mine = self._subscribers[key]
        for name in ("delivered", "acked", "dropped", "redelivered", "dead_lettered", "expired"):
            if value := getattr(row, name):
                self._spread(mine, name, value, row)
                self._spread(self._all, name, value, row)
        mine.lags.append((row.time, row.lag))
        for name, counts in (("deliver", row.deliver), ("ack", row.ack)):
            if counts and len(counts) == len(LATENCY_BOUNDS) + 1:
                self._add_latency(key, name, counts, row)

    def _add_latency(self, key: tuple[str, str, str], name: str, counts: tuple[int, ...], row: Row) -> None:
        empty = [0] * (len(LATENCY_BOUNDS) + 1)
        over_time = self._latency.setdefault(name, [[] for _ in range(self.count)])
        index = min(self.count - 1, max(0, int((row.time - row.seconds / 2 - self.start) / self.bucket)))
        over_time[index] = [a + b for a, b in zip(over_time[index] or empty, counts, strict=True)]
        mine = self._latencies.setdefault(key, {})
        mine[name] = [a + b for a, b in zip(mine.get(name, empty), counts, strict=True)]

    def _add_letters(self, row: DeadLetterRow) -> None:
        key = (row.topic, row.subscriber, row.reason)
        if key not in self._letters and len(self._letters) >= MAX_KEYS:
            key = (OTHER, OTHER, OTHER)
        self._letters[key] = self._letters.get(key, 0) + row.count
        self._spread(self._all, "dead_letters", row.count, row)

    def _spread(self, figures: _Figures, name: str, value: float, row: Row) -> None:
        """Count a value over the buckets that its interval overlaps, in proportion."""
        values = figures.buckets.setdefault(name, [0.0] * self.count)
        begin, end = row.time - row.seconds, row.time
        first = max(0, int((begin - self.start) / self.bucket))
        last = min(self.count - 1, int((end - self.start) / self.bucket - 1e-9))
        for index in range(first, last + 1):
            left = self.start + index * self.bucket
            share = (min(end, left + self.bucket) - max(begin, left)) / row.seconds
            values[index] += value * share
            figures.sums[name] = figures.sums.get(name, 0.0) + value * share

    # -- what it comes to ---------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """All series, and the busiest topics and subscribers. Rates are per second."""
        lags = {key: self._lag(figures) for key, figures in self._subscribers.items()}
        total = [sum(values) for values in zip(*lags.values(), strict=True)] if lags else [0.0] * self.count
        topics = sorted(self._topics.items(), key=lambda one: -one[1].sums.get("published", 0.0))
        subscribers = [self._subscriber(key, figures, lags[key]) for key, figures in self._subscribers.items()]
        subscribers.sort(key=lambda one: (not one["slow"], -one["dropped"], -one["lag"], -one["delivered"]))
        letters = sorted(self._letters.items(), key=lambda one: -one[1])
        return {
            "start": self.start,
            "end": self.end,
            "bucket": self.bucket,
            "rows": self.rows,
            "totals": self._totals(total),
            "series": {
                **{name: self._rates(self._all, name) for name in ("published", "delivered", "acked", "dropped")},
                **{name: self._counts(self._all, name) for name in ("redelivered", "dead_letters")},
                "published_bytes": self._rates(self._all, "published_bytes"),
                "lag": total,
                "deliver": self._quantiles("deliver"),
                "ack": self._quantiles("ack"),
            },
            "topics": [self._topic(name, figures) for name, figures in topics[:20]],
            "subscribers": subscribers[:50],
            "dead_letters": [
                {"topic": topic, "subscriber": subscriber, "reason": reason, "count": round(count)}
                for (topic, subscriber, reason), count in letters[:20]
            ],
        }

    def _totals(self, lag: list[float]) -> dict[str, Any]:
        names = ("published", "published_bytes", "delivered", "acked", "dropped", "redelivered", "dead_letters")
        sums = {name: round(self._all.sums.get(name, 0.0)) for name in names}
        rate = _share(sums["dropped"], sums["delivered"])
        return {**sums, "drop_rate": rate, "drop_warning": rate > DROP_WARNING, "lag": round(lag[-1]) if lag else 0}

    def _topic(self, name: str, figures: _Figures) -> dict[str, Any]:
        return {
            "topic": name,
            "published": round(figures.sums.get("published", 0.0)),
            "published_bytes": round(figures.sums.get("published_bytes", 0.0)),
            "rates": self._rates(figures, "published"),
        }

    def _subscriber(self, key: tuple[str, str, str], figures: _Figures, lags: list[float]) -> dict[str, Any]:
        topic, subscriber, kind = key
        sums = {
            name: round(figures.sums.get(name, 0.0))
            for name in ("delivered", "acked", "dropped", "redelivered", "dead_lettered")
        }
        drop_rate = _share(sums["dropped"], sums["delivered"])
        half = lags[len(lags) // 2 :]
        trend = (half[-1] - half[0]) / (self.bucket * max(1, len(half) - 1))
        latest = figures.buckets.get("delivered", [0.0])[-3:]
        rate = sum(latest) / (self.bucket * len(latest))
        is_slow = drop_rate > DROP_WARNING or (trend > 0 and lags[-1] > rate + SLOW_LAG)
        measured = self._latencies.get(key, {})
        return {
            "topic": topic,
            "subscriber": subscriber,
            "kind": kind,
            **sums,
            "drop_rate": drop_rate,
            "drop_warning": drop_rate > DROP_WARNING,
            "lag": round(lags[-1]),
            "lag_trend": trend,
            "lags": lags,
            "rates": self._rates(figures, "delivered"),
            "deliver": {label: latency_quantile(measured.get("deliver", ()), share) for label, share in SHARES},
            "ack": {label: latency_quantile(measured.get("ack", ()), share) for label, share in SHARES},
            "slow": is_slow,
        }

    def _lag(self, figures: _Figures) -> list[float]:
        """The lag at the end of each bucket: what the last row before it said."""
        points, found, at = sorted(figures.lags), [], 0
        when, lag = 0.0, 0
        for index in range(self.count):
            end = self.start + (index + 1) * self.bucket
            while at < len(points) and points[at][0] <= end + 1e-6:
                when, lag = points[at]
                at += 1
            is_stale = end - when > max(STALE, self.bucket)
            found.append(0.0 if is_stale else float(lag))
        return found

    def _rates(self, figures: _Figures, name: str) -> list[float]:
        return [round(value / self.bucket, 3) for value in figures.buckets.get(name, [0.0] * self.count)]

    def _counts(self, figures: _Figures, name: str) -> list[float]:
        return [round(value, 3) for value in figures.buckets.get(name, [0.0] * self.count)]

    def _quantiles(self, name: str) -> dict[str, list[float | None]]:
        over_time = self._latency.get(name, [[] for _ in range(self.count)])
        return {label: [latency_quantile(counts, share) for counts in over_time] for label, share in SHARES}


def _key(known: dict[K, _Figures], key: K, other: K) -> K:
    """`key`, or `other` if there are too many; it has figures now."""
    if key not in known and len(known) >= MAX_KEYS:
        key = other
    known.setdefault(key, _Figures())
    return key


def _of(known: dict[K, _Figures], key: K, other: K) -> _Figures:
    return known[_key(known, key, other)]


def _share(dropped: float, delivered: float) -> float:
    return dropped / (dropped + delivered) if dropped else 0.0


# -- Reading ---------------------------------------------------------------------------------------------


async def read_series(backend: Backend, span: Span, now: float) -> AnalyticsSeries:
    """The series of the last `span`, from the windows of the analytics pipeline where it has some, else telemetry.

    Windows of a minute say nothing about seconds: of short spans only telemetry is read.
    """
    count = round(span.seconds / span.bucket)
    since = now - span.seconds - span.bucket
    windows: list[Row] = []
    if span.bucket >= 60:
        windows = [row for kind in KINDS async for row in _rows(backend, analytics_topic(kind), kind, since)]
    first = min((row.time - row.seconds for row in windows), default=float("inf"))
    last = max((row.time for row in windows), default=float("-inf"))
    fresh = [
        row
        for kind in KINDS
        async for row in _rows(backend, telemetry_topic(kind), kind, since)
        if row.time <= first or row.time - row.seconds >= last - 1e-3
    ]
    # The last bucket ends where the newest interval does: a plot does not sink at its end because one is not over.
    newest = max((row.time for row in (*windows, *fresh)), default=now)
    end = newest if now - newest < 3 * span.bucket else now
    series = AnalyticsSeries(end - count * span.bucket, span.bucket, count)
    for number, row in enumerate((*windows, *fresh)):
        if number % PAGE == PAGE - 1:
            await asyncio.sleep(0)
        series.add(row)
    return series


async def _rows(backend: Backend, topic: str, kind: str, since: float) -> AsyncIterator[Row]:
    """The rows of a topic since a time, at most the newest `MAX_READ`; none if there is no such topic."""
    (bounds,) = await backend.bounds([topic], datetime.fromtimestamp(since, UTC), history=False) or (None,)
    if bounds is None:
        return
    at = max(bounds.first, bounds.end - MAX_READ, bounds.first if bounds.at is None else bounds.at)
    decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(ROWS[kind])
    while at < bounds.end:
        try:
            page = await backend.history(topic, at, PAGE, PAGE_BYTES)
        except UnknownTopic:  # it was deleted meanwhile
            return
        for record in page.records:
            try:
                yield decoder.decode(record.value)
            except msgspec.MsgspecError:
                continue  # any program may publish analytics
        if page.next <= at:
            return
        at = page.next
        await asyncio.sleep(0)
