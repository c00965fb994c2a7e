"""Taking records away because somebody asks for it: all of a topic before an offset, or before a time.

Below: catalog, log, store. Above: topic.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runnel.broker.log import Log
from runnel.core.errors import InvalidOption, OffsetOutOfRange, UnknownTopic
from runnel.journal.gone import Reason

if TYPE_CHECKING:
    from runnel.broker.bus import Bus


async def trim(bus: Bus, topic: str, before: int | datetime, *, force: bool) -> int:
    """Let a topic begin at `before`; where it begins now. Durable when it returns."""
    log = bus.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    bus.timeline.cool()
    offset = _offset(bus, log, before)
    if log.held is not None and log.held < offset:
        await bus.flushed()  # whoever holds it may have read on a moment ago
    if bus.store is None:
        log.begin_at(offset, Reason.ASKED)
    else:
        bus.store.trim(log, offset, force=force)
        await bus.flushed()
    return bus.timeline.first(log)


def _offset(bus: Bus, log: Log, before: int | datetime) -> int:
    """The offset that is meant."""
    if isinstance(before, datetime):
        if before.tzinfo is None:
            raise InvalidOption("before", before, "give the time a zone, such as datetime.now(UTC)")
        time = before.astimezone(UTC)
        if bus.store is not None and log.stored is not None:
            return bus.store.offset_at(log, time)
        return log.offset_at(time)
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise InvalidOption("before", before, "expected an offset, 0 or more, or a datetime")
    if before > log.end:
        raise OffsetOutOfRange(log.name, before, bus.timeline.first(log), log.end)
    return before
