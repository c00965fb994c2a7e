"""The writer of one topic of a cluster, and the fast path of a handle. See `core.backend.Writer`.

The fast path puts a small plain record into the unit that is being gathered, which the writer keeps at hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from threading import get_ident
from typing import Any

from runnel.cluster.catalog import check_options
from runnel.cluster.layout import first_offset, stored_message, stream_sequence
from runnel.cluster.publishing import GATHER, OVERHEAD, ClusterPublishing, Source, Unit
from runnel.core.columns import PRIORITIES
from runnel.core.errors import NotSupported
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, Seconds, append_of
from runnel.core.schema import Codec, Schema

CHUNK = 1024  # values of another thread in one append
SMALL = 64 * 1024  # smaller values are added to the unit without further checks

_NONE = Unit(Source("", NO_TOPIC_OPTIONS, None), Append((), None, 0), 0)  # full, so that the slow path is taken
_NO_PRIORITY = "consumers of JetStream hand messages out in the order of the stream"


class ClusterWriter:
    """Publishes to one topic."""

    def __init__(
        self, publishing: ClusterPublishing, topic: str, codec: Codec[Any] | Schema | None, options: TopicOptions
    ) -> None:
        self.topic, self.options = topic, check_options(options)
        self.codec: Codec[Any] | None = codec  # type: ignore[assignment]  # of a client's values only their `Schema`
        self.source = publishing.source(topic, options, codec)
        self.loop_owner, self.tracing = publishing.loop_owner, publishing.tracing
        self.publishing = publishing
        self.gathering = _NONE  # the unit that takes plain records, on this thread
        self.thread = 0

    def __repr__(self) -> str:
        return f"<ClusterWriter of {self.topic!r}>"

    def now(self) -> float:
        """The time of this process: servers of a cluster and their clients have synchronized clocks."""
        return self.publishing.clock.time()

    def has_tombstones(self) -> bool:
        """No: a cluster has no compacted topics."""
        return False

    async def learn_tombstones(self) -> None:
        """There are none."""

    # -- appending ----------------------------------------------------------------------------------------------

    def check(self, append: Append) -> None:
        """Raise for what a cluster cannot do."""
        self.loop_owner.check_usable("publishing")
        if append.columns is not None and PRIORITIES in append.columns:
            raise NotSupported("priority", _NO_PRIORITY)

    def append_nowait(self, append: Append) -> None:
        """Queue it, or raise `Full`."""
        self.check(append)
        self.publishing.check_room(self.topic, append.size + append.extra + OVERHEAD * len(append.values))
        self._add(append, None)

    take_over = append_nowait

    def appends(self, values: list[bytes]) -> Iterable[Append]:
        """The appends for plain values of another thread: many at a time."""
        for at in range(0, len(values), CHUNK):
            part = values[at : at + CHUNK]
            yield Append(part, None, sum(map(len, part)))

    async def append(self, append: Append) -> Position:
        """Queue it, and wait until it is stored."""
        self.check(append)
        size = append.size + append.extra + OVERHEAD * len(append.values)
        if not self.publishing.has_room(size):
            await self.publishing.room(size)
        waiter: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._add(append, waiter)
        return await waiter

    def _add(self, append: Append, waiter: asyncio.Future[Position] | None) -> None:
        """Add it, and remember its unit for the fast path, if that may be taken."""
        unit = self.publishing.add(self.source, append, waiter)
        # A traced record belongs to a span of its own; one of a typed topic is encoded and checked.
        is_plain = self.codec is None and not append.checked and not self.tracing.is_active
        self.gathering, self.thread = unit if is_plain else _NONE, get_ident()

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """Not possible."""
        raise NotSupported("publish_and_wait()", "a cluster does not know its subscribers; use request()")

    # -- the topic itself ---------------------------------------------------------------------------------------

    async def declare(self) -> None:
        """Create the topic, or check that it exists with these options and this type."""
        self.loop_owner.check_usable("declaring a topic")
        self.source.agreed = await self.publishing.catalog.find(self.topic, self.options, self.codec, declared=True)

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers get `TopicDeleted`."""
        self.loop_owner.check_usable("deleting a topic")
        await delete_topic(self.publishing, self.topic)

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """Remove the messages whose records all lie before an offset or a time; the first offset that is left."""
        self.loop_owner.check_usable("trimming a topic")
        publishing = self.publishing
        js, everything = publishing.js, publishing.js.subjects.every_bucket(self.topic)
        # Records stored after this request are never removed: they may be stored between the next two.
        last = await js.last_sequence()
        if isinstance(before, datetime):
            found = await js.next(everything, time=before)
        else:
            found = await js.next(everything, stream_sequence(before))
        if found is not None and not isinstance(before, datetime):
            kept = stored_message(self.topic, found.sequence, found.nanoseconds, found.head, found.payload)
            if first_offset(kept.first) + kept.records <= before:  # all its records lie before
                found = await js.next(everything, kept.first + kept.messages)
        if found is None:
            return await self._trim_all(last)
        kept = stored_message(self.topic, found.sequence, found.nanoseconds, found.head, found.payload)
        await js.purge(everything, before=kept.first)
        return first_offset(kept.first)

    async def _trim_all(self, last: int) -> int:
        """Remove everything up to a stream sequence. Where it ended is noted, since no message says so any more."""
        publishing, topic = self.publishing, self.topic
        everything = publishing.js.subjects.every_bucket(topic)
        entry, (end, sequence) = publishing.catalog.get(topic), await publishing.end(topic)
        if sequence > last:  # published meanwhile
            await publishing.js.purge(everything, before=last + 1)
            found = await publishing.js.next(everything, last + 1)
            return end if found is None else first_offset(found.sequence)
        if entry is not None and sequence:
            await publishing.catalog.trimmed(topic, entry.epoch, end)
            await publishing.js.purge(everything, before=sequence + 1)
        return end


