"""How many records messages hold: lag in records.

JetStream counts messages, and a message holds many records. The header of each says how many, so the headers alone are
read; of more than `MOST` messages the first are counted, and the others have as many on average.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runnel.cluster.jetstream import Acknowledged, JetStream
from runnel.cluster.layout import first_offset, read_unit_header, stream_sequence
from runnel.cluster.pulling import OrderedConsumer
from runnel.core.errors import BadBatch
from runnel.wire.nats import Message

MOST = 10_000  # messages of which each is counted


class Counted(NamedTuple):
    """How many messages, and how many records in them."""

    messages: int
    records: int


class TopicCount(NamedTuple):
    """How many records a topic has, and how many it was seen to have ever."""

    kept: int
    ever: int


async def count_from(js: JetStream, filters: Sequence[str], place: int) -> int:
    """The records of some subjects from a place on."""
    return (await count_records(js, filters, stream_sequence(place), place=place)).records


async def count_records(
    js: JetStream, filters: Sequence[str], start: int, end: int | None = None, *, place: int = 0
) -> Counted:
    """The messages of some subjects from a stream sequence on, up to `end`, and their records from `place` on."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    records = messages = left = begun = 0

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def arrived(message: Message, about: Acknowledged) -> None:
        nonlocal records, messages, left, begun
        if done.done() or (end is not None and about.sequence > end):
            finish()
            return
        messages += 1
        left = about.pending if end is None else 0
        try:
            _, number, _, unit_records, own, _ = read_unit_header(message.head)
        except BadBatch:
            records += 1  # a gap of one, for its readers
        else:
            base = first_offset(about.sequence - number)
            if base >= place:
                records += own
            elif base != begun:  # a unit of which a part lies before the place
                begun = base
                records += max(0, unit_records - (place - base))
        if messages >= MOST:
            finish()

    consumer = OrderedConsumer(js, filters, arrived, start=start, caught_up=finish, headers_only=True, batch=1000)
    try:
        await consumer.start()
        await done
    finally:
        consumer.end()
    more = round(left * records / messages) if messages else 0
    return Counted(messages + left, records + more)


class TopicCounts:
    """The number of records of topics: records since the last count are added."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._known: dict[str, _TopicCount] = {}

    async def of(self, topic: str, epoch: int, first: int, end: int) -> TopicCount:
        """The records of a topic with the bounds [first, end)."""
        known = self._known.get(topic)
        if known is None or known.epoch != epoch or end < known.end:
            if len(self._known) >= MOST:
                self._known.clear()
            known = self._known[topic] = _TopicCount(epoch, first, first, 0, 0)
        filters = [self._js.subjects.every_bucket(topic)]
        if end > known.end:
            new = await count_from(self._js, filters, known.end)
            known.kept += new
            known.ever += new
            known.end = end
        if first > known.first:  # retention took some
            known.kept = await count_from(self._js, filters, first) if end > first else 0
            known.first = first
        return TopicCount(known.kept, known.ever)


@dataclass(slots=True)
class _TopicCount:
    epoch: int
    first: int
    end: int
    kept: int
    ever: int
