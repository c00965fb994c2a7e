"""The bounds of topics, and positions stored for readers that are not subscriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from runnel.core.errors import InvalidOption, NameInUse, NotSupported, OffsetOutOfRange, TopicDeleted, UnknownTopic
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds, estimated_bytes
from runnel.journal.format.removed_offsets import count_skipped

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.log import Log


def bounds_of(backend: BrokerParts, patterns: Sequence[str], time: datetime | None) -> Iterator[TopicBounds]:
    """The bounds of the topics that match, sorted by name. Names are looked up; only patterns scan all topics."""
    logs = backend.catalog.logs
    covered = {name: logs[name] for name in patterns if name in logs}
    if wild := [one for one in patterns if is_pattern(one)]:
        covered |= {name: log for name, log in logs.items() if any(matches(one, name) for one in wild)}
    for name, log in sorted(covered.items()):
        if not log.deleted:
            first, end = backend.timeline.first(log), log.end
            known = log.codec or log.schema
            yield TopicBounds(
                name,
                log.epoch,
                first,
                end,
                estimated_bytes(log.count_bytes(), _given(backend, log, end), end - first),
                log.stored is not None,
                None if time is None else _at(backend, log, time),
                None if known is None else Schema(known.encoding, known.schema),
            )


def store_places(backend: BrokerParts, places: Mapping[str, tuple[str, Position]], hold: bool | None) -> None:
    """Store the positions of all names or, if one is invalid, of none."""
    for name, (topic, position) in places.items():
        _check_position(backend, name, topic, position, hold)
    for name, (topic, position) in places.items():
        backend.positions.keep(name, topic, position)
        if backend.store is not None and hold is not None:
            backend.store.pending_state.hold_at(name, topic, position, hold=hold)


def _given(backend: BrokerParts, log: Log, end: int) -> int:
    """How many offsets were ever given to a record: after a crash they go on far higher."""
    stored = (
        None if backend.store is None or log.stored is None else backend.store.journal.ledger.topics.get(log.stored.id)
    )
    return end if stored is None else end - count_skipped(list(stored.gone), 0, end)


def _at(backend: BrokerParts, log: Log, time: datetime) -> int:
    return (
        log.offset_at(time) if backend.store is None or log.stored is None else backend.store.reads.offset_at(log, time)
    )


def _check_position(backend: BrokerParts, name: str, topic: str, position: Position, hold: bool | None) -> None:
    """Raise unless `name` can have this position, by the checks of an open subscription."""
    if name in backend.positions.open:
        raise NameInUse(name)
    stored = backend.positions.stored.get(name)
    if stored is not None and stored[0] != topic:
        raise InvalidOption("name", name, f"it holds a position on {stored[0]!r}, not on {topic!r}")
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    if log.epoch != position.epoch:
        raise TopicDeleted(topic, position.epoch)
    if position.offset > log.end:
        raise OffsetOutOfRange(topic, position.offset, backend.timeline.first(log), log.end)
    if hold and log.stored is None:
        raise NotSupported("hold=True", f"topic {topic!r} is kept in memory only")