async def delete_topic(publishing: ClusterPublishing, topic: str) -> None:
    """Delete a topic and its records. Records published to its next life meanwhile stay."""
    sequence = await publishing.catalog.delete(topic)
    await publishing.js.purge(publishing.js.subjects.every_bucket(topic), before=sequence + 1)


class ClusterFastPath:
    """`publish` and `publish_nowait` of a handle on a topic of a cluster. See `api.topic`."""

    __slots__ = ()

    _writer: ClusterWriter
    _slow_publish: Callable[..., Awaitable[Position]]
    _slow_publish_nowait: Callable[..., None]

    def publish_nowait(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
    ) -> None:
        """Add it to the unit that is being gathered; everything else takes the slow path."""
        writer = self._writer
        unit, publishing = writer.gathering, writer.publishing
        if (
            value.__class__ is bytes
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and unit.size < unit.cap
            and (size := len(value)) < SMALL
            and len(unit.values) < GATHER
            and publishing.bytes < publishing.max_pending
            and get_ident() == writer.thread
        ):
            unit.waiters.append((len(unit.values), None, 1))
            unit.values.append(value)
            size += OVERHEAD
            unit.size += size
            publishing.bytes += size
            return
        self._slow_publish_nowait(value, key, headers, delay, expires, priority, message_id)

    async def publish(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Position:
        """The same, and wait for the answer of the cluster."""
        writer = self._writer
        unit, publishing = writer.gathering, writer.publishing
        if (
            value.__class__ is bytes
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and unit.size < unit.cap
            and (size := len(value)) < SMALL
            and len(unit.values) < GATHER
            and publishing.bytes < publishing.max_pending
            and get_ident() == writer.thread
        ):
            waiter: asyncio.Future[Position] = writer.loop_owner.loop.create_future()  # type: ignore[union-attr]  # used
            unit.waiters.append((len(unit.values), waiter, 1))
            unit.values.append(value)
            size += OVERHEAD
            unit.size += size
            publishing.bytes += size
            return await waiter
        if value is not None and writer.loop_owner.is_here():  # saves a coroutine over the slow path
            return await writer.append(
                append_of(writer, value, key, headers, delay, expires, priority, message_id, expected_offset)
            )
        return await self._slow_publish(
            value,
            key=key,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            message_id=message_id,
            expected_offset=expected_offset,
        )
