"""What the console shows, as JSON: of what was surveyed, one view, and of a long list one page.

All who look at the same page get the same bytes, made once.
Below: survey, shape. Above: updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from runnel.broker.log import KEEP_BYTES, KEEP_COUNT
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name, matches
from runnel.server.http.path import single, whole
from runnel.server.http.shape import encode

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.server.http.survey import SubscriberTrack, Survey, TopicTrack

T = TypeVar("T")

VIEWS = ("topics", "topic", "subscribers", "groups", "dead-letters", "journal")
LIMIT, MOST = 50, 500  # rows of a page
MAX_FILTER = 255
PEOPLE = 100  # subscribers, and groups, that are shown with one topic


class Query(NamedTuple):
    """What somebody looks at."""

    view: str
    topic: str | None
    first: int
    limit: int
    sort: str
    filter: str


def read(asked: Mapping[str, list[str]]) -> Query:
    """Of the parameters of a request; raises what is wrong with them."""
    view = single(asked, "view")
    view = "topics" if view is None else view
    if view not in VIEWS:
        raise InvalidOption("view", view[:64], f"expected {', '.join(VIEWS)}")
    topic = single(asked, "topic")
    if (view == "topic") != (topic is not None):
        raise InvalidOption("topic", topic, "it goes with view=topic")
    sort = single(asked, "sort") or ""
    known = SORTS.get(view, {})
    if sort and sort.removeprefix("-") not in known:
        raise InvalidOption(
            "sort", sort[:64], f"expected one of {', '.join(known) or 'nothing'}; - before it: downwards"
        )
    filter = (single(asked, "filter") or "").strip()
    if len(filter) > MAX_FILTER:
        raise InvalidOption("filter", f"{filter[:64]}…", f"it has more than {MAX_FILTER} characters")
    first = 0 if single(asked, "from") in (None, "0") else whole(asked, "from", 0, 10**9)
    name = None if topic is None else check_name(topic)
    return Query(view, name, first, whole(asked, "limit", LIMIT, MOST), sort, filter.lower())


class Figures:
    """The pages of one survey, made when the first asks for them."""

    def __init__(self, broker: Broker, survey: Survey) -> None:
        self._broker, self._survey = broker, survey
        self._made: dict[Query, bytes] = {}

    def renew(self) -> None:
        """The survey is a new one."""
        self._made.clear()

    def page(self, query: Query) -> bytes:
        """What `query` asks for."""
        made = self._made.get(query)
        if made is None:
            made = self._made[query] = encode(self._document(query))
        return made

    def _document(self, query: Query) -> dict[str, Any]:
        shown: dict[str, Callable[[Query], dict[str, Any]]] = {
            "topics": self._topics,
            "topic": self._topic,
            "subscribers": self._subscribers,
            "groups": self._groups,
            "dead-letters": self._dead_letters,
            "journal": self._journal,
        }
        return {"view": query.view, "totals": self._totals()} | shown[query.view](query)

    def _totals(self) -> dict[str, Any]:
        survey, journal = self._survey, self._survey.journal
        trouble = None
        if journal is not None:
            full = "the disk is full" if journal.full else "the disk is nearly full" if journal.low else None
            trouble = journal.failed or full
        return {
            "version": version("runnel"),
            "durable": self._broker.is_durable,
            "time": self._broker.clock.time(),
            "topics": len(survey.topics),
            "subscribers": len(survey.subscribers),
            "groups": len(survey.groups),
            "dead_letters": sum(one.open for one in survey.dead),
            "published": survey.published.count,
            "published_rates": rounded(survey.published.rates),
            "published_bytes": survey.published_bytes.count,
            "published_bytes_rates": rounded(survey.published_bytes.rates),
            "delivered": survey.delivered.count,
            "delivered_rates": rounded(survey.delivered.rates),
            "acked": survey.acked.count,
            "acked_rates": rounded(survey.acked.rates),
            "dropped": survey.dropped,
            "waiting_publishers": survey.waiting,
            "trouble": trouble,
        }

    # -- views --------------------------------------------------------------------------------------------------

    def _topics(self, query: Query) -> dict[str, Any]:
        named = self._survey.topics
        tracks: Iterable[TopicTrack] = named.values()
        if query.filter:
            tracks = [track for name, track in named.items() if query.filter in name.lower()]
        return page(query, list(tracks), self._topic_row)

    def _topic_row(self, track: TopicTrack) -> dict[str, Any]:
        log = track.log
        return {
            "name": log.name,
            "published": log.end,
            "rate": track.published.rate,
            "rates": rounded(track.published.rates),
            "bytes": track.bytes,
            "first": track.first,
            "end": log.end,
            "subscribers": track.subscribers,
            "durable": log.stored is not None,
            "retention": self._retention(track),
        }

    def _retention(self, track: TopicTrack) -> dict[str, Any]:
        options = track.log.options
        said = {
            name: value
            for name in ("age", "count", "bytes")
            if (value := getattr(options, f"retention_{name}")) is not None
        }
        if options.compact:
            said["compact"] = True
        if not said and track.log.stored is None:  # what memory keeps, if nobody says
            return {"count": KEEP_COUNT, "bytes": KEEP_BYTES, "default": True}
        return said

    def _topic(self, query: Query) -> dict[str, Any]:
        assert query.topic is not None
        track = self._survey.topics.get(query.topic)
        if track is None:
            return {"topic": None, "name": query.topic}
        log = track.log
        subscribers = [one for one in self._survey.subscribers if _covers(one.figures.pattern, log.name)]
        groups = [one for one in self._survey.groups if _covers(one.pattern, log.name)]
        options = {name: value for name, value in log.options.given().items() if not name.startswith("retention_")}
        return {
            "name": log.name,
            "topic": self._topic_row(track)
            | {"epoch": log.epoch, "options": options, "published_bytes": log.count_bytes()},
            "subscribers": [_subscriber_row(one) for one in subscribers[:PEOPLE]],
            "groups": [msgspec.to_builtins(one) for one in groups[:PEOPLE]],
        }

    def _subscribers(self, query: Query) -> dict[str, Any]:
        found: Sequence[SubscriberTrack] = self._survey.subscribers
        if query.filter:
            found = [one for one in found if query.filter in f"{one.figures.label}\n{one.figures.pattern}".lower()]
        return page(query, found, _subscriber_row)

    def _groups(self, query: Query) -> dict[str, Any]:
        found = self._survey.groups
        if query.filter:
            found = tuple(one for one in found if query.filter in f"{one.name}\n{one.pattern}".lower())
        dead = {group: one.name for one in self._survey.dead for group in one.groups}

        def row(group: Any) -> dict[str, Any]:
            known: dict[str, Any] = msgspec.to_builtins(group)
            return known | {"dead_letter": dead.get(group.name)}

        return page(query, found, row)

    def _dead_letters(self, query: Query) -> dict[str, Any]:
        return page(query, self._survey.dead, lambda one: one._asdict())

    def _journal(self, query: Query) -> dict[str, Any]:
        journal, store = self._survey.journal, self._broker._bus.store
        if journal is None or store is None:
            return {"journal": None, "rows": [], "total": 0}
        known: dict[str, Any] = msgspec.to_builtins(journal)
        durations = journal.sync_durations
        known["sync"] = {
            "p50": durations.quantile(0.5),
            "p99": durations.quantile(0.99),
            "recent": [tuple(one) for one in self._survey.syncs],
        }
        known["fsync"] = store.journal.options.fsync
        sources = tuple(store.journal.history.sources)
        return {"journal": known} | page(query, sources[::-1], _segment_row)


def page(query: Query, found: Sequence[T], row: Callable[[T], Any]) -> dict[str, Any]:
    """The rows of one page, in the order that was asked for, and how many there are in all."""
    keys = SORTS.get(query.view, {})
    if keys:
        sort = query.sort or next(iter(keys))
        found = sorted(found, key=keys[sort.removeprefix("-")], reverse=sort.startswith("-"))
    shown = found[query.first : query.first + query.limit]
    return {"total": len(found), "first": query.first, "limit": query.limit, "rows": [row(one) for one in shown]}


def rounded(rates: Iterable[float]) -> list[float]:
    """Short to write: whole numbers where they are large."""
    return [round(rate) if rate >= 100 else round(rate, 1) for rate in rates]


def _covers(patterns: str, name: str) -> bool:
    return any(one == name or matches(one, name) for one in patterns.split(" "))


def _subscriber_row(track: SubscriberTrack) -> dict[str, Any]:
    known: dict[str, Any] = msgspec.to_builtins(track.figures)
    return known | {"rate": track.delivered.rate}


def _segment_row(source: Any) -> dict[str, Any]:
    info = source.info
    return {
        "number": info.number,
        "name": info.name,
        "bytes": source.written,
        "sealed": info.sealed,
        "records": info.end_sequence - info.first_sequence if info.sealed else None,
        "from": info.first_time / 1e6,
        "to": info.last_time / 1e6 if info.sealed else None,
        "generation": info.generation,
    }


SORTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "topics": {
        "name": lambda one: one.log.name,
        "rate": lambda one: one.rate,
        "published": lambda one: one.published.count,
        "bytes": lambda one: one.bytes,
        "subscribers": lambda one: one.subscribers,
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
