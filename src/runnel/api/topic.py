"""The `Topic` handle: publish to, subscribe to, trim and delete one topic. Making a handle does no I/O.

The general path of a publish is here, over the `Writer` of a backend. Small plain records take a shorter one: each
backend has a class with a fast path for `publish` and `publish_nowait`, and a handle is an instance of a class derived
from that and `Topic`. So a publish is one method call. A bound method stored on the handle would cost a tenth more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from runnel.api.group_subscription import GroupSubscription, open_subscription
from runnel.api.request import opened_replies, opened_reply
from runnel.api.subscription import Subscription
from runnel.core.backend import OutgoingRequest
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.options import (
    NO_TOPIC_OPTIONS,
    PublishManyKeywords,
    PublishOptions,
    Seconds,
    SubscribeKeywords,
    SubscribeOptions,
    TopicOptions,
    above_zero,
    spell_out,
)
from runnel.core.pattern import check_name
from runnel.core.position import Position, Span
from runnel.core.publishing import append_of, append_of_many
from runnel.core.record import Record
from runnel.core.replies import Replies, checked_gathering
from runnel.core.schema import Codec

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from runnel.core.backend import Backend, Writer

    V = DefaultingTypeVar("V", default=bytes)  # without a type, the value of a reply is bytes
else:
    V = TypeVar("V")

T = TypeVar("T")

MAX_POSTED_VALUE = 16 * 1024  # bytes of a value of another thread that is appended together with others


class Topic(Generic[T]):
    """A topic of a broker, from `broker.topic(name, type)`. Creating the handle does no I/O.

    Options apply at `declare()` or the first publish; options that contradict those of
    the topic raise `TopicConflict`.
    """

    __slots__ = ("_backend", "_writer", "name", "options")

    def __new__(cls, backend: Backend, name: str, codec: Codec[T] | None, options: TopicOptions) -> Topic[T]:
        """A handle with the fast path of its backend."""
        made: type[Any] = _classes.get(backend.fast_path) or _with_fast_path(backend.fast_path)
        return object.__new__(made)

    def __init__(self, backend: Backend, name: str, codec: Codec[T] | None, options: TopicOptions) -> None:
        self.name, self.options = name, options
        self._backend = backend
        self._writer: Writer = backend.writer(name, codec, options)

    def _bind(self, backend: Backend) -> None:
        """Publish to another backend: opening a folder may find that another process owns it."""
        writer = backend.writer(self.name, self._writer.codec, self.options)
        self.__class__ = _classes.get(backend.fast_path) or _with_fast_path(backend.fast_path)
        self._backend, self._writer = backend, writer

    def __copy__(self) -> Topic[T]:
        return Topic(self._backend, self.name, self._writer.codec, self.options)

    def __reduce__(self) -> Any:
        raise NotSupported("pickling a topic", "it belongs to a broker of this process; send its name instead")

    def __repr__(self) -> str:
        codec = self._writer.codec
        return f"<Topic {self.name!r}{f' of {codec.name}' if codec else ''}>"

    async def declare(self) -> None:
        """Create the topic now, or check that it exists with these options and this type."""
        await self._writer.declare()

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers get `TopicDeleted`."""
        await self._writer.delete()

    async def configure(self, **options: Any) -> dict[str, Any]:
        """Change options of a topic that exists, and return all that it has now; None takes one back to its default.

        They apply from now on: what retention no longer keeps goes, and what it removed does not come back. Options
        that were changed so win over those that publishers name, which get no `TopicConflict` then. `dead_letter`,
        `max_deliver` and `backoff` are for groups made later. `durable` and `encoding` cannot change.
        """
        TopicOptions.of(options)  # an unknown name is refused here, whatever the backend is
        return await self._backend.configure(self.name, options)

    async def trim(self, before: int | datetime, *, force: bool = False) -> int:
        """Remove the records before an offset, or older than a time; return the first offset that is left.

        Subscribers that had not read them get a gap. `TopicHeld` if a subscription holds some of them; with `force`
        they are removed all the same.
        """
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise InvalidOption("before", before, "give the time a zone, such as datetime.now(UTC)")
        elif isinstance(before, bool) or not isinstance(before, int) or before < 0:
            raise InvalidOption("before", before, "expected an offset, 0 or more, or a datetime")
        return await self._writer.trim(before, force=force)

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish_nowait(
        self,
        value: T | bytes | str | None,
        # Not keyword-only: Python fills in keyword-only defaults from a dict, which costs a quarter of this call.
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
    ) -> None:
        """Publish without waiting; raises `Full` where `publish` would wait. From any thread.

        When it returns, the record is not yet on disk or on the server: `publish` waits for that. If a server refuses
        the record, that is logged and counted in `broker.connection.failed`. A record from another thread is appended
        in the next iteration of the event loop.
        """
        writer = self._writer
        is_here = writer.loop_owner.is_here()
        if (
            not is_here
            and value.__class__ is bytes
            and len(value) <= MAX_POSTED_VALUE
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and writer.codec is None
            and not writer.tracing.is_active
        ):
            writer.loop_owner.post_value(writer, value)
            return
        append = append_of(writer, value, key, headers, delay, expires, priority, message_id)
        if is_here:
            writer.append_nowait(append)
        else:
            writer.loop_owner.post(lambda: writer.take_over(append))

    async def publish(
        self,
        value: T | bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Position:
        """Publish a record, and return its position. If the topic is durable, the record is on disk when this returns.

        Waits for room if a subscriber's policy is `block`. If it is cancelled while waiting for the disk or the server,
        the record may still be stored. With `expected_offset`, the record gets this offset or `OffsetConflict` is
        raised: another publish came first.
        """
        writer = self._writer
        if not writer.loop_owner.is_here():
            again = self.publish(
                value,
                key=key,
                headers=headers,
                delay=delay,
                expires=expires,
                priority=priority,
                message_id=message_id,
                expected_offset=expected_offset,
            )
            found: Position = await writer.loop_owner.visit(again)
            return found
        if value is None and key is not None and not writer.has_tombstones():
            await writer.learn_tombstones()
        return await writer.append(
            append_of(writer, value, key, headers, delay, expires, priority, message_id, expected_offset)
        )

    _slow_publish_nowait, _slow_publish = publish_nowait, publish  # for the fast paths, which override both

    @spell_out(PublishManyKeywords, PublishOptions)
    async def publish_many(self, values: Sequence[T | bytes | str], **options: Unpack[PublishManyKeywords]) -> Span:
        """Publish many records, all or none, with consecutive offsets; return the first and the last position.

        `keys` gives a key (or None) for each value; `headers` are those of all records, or a list; other options hold
        for all. With
        `expected_offset`, the first of them gets this offset or `OffsetConflict` is raised.
        """
        writer = self._writer
        if not writer.loop_owner.is_here():
            found: Span = await writer.loop_owner.visit(self.publish_many(values, **options))
            return found
        append = append_of_many(writer, values, **options)
        count = len(append.values)  # the caller may change its list later
        first = await writer.append(append)
        return Span(first, Position(first.epoch, first.offset + count - 1))

    async def publish_and_wait(
        self,
        value: T | bytes | str,
        *,
        timeout: float | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Publish, and wait until every current subscriber has processed the record. For tests.

        After `timeout` seconds `Stalled` names the subscribers that have not.
        """
        if timeout is not None:
            above_zero("timeout", timeout)
        writer = self._writer
        if not writer.loop_owner.is_here():
            again = self.publish_and_wait(value, timeout=timeout, key=key, headers=headers)
            found: Position = await writer.loop_owner.visit(again)
            return found
        return await writer.append_and_wait(append_of(writer, value, key, headers), timeout)

    async def request(
        self,
        value: T | bytes | str,
        *,
        type: type[V] | None = None,
        timeout: float = 5.0,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Record[V]:
        """Publish a request of the type of this topic, and return the reply. See `Broker.request`."""
        codec = self._writer.codec
        data: Any = value if codec is None else codec.encode(self.name, value)
        seconds = above_zero("timeout", timeout)
        found = await self._backend.request(OutgoingRequest(self.name, data, seconds, key, headers))
        return opened_reply(self.name, found, type)

    async def request_many(
        self,
        value: T | bytes | str,
        *,
        type: type[V] | None = None,
        timeout: float = 1.0,
        limit: int | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Replies[V]:
        """Publish a request of the type of this topic, and gather the replies. See `Broker.request_many`."""
        codec = self._writer.codec
        data: Any = value if codec is None else codec.encode(self.name, value)
        seconds, most = checked_gathering(timeout, limit)
        found = await self._backend.request_many(OutgoingRequest(self.name, data, seconds, key, headers), most)
        return opened_replies(self.name, found, type)

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(self, *, group: str, **options: Unpack[SubscribeKeywords]) -> GroupSubscription[T]: ...
    @overload
    def subscribe(self, *, group: None = None, **options: Unpack[SubscribeKeywords]) -> Subscription[T]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self, *, group: str | None = None, **options: Unpack[SubscribeKeywords]
    ) -> Subscription[T] | GroupSubscription[T]:
        """Read this topic, with values of its type. Options as in `broker.subscribe`."""
        found: Subscription[T] | GroupSubscription[T] = open_subscription(
            self._backend, self.name, group=group, codec=self._writer.codec, **options
        )
        return found


_classes: dict[type, type[Topic[Any]]] = {}


def _with_fast_path(fast_path: type) -> type[Topic[Any]]:
    """The class of the handles on topics of one kind of backend."""
    for name in ("publish", "publish_nowait"):
        vars(fast_path)[name].__doc__ = getattr(Topic, name).__doc__
    namespace = {"__slots__": (), "__module__": __name__, "__doc__": Topic.__doc__}
    made = _classes[fast_path] = type("Topic", (fast_path, Topic), namespace)
    return made


# -- Handles by name -------------------------------------------------------------------------------------

HANDLES = 1024  # topics whose handles are kept


class TopicHandles(dict[str, Topic[Any]]):
    """Plain handles on topics, by name. They are kept, so that publishes take the fast path."""

    __slots__ = ("_backend",)

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __missing__(self, name: str) -> Topic[Any]:
        if len(self) >= HANDLES:
            self.clear()
        handle = self[name] = Topic(self._backend, check_name(name), None, NO_TOPIC_OPTIONS)
        return handle
