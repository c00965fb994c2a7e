"""Where topics begin and end, and positions that are stored for readers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from runnel.core.errors import InvalidOption, NameInUse, NotSupported, OffsetOutOfRange, TopicDeleted, UnknownTopic
from runnel.core.pattern import check_pattern, matches
from runnel.core.position import Position, check_start, checked_positions
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds, estimated_bytes
from runnel.journal.format.removed_offsets import count_skipped

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend
    from runnel.broker.topic.log import Log


class PositionMethods:
    """What a broker knows of places in its topics."""

    backend: LocalBackend

    async def bounds(self, *patterns: str, time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end, by name; of all topics if none is named.

        With a `time`, also from which offset on they are not older. Only what is visible counts.
        """
        self.backend.loop_owner.check_usable("asking for bounds")
        patterns = tuple(check_pattern(one) for one in patterns or (">",))
        if time is not None:
            check_start(time, patterns[0], is_pattern=False)
        return list(bounds_of(self.backend, patterns, time))

    async def place(self, places: Mapping[str, tuple[str, Position]], *, hold: bool | None = None) -> None:
        """Store where named subscriptions stand, though nobody reads under these names: name to (topic, position).

        For those who read in another way, such as a query of Spark, and want to be seen: their lag is told like any
        other's. With `hold=True` what lies behind their positions is not taken away, with False it may be; None
        leaves it as it is. All of it is stored together, and durable when this returns; or it raises, and nothing is.
        `NameInUse` while somebody reads under one of the names.
        """
        loop_owner = self.backend.loop_owner
        if not loop_owner.is_here():
            await loop_owner.visit(self.place(places, hold=hold))
            return
        loop_owner.check_usable("storing places")
        checked = checked_positions(places, hold)
        for name, (topic, position) in checked.items():
            _check_position(self.backend, name, topic, position, hold)
        for name, (topic, position) in checked.items():
            self.backend.positions.keep(name, topic, position)
            if self.backend.store is not None and hold is not None:
                self.backend.store.pending_state.hold_at(name, topic, position, hold=hold)
        await self.backend.flushed()


def bounds_of(backend: LocalBackend, patterns: tuple[str, ...], time: datetime | None) -> Iterator[TopicBounds]:
    """The bounds of what `patterns` cover, by name."""
    for name, log in sorted(backend.catalog.logs.items()):
        if not log.deleted and any(matches(one, name) for one in patterns):
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


def _given(backend: LocalBackend, log: Log, end: int) -> int:
    """How many offsets were ever given to a record: after a crash they go on far higher."""
    stored = (
        None if backend.store is None or log.stored is None else backend.store.journal.ledger.topics.get(log.stored.id)
    )
    return end if stored is None else end - count_skipped(list(stored.gone), 0, end)


def _at(backend: LocalBackend, log: Log, time: datetime) -> int:
    return (
        log.offset_at(time) if backend.store is None or log.stored is None else backend.store.reads.offset_at(log, time)
    )


def _check_position(backend: LocalBackend, name: str, topic: str, position: Position, hold: bool | None) -> None:
    """Raise unless `name` can stand there, as somebody who reads would."""
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
