"""Dead letters: records that were dropped or failed for good, with the story in their headers.

A dead letter keeps value, key, headers and trace of the original, so it can be put back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption
from runnel.core.record import Record
from runnel.core.trace import HEADER

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

PREFIX = "runnel-dead-letter-"
REASON, TOPIC, POSITION = f"{PREFIX}reason", f"{PREFIX}topic", f"{PREFIX}position"
ATTEMPTS, GROUP, SUBSCRIBER = f"{PREFIX}attempts", f"{PREFIX}group", f"{PREFIX}subscriber"

REPLAYED = "$runnel.replayed."  # and a topic: the name that keeps how far its dead letters were put back


def is_dead_letter(record: Record[Any]) -> bool:
    """Whether `record` is one already."""
    return REASON in record.headers


def story(record: Record[Any], reason: str, **facts: str) -> dict[str, str]:
    """The headers of `record` as a dead letter."""
    told = {f"{PREFIX}{fact}": text for fact, text in facts.items()}
    # An exception's text may hold anything, and a dead letter must not fail for want of a proper header.
    text = str(reason).encode(errors="replace").decode().replace("\0", "?")
    one_line = " ".join(text.split())[:1000] or "no reason given"
    return {
        **_original(record),
        HEADER: record.traceparent,
        REASON: one_line,
        TOPIC: record.topic,
        POSITION: str(record.position),
        **told,
    }


def _original(record: Record[Any]) -> dict[str, str]:
    return {name: text for name, text in record.headers.items() if not name.startswith(PREFIX)}


async def replay(broker: Broker, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
    """Put dead letters of `topic` back where they came from, each once; how many."""
    log = broker.catalog.find(topic)
    name = f"{REPLAYED}{topic}"
    _, start = broker.positions.get(name, (topic, "earliest"))
    end, count = log.end, 0  # what comes while replaying may be one that we put back
    async with broker.subscribe(topic, start=start, buffer=max(1, log.end), policy="drop_newest") as letters:
        while letters.position < end and (limit is None or count < limit):
            record = await anext(letters)
            if where is None or where(record):
                if not is_dead_letter(record):
                    raise InvalidOption("topic", topic, f"its record at {record.offset} is not a dead letter")
                origin = broker.topic(record.headers[TOPIC])
                await origin.publish(record.value, key=record.key, headers=_original(record))
                count += 1
            broker.positions[name] = (topic, log.position(record.offset + 1))
            if record.offset + 1 >= end:
                break
    return count
