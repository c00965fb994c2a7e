"""A producer numbers its records, so that a record that is sent again is stored once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.topic.readers import Append
from runnel.broker.topic_handle import Topic
from runnel.core.deduplication import MAX_SEQUENCE, producer_id
from runnel.core.errors import InvalidOption
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_name
from runnel.core.position import Position, Span
from runnel.core.publishing import Seconds

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend

T = TypeVar("T")

HANDLES = 1024  # topics whose handles are kept

_NO_OPTIONS = TopicOptions()


class Producer:
    """A publisher whose records have numbers: 0, 1, 2 and so on, over all topics. Made by `broker.producer(name)`.

    Sending a number again stores nothing: the first position comes back, also after a crash. So whatever became
    of a publish (an error, a cancelled task, a power cut), it may be sent again with its number:

    >>> importer = broker.producer("import")
    >>> for number, line in enumerate(lines):
    ...     if number >= importer.next:
    ...         await importer.publish("lines", line, sequence=number)

    A number that leaves others out is a `SequenceGap`. What is remembered is bounded: see the guarantees.
    """

    __slots__ = ("_backend", "_floor", "_handles", "id", "name")

    def __init__(self, backend: LocalBackend, name: str | None) -> None:
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= 256):
            raise InvalidOption("name", name, "the name of a producer is a str of 1 to 256 characters")
        self.name = name
        self.id = secrets.randbits(64) or 1 if name is None else producer_id(name)
        self._backend = backend
        self._floor = 0  # numbers below it are stored, whoever forgot
        self._handles: dict[str, Topic[Any]] = {}

    def __repr__(self) -> str:
        return f"<Producer {f'{self.id:#x}' if self.name is None else repr(self.name)}>"

    @property
    def next(self) -> int:
        """The number of its next record; all below are stored, or on their way. From any thread."""
        found = self._backend.loop_owner.ask(self._next)
        return self._floor if found is None else found

    def _next(self) -> int | None:
        self._backend.loop_owner.check_usable("looking at a producer")
        return self._backend.publisher.deduplicator.next(self.id)

    async def publish(
        self,
        topic: str | Topic[T],
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
        if not self._backend.loop_owner.is_here():
            return await self._backend.loop_owner.visit(
                self.publish(
                    topic,
                    value,
                    sequence=sequence,
                    key=key,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                )
            )
        handle = self._handle(topic)
        entry = self._backend.publisher.one(
            handle.name, handle._codec, value, key, headers, delay, expires, priority, None
        )
        return await self._send(handle, entry, sequence)

    async def publish_many(
        self,
        topic: str | Topic[T],
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
        if not self._backend.loop_owner.is_here():
            return await self._backend.loop_owner.visit(
                self.publish_many(
                    topic,
                    values,
                    sequence=sequence,
                    keys=keys,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                )
            )
        handle = self._handle(topic)
        entry = self._backend.publisher.many(
            handle.name, handle._codec, values, keys, headers, delay, expires, priority
        )
        count = len(entry.values)
        first = await self._send(handle, entry, sequence)
        return Span(first, Position(first.epoch, first.offset + count - 1))

    def _handle(self, topic: str | Topic[Any]) -> Topic[Any]:
        if isinstance(topic, Topic):
            if topic._backend is not self._backend:
                raise InvalidOption("topic", topic, "it is a topic of another broker")
            return topic
        handle = self._handles.get(topic)
        if handle is None:
            if len(self._handles) >= HANDLES:
                self._handles.clear()
            handle = self._handles[topic] = Topic(self._backend, check_name(topic), None, _NO_OPTIONS)
        return handle

    async def _send(self, handle: Topic[Any], entry: Append, sequence: int | None) -> Position:
        if sequence is None:
            sequence = -1 - self._floor
        elif isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE:
            raise InvalidOption("sequence", sequence, "the number of a record is a whole number, 0 or more")
        entry.producer, entry.producer_sequence = self.id, sequence
        position = await self._backend.publisher.publish_numbered(handle._resolve(), entry)
        self._floor = max(self._floor, entry.producer_sequence + len(entry.values))
        return position
