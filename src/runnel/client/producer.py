"""A publisher that numbers its records: the server stores a number once, however often it is sent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.client import publishing
from runnel.client.publishing import PreparedPublish
from runnel.client.topic import RemoteTopic
from runnel.core.deduplication import producer_id
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.position import Position, Span
from runnel.core.publishing import Seconds

if TYPE_CHECKING:
    from runnel.client.broker import RemoteBroker

T = TypeVar("T")

MAX_SEQUENCE = 2**63 - 1
HANDLES = 1024  # topics whose handles are kept


class RemoteProducer:
    """A publisher whose records have numbers: 0, 1, 2 and so on, over all topics. Made by `broker.producer(name)`.

    Sending a number again stores nothing: the first position comes back, also after a crash. So whatever became
    of a publish (an error, a cancelled task, a power cut), it may be sent again with its number:

    >>> importer = broker.producer("import")
    >>> for number, line in enumerate(lines):
    ...     if number >= importer.next:
    ...         await importer.publish("lines", line, sequence=number)

    A number that leaves others out is a `SequenceGap`. What is remembered is bounded: see the guarantees.
    Publishes that are given no number go one after the other: give numbers to have many on their way.
    """

    __slots__ = ("_broker", "_floor", "_handles", "_is_sure", "_turn", "id", "name")

    def __init__(self, broker: RemoteBroker, name: str | None) -> None:
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= 256):
            raise InvalidOption("name", name, "the name of a producer is a str of 1 to 256 characters")
        self.name = name
        self.id = secrets.randbits(64) or 1 if name is None else producer_id(name)
        self._broker = broker
        self._floor = 0  # numbers below it are stored, whoever forgot
        self._is_sure = True  # whether no more than those are: nothing of it was given up on its way
        self._turn = asyncio.Lock()  # of those who are given a number here
        self._handles: dict[str, RemoteTopic[Any]] = {}

    def __repr__(self) -> str:
        return f"<Producer {f'{self.id:#x}' if self.name is None else repr(self.name)}>"

    @property
    def next(self) -> int:
        """The number of its next record; all below are stored, or on their way. From any thread.

        The server is asked, and whoever asks waits for its answer.
        """
        found = self._broker.link.ask("producer_next", {"producer": self.id})
        return self._floor if found is None else int(found)

    async def publish(
        self,
        topic: str | RemoteTopic[T],
        value: T | bytes | str,
        *,
        sequence: int | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
    ) -> Position:
        """Publish one record, as `topic.publish` does; its position, which is the first one if it was there already.

        It has the number `sequence`; if there is none, the next. To be able to send it again, know its number:
        give it, or look at `next` before.
        """
        loop_owner = self._broker.link.loop_owner
        if not loop_owner.is_here():
            again = self.publish(
                topic,
                value,
                sequence=sequence,
                key=key,
                headers=headers,
                delay=delay,
                expires=expires,
                priority=priority,
            )
            return await loop_owner.visit(again)
        handle = self._handle(topic)
        found = publishing.prepare_one(handle, value, key, headers, delay, expires, priority)
        return (await self._send(found, sequence)).first

    async def publish_many(
        self,
        topic: str | RemoteTopic[T],
        values: Sequence[T | bytes | str],
        *,
        sequence: int | None = None,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
    ) -> Span:
        """Publish many at once, all or nothing, as `topic.publish_many` does; the first one has the number `sequence`.

        Sent again, it may be another part of what was published before in one piece. A list of which only the
        first records were published is a `SequenceOverlap`.
        """
        loop_owner = self._broker.link.loop_owner
        if not loop_owner.is_here():
            again = self.publish_many(
                topic,
                values,
                sequence=sequence,
                keys=keys,
                headers=headers,
                delay=delay,
                expires=expires,
                priority=priority,
            )
            return await loop_owner.visit(again)
        handle = self._handle(topic)
        found = publishing.prepare_many(handle, values, keys, headers, delay, expires, priority)
        return await self._send(found, sequence)

    def _handle(self, topic: str | RemoteTopic[Any]) -> RemoteTopic[Any]:
        if not isinstance(topic, str):
            if not isinstance(topic, RemoteTopic) or topic._link is not self._broker.link:
                raise InvalidOption("topic", topic, "it is a topic of another broker")
            return topic
        handle = self._handles.get(topic)
        if handle is None:
            if len(self._handles) >= HANDLES:
                self._handles.clear()
            handle = self._handles[topic] = self._broker.topic(check_name(topic))
        return handle

    async def _send(self, found: PreparedPublish, sequence: int | None) -> Span:
        if sequence is None:
            async with self._turn:
                return await self._sent(found, await self._following())
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE:
            raise InvalidOption("sequence", sequence, "the number of a record is a whole number, 0 or more")
        return await self._sent(found, sequence)

    async def _sent(self, found: PreparedPublish, sequence: int) -> Span:
        try:
            span = await self._broker.link.publish(found.topic, found.pack(self.id, sequence), found.about)
        except BaseException:
            self._is_sure = False  # it may be stored: another record with its number would pass for it, and be lost
            raise
        self._floor = max(self._floor, sequence + found.records)
        return span

    async def _following(self) -> int:
        """The next number. Whoever has a name may have published under it elsewhere; others know by themselves."""
        if self.name is None and self._floor and self._is_sure:
            return self._floor
        known = await self._broker.link.call("producer_next", {"producer": self.id})
        self._is_sure = True  # the server was asked behind all that was sent before
        return self._floor if known is None else int(known)
