"""The bounds of topics, and positions stored for readers that are not subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from runnel.broker.history import first_offset
from runnel.core.errors import InvalidOption, NameInUse, NotSupported, OffsetOutOfRange, TopicDeleted, UnknownTopic
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds, estimated_bytes
from runnel.journal.format.ledger import TopicState
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped, removed_with_reasons

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.read.history_reads import TopicHistory
    from runnel.broker.topic.log import Log


AT_A_TIME = 32  # topics whose sources are queried at once


def covered_logs(backend: BrokerParts, patterns: Sequence[str]) -> dict[str, Log]:
    """The topics that match. Names are looked up; only patterns scan all topics."""
    logs = backend.catalog.logs
    covered = {name: logs[name] for name in patterns if name in logs}
    if wild := [one for one in patterns if is_pattern(one)]:
        covered |= {name: log for name, log in logs.items() if any(matches(one, name) for one in wild)}
    return covered


async def bounds_of(
    backend: BrokerParts,
    patterns: Sequence[str],
    time: datetime | None,
    places: Mapping[str, int] | None,
    *,
    history: bool,
) -> list[TopicBounds]:
    """The bounds of the topics that match, sorted by name. `places`: by name, where a sequence lies in them."""
    found: list[TopicBounds] = []
    for name, log in sorted(covered_logs(backend, patterns).items()):
        if log.deleted:
            continue
        first = await first_offset(backend, log) if history else backend.timeline.first(log)
        at = None if time is None else await _at(backend, log, time, history=history)
        end = log.end
        if log.deleted:
            continue  # while a source was queried
        if places is not None:
            at = places.get(name, end)  # a topic created meanwhile has nothing before it
        found.append(
            TopicBounds(
                name,
                log.epoch,
                first,
                end,
                estimated_bytes(log.count_bytes(), _given(backend, log, end), end - first),
                log.stored is not None,
                at,
                None if log.type is None else Schema(log.type.encoding, log.type.schema),
                UNSET if history else _removed(backend, log, first),
            )
        )
    return found


def store_places(backend: BrokerParts, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
    """Store the positions of all names or, if one is invalid, of none."""
    for name, (topic, position) in places.items():
        _check_position(backend, name, topic, position, hold)
    for name, (topic, position) in places.items():
        backend.positions.keep(name, topic, position)
        if backend.store is not None and hold is not None:
            backend.store.pending_state.hold_at(name, topic, position, hold=hold)


def _given(backend: BrokerParts, log: Log, end: int) -> int:
    """The number of offsets ever given to records: after a crash they continue far higher."""
    stored = _stored(backend, log)
    return end if stored is None else end - count_skipped(stored.gone, 0, end)


def stored_sizes(backend: BrokerParts, log: Log) -> tuple[int, int] | None:
    """The bytes of all batches ever written to a durable topic, and about those of the records that it keeps.

    They count keys and headers too. Unlike the sums of `Log`, they mean the same before and after a restart.
    """
    stored = _stored(backend, log)
    if stored is None:
        return None
    end, first = log.end, log.first
    kept = stored.bytes if not first else estimated_bytes(stored.bytes, _given(backend, log, end), end - first)
    return stored.bytes, min(kept, stored.bytes)


def _removed(backend: BrokerParts, log: Log, first: int) -> tuple[tuple[int, int, str], ...] | UnsetType:
    """Which ranges of a topic left the journal, and why; unset: it is in memory."""
    stored = _stored(backend, log)
    if stored is None:
        return UNSET
    found = removed_with_reasons(stored.gone)
    # Retention moves the first offset at once; the reason is in the journal with the next commit.
    return found if first <= stored.first else (*found, (stored.first, first, RemovalReason.UNKNOWN.words))


def _stored(backend: BrokerParts, log: Log) -> TopicState | None:
    """The journal's state of a topic; None: it is in memory."""
    if backend.store is None or log.stored is None:
        return None
    return backend.store.journal.ledger.topics.get(log.stored.id)


async def _at(backend: BrokerParts, log: Log, time: datetime, *, history: bool) -> int:
    asked = backend.cursors.old_place(log, time, once=True) if history else None
    if asked is not None:
        return await asked
    return (
        log.offset_at(time) if backend.store is None or log.stored is None else backend.store.reads.offset_at(log, time)
    )


async def offsets_at(backend: BrokerParts, patterns: Sequence[str], sequence: int, *, history: bool) -> dict[str, int]:
    """By topic: the offset of the first record that does not lie before `sequence`; the end, if all do.

    The journal first, then the sources of the topics that begin behind it there: what retention takes meanwhile is
    in its source by then.
    """
    places = await _journal_offsets_at(backend, patterns, sequence)
    if not history or backend.history_reads is None:
        return places
    asked: dict[str, TopicHistory] = {}
    for name, place in places.items():
        log = backend.catalog.logs.get(name)
        if log is None or place > backend.timeline.first(log):
            continue
        if (source := backend.history_reads.of_topic(log)) is not None and source.is_needed:
            asked[name] = source
    names = list(asked)
    for begin in range(0, len(names), AT_A_TIME):
        some = names[begin : begin + AT_A_TIME]
        found = await asyncio.gather(*(asked[name].offset_at_sequence(sequence, places[name]) for name in some))
        places.update(zip(some, found, strict=True))
    return places


async def _journal_offsets_at(backend: BrokerParts, patterns: Sequence[str], sequence: int) -> dict[str, int]:
    """The same of the journal alone. It is read in a thread: finding thousands of topics in old segments takes long."""
    backend.timeline.cool()  # an open run does not know its end
    places: dict[str, int] = {}
    stored: dict[int, Log] = {}
    for name, log in covered_logs(backend, patterns).items():
        if backend.store is None or log.stored is None or (log.runs and log.runs[0].sequence <= sequence):
            places[name] = max(log.offset_behind(sequence), log.first)
        else:
            stored[log.stored.id] = log
    if stored and backend.store is not None:
        reads, ends = backend.store.reads, {number: log.end for number, log in stored.items()}
        came: asyncio.Future[dict[int, int] | OSError] = asyncio.get_running_loop().create_future()
        history = reads.journal.history
        reads.look(
            lambda: history.offsets_at(sequence, ends), lambda found: None if came.done() else came.set_result(found)
        )
        if isinstance(found := await came, OSError):
            raise found
        for number, log in stored.items():
            places[log.name] = max(min(found.get(number, ends[number]), ends[number]), log.first)
    return places


def _check_position(backend: BrokerParts, name: str, topic: str, position: Position | int, hold: bool | None) -> None:
    """Raise unless `name` can have this position, by the checks of an open subscription."""
    if name in backend.positions.open:
        raise NameInUse(name)
    stored = backend.positions.stored.get(name)
    if stored is not None and stored[0] != topic:
        raise InvalidOption("name", name, f"it holds a position on {stored[0]!r}, not on {topic!r}")
    if isinstance(position, int):
        if position > backend.timeline.sequence:
            raise OffsetOutOfRange(topic, position, 0, backend.timeline.sequence)
        if hold and backend.store is None:
            raise NotSupported("hold=True", f"topics of {topic!r} are kept in memory only")
        return
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    if log.epoch != position.epoch:
        raise TopicDeleted(topic, position.epoch)
    if position.offset > log.end:
        raise OffsetOutOfRange(topic, position.offset, backend.timeline.first(log), log.end)
    if hold and log.stored is None:
        raise NotSupported("hold=True", f"topic {topic!r} is kept in memory only")
