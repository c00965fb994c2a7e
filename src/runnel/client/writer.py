"""Publish to one topic of a server: the fast path of a handle, and the writer behind it.

Records published in one iteration of the event loop share a batch. The fast path puts a record into the batch that is
being filled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from secrets import token_hex
from threading import get_ident
from typing import TYPE_CHECKING, Any

from runnel.client.outbox import OVERHEAD, OutgoingBatch, Route, batch_cost
from runnel.core.batch_format import BYTES, JSON, MSGPACK, pack
from runnel.core.compression import compress
from runnel.core.errors import NotSupported
from runnel.core.options import NO_TOPIC_OPTIONS, Seconds, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, PublishDetails, append_of, checked_record
from runnel.core.schema import Codec, Schema
from runnel.wire.msgpack_messages import encode_message

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

SMALL = 64 * 1024  # smaller values are added to the batch without further checks

_CONTENT = {"json": JSON, "msgpack": MSGPACK}
_NOWHERE = OutgoingBatch(Route("", b"", 0), [])  # full, so that the slow path is taken
_DURABLE_ONLY = ("durable", "compact", "compression", "retention_until")


class RemoteWriter:
    """The `Writer` of one topic. It keeps the batch that is being filled at hand for the fast path."""

    __slots__ = (
        "_described",
        "_has_tombstones",
        "_publishing",
        "_route",
        "codec",
        "filling",
        "link",
        "loop_owner",
        "options",
        "outbox",
        "outgoing",
        "thread",
        "topic",
        "tracing",
    )

    def __init__(self, link: ServerLink, topic: str, codec: Any, options: TopicOptions) -> None:
        self.topic, self.options = topic, options
        self.codec: Codec[Any] | None = codec  # or, if values were encoded by a client, only their `Schema`
        self.link, self.loop_owner = link, link.loop_owner
        self._publishing, self.outbox = link.publishing, link.publishing.outbox
        self.tracing = link.publishing.tracing
        self._described: dict[str, Any] = {}  # options and type, sent with every publish
        if options is not NO_TOPIC_OPTIONS and (given := options.given()):
            self._described["options"] = given
        if codec is not None:
            self._described["schema"] = Schema(codec.encoding, codec.schema)
        said = encode_message(PublishDetails(**self._described)) if self._described else None
        content_type = BYTES if codec is None else _CONTENT[codec.encoding]
        self._route = Route.to(topic, said, content_type, options.compression)
        self.filling = _NOWHERE  # the batch that is being filled
        self.outgoing = _NOWHERE  # the same, if the topic's values are plain bytes
        self.thread = 0
        self._has_tombstones = bool(options.compact)

    def __repr__(self) -> str:
        return f"<RemoteWriter of {self.topic!r}>"

    def now(self) -> float:
        """The server's time."""
        return self.link.server_time()

    def has_tombstones(self) -> bool:
        """Whether the topic is known to be compacted."""
        return self._has_tombstones

    async def learn_tombstones(self) -> None:
        """Ask the server: the option of the topic counts, not that of this handle."""
        self.link.check_usable("publishing")
        found = await self.link.call("describe", {"topic": self.topic})
        self._has_tombstones = bool(found and found["options"].get("compact"))

    # -- appending ----------------------------------------------------------------------------------------------

    def append_nowait(self, append: Append) -> None:
        """Send it, if there is room in the outbox, or raise `Full`."""
        self.link.check_usable("publishing")
        self._publishing.check_room(self.topic, batch_cost(append.values, append.columns))
        if append.message_id is None:
            self._gather(append)
        else:
            self._publishing.add(self._route, append.values, append.columns, self.details(append))

    take_over = append_nowait  # only the outbox can be full

    def appends(self, values: list[bytes]) -> Iterable[Append]:
        """The appends for plain values of another thread: one by one. The outbox collects them."""
        return (Append((value,), None, len(value)) for value in values)

    def append(self, append: Append) -> Coroutine[Any, Any, Position]:
        """Send it, and wait for the answer: then it is stored."""
        # Not a coroutine itself: thousands may wait, and the garbage collector visits every frame.
        self.link.check_usable("publishing")
        if len(append.values) > 1:
            append.values = list(append.values)  # the caller may change its list later
        size = batch_cost(append.values, append.columns)
        return self._send(append) if self._publishing.has_room(size) else self._send_later(append, size)

    async def _send_later(self, append: Append, size: int) -> Position:
        await self._publishing.room(self.topic, size)
        return await self._send(append)

    def _send(self, append: Append) -> Coroutine[Any, Any, Position]:
        """Send an append for which there is room; returns a coroutine for the answer."""
        publishing, reads = self._publishing, self.reads() if self.link.blockers else []
        if append.message_id is not None or append.expected_offset is not None or reads:
            details: PublishDetails | None = self.details(append, reads=reads)
        elif len(append.values) == 1:
            return publishing.answer(*self._gather(append))
        else:
            details = None
        return publishing.answer(publishing.add(self._route, append.values, append.columns, details))

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """Send it; the server answers when every current subscriber has processed it."""
        self.link.check_usable("publishing")
        await self._publishing.room(self.topic, batch_cost(append.values, append.columns))
        # Deduplicated by an id instead of a number: its answer may take long, and later numbers must not wait for it.
        append.message_id = token_hex(16)
        details = self.details(append, wait=True, timeout=timeout, reads=self.reads())
        usual = self.link.options.timeout
        patience = None if timeout is None or usual is None else timeout + usual
        outgoing = self._publishing.add(self._route, append.values, append.columns, details, patience)
        return await self._publishing.answer(outgoing)

    def _gather(self, append: Append) -> tuple[OutgoingBatch, int]:
        """Put one record, for which there is room, into the batch that is being filled.

        Remembers that batch for the fast path, if that may be taken.
        """
        outgoing, index = self._publishing.gather(self._route, append.values[0], append.columns)
        is_known = not self.tracing.is_active  # else every record may belong to another span
        self.filling, self.thread = outgoing if is_known else _NOWHERE, get_ident()
        self.outgoing = self.filling if self.codec is None else _NOWHERE
        return outgoing, index

    def put(self, value: Any, key: Any, headers: Any, delay: Any, expires: Any, priority: int) -> int:
        """Put a small record with a key or options, or of the topic's type, into the batch that is being filled.

        Returns its index there; -1: take the slow path.
        """
        outgoing, outbox, codec = self.filling, self.outbox, self.codec
        if (
            outgoing.size >= outgoing.cap
            or outbox.bytes >= outbox.limit
            or value is None
            or get_ident() != self.thread
            or not (codec is None or isinstance(codec, Codec))
        ):
            return -1
        now = 0.0 if delay is None and expires is None else self.now()
        values, columns, size, extra = checked_record(
            self.topic, codec, value, key, headers, delay, expires, priority, None, now
        )
        size += extra
        if size >= SMALL:
            return -1
        size += OVERHEAD
        outbox.bytes += size
        return outgoing.add(values[0], columns, size)

    def begin(self, value: bytes) -> OutgoingBatch | None:
        """Begin a batch with a plain record, on the thread of the fast path. None: there is something to check first.

        It does what `append` and `append_nowait` do, for the publish that finds no batch being filled.
        """
        link, owner, publishing, size = self.link, self.loop_owner, self._publishing, len(value) + OVERHEAD
        if (
            self.codec is not None
            or owner.closed
            or owner.forked
            or owner.loop is not asyncio._get_running_loop()
            or link.connection.state == "closed"
            or self.tracing.is_active
            or not publishing.has_room(size)
        ):
            return None
        outgoing, is_new = self.outbox.gathering(self._route, size)
        if not is_new:
            return None  # another handle on the topic fills it
        outgoing.values.append(value)
        outgoing.size = size
        self.outbox.bytes += size
        link.soon()
        if self.outbox.is_full:
            link.at_once()
        self.filling = self.outgoing = outgoing
        return outgoing

    def reads(self) -> list[int]:
        """The blocking subscriptions that this task reads itself: a publish that waited for one would never end."""
        task = asyncio.current_task()
        return [handler.id for handler in self.link.blockers if handler.task is task and handler.id]

    # -- sent publishes -----------------------------------------------------------------------------------------

    def details(self, append: Append, **more: Any) -> PublishDetails:
        """The details that are sent with the records of an append."""
        return PublishDetails(
            **self._described, message_id=append.message_id, expected_offset=append.expected_offset, **more
        )

    def pack(self, append: Append, producer: int = 0, sequence: int = 0) -> bytes:
        """The records of an append as a batch."""
        if append.packed is not None:
            return append.packed
        return pack(
            append.values,
            append.columns,
            compression=self.options.compression,
            content_type=self._route.content_type,
            producer=producer,
            producer_sequence=sequence,
        )

    # -- the topic itself ---------------------------------------------------------------------------------------

    async def declare(self) -> None:
        """Create the topic, or check that it exists with these options and this type."""
        args = {"topic": self.topic, "options": self.options.given(), "schema": self._described.get("schema")}
        await self.link.call("declare", args)

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers get `TopicDeleted`."""
        await self.link.call("delete", {"topic": self.topic}, again=False)

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """Remove the records before an offset, or older than a time; return the first offset that is left."""
        note = {"time": before.isoformat()} if isinstance(before, datetime) else before
        first: int = await self.link.call("trim", {"topic": self.topic, "before": note, "force": force})
        return first


class RemoteFastPath:
    """`publish` and `publish_nowait` of a handle on a topic of a server. See `api.topic`."""

    __slots__ = ()

    _writer: RemoteWriter
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
        """Add it to the batch that is being filled; everything else takes the slow path."""
        writer = self._writer
        outgoing, outbox = writer.outgoing, writer.outbox
        if (
            value.__class__ is bytes
            and outbox.bytes < outbox.limit
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and (size := len(value)) < SMALL
            and get_ident() == writer.thread
        ):
            if outgoing.size < outgoing.cap:
                outgoing.values.append(value)
                size += OVERHEAD
                outgoing.size += size
                outbox.bytes += size
                return
            if writer.begin(value) is not None:
                return
        elif message_id is None and writer.put(value, key, headers, delay, expires, priority) >= 0:
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
        """The same, and wait for the answer of the server."""
        writer = self._writer
        outgoing, outbox, link = writer.outgoing, writer.outbox, writer.link
        if (
            value.__class__ is bytes
            and outbox.bytes < outbox.limit
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and (size := len(value)) < SMALL
            and get_ident() == writer.thread
            and not (link.blockers and writer.reads())  # few tasks publish where they read with `block`
        ):
            found: OutgoingBatch | None = outgoing
            index = 0
            if outgoing.size < outgoing.cap:
                index = len(outgoing.values)
                outgoing.values.append(value)
                size += OVERHEAD
                outgoing.size += size
                outbox.bytes += size
            else:
                found = writer.begin(value)
            if found is not None:  # as `ClientPublisher.answer` does it, without another coroutine
                publishing = link.publishing
                waiter = publishing.waiter(found, index)
                try:
                    return await waiter
                except asyncio.CancelledError:
                    publishing.give_up(found, waiter)
                    raise
        elif (
            message_id is None
            and expected_offset is None
            and not (link.blockers and writer.reads())
            and (index := writer.put(value, key, headers, delay, expires, priority)) >= 0
        ):
            return await link.publishing.answer(writer.filling, index)
        if value is not None and writer.loop_owner.is_here():  # a key or option: saves a coroutine over the slow path
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


def checked_options(options: TopicOptions, *, durable: bool) -> TopicOptions:
    """`options`, if the server supports them for a topic."""
    if options is NO_TOPIC_OPTIONS:
        return options
    for option in () if durable else _DURABLE_ONLY:
        if value := getattr(options, option):
            raise NotSupported(f"{option}={value!r}", "the server keeps its topics in memory only")
    if options.compression:
        compress(options.compression, b"")  # raises now, and not when the first record is sent
    for option in _DURABLE_ONLY[1:] if options.durable is False else ():
        if getattr(options, option):
            raise NotSupported(option, "a topic with durable=False is kept in memory, as it is")
    return options
