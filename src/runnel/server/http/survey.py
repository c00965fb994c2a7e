"""A look at a broker once a second: what every topic, subscriber and group did since the last one.

`broker.statistics()` looks at all of it at once, which takes some 15 ms where there are 10,000 topics. Whoever looks
every second must not hold up others for so long: a survey gives them their turn after every `STEP`.
Below: broker.statistics, broker.letterbox. Above: figures, updates.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.journal_statistics import of_store
from runnel.broker.letterbox import Letterbox, topics
from runnel.broker.statistics import of_subscription, open_subscriptions

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.log import Log
    from runnel.broker.subscription import Subscription
    from runnel.core.histogram import HistogramSnapshot
    from runnel.core.statistics import GroupStatistics, JournalStatistics, SubscriptionStatistics

KEPT = 60  # rates that are remembered: a minute
STEP = 256  # topics or subscribers after which others on the loop have their turn


class Trend:
    """A counter, and how fast it rose in each of the last intervals.

    Of thousands of topics most are quiet: what never moved remembers no rates, only for how long.
    """

    __slots__ = ("_moved", "_quiet", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._moved: deque[float] | None = None
        self._quiet = 0  # intervals, before it first moved

    def see(self, count: int, seconds: float) -> None:
        """It is `count` now, so many seconds later."""
        rate = max(0, count - self.count) / seconds
        self.count = count
        if self._moved is None:
            if not rate:
                self._quiet = min(self._quiet + 1, KEPT)
                return
            self._moved = deque(self.rates, KEPT)
        self._moved.append(rate)

    @property
    def rates(self) -> Sequence[float]:
        """A second, in each of the last intervals; the newest is last."""
        return (0.0,) * self._quiet if self._moved is None else tuple(self._moved)

    @property
    def rate(self) -> float | None:
        """A second, in the last interval; None: it was seen once only."""
        if self._moved is None:
            return 0.0 if self._quiet else None
        return self._moved[-1]


class TopicTrack:
    """One topic as it was last seen."""

    __slots__ = ("bytes", "first", "log", "published", "subscribers")

    def __init__(self, log: Log) -> None:
        self.log, self.published = log, Trend(log.end)
        self.bytes = self.first = self.subscribers = 0

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.published.rate or 0.0


class SubscriberTrack:
    """One subscription as it was last seen."""

    __slots__ = ("delivered", "figures")

    def __init__(self, figures: SubscriptionStatistics) -> None:
        self.figures, self.delivered = figures, Trend(figures.delivered)


class SyncRate(NamedTuple):
    """The syncs of one interval: how many, and bounds that half and 99 of 100 of them did not exceed, in seconds."""

    syncs: int
    p50: float
    p99: float


class DeadTopic(NamedTuple):
    """A topic that dead letters go to."""

    name: str
    groups: list[str]
    open: int
    first: int
    end: int


class Survey:
    """What was seen last, and the minute before it."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._bus = broker, broker._bus
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None
        self._synced: HistogramSnapshot | None = None
        self._subscribers: weakref.WeakKeyDictionary[Subscription[Any], SubscriberTrack] = weakref.WeakKeyDictionary()
        self.topics: dict[str, TopicTrack] = {}
        self.subscribers: list[SubscriberTrack] = []
        self.groups: tuple[GroupStatistics, ...] = ()
        self.dead: list[DeadTopic] = []
        self.journal: JournalStatistics | None = None
        self.syncs: deque[SyncRate] = deque(maxlen=KEPT)
        self.dropped = self.waiting = 0
        self.published, self.published_bytes, self.delivered, self.acked = Trend(0), Trend(0), Trend(0), Trend(0)

    async def take(self) -> None:
        """Look again."""
        now = self._loop.time()
        seconds = None if self._at is None else max(1e-3, now - self._at)
        published, size = await self._look_at_topics(seconds)
        delivered = await self._look_at_subscribers(seconds)
        bus = self._bus
        self.groups = tuple(reader.statistics() for reader in bus.groups)
        self.waiting = sum(len(log.gate.blocked or ()) for log in bus.publisher.blocked if log.gate)
        self.dead = list(self._dead_topics())
        for trend, count in (
            (self.published, published),
            (self.published_bytes, size),
            (self.delivered, delivered),
            (self.acked, sum(group.acked for group in self.groups)),
        ):
            if seconds is None:
                trend.count = count
            else:
                trend.see(count, seconds)
        self._look_at_journal()
        self._at = now

    async def _look_at_topics(self, seconds: float | None) -> tuple[int, int]:
        bus, before, tracks = self._bus, self.topics, {}
        published, size = bus.ended.published, bus.ended.published_bytes
        for number, log in enumerate(list(bus.catalog.logs.values())):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            name = log.name
            if name[0] == "$" or log.deleted:
                continue
            track = before.get(name)
            if track is None or track.log is not log:
                track = TopicTrack(log)
                if seconds is not None and name not in before:
                    track.published.count = 0  # it was made since: all that is in it is new
            if seconds is not None:
                track.published.see(log.end, seconds)
            track.bytes, track.first = log.live_bytes, bus.timeline.first(log)
            track.subscribers = sum(reader.members for reader in log.gate or ())
            tracks[name] = track
            published += log.end
            size += log.count_bytes()
        self.topics = tracks
        return published, size

    async def _look_at_subscribers(self, seconds: float | None) -> int:
        ended = self._bus.ended.sum()
        delivered, dropped, found = ended.delivered, ended.dropped, []
        for number, one in enumerate(open_subscriptions(self._bus)):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            if one not in self._bus.readers:
                continue  # it ended meanwhile, and counts among those
            figures = of_subscription(one)
            track = self._subscribers.get(one)
            if track is None:
                track = self._subscribers[one] = SubscriberTrack(figures)
            elif seconds is not None:
                track.figures = figures
                track.delivered.see(figures.delivered, seconds)
            delivered += figures.delivered
            dropped += figures.dropped
            found.append(track)
        self.subscribers, self.dropped = found, dropped
        return delivered

    def _dead_topics(self) -> Iterator[DeadTopic]:
        logs = self._bus.catalog.logs
        for name, groups in topics(self._bus).items():
            box = Letterbox(self._bus, logs[name])
            yield DeadTopic(name, groups, box.open(), box.floor, logs[name].end)

    def _look_at_journal(self) -> None:
        store = self._bus.store
        if store is None:
            return
        self.journal = of_store(store)
        synced = self.journal.sync_durations
        if self._synced is not None:
            new = synced.since(self._synced)
            self.syncs.append(SyncRate(new.count, new.quantile(0.5), new.quantile(0.99)))
        self._synced = synced
