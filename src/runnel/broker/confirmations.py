"""The offsets that the archive has confirmed of each topic, and the floors below which records have left the journal.

A confirmation counts only if the topic's source of history really holds these records: the broker asks the source
before it stores the offset. From then on retention may take those records from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runnel.broker.history import read_history
from runnel.broker.positions import AT_A_TIME, covered_logs
from runnel.core.errors import NotArchived, NotSupported, OffsetOutOfRange, TopicDeleted, UnknownTopic
from runnel.core.history import HistoryBounds
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicFloors
from runnel.journal.format.ledger import confirmed_part

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.log import Log

NO_SOURCE = (
    "no source of history covers it, so nothing can check that; open the broker with history=..., or give the server "
    "a [history] table, that reads the archive"
)


async def confirm_archived(backend: BrokerParts, positions: Mapping[str, Position]) -> list[TopicFloors]:
    """Store that the sources of these topics have all records before these positions: of all topics, or of none."""
    store = backend.store
    if store is None:
        raise NotSupported("confirm_archived()", "this broker lives in memory only")
    asked = list(positions.items())
    for begin in range(0, len(asked), AT_A_TIME):
        some = asked[begin : begin + AT_A_TIME]
        results = await asyncio.gather(*(_check(backend, *one) for one in some), return_exceptions=True)
        for result in results:  # all have ended: none runs on after its caller has the answer
            if isinstance(result, BaseException):
                raise result
    # Looked up again: a topic may have been deleted while its source was queried.
    logs = {_log_of(backend, topic, position): position.offset for topic, position in asked}
    for log, before in logs.items():
        if before > log.confirmed and log.stored is not None:
            store.commits.tell(confirmed_part(log.stored.id, before))
    await backend.flushed()
    for log, before in logs.items():
        store.confirmed(log, before)  # not before it is durable
    return [floors_of(backend, log) for log in logs if not log.deleted]


def topic_floors(backend: BrokerParts, patterns: Sequence[str]) -> list[TopicFloors]:
    """The floors of the topics that match, sorted by name."""
    return [floors_of(backend, log) for _, log in sorted(covered_logs(backend, patterns).items())]


def floors_of(backend: BrokerParts, log: Log) -> TopicFloors:
    """The floors of one topic."""
    moved, store = backend.timeline.first(log), backend.store
    waiting = 0 if store is None else store.holding.unconfirmed_bytes(log)
    return TopicFloors(log.name, log.epoch, log.trimmed, moved, log.confirmed, log.end, waiting)


def _log_of(backend: BrokerParts, topic: str, position: Position) -> Log:
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    if log.epoch != position.epoch:
        raise TopicDeleted(topic, position.epoch)
    if position.offset > log.end:
        raise OffsetOutOfRange(topic, position.offset, backend.timeline.first(log), log.end)
    if log.stored is None:
        raise NotSupported("confirm_archived()", f"topic {topic!r} is kept in memory only")
    return log


async def _check(backend: BrokerParts, topic: str, position: Position) -> None:
    """Raise unless the source of a topic has all records of the journal before a position."""
    log, reads, before = _log_of(backend, topic, position), backend.history_reads, position.offset
    source = None if reads is None else reads.source_of(topic)
    if reads is None or source is None:
        raise NotArchived(topic, before, None, NO_SOURCE)
    if before <= log.confirmed:
        return
    found = await reads.answer(source, lambda: source.bounds(topic, position.epoch), topic, once=True)
    held = found or HistoryBounds(0, 0)
    for first, end in ((0, held.first), (held.end, before)):
        # Offsets that the journal has no record at need not be in the source: compacted, expired, skipped in a crash.
        first = max(first, log.confirmed, backend.timeline.first(log))
        end = min(end, before)
        if first < end and (missing := await _first_record(backend, topic, first)) is not None and missing < end:
            has = f"holds offsets [{held.first:,}, {held.end:,})" if found else "holds nothing of it"
            raise NotArchived(
                topic,
                before,
                held.end if found else 0,
                f"its source of history {has}, and the journal has a record at {missing:,} that is not there; archive "
                "it from there on, and confirm what the archive has committed",
            )


async def _first_record(backend: BrokerParts, topic: str, start: int) -> int | None:
    """The offset of the first record of a topic from `start` on, if there is one."""
    page = await read_history(backend, topic, start, 1, 1)
    return page.records[0].offset if page.records else None
