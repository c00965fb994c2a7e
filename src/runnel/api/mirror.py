"""A mirror: a bridge that also brings the options and types of topics, can stop at the end, and compares both sides.

What it copies and how it continues is the bridge's: the marker at the target moves in the transaction of the records.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from runnel.api.bridge import PATH, Bridge
from runnel.core.errors import NotSupported, TopicConflict
from runnel.core.record import Record

_MEANT_ELSEWHERE = ("durable", "retention_until")  # where the target keeps its topics is the target's to say

log = logging.getLogger("runnel")


class TopicComparison(msgspec.Struct, frozen=True):
    """One topic on both sides. `same`: the newest records of both, as many as the side with fewer has, are equal."""

    topic: str
    source: int  # records
    target: int
    same: bool
    hash: str  # of the records that were compared at the source: value, key and headers, in order


class Mirror(Bridge):
    """Copies topics with their options and types. Made by `runnel mirror`.

    `once`: it ends after the records that are there when it begins.
    """

    def __init__(self, source: Any, pattern: str, to: Any, *, name: str | None = None, once: bool = False) -> None:
        super().__init__(source, pattern, to, name=name or f"mirror:{pattern}", start="earliest")
        self._is_once = once
        self._declared: set[str] = set()

    async def _prepare(self, target: Any, records: Any) -> None:
        """Declare the topics of `records` at the target, before their first records come."""
        for topic in dict.fromkeys(record.topic for record in records):
            if topic not in self._declared:
                await self._declare(target, topic)
                self._declared.add(topic)

    async def _declare(self, target: Any, topic: str) -> None:
        options = dict(await self._source.backend.describe(topic) or {})
        for name in _MEANT_ELSEWHERE:
            options.pop(name, None)
        bounds = await self._source.backend.bounds([topic], history=False)
        schema = bounds[0].schema if bounds else None
        publisher = target.backend.packed_publisher()
        while True:
            try:
                await publisher.declare(topic, options, schema)
                return
            except NotSupported as error:
                refused = next((name for name in options if name in str(error)), None)
                if refused is None:
                    raise
                log.warning("mirror %r: %s is left out for %r: %s", self.name, refused, topic, error)
                del options[refused]
            except TopicConflict as error:
                log.warning("mirror %r: topic %r keeps its options at the target: %s", self.name, topic, error)
                return


async def compare(source: Any, target: Any, pattern: str) -> AsyncIterator[TopicComparison]:
    """Read every topic that the pattern covers on both sides, and compare them record by record."""
    known = {one.topic for one in await target.backend.bounds([pattern])}
    for bounds in await source.backend.bounds([pattern]):
        topic = bounds.topic
        here = await _digests(source, topic)
        there = await _digests(target, topic) if topic in known else array("Q")
        count = min(len(here), len(there))
        tail = here[len(here) - count :]
        same = tail == there[len(there) - count :] and (count > 0 or not len(here))
        shown = hashlib.blake2b(tail.tobytes(), digest_size=16).hexdigest()
        yield TopicComparison(topic, len(here), len(there), same, shown)


async def _digests(broker: Any, topic: str) -> array[int]:
    """A hash of each record of a topic, in order: 8 bytes a record."""
    found = array("Q")
    async with broker.subscribe(topic, start="earliest") as records:
        records._source.finish()  # stop at the current end
        async for batch in records.batches():
            found.extend(map(_digest, batch.records))
    return found


def _digest(record: Record[bytes]) -> int:
    headers = sorted((name, text) for name, text in record.headers.items() if name != PATH)
    content = msgspec.msgpack.encode((record.value, record.key, headers))
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
