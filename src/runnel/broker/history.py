"""Read a page of a topic's records from an offset on. Waits for the disk or a source, never for new records."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from runnel.broker.read.history_reads import unavailable
from runnel.core.backend import SLICE, HistoryPage
from runnel.core.errors import TopicDeleted, UnknownTopic
from runnel.core.record import Gap, MissedRange, Record, joined_missed
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.read.cursor import LogCursor
    from runnel.broker.topic.log import Log
    from runnel.core.backend import Taken
    from runnel.core.position import Start

STEP = 256  # records taken at a time, of which the last ones may be too much


async def read_history(backend: BrokerParts, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
    """At most `limit` records of `topic` from `start` on, of which all but the first fit into `max_bytes`.

    A `start` below 0 counts from the end. Only existing records are read; `UnknownTopic` if it does not exist.
    """
    backend.loop_owner.check_usable("reading a topic")
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    end = log.end
    if isinstance(start, int) and start < 0:
        start = max(await first_offset(backend, log, end + start), end + start)
    asked = backend.cursors.old_place(log, start, once=True)
    place = None if asked is None else await asked
    cursor, missed = backend.cursors.on_log(log, start, with_history=True, place=place)
    try:
        return await _read(backend, log, cursor, missed, end, limit, max_bytes)
    finally:
        cursor.stop()


async def first_offset(backend: BrokerParts, log: Log, below: int | None = None) -> int:
    """The oldest offset of a topic that can be read, from the journal or a source of history.

    With `below`, a source is queried only if the journal begins behind that offset.
    """
    first = backend.timeline.first(log)
    if below is not None and first <= below:
        return first
    asked = backend.cursors.old_place(log, "earliest", once=True)
    return first if asked is None else await asked


async def _read(
    backend: BrokerParts,
    log: Log,
    cursor: LogCursor,
    missed: MissedRange | None,
    end: int,
    limit: int,
    max_bytes: int,
) -> HistoryPage:
    records: list[Record[bytes]] = []
    following, size = cursor.position, 0
    while cursor.position < end and len(records) < limit:
        taken = await _take(backend, log, cursor, min(STEP, SLICE, limit - len(records), end - cursor.position))
        if taken is None:
            break
        missed = joined_missed(missed, taken.missed) if not records else missed
        if taken.missed is not None and records:
            break  # a gap is reported before the records that follow it: with the next excerpt
        now = backend.clock.time()
        for part in taken.slices:
            for record in part.records:
                meta = part.metas.get(record.offset)
                if meta is not None and meta.expires is not None and meta.expires <= now:
                    continue
                size += len(record.value) + (0 if meta is None else meta.weight)
                if records and size > max_bytes:
                    return _page(log, backend, records, missed, following)
                records.append(record)
                following = record.offset + 1
        following = cursor.position
    return _page(log, backend, records, missed, following)


def _page(
    log: Log, backend: BrokerParts, records: list[Record[bytes]], missed: MissedRange | None, following: int
) -> HistoryPage:
    gap = None if missed is None else Gap(log.name, missed.first, missed.end, missed.count, missed.reason)
    first = backend.timeline.first(log)
    if records:
        first = min(first, records[0].offset)  # of a source of history
    return HistoryPage(records, gap, log.epoch, first, log.end, following)


async def _take(backend: BrokerParts, log: Log, cursor: LogCursor, limit: int) -> Taken | None:
    """The next records, from memory or from disk."""
    while True:
        backend.loop_owner.check_usable("reading a topic")
        if log.deleted:
            raise TopicDeleted(log.name, log.epoch)
        taken = cursor.take(limit)
        if taken is not None or not cursor.pending():
            return taken
        if cursor.failure is not None:
            raise unavailable(log.name, cursor.failure)
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cursor.wake = partial(resolve_waiter, came)
        await came
