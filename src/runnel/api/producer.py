"""The `Producer` handle: a publisher that numbers its records, so that a record that is sent again is stored once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from runnel.api.topic import HANDLES, Topic
from runnel.core.deduplication import MAX_SEQUENCE, producer_id
from runnel.core.errors import InvalidOption
from runnel.core.options import NO_TOPIC_OPTIONS, PublishOptions, RecordKeywords, RecordsKeywords, spell_out
from runnel.core.pattern import check_name, check_no_control
from runnel.core.position import Position, Span
from runnel.core.publishing import append_of, append_of_many

if TYPE_CHECKING:
    from runnel.core.backend import Backend, ProducerNumbers, Writer

T = TypeVar("T")


class Producer:
    """A publisher that numbers its records 0, 1, 2 and so on, over all topics. From `broker.producer(name)`.

    Publishing a number again stores nothing and returns the first position, also after a crash. So a publish whose
    outcome is unknown (an error, a cancelled task, a power cut) can be repeated with its number:

    >>> importer = broker.producer("import")
    >>> for number, line in enumerate(lines):
    ...     if number >= importer.next:
    ...         await importer.publish("lines", line, sequence=number)

    A number that skips others raises `SequenceGap`. The memory of numbers is bounded: see the guarantees.
    Publishes to a server without explicit numbers wait for each other; give numbers to have several in flight.
    """

    __slots__ = ("_backend", "_numbers", "_writers", "id", "name")

    def __init__(self, backend: Backend, name: str | None) -> None:
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= 256):
            raise InvalidOption("name", name, "the name of a producer is a str of 1 to 256 characters")
        self.name = None if name is None else check_no_control("name", name)
        self.id = secrets.randbits(64) or 1 if name is None else producer_id(name)
        self._backend = backend
        self._numbers: ProducerNumbers = backend.producer(self.id, named=name is not None)
        self._writers: dict[str, Writer] = {}  # by topic name

    def __repr__(self) -> str:
        return f"<Producer {f'{self.id:#x}' if self.name is None else repr(self.name)}>"

    @property
    def next(self) -> int:
        """The number of its next record; lower numbers are stored or being stored. From any thread.

        If the broker is a server, this is a round trip that blocks the caller.
        """
        return self._numbers.next()

    @spell_out(RecordKeywords, PublishOptions)
    async def publish(
        self,
        topic: str | Topic[T],
        value: T | bytes | str,
        *,
        sequence: int | None = None,
        **options: Unpack[RecordKeywords],
    ) -> Position:
        """Publish one record, as `topic.publish` does; its position, which is the first one if it was there already.

        It has the number `sequence`; if there is none, the next. To be able to send it again, know its number:
        give it, or look at `next` before.
        """
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            found: Position = await loop_owner.visit(self.publish(topic, value, sequence=sequence, **options))
            return found
        writer = self._writer(topic)
        append = append_of(writer, value, **options)
        return await self._numbers.append(writer, append, _checked(sequence))

    @spell_out(RecordsKeywords, PublishOptions)
    async def publish_many(
        self,
        topic: str | Topic[T],
        values: Sequence[T | bytes | str],
        *,
        sequence: int | None = None,
        **options: Unpack[RecordsKeywords],
    ) -> Span:
        """Publish many at once, all or nothing, as `topic.publish_many` does; the first one has the number `sequence`.

        Sent again, it may be another part of what was published before in one piece. A list of which only the
        first records were published is a `SequenceOverlap`.
        """
        loop_owner = self._backend.loop_owner
        if not loop_owner.is_here():
            found: Span = await loop_owner.visit(self.publish_many(topic, values, sequence=sequence, **options))
            return found
        writer = self._writer(topic)
        append = append_of_many(writer, values, **options)
        count = len(append.values)  # the caller may change its list later
        first = await self._numbers.append(writer, append, _checked(sequence))
        return Span(first, Position(first.epoch, first.offset + count - 1))

    def _writer(self, topic: str | Topic[Any]) -> Writer:
        if isinstance(topic, str):
            if (writer := self._writers.get(topic)) is None:
                if len(self._writers) >= HANDLES:
                    self._writers.clear()
                writer = self._writers[topic] = self._backend.writer(check_name(topic), None, NO_TOPIC_OPTIONS)
            return writer
        if not isinstance(topic, Topic) or topic._backend is not self._backend:
            raise InvalidOption("topic", topic, "it is a topic of another broker")
        return topic._writer


def _checked(sequence: int | None) -> int | None:
    """`sequence`, if it can be the number of a record; None: the next."""
    if sequence is not None and (
        isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE
    ):
        raise InvalidOption("sequence", sequence, "the number of a record is a whole number, 0 or more")
    return sequence
