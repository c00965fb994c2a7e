"""Values for every option, and the variations of an operation that follow from them.

The names come from runnel: the structs of `core.options`, `JournalOptions`, `PolicyKind`, and the keyword parameters of
the method that an operation measures. A name without a value here has no cell, and tests/benchmarks/test_matrix.py
names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from runnel.core.options import PolicyKind, SubscribeOptions, TopicOptions, options_of
from runnel.journal.options import FSYNC, JournalOptions

LIST = 100  # records that are published, and read, at a time
STEEP = 3.0  # times the plain case: cells from here on are marked

Options = Mapping[str, Any]


class Order(msgspec.Struct):
    """The type of typed topics."""

    id: int
    text: str


ORDER = Order(42, "x" * 70)
VALUE = msgspec.json.encode(ORDER)  # about 100 bytes, which typed readers can decode


@dataclass(frozen=True, slots=True)
class Each:
    """A value that differs from call to call."""

    of: Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Given:
    """The options of one cell, by what takes them: see FAMILIES."""

    call: Options = field(default_factory=dict)
    subscribe: Options = field(default_factory=dict)
    publish: Options = field(default_factory=dict)
    topic: Options = field(default_factory=dict)
    open: Options = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """What is published."""
        return ORDER if "type" in self.topic else VALUE

    def calls(self) -> Iterator[Options]:
        """The options of one call after the other."""
        changing = {name: value.of for name, value in self.call.items() if isinstance(value, Each)}
        if not changing:
            while True:
                yield self.call
        for n in count():
            yield {**self.call, **{name: of(n) for name, of in changing.items()}}


FAMILIES = {
    "call": "",
    "subscribe": "subscribe: ",
    "publish": "records with ",
    "topic": "topic: ",
    "open": "open: ",
}
"""What an option is given to: the call that is measured, the subscription that it reads, the records that it reads, the
topic, or `runnel.open`; and how tables say so."""

ASK_TO_WAIT = ("max_wait", "records with delay")  # variations whose time by the clock is what was asked for

_HEADERS = {"source": "till-7", "trace": "4bf92f3577b34da6"}


async def _through(message: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


CALL: dict[str, tuple[Options, ...]] = {
    "key": ({"key": Each(lambda n: f"k{n % 1000}")},),
    "keys": ({"keys": [f"k{n}" for n in range(LIST)]},),
    "headers": ({"headers": _HEADERS},),
    "delay": ({"delay": 3600},),
    "expires": ({"expires": 3600},),
    "priority": ({"priority": 5},),
    "message_id": ({"message_id": Each(lambda n: f"id-{n}")},),
    "expected_offset": ({"expected_offset": Each(lambda n: n)},),
    "timeout": ({"timeout": 5.0},),
    "max_records": ({"max_records": 10},),
    "max_wait": ({"max_wait": 0.001},),
    "durable": ({"durable": True},),
    "reason": ({"reason": "broken"},),
    "force": ({"force": True},),
    "hold": ({"hold": True},),
    "limit": ({"limit": 1},),
    "where": ({"where": lambda letter: True},),
    "concurrency": ({"concurrency": 10},),
    "retries": ({"retries": 5},),
    "rate": ({"rate": 1_000_000},),
    "time_limit": ({"time_limit": 10},),
    "publish": ({"publish": "results"},),
    "middleware": ({"middleware": _through},),
}
"""Values of keyword parameters of the methods that operations measure."""

PUBLISH: dict[str, tuple[Options, ...]] = {
    "key": ({"keys": [f"k{n}" for n in range(LIST)]}, {"keys": ["k"] * LIST}),
    "headers": ({"headers": _HEADERS},),
    "delay": ({"delay": 0.001},),
    "expires": ({"expires": 3600},),
    "priority": ({"priority": 5},),
}
"""Options of a publish that may change what reading its records costs."""

SUBSCRIBE: dict[str, tuple[Options, ...]] = {
    "start": ({"start": "earliest"},),
    "name": ({"name": "n"},),
    "group": (),  # operations of their own
    "policy": tuple({"policy": kind.value} for kind in PolicyKind),
    "buffer": ({"buffer": 1000},),
    "buffer_bytes": ({"buffer_bytes": 1 << 20},),
    "dead_letter": ({"dead_letter": "dead"},),
    "type": ({"type": Order},),
    "strict": ({"strict": True},),
    "partial": ({"partial": True},),
    "presence": ({"presence": "me"},),
    "hold": ({"name": "n", "hold": True},),
    "on_gap": ({"on_gap": lambda gap: None},),
    "on_drop": ({"on_drop": lambda record: None},),
    "prefetch": ({"prefetch": 1}, {"prefetch": 1000}),
    "prefetch_bytes": ({"prefetch_bytes": 1 << 20},),
    "ack_wait": ({"ack_wait": 600.0},),
    "max_ack_pending": ({"max_ack_pending": 100},),
    "max_deliver": ({"max_deliver": 5},),
    "backoff": ({"backoff": (1.0, 5.0)},),
    "jitter": ({"jitter": 0.5},),
}

TOPIC: dict[str, tuple[Options, ...]] = {
    "durable": ({"durable": True}, {"durable": False}),
    "retention_age": ({"retention_age": 3600},),
    "retention_bytes": ({"retention_bytes": 1 << 20},),
    "retention_count": ({"retention_count": 1000},),
    "retention_until": ({"retention_until": "archived"},),
    "compact": ({"compact": True},),
    "compression": ({"compression": "zstd"},),
    "encoding": ({"type": Order}, {"type": Order, "encoding": "msgpack"}),
    "dead_letter": ({"dead_letter": "dead"},),
    "max_deliver": ({"max_deliver": 5},),
    "backoff": ({"backoff": (1.0, 5.0)},),
}

OPEN: dict[str, tuple[Options, ...]] = {
    "fsync": tuple({"fsync": way} for way in FSYNC[1:]),
    "fsync_interval": ({"fsync": "interval", "fsync_interval": 0.01},),
    "segment_bytes": ({"segment_bytes": 1 << 20},),
    "segment_age": ({"segment_age": 60.0},),
    "min_free": ({"min_free": 0},),
    "max_pending_bytes": ({"max_pending_bytes": 1 << 20},),
    "tail_bytes": ({"tail_bytes": 1 << 16},),
    "max_staged_bytes": ({"max_staged_bytes": 1 << 30},),
    "stage_expiry": ({"stage_expiry": 60.0},),
    "clean_bytes_per_second": ({"clean_bytes_per_second": 1 << 20},),
    "history_share": ({"history_share": 1.0},),
    "tombstone_age": ({"tombstone_age": 60.0},),
    "scrub_interval": ({"scrub_interval": 0.0},),
    "standby": ({"standby": "sync"},),  # before a standby has come for the first time
    "standby_lease": ({"standby_lease": 1.0},),
    "standby_patience": ({"standby_patience": 1.0},),
}


@dataclass(frozen=True, slots=True)
class Variation:
    """One thing that a cell does differently from the plain case."""

    label: str
    given: Given


def keywords(method: Callable[..., Any]) -> list[str]:
    """The parameters of a method that a caller may leave out."""
    found = inspect.signature(method).parameters.values()
    return [one.name for one in found if one.default is not one.empty]


def variations(family: str, method: Callable[..., Any] | None, *, group: bool) -> Iterator[Variation]:
    """Every way to give the options of a family, each alone."""
    for name, ways in _values(family, method, group=group).items():
        for way in ways:
            shown = way.get(name, way)
            several = len(ways) > 1
            label = f"{FAMILIES[family]}{name}" + (f"={_shown(shown)}" if several else "")
            yield Variation(label, Given(**{family: way}))


def _values(family: str, method: Callable[..., Any] | None, *, group: bool) -> dict[str, tuple[Options, ...]]:
    if family == "call":
        assert method is not None
        return {name: CALL[name] for name in keywords(method) if name in CALL}
    if family == "subscribe":
        unmeant = "alone" if group else "group"
        known = options_of(SubscribeOptions).items()
        return {name: SUBSCRIBE[name] for name, option in known if option.only != unmeant and name in SUBSCRIBE}
    return {
        "publish": PUBLISH,
        "topic": {name: TOPIC[name] for name in TopicOptions.__struct_fields__ if name in TOPIC},
        "open": {name: OPEN[name] for name in JournalOptions.__struct_fields__ if name in OPEN},
    }[family]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("encoding", "json")) if "type" in value else _shown(next(iter(value.values())))
    if isinstance(value, list):
        return "one for all" if len(set(value)) == 1 else "one each"
    return str(value)
