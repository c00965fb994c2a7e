"""The web console: its files, and `GET /console/updates`, the broker's figures once a second as server-sent events.

The broker is sampled once for all viewers, and only while there are any (and some seconds longer, so that a reloaded
page finds the last minute). A slow viewer gets the newest figures and skips those between.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runnel.console import MODULES, asset
from runnel.core.errors import BrokerClosed, InvalidOption, LimitExceeded, NotNow, RunnelError
from runnel.core.options import KEEP_BYTES, KEEP_COUNT
from runnel.core.pattern import check_name, matches
from runnel.security.principal import ConsoleRole
from runnel.server.http import sse
from runnel.server.http.authentication import serving_of
from runnel.server.http.event_stream import RETRY_MILLISECONDS, STREAM_HEADERS, connection_of
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import integer_parameter, parameters, single_parameter
from runnel.server.http.stop_signals import ended_by_signals
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.core.backend import Backend, DeadLetterTopic
    from runnel.core.statistics import (
        BackendSample,
        GroupStatistics,
        HistogramSnapshot,
        JournalSample,
        PipelineStatistics,
        RelayStatistics,
        SegmentSample,
        SubscriptionStatistics,
        TopicSample,
        TopicStatistics,
    )
    from runnel.server.served_broker import ServedBroker


INTERVAL = 1.0  # seconds
IDLE_TIMEOUT = 30.0  # seconds that sampling goes on without viewers

log = logging.getLogger("runnel")


class ConsoleUpdates:
    """The route, as an ASGI application: a stream has no end."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving, self._broker = serving, serving.broker
        self._viewers: set[ConsoleViewer] = set()
        self._figures: ConsolePages | None = None
        self._first: asyncio.Future[None] | None = None  # done after the first sample
        self._sampling: asyncio.Task[None] | None = None
        self._alone_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer, until either side has enough."""
        if scope["method"] != "GET":
            raise HTTPException(405, "updates are read with GET", {"allow": "GET"})
        access = serving_of(scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "look at the console")
        query = parse_console_query(parameters(scope))
        if len(self._viewers) >= self._serving.options.max_streams:
            raise LimitExceeded("max_streams", len(self._viewers) + 1, self._serving.options.max_streams)
        self._broker.backend.check_ready("looking at it")
        viewer = ConsoleViewer(query, scope, receive, send, self._serving.options.send_timeout)
        self._viewers.add(viewer)
        if access is not None:
            access.opened(viewer, "console", ())
        try:
            with ended_by_signals(viewer.end) if connection_of(scope) is None else nullcontext():
                await viewer.run(await self._sampled_pages())
        finally:
            self._viewers.discard(viewer)
            self._alone_since = None if self._viewers else asyncio.get_running_loop().time()

    async def _sampled_pages(self) -> ConsolePages:
        """The pages, once there is a first sample."""
        if self._sampling is None or self._sampling.done():
            sampler = BrokerSampler(self._broker.backend)
            self._figures = ConsolePages(self._broker, sampler)
            self._first = asyncio.get_running_loop().create_future()
            self._sampling = asyncio.get_running_loop().create_task(self._sample(sampler, self._figures, self._first))
        assert self._figures is not None
        assert self._first is not None
        figures = self._figures
        await asyncio.wait([self._first])
        return figures

    async def _sample(self, sampler: BrokerSampler, figures: ConsolePages, first: asyncio.Future[None]) -> None:
        """Take a sample every second and send it to all viewers, until there is no viewer or the broker is closed."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while self._broker.backend.loop_owner.state == "open" and not self._is_over(loop.time()):
                try:
                    await sampler.take()
                except NotNow as error:  # the server that has the topics is away: the figures stay as they were
                    log.debug("no new figures for the console: %s", error)
                figures.renew()
                if not first.done():
                    first.set_result(None)
                for viewer in list(self._viewers):
                    viewer.wake()
                due = max(
                    due + INTERVAL, loop.time() + INTERVAL / 4
                )  # however long a look takes, others come to their turn
                await asyncio.sleep(due - loop.time())
        except BrokerClosed:
            pass
        except Exception:
            log.exception("the figures of the console could not be made")
        finally:
            if not first.done():
                first.set_result(None)
            for viewer in list(self._viewers):
                viewer.end()

    def _is_over(self, now: float) -> bool:
        return not self._viewers and self._alone_since is not None and now - self._alone_since > IDLE_TIMEOUT


