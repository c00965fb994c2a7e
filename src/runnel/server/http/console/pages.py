"""Documents for the pages of the console: one view of a sample as JSON, a long list page by page.

A document is made once for all pages that request the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.options import KEEP_BYTES, KEEP_COUNT
from runnel.core.pattern import check_name, matches
from runnel.core.statistics import CursorStatistics
from runnel.server.http.console.connections import ConnectionTrends
from runnel.server.http.console.group_state import GroupState, judge
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import integer_parameter, single_parameter
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.core.backend import DeadLetterTopic
    from runnel.core.statistics import SegmentSample, TopicSample
    from runnel.server.http.console.sampler import BrokerSampler, GroupTrend, SubscriberTrend, TopicTrend
    from runnel.server.served_broker import ServedBroker


T = TypeVar("T")

VIEWS = (
    "overview",
    "topics",
    "topic",
    "subscribers",
    "groups",
    "dead-letters",
    "connections",
    "journal",
    "relays",
    "analytics",
)
DEFAULT_ROWS, MAX_ROWS = 50, 500  # rows of a page
TOP = 6  # topics and subscribers in the overview
MAX_FILTER = 255
MAX_ALERTS = 20
RELATED_ROWS = 100  # subscribers, and groups, that are shown with one topic


class ConsoleQuery(NamedTuple):
    """The contents of a page."""

    view: str
    topic: str | None
    first: int
    limit: int
    sort: str
    filter: str


def parse_console_query(asked: Mapping[str, list[str]]) -> ConsoleQuery:
    """Read the parameters of a request; raises for invalid ones."""
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


class Alert(NamedTuple):
    """A warning for an operator. `level`: "bad" or "warn"; `link`: the address of the page with details."""

    level: str
    text: str
    link: str


class ConsolePages:
    """The pages of the last sample, encoded on first request."""

    def __init__(self, serving: ServedBroker, sampler: BrokerSampler, connections: ConnectionTrends) -> None:
        self._serving, self._broker, self._sampler = serving, serving.broker, sampler
        self._connections_seen = connections
        self._documents: dict[ConsoleQuery, bytes] = {}
        self.made = 0.0  # time of the loop

    def renew(self, now: float) -> None:
        """There is a new sample."""
        self._documents.clear()
        self.made = now

    def page(self, query: ConsoleQuery) -> bytes:
        """The document for `query`."""
        made = self._documents.get(query)
        if made is None:
            made = self._documents[query] = encode_json(self._document(query))
        return made

    def _document(self, query: ConsoleQuery) -> dict[str, Any]:
        shown: dict[str, Callable[[ConsoleQuery], dict[str, Any]]] = {
            "overview": self._overview,
            "topics": self._topics,
            "topic": self._topic,
            "subscribers": self._subscribers,
            "groups": self._groups,
            "dead-letters": self._dead_letters,
            "connections": self._connections,
            "journal": self._journal,
            "relays": self._relays,
            "analytics": lambda query: {},  # the plots have a route of their own
        }
        return {"view": query.view, "totals": self._totals()} | shown[query.view](query)

    def _totals(self) -> dict[str, Any]:
        sampler = self._sampler
        states = [self._judge(one).state for one in sampler.groups.values()]
        return {
            "version": version("runnel-mq"),
            "durable": self._broker.is_durable,
            "gateway": self._broker.backend.is_remote,
            "time": self._broker.clock.time(),
            "topics": len(sampler.topics),
            "subscribers": len(sampler.subscribers),
            "groups": len(sampler.groups),
            "groups_stuck": states.count("stuck"),
            "dead_letters": sum(one.open for one in sampler.dead),
            "connections": len(self._serving.connections),
            "relays": len(sampler.relays) + len(sampler.pipelines) + len(self._archives()),
            "pipelines": [msgspec.to_builtins(one) for one in sampler.pipelines],
            "published": sampler.published.count,
            "published_rate": sampler.published.rate,
            "published_rates": rounded(sampler.published.rates),
            "published_bytes": sampler.published_bytes.count,
            "published_bytes_rate": sampler.published_bytes.rate,
            "published_bytes_rates": rounded(sampler.published_bytes.rates),
            "delivered": sampler.delivered.count,
            "delivered_rate": sampler.delivered.rate,
            "delivered_rates": rounded(sampler.delivered.rates),
            "acked": sampler.acked.count,
            "acked_rate": sampler.acked.rate,
            "acked_rates": rounded(sampler.acked.rates),
            "dropped": sampler.dropped.count,
            "lag": sampler.lag,
            "waiting_publishers": sampler.waiting,
            "trouble": self._trouble(),
        }

    def _trouble(self) -> str | None:
        """Reasons why the broker refuses records, or soon will."""
        if (refusal := self._serving.refusal()) is not None:
            return str(refusal)
        if self._sampler.journal is None:
            return None
        journal = self._sampler.journal.figures
        full = "the disk is full" if journal.full else "the disk is nearly full" if journal.low else None
        return journal.failed or full

    def _judge(self, group: GroupTrend) -> GroupState:
        now, still = self._broker.clock.time(), self._sampler.at - group.still_since
        return judge(group.figures, group.acked.rate, group.lags, still, now)

    def _archives(self) -> list[dict[str, Any]]:
        """The archives that hold segments of the journal, and topics that stay until an archive has them."""
        journal = self._sampler.journal
        holds = [] if journal is None else [msgspec.to_builtins(one) for one in journal.figures.archives]
        topics = [
            {"place": one.figures.name, "topic": True, **msgspec.to_builtins(one.figures.archive)}
            for one in self._sampler.topics.values()
            if one.figures.archive is not None
        ]
        return holds + topics

    def _alerts(self) -> list[Alert]:
        """The warnings for an operator, the worst first."""
        sampler, found = self._sampler, []
        if (trouble := self._trouble()) is not None:
            found.append(Alert("bad", trouble, "#/journal"))
        if sampler.journal is not None:
            figures = sampler.journal.figures
            failed = None if figures.cleaner is None else figures.cleaner.error
            found += [Alert("bad", one, "#/journal") for one in (*figures.damage, *((failed,) if failed else ()))]
        for group in sampler.groups.values():
            state, reason = self._judge(group)
            if state in ("stuck", "behind"):
                name = group.figures.name
                text = f"Group {name} is {state}: {reason}"
                found.append(Alert("bad" if state == "stuck" else "warn", text, f"#/groups?filter={quote(name)}"))
        states = [(one.slot, one.state) for one in sampler.relays] + [
            (one.name, one.state) for one in sampler.pipelines
        ]
        for name, state in states:
            if state in ("failed", "silent"):
                found.append(Alert("bad", f"{name} is {state}", "#/relays"))
        if lost := sum(1 for one in sampler.subscribers if one.figures.dropped):
            text = f"{lost:,} open subscription{' has' if lost == 1 else 's have'} lost records"
            found.append(Alert("warn", text, "#/subscribers?sort=-dropped"))
        if letters := sum(one.open for one in sampler.dead):
            text = f"{letters:,} dead letter{'' if letters == 1 else 's'} to be dealt with"
            found.append(Alert("warn", text, "#/dead-letters"))
        if sampler.waiting:
            text = f"{sampler.waiting:,} publishers wait for a slow reader"
            found.append(Alert("warn", text, "#/subscribers?sort=-lag"))
        return sorted(found, key=lambda one: one.level)[:MAX_ALERTS]

    # -- views --------------------------------------------------------------------------------------------------

    def _overview(self, query: ConsoleQuery) -> dict[str, Any]:
        sampler = self._sampler
        topics = sorted(sampler.topics.values(), key=lambda one: -one.rate)[:TOP]
        slow = [one for one in sampler.subscribers if one.figures.lag or one.figures.dropped]
        slow = sorted(slow, key=lambda one: (-one.figures.lag, -one.figures.dropped))[:TOP]
        groups = sorted(sampler.groups.values(), key=lambda one: -one.figures.lag)[:TOP]
        return {
            "alerts": [one._asdict() for one in self._alerts()],
            "rows": [self._topic_row(one) for one in topics if one.rate],
            "slow": [_subscriber_row(one) for one in slow],
            "busy": [self._group_row(one) for one in groups if one.figures.lag],
            "uptime": self._broker.clock.time() - self._serving.since,
        }

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
        groups = [one for one in self._sampler.groups.values() if _covers(one.figures.pattern, figures.name)]
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
            "groups": [self._group_row(one) for one in groups[:RELATED_ROWS]],
            "dead_letter": any(one.name == figures.name for one in self._sampler.dead),
        }

    def _subscribers(self, query: ConsoleQuery) -> dict[str, Any]:
        """The open subscriptions, and the names that are not open."""
        found: list[SubscriberTrend | CursorStatistics] = [*self._sampler.subscribers, *self._sampler.cursors]
        if query.filter:
            found = [one for one in found if query.filter in f"{_label(one)}\n{_pattern(one)}".lower()]
        return page_of(query, found, self._subscription_row)

    def _subscription_row(self, one: SubscriberTrend | CursorStatistics) -> dict[str, Any]:
        row, auth = _subscriber_row(one), self._serving.auth
        if auth is not None and isinstance(one, CursorStatistics):
            row["owner"] = auth.owners.owner("subscription", one.name)
        return row

    def _groups(self, query: ConsoleQuery) -> dict[str, Any]:
        found = list(self._sampler.groups.values())
        if query.filter:
            found = [one for one in found if query.filter in f"{one.figures.name}\n{one.figures.pattern}".lower()]
        return page_of(query, found, self._group_row)

    def _group_row(self, group: GroupTrend) -> dict[str, Any]:
        known: dict[str, Any] = msgspec.to_builtins(group.figures)
        state, reason = self._judge(group)
        dead = next((one.name for one in self._sampler.dead if group.figures.name in one.groups), None)
        lags = list(group.lags)
        return known | {"state": state, "reason": reason, "rate": group.acked.rate, "lags": lags, "dead_letter": dead}

    def _connections(self, query: ConsoleQuery) -> dict[str, Any]:
        found = self._connections_seen.rows(self.made)
        if query.filter:
            fields = ("peer", "client", "principal", "listener")
            found = [
                one for one in found if query.filter in "\n".join(str(one.get(name, "")) for name in fields).lower()
            ]
        connections = self._serving.connections
        limits = {"accepted": connections.accepted, "refused": connections.refused, "most": connections.limit}
        return page_of(query, found, lambda row: row) | {"limits": limits}

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
        return page_of(query, self._sampler.relays, msgspec.to_builtins) | {"archives": self._archives()}


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


def _subscriber_row(one: SubscriberTrend | CursorStatistics) -> dict[str, Any]:
    if isinstance(one, CursorStatistics):
        known: dict[str, Any] = msgspec.to_builtins(one)
        return known | {"label": one.name, "open": False, "place": json_number(one.place)}
    known = msgspec.to_builtins(one.figures)
    return known | {"rate": one.delivered.rate, "open": True}


def _label(one: SubscriberTrend | CursorStatistics) -> str:
    return one.name if isinstance(one, CursorStatistics) else one.figures.label


def _pattern(one: SubscriberTrend | CursorStatistics) -> str:
    return one.pattern if isinstance(one, CursorStatistics) else one.figures.pattern


def _figure(name: str) -> Callable[[SubscriberTrend | CursorStatistics], float]:
    """Of a subscription that is open; a name that is not open sorts by its lag alone."""

    def read(one: SubscriberTrend | CursorStatistics) -> float:
        if isinstance(one, CursorStatistics):
            return (one.lag or 0) if name == "lag" else 0
        return one.delivered.rate or 0.0 if name == "rate" else float(getattr(one.figures, name))

    return read


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


def _number_of(name: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda connection: connection.get(name) or 0


SORTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "topics": {
        "name": lambda one: one.figures.name,
        "rate": lambda one: one.rate,
        "published": lambda one: one.published.count,
        "bytes": lambda one: one.figures.kept_bytes,
        "subscribers": lambda one: one.figures.subscribers,
    },
    "subscribers": {
        "label": _label,
        "pattern": _pattern,
        **{name: _figure(name) for name in ("lag", "delivered", "dropped", "rate")},
    },
    "groups": {
        "name": lambda one: (one.figures.name, one.figures.pattern),
        **{name: attrgetter(f"figures.{name}") for name in ("lag", "in_flight", "redelivered", "dead_lettered")},
    },
    "connections": {
        "connection": itemgetter("connection"),
        "peer": itemgetter("peer"),
        **{
            name: _number_of(name)
            for name in ("since", "received_rate", "sent_rate", "received", "sent", "subscriptions")
        },
    },
}
