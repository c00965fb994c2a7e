"""The last sample of a broker, and how fast each thing in it moved: in the last interval, and in the minutes before.

Rates of the minutes before are kept at steps of `STEP` seconds, so that they mean the same whether a page is open, and
samples come each second, or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runnel.core.backend import Backend, DeadLetterTopic
    from runnel.core.statistics import (
        BackendSample,
        CursorStatistics,
        GroupStatistics,
        HistogramSnapshot,
        JournalSample,
        PipelineStatistics,
        RelayStatistics,
        SubscriptionStatistics,
        TopicSample,
        TopicStatistics,
    )

STEP = 10.0  # seconds between two rates that are kept
KEPT_RATES = 60  # rates that are kept: ten minutes
TRENDS_PER_TURN = 256  # topics or subscribers after which others on the loop have their turn


class Trend:
    """A counter, how fast it rose since the last sample, and in each of the last steps.

    Of thousands of topics most are quiet: what never moved remembers no rates, only for how long.
    """

    __slots__ = ("_at_step", "_moved", "_quiet", "count", "rate")

    def __init__(self, count: int) -> None:
        self.count = self._at_step = count
        self.rate: float | None = None  # a second, since the sample before; None: it was seen once only
        self._moved: deque[float] | None = None
        self._quiet = 0  # steps, before it first moved

    def see(self, count: int, seconds: float) -> None:
        """It is `count` now, so many seconds later. A sum from which something ended is no negative rate."""
        self.rate = max(0, count - self.count) / seconds
        self.count = count

    def step(self, seconds: float) -> float:
        """A step of so many seconds is over: keep its rate, and return it."""
        rate = max(0, self.count - self._at_step) / seconds
        self._at_step = self.count
        if self._moved is None:
            if not rate:
                self._quiet = min(self._quiet + 1, KEPT_RATES)
                return rate
            self._moved = deque(self.rates, KEPT_RATES)
        self._moved.append(rate)
        return rate

    def begin_at(self, count: int) -> None:
        """It rose from `count` since the sample before."""
        self.count = self._at_step = count

    @property
    def rates(self) -> Sequence[float]:
        """A second, in each of the last steps; the newest is last."""
        return (0.0,) * self._quiet if self._moved is None else tuple(self._moved)


class TopicTrend:
    """One topic: the last sample of it, and how fast it grows."""

    __slots__ = ("published", "sample")

    def __init__(self, sample: TopicSample) -> None:
        self.sample, self.published = sample, Trend(sample.figures.total)

    @property
    def figures(self) -> TopicStatistics:
        """The state of the topic at that time."""
        return self.sample.figures

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.published.rate or 0.0


class SubscriberTrend:
    """One subscription: the last sample of it, and how fast it reads."""

    __slots__ = ("delivered", "figures")

    def __init__(self, figures: SubscriptionStatistics) -> None:
        self.figures, self.delivered = figures, Trend(figures.delivered)


class GroupTrend:
    """One group: the last sample of it, how fast it acks, since when it has not, and its lag at the last steps."""

    __slots__ = ("acked", "figures", "lags", "still_since")

    def __init__(self, figures: GroupStatistics, now: float) -> None:
        self.figures, self.acked, self.still_since = figures, Trend(figures.acked), now
        self.lags: deque[int] = deque(maxlen=KEPT_RATES)


class SyncRate(NamedTuple):
    """The fsyncs of one step: how many a second, and their p50 and p99 in seconds."""

    syncs: float
    p50: float
    p99: float


class BrokerSampler:
    """The last sample of a backend, and the rates of the ten minutes before it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self.at = 0.0  # time of the loop at the last sample
        self._is_first = True
        self._slot, self._step_at = 0, 0.0
        self._synced: HistogramSnapshot | None = None
        self._subscribers: dict[int, SubscriberTrend] = {}
        self.topics: dict[str, TopicTrend] = {}
        self.subscribers: list[SubscriberTrend] = []
        self.groups: dict[tuple[str, str], GroupTrend] = {}
        self.cursors: tuple[CursorStatistics, ...] = ()
        self.dead: tuple[DeadLetterTopic, ...] = ()
        self.relays: tuple[RelayStatistics, ...] = ()
        self.pipelines: tuple[PipelineStatistics, ...] = ()
        self.journal: JournalSample | None = None
        self.syncs: deque[SyncRate] = deque(maxlen=KEPT_RATES)
        self.dropped, self.waiting = Trend(0), 0
        self.published, self.published_bytes, self.delivered, self.acked = Trend(0), Trend(0), Trend(0), Trend(0)

    @property
    def lag(self) -> int:
        """Records that are not consumed yet, of all open subscriptions and all groups."""
        own = sum(one.figures.lag for one in self.subscribers)
        return own + sum(one.figures.lag for one in self.groups.values())

    async def take(self) -> bool:
        """Take a sample; whether a step is over with it."""
        sample = await self._backend.sample()
        now = self._loop.time()
        seconds = None if self._is_first else max(1e-3, now - self.at)
        slot = int(self._backend.clock.time() / STEP)  # of the day, as in the ring: each gets one value
        step = None if self._is_first or slot <= self._slot else max(1e-3, now - self._step_at)
        if self._is_first or step is not None:
            self._slot, self._step_at = slot, now
        self.topics = await self._topics(sample, seconds, step)
        self._subscribers = await self._subscriptions(sample, seconds, step)
        self.subscribers = list(self._subscribers.values())
        self.groups = self._groups(sample, now, seconds, step)
        self.dead, self.waiting, self.cursors = sample.dead_letters, sample.waiting_publishers, sample.cursors
        self.relays, self.pipelines = sample.relays, sample.pipelines
        for trend, count in (
            (self.published, sample.published),
            (self.published_bytes, sample.published_bytes),
            (self.delivered, sample.delivered),
            (self.dropped, sample.dropped),
            (self.acked, sum(group.acked for group in sample.groups)),
        ):
            if seconds is None:
                trend.begin_at(count)
            else:
                trend.see(count, seconds)
            if step is not None:
                trend.step(step)
        self._look_at_journal(sample.journal, step)
        self.at, self._is_first = now, False
        return step is not None

    async def _topics(self, sample: BackendSample, seconds: float | None, step: float | None) -> dict[str, TopicTrend]:
        before, trends = self.topics, {}
        for number, one in enumerate(sample.topics):
            if number % TRENDS_PER_TURN == TRENDS_PER_TURN - 1:
                await asyncio.sleep(0)
            figures = one.figures
            name = figures.name
            trend = before.get(name)
            if trend is None or trend.figures.epoch != figures.epoch:
                trend = TopicTrend(one)
                if seconds is not None and name not in before:
                    trend.published.begin_at(0)  # it was made since: all that is in it is new
            if seconds is not None:
                trend.published.see(figures.total, seconds)
            if step is not None:
                trend.published.step(step)
            trend.sample = one
            trends[name] = trend
        return trends

    async def _subscriptions(
        self, sample: BackendSample, seconds: float | None, step: float | None
    ) -> dict[int, SubscriberTrend]:
        before, trends = self._subscribers, {}
        for number, one in enumerate(sample.subscriptions):
            if number % TRENDS_PER_TURN == TRENDS_PER_TURN - 1:
                await asyncio.sleep(0)
            trend = before.get(one.id)
            if trend is None:
                trend = SubscriberTrend(one.figures)
            elif seconds is not None:
                trend.figures = one.figures
                trend.delivered.see(one.figures.delivered, seconds)
            if step is not None:
                trend.delivered.step(step)
            trends[one.id] = trend
        return trends

    def _groups(
        self, sample: BackendSample, now: float, seconds: float | None, step: float | None
    ) -> dict[tuple[str, str], GroupTrend]:
        trends = {}
        for one in sample.groups:
            trend = self.groups.get((one.name, one.pattern))
            if trend is None:
                trend = GroupTrend(one, now)
            elif seconds is not None:
                trend.figures = one
                trend.acked.see(one.acked, seconds)
                if trend.acked.rate:
                    trend.still_since = now
            if step is not None:
                trend.acked.step(step)
                trend.lags.append(one.lag)
            trends[one.name, one.pattern] = trend
        return trends

    def _look_at_journal(self, journal: JournalSample | None, step: float | None) -> None:
        self.journal = journal
        if journal is None:
            return
        synced = journal.figures.sync_durations
        if self._synced is None:
            self._synced = synced
        elif step is not None:
            new = synced.since(self._synced)
            self.syncs.append(SyncRate(round(new.count / step, 2), new.quantile(0.5), new.quantile(0.99)))
            self._synced = synced