class ConsoleViewer:
    """One open page."""

    def __init__(self, query: ConsoleQuery, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
        self._query, self._receive, self._out, self._patience = query, receive, send, patience
        self._connection: Any = connection_of(scope)
        self._news = asyncio.Event()
        self.ended = False

    def wake(self) -> None:
        """There are new figures."""
        self._news.set()

    def end(self, error: RunnelError | None = None) -> None:
        """Send no more. The page comes back, unless its login is over."""
        self.ended = True
        self._news.set()

    def gone(self) -> None:
        """The connection is lost."""
        self.end()

    def paused(self) -> None:
        """What was sent is not read yet: `_send` waits by itself."""

    def resumed(self) -> None:
        """It is read."""

    def unread(self) -> None:
        """It was not read for too long: `_send` notices by itself."""

    async def run(self, figures: ConsolePages) -> None:
        """Send figures until either side has enough."""
        if self._connection is not None:
            self._connection.stream = self
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._send(sse.retry(random.randint(*RETRY_MILLISECONDS)))
            while not self.ended:
                self._news.clear()
                await self._send(b"event: figures\ndata: %b\n\n" % figures.page(self._query))
                await self._news.wait()
            await self._send(b"", more=False)
        except TimeoutError:
            if self._connection is not None:
                self._connection.abort()  # it has read nothing for long: let nothing wait for it
        finally:
            watch.cancel()
            if self._connection is not None:
                self._connection.stream = None

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._patience):
            await self._out({"type": "http.response.body", "body": body, "more_body": more})

    async def _watch(self) -> None:
        """Notice that the page is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()


# -- Pages -----------------------------------------------------------------------------------------------
# One view of a sample as JSON, a long list page by page. Encoded once for all viewers of a page.


T = TypeVar("T")

VIEWS = ("topics", "topic", "subscribers", "groups", "dead-letters", "journal", "relays", "analytics")
DEFAULT_ROWS, MAX_ROWS = 50, 500  # rows of a page
MAX_FILTER = 255
RELATED_ROWS = 100  # subscribers, and groups, that are shown with one topic


class ConsoleQuery(NamedTuple):
    """What a page shows."""

    view: str
    topic: str | None
    first: int
    limit: int
    sort: str
    filter: str


def parse_console_query(asked: Mapping[str, list[str]]) -> ConsoleQuery:
    """Read the parameters of a request; raises what is wrong with them."""
    view = single_parameter(asked, "view")
    view = "topics" if view is None else view
    if view not in VIEWS:
        raise InvalidOption("view", view[:64], f"expected {', '.join(VIEWS)}")
    topic = single_parameter(asked, "topic")
    if (view == "topic") != (topic is not None):
        raise InvalidOption("topic", topic, "it goes with view=topic")
    sort = single_parameter(asked, "sort") or ""
    known = SORTS.get(view, {})
    if sort and sort.removeprefix("-") not in known:
        raise InvalidOption(
            "sort", sort[:64], f"expected one of {', '.join(known) or 'nothing'}; - before it: downwards"
        )
    filter = (single_parameter(asked, "filter") or "").strip()
    if len(filter) > MAX_FILTER:
        raise InvalidOption("filter", f"{filter[:64]}…", f"it has more than {MAX_FILTER} characters")
    first = 0 if single_parameter(asked, "from") in (None, "0") else integer_parameter(asked, "from", 0, 10**9)
    name = None if topic is None else check_name(topic)
    return ConsoleQuery(
        view, name, first, integer_parameter(asked, "limit", DEFAULT_ROWS, MAX_ROWS), sort, filter.lower()
    )


class ConsolePages:
    """The pages of the last sample, encoded on first request."""

    def __init__(self, broker: Broker, sampler: BrokerSampler) -> None:
        self._broker, self._sampler = broker, sampler
        self._made: dict[ConsoleQuery, bytes] = {}

    def renew(self) -> None:
        """There is a new sample."""
        self._made.clear()

    def page(self, query: ConsoleQuery) -> bytes:
        """What `query` asks for."""
        made = self._made.get(query)
        if made is None:
            made = self._made[query] = encode_json(self._document(query))
        return made

    def _document(self, query: ConsoleQuery) -> dict[str, Any]:
        shown: dict[str, Callable[[ConsoleQuery], dict[str, Any]]] = {
            "topics": self._topics,
            "topic": self._topic,
            "subscribers": self._subscribers,
            "groups": self._groups,
            "dead-letters": self._dead_letters,
            "journal": self._journal,
            "relays": self._relays,
            "analytics": lambda query: {},  # the plots have a route of their own
        }
        return {"view": query.view, "totals": self._totals()} | shown[query.view](query)

    def _totals(self) -> dict[str, Any]:
        sampler = self._sampler
        trouble = None
        if sampler.journal is not None:
            journal = sampler.journal.figures
            full = "the disk is full" if journal.full else "the disk is nearly full" if journal.low else None
            trouble = journal.failed or full
        return {
            "version": version("runnel-mq"),
            "durable": self._broker.is_durable,
            "time": self._broker.clock.time(),
            "topics": len(sampler.topics),
            "subscribers": len(sampler.subscribers),
            "groups": len(sampler.groups),
            "dead_letters": sum(one.open for one in sampler.dead),
            "relays": len(sampler.relays),
            "pipelines": [msgspec.to_builtins(one) for one in sampler.pipelines],
            "published": sampler.published.count,
            "published_rates": rounded(sampler.published.rates),
            "published_bytes": sampler.published_bytes.count,
            "published_bytes_rates": rounded(sampler.published_bytes.rates),
            "delivered": sampler.delivered.count,
            "delivered_rates": rounded(sampler.delivered.rates),
            "acked": sampler.acked.count,
            "acked_rates": rounded(sampler.acked.rates),
            "dropped": sampler.dropped,
            "waiting_publishers": sampler.waiting,
            "trouble": trouble,
        }

    # -- views --------------------------------------------------------------------------------------------------

    def _topics(self, query: ConsoleQuery) -> dict[str, Any]:
        named = self._sampler.topics
        samples: Iterable[TopicTrend] = named.values()
        if query.filter:
            samples = [sample for name, sample in named.items() if query.filter in name.lower()]
        return page_of(query, list(samples), self._topic_row)

    def _topic_row(self, topic: TopicTrend) -> dict[str, Any]:
        figures = topic.figures
        return {
            "name": figures.name,
            "published": figures.total,
            "rate": topic.published.rate,
            "rates": rounded(topic.published.rates),
            "bytes": figures.kept_bytes,
            "first": json_number(figures.first),
            "end": json_number(figures.end),
            "kept": figures.kept,
            "subscribers": figures.subscribers,
            "durable": topic.sample.durable,
            "retention": self._retention(topic.sample),
        }

    def _retention(self, sample: TopicSample) -> dict[str, Any]:
        options = sample.options
        said = {
            name: value
            for name in ("age", "count", "bytes", "until")
            if (value := getattr(options, f"retention_{name}")) is not None
        }
        if options.compact:
            said["compact"] = True
        if not said and not sample.durable:  # the default of memory
            return {"count": KEEP_COUNT, "bytes": KEEP_BYTES, "default": True}
        return said

    def _topic(self, query: ConsoleQuery) -> dict[str, Any]:
        assert query.topic is not None
        topic = self._sampler.topics.get(query.topic)
        if topic is None:
            return {"topic": None, "name": query.topic}
        figures, given = topic.figures, topic.sample.options.given()
        subscribers = [one for one in self._sampler.subscribers if _covers(one.figures.pattern, figures.name)]
        groups = [one for one in self._sampler.groups if _covers(one.pattern, figures.name)]
        options = {name: value for name, value in given.items() if not name.startswith("retention_")}
        return {
            "name": figures.name,
            "topic": self._topic_row(topic)
            | {
                "epoch": figures.epoch,
                "options": options,
                "published_bytes": figures.published_bytes,
                "archive": msgspec.to_builtins(figures.archive),
            },
            "subscribers": [_subscriber_row(one) for one in subscribers[:RELATED_ROWS]],
            "groups": [msgspec.to_builtins(one) for one in groups[:RELATED_ROWS]],
        }

    def _subscribers(self, query: ConsoleQuery) -> dict[str, Any]:
        found: Sequence[SubscriberTrend] = self._sampler.subscribers
        if query.filter:
            found = [one for one in found if query.filter in f"{one.figures.label}\n{one.figures.pattern}".lower()]
        return page_of(query, found, _subscriber_row)

    def _groups(self, query: ConsoleQuery) -> dict[str, Any]:
        found = self._sampler.groups
        if query.filter:
            found = tuple(one for one in found if query.filter in f"{one.name}\n{one.pattern}".lower())
        dead = {group: one.name for one in self._sampler.dead for group in one.groups}

        def row(group: Any) -> dict[str, Any]:
            known: dict[str, Any] = msgspec.to_builtins(group)
            return known | {"dead_letter": dead.get(group.name)}

        return page_of(query, found, row)

    def _dead_letters(self, query: ConsoleQuery) -> dict[str, Any]:
        return page_of(query, self._sampler.dead, _dead_letter_row)

    def _journal(self, query: ConsoleQuery) -> dict[str, Any]:
        journal = self._sampler.journal
        if journal is None:
            return {"journal": None, "rows": [], "total": 0}
        known: dict[str, Any] = msgspec.to_builtins(journal.figures)
        durations = journal.figures.sync_durations
        known["sync"] = {
            "p50": durations.quantile(0.5),
            "p99": durations.quantile(0.99),
            "recent": [tuple(one) for one in self._sampler.syncs],
        }
        known["fsync"] = journal.fsync
        return {"journal": known} | page_of(query, journal.segments[::-1], _segment_row)

    def _relays(self, query: ConsoleQuery) -> dict[str, Any]:
        return page_of(query, self._sampler.relays, msgspec.to_builtins)


def page_of(query: ConsoleQuery, found: Sequence[T], row: Callable[[T], Any]) -> dict[str, Any]:
    """The rows of one page, sorted as asked, and the number of all rows."""
    keys = SORTS.get(query.view, {})
    if keys:
        sort = query.sort or next(iter(keys))
        found = sorted(found, key=keys[sort.removeprefix("-")], reverse=sort.startswith("-"))
    shown = found[query.first : query.first + query.limit]
    return {"total": len(found), "first": query.first, "limit": query.limit, "rows": [row(one) for one in shown]}


def rounded(rates: Iterable[float]) -> list[float]:
    """Rates, short to write: whole numbers where they are large."""
    return [round(rate) if rate >= 100 else round(rate, 1) for rate in rates]


def _covers(patterns: str, name: str) -> bool:
    return any(one == name or matches(one, name) for one in patterns.split(" "))


def _subscriber_row(sample: SubscriberTrend) -> dict[str, Any]:
    known: dict[str, Any] = msgspec.to_builtins(sample.figures)
    return known | {"rate": sample.delivered.rate}


def _dead_letter_row(one: DeadLetterTopic) -> dict[str, Any]:
    first, end = json_number(one.first), json_number(one.end)
    return {"name": one.name, "groups": one.groups, "open": one.open, "first": first, "end": end}


def _segment_row(segment: SegmentSample) -> dict[str, Any]:
    return {
        "number": segment.number,
        "name": segment.name,
        "bytes": segment.bytes,
        "sealed": segment.sealed,
        "records": segment.records,
        "from": segment.first_time,
        "to": segment.last_time,
        "generation": segment.generation,
    }


SORTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "topics": {
        "name": lambda one: one.figures.name,
        "rate": lambda one: one.rate,
        "published": lambda one: one.published.count,
        "bytes": lambda one: one.figures.kept_bytes,
        "subscribers": lambda one: one.figures.subscribers,
    },
    "subscribers": {
        "label": lambda one: one.figures.label,
        "pattern": lambda one: one.figures.pattern,
        "lag": lambda one: one.figures.lag,
        "delivered": lambda one: one.figures.delivered,
        "dropped": lambda one: one.figures.dropped,
        "rate": lambda one: one.delivered.rate or 0.0,
    },
    "groups": {
        "name": lambda one: (one.name, one.pattern),
        "lag": lambda one: one.lag,
        "in_flight": lambda one: one.in_flight,
        "redelivered": lambda one: one.redelivered,
        "dead_lettered": lambda one: one.dead_lettered,
    },
}


# -- Rates between samples -------------------------------------------------------------------------------


KEPT_RATES = 60  # rates that are remembered: a minute
TRENDS_PER_TURN = 256  # topics or subscribers after which others on the loop have their turn


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
                self._quiet = min(self._quiet + 1, KEPT_RATES)
                return
            self._moved = deque(self.rates, KEPT_RATES)
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


class TopicTrend:
    """One topic: the last sample of it, and how fast it grows."""

    __slots__ = ("published", "sample")

    def __init__(self, sample: TopicSample) -> None:
        self.sample, self.published = sample, Trend(sample.figures.total)

    @property
    def figures(self) -> TopicStatistics:
        """The topic as it was then."""
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


class SyncRate(NamedTuple):
    """The fsyncs of one interval: how many, and their p50 and p99 in seconds."""

    syncs: int
    p50: float
    p99: float


class BrokerSampler:
    """The last sample of a backend, and the rates of the minute before it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None
        self._synced: HistogramSnapshot | None = None
        self._subscribers: dict[int, SubscriberTrend] = {}
        self.topics: dict[str, TopicTrend] = {}
        self.subscribers: list[SubscriberTrend] = []
        self.groups: tuple[GroupStatistics, ...] = ()
        self.dead: tuple[DeadLetterTopic, ...] = ()
        self.relays: tuple[RelayStatistics, ...] = ()
        self.pipelines: tuple[PipelineStatistics, ...] = ()
        self.journal: JournalSample | None = None
        self.syncs: deque[SyncRate] = deque(maxlen=KEPT_RATES)
        self.dropped = self.waiting = 0
        self.published, self.published_bytes, self.delivered, self.acked = Trend(0), Trend(0), Trend(0), Trend(0)

    async def take(self) -> None:
        """Look again."""
        sample = await self._backend.sample()
        now = self._loop.time()
        seconds = None if self._at is None else max(1e-3, now - self._at)
        self.topics = await self._topics(sample, seconds)
        self._subscribers = await self._subscriptions(sample, seconds)
        self.subscribers = list(self._subscribers.values())
        self.groups, self.dead, self.waiting = sample.groups, sample.dead_letters, sample.waiting_publishers
        self.dropped, self.relays, self.pipelines = sample.dropped, sample.relays, sample.pipelines
        for trend, count in (
            (self.published, sample.published),
            (self.published_bytes, sample.published_bytes),
            (self.delivered, sample.delivered),
            (self.acked, sum(group.acked for group in self.groups)),
        ):
            if seconds is None:
                trend.count = count
            else:
                trend.see(count, seconds)
        self._look_at_journal(sample.journal)
        self._at = now

    async def _topics(self, sample: BackendSample, seconds: float | None) -> dict[str, TopicTrend]:
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
                    trend.published.count = 0  # it was made since: all that is in it is new
            if seconds is not None:
                trend.published.see(figures.total, seconds)
            trend.sample = one
            trends[name] = trend
        return trends

    async def _subscriptions(self, sample: BackendSample, seconds: float | None) -> dict[int, SubscriberTrend]:
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
            trends[one.id] = trend
        return trends

    def _look_at_journal(self, journal: JournalSample | None) -> None:
        self.journal = journal
        if journal is None:
            return
        synced = journal.figures.sync_durations
        if self._synced is not None:
            new = synced.since(self._synced)
            self.syncs.append(SyncRate(new.count, new.quantile(0.5), new.quantile(0.99)))
        self._synced = synced


