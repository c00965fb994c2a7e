"""Dead letters put back where they came from, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runnel.broker.catalog import UNSAID
from runnel.broker.dead_letter import TOPIC, is_dead_letter, original
from runnel.broker.subscribing import open_subscription
from runnel.broker.topic import Topic
from runnel.core.errors import InvalidOption
from runnel.core.record import Record

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

REPLAYED = "$runnel.replayed."  # and a topic: the name that keeps how far its dead letters were put back


async def replay(bus: Bus, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
    """Put dead letters of `topic` back where they came from, each once; how many."""
    log = bus.catalog.find(topic)
    name = f"{REPLAYED}{topic}"
    _, start = bus.positions.get(name, (topic, "earliest"))
    end, count = log.end, 0  # what comes while replaying may be one that we put back
    async with open_subscription(bus, topic, start=start, buffer=max(1, log.end), policy="drop_newest") as letters:
        while letters.position < end and (limit is None or count < limit):
            record = await anext(letters)
            if where is None or where(record):
                if not is_dead_letter(record):
                    raise InvalidOption("topic", topic, f"its record at {record.offset} is not a dead letter")
                origin = Topic[bytes](bus, record.headers[TOPIC], None, UNSAID)
                await origin.publish(record.value, key=record.key, headers=original(record))
                count += 1
            bus.positions[name] = (topic, log.position(record.offset + 1))
            if record.offset + 1 >= end:
                break
    return count
