"""Dead letters put back where they came from, in order, each once. Those at chosen offsets: see letterbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from runnel.broker.catalog import UNSAID
from runnel.broker.cursor import Cursor, Taken
from runnel.broker.dead_letter import TOPIC, is_dead_letter, original
from runnel.broker.letterbox import REPLAYED, Letterbox, alone
from runnel.broker.start import open_cursor
from runnel.broker.topic import Topic
from runnel.core.errors import InvalidOption
from runnel.core.options import positive
from runnel.core.record import Record
from runnel.surface.waiting import tell

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log


async def replay(bus: Bus, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
    """Put dead letters of `topic` back where they came from, each once; how many."""
    name = f"{REPLAYED}{topic}"
    if limit is not None:
        positive("limit", limit)
    log = bus.catalog.find(topic)
    with alone(bus, topic), _unless_unused(bus, log):
        start = bus.positions.get(name, (topic, "earliest"))[1]
        cursor, _ = open_cursor(bus.timeline, {log}, start, is_pattern=False, store=bus.store)
        count, box = 0, Letterbox(bus, log)
        await bus.flushed()  # a dead letter may still be on its way to the disk
        end = log.end  # what comes while replaying may be one that we put back
        while cursor.position < end and (limit is None or count < limit):
            taken = await _take(bus, cursor)
            for record in taken.slices[0].records if taken is not None and taken.slices else ():
                if box.is_open(record.offset):  # and not done with by itself
                    count += await _put_back(bus, record, where)
            bus.keep_position(name, topic, log.position(cursor.position))
    return count


@contextmanager
def _unless_unused(bus: Bus, log: Log) -> Iterator[None]:
    """Afterwards forget a topic that nobody but us has ever asked for."""
    try:
        yield
    finally:
        bus.catalog.forget_unused(log)


async def _take(bus: Bus, cursor: Cursor) -> Taken | None:
    """The next record, from memory or from disk."""
    bus.home.check_usable("replaying")
    taken = cursor.take(1)
    while taken is None and cursor.pending():
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cursor.wake = partial(tell, came)
        await came
        bus.home.check_usable("replaying")
        taken = cursor.take(1)
    return taken


async def _put_back(bus: Bus, record: Record[bytes], where: Callable[[Record[bytes]], bool] | None) -> bool:
    """Publish one dead letter as it was; False: `where` passed it over."""
    if where is not None and not where(record):
        return False
    if not is_dead_letter(record):
        raise InvalidOption("topic", record.topic, f"its record at {record.offset} is not a dead letter")
    origin = Topic[bytes](bus, record.headers[TOPIC], None, UNSAID)
    await origin.publish(record.value, key=record.key, headers=original(record))
    return True