# -- Files -----------------------------------------------------------------------------------------------
# Browsers cache the files and revalidate each time, so that after an upgrade no old file is used. URLs in them are
# relative, so that they work below any prefix.


# No inline script or style and no other host: a value that is shown cannot become code, whatever it holds.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # kept, and asked about
}


def file_routes(*, whole: bool = True) -> list[Route]:
    """The routes of the files; unless `whole`, of the module for pages alone."""
    console = [Route("/", _index, methods=["GET"]), Route("/console/{file}", _file, methods=["GET"])]
    return [
        *(console if whole else ()),
        *(Route(f"/{name}", _module, methods=["GET"]) for name in MODULES),
    ]


def file_response(request: Request, name: str, **more: str) -> Response:
    """The file of that name, or 304 if the browser has it already; 404 if there is none."""
    found = asset(name)
    if found is None:
        raise HTTPException(404, "there is no such file")
    headers = FILE_HEADERS | {"etag": found.etag} | more
    if found.etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers | {"content-type": found.media_type})


async def _index(request: Request) -> Response:
    return file_response(request, "index.html")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    # The module asks the server below whose address it came: from here it would ask at the wrong place.
    return file_response(request, "" if name.startswith("runnel") else name)


async def _module(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    types = {"x-typescript-types": f"./{name.removesuffix('.js')}.d.ts"} if name.endswith(".js") else {}
    return file_response(request, name, **types)
