"""A handle on one topic of a server: publish, subscribe, declare, trim, delete.

Making a handle does no I/O. Records published in one iteration of the event loop share a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from secrets import token_hex
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from runnel.client.outbox import OVERHEAD, OutgoingBatch, Route, batch_cost
from runnel.client.subscription import open_subscription
from runnel.core import publishing
from runnel.core.batch_format import BYTES, JSON, MSGPACK
from runnel.core.compression import compress
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.options import SubscribeKeywords, SubscribeOptions, TopicOptions, spell_out
from runnel.core.position import Position, Span
from runnel.core.publishing import CheckedRecords, Headers, Seconds, check_expected_offset
from runnel.core.schema import Codec, Schema
from runnel.wire.msgpack_messages import PublishDetails, encode_message

if TYPE_CHECKING:
    from runnel.client.group import RemoteGroupSubscription
    from runnel.client.server_link import ServerLink
    from runnel.client.subscription import RemoteSubscription

T = TypeVar("T")

SMALL = 64 * 1024  # values below are gathered without a closer look

_CONTENT = {"json": JSON, "msgpack": MSGPACK}
_NOWHERE = OutgoingBatch(Route("", b"", 0), [])  # takes nothing: whoever meets it goes the long way
_DURABLE_ONLY = ("durable", "compact", "compression")


class RemoteTopic(Generic[T]):
    """A topic of a broker. Made by `broker.topic(name, type)`; making it does nothing yet.

    Options apply at `declare()` or the first publish; options that contradict those of
    the topic raise `TopicConflict`.
    """

    __slots__ = (
        "_about",
        "_codec",
        "_has_tombstones",
        "_link",
        "_outbox",
        "_outgoing",
        "_publishing",
        "_route",
        "_thread",
        "name",
        "options",
    )

    def __init__(self, link: ServerLink, name: str, codec: Codec[T] | None, options: TopicOptions) -> None:
        self.name, self.options = name, options
        self._link, self._codec = link, codec
        self._publishing, self._outbox = link.publishing, link.publishing.outbox
        self._about: dict[str, Any] = {}  # what every publish says
        if given := options.given():
            self._about["options"] = given
        if codec is not None:
            self._about["schema"] = Schema(codec.encoding, codec.schema)
        said = encode_message(PublishDetails(**self._about)) if self._about else None
        content_type = BYTES if codec is None else _CONTENT[codec.encoding]
        self._route = Route.to(name, said, content_type, options.compression)
        self._outgoing = _NOWHERE  # what gathers now
        self._thread = 0
        self._has_tombstones = bool(options.compact)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}{f' of {self._codec.name}' if self._codec else ''}>"

    async def declare(self) -> None:
        """Make the topic now, or check that it is there with these options and this type."""
        args = {"topic": self.name, "options": self.options.given(), "schema": self._about.get("schema")}
        await self._link.call("declare", args)

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers are told."""
        await self._link.call("delete", {"topic": self.name}, again=False)

    async def trim(self, before: int | datetime, *, force: bool = False) -> int:
        """Take away the records before an offset, or older than a time, for good; the first offset that is left.

        Subscribers that had not read them are told a gap. `TopicHeld` if a subscription holds some of them: with
        `force` they are taken all the same.
        """
        args = {"topic": self.name, "before": trim_note(before), "force": force}
        first: int = await self._link.call("trim", args)
        return first

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
        """Publish without waiting; raises `Full` where `publish` would wait for room here. From any thread.

        It is handed over, and on its way to the server: `publish` waits until the server has it. What the server
        refuses is logged and counted: see `broker.connection`.
        """
        outgoing, outbox = self._outgoing, self._outbox
        if (
            value.__class__ is bytes
            and outgoing.size < outgoing.cap
            and outbox.bytes < outbox.limit
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and (size := len(value)) < SMALL
            and get_ident() == self._thread
        ):
            outgoing.values.append(value)
            size += OVERHEAD
            outgoing.size += size
            outbox.bytes += size
            return
        weighed = self._one(value, key, headers, delay, expires, priority, message_id)
        loop_owner = self._link.loop_owner
        if not loop_owner.is_here():
            loop_owner.post(lambda: self._put(weighed, message_id))
            return
        self._put(weighed, message_id)

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
        """Publish; the record's position. Where the topic is durable, the record is on disk when this returns.

        Waits for room where a subscriber's policy is `block`. Cancelled while it is on its way, the
        record may still be stored. With `expected_offset`, the record gets this offset or `OffsetConflict` is
        raised: somebody else published first.
        """
        outgoing, outbox, link = self._outgoing, self._outbox, self._link
        if (  # the same short way as in publish_nowait
            value.__class__ is bytes
            and outgoing.size < outgoing.cap
            and outbox.bytes < outbox.limit
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and (size := len(value)) < SMALL
            and get_ident() == self._thread
            and not (link.blockers and self._reads())  # many have members of groups; few publish where they read
        ):
            index = len(outgoing.values)
            outgoing.values.append(value)
            size += OVERHEAD
            outgoing.size += size
            outbox.bytes += size
            return await self._publishing.answer(outgoing, index)
        if not link.loop_owner.is_here():
            return await link.loop_owner.visit(
                self.publish(
                    value,
                    key=key,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                    message_id=message_id,
                    expected_offset=expected_offset,
                )
            )
        link.check_usable("publishing")
        if value is None and key is not None and not self._has_tombstones:
            await self._ask_for_tombstones()
        weighed = self._one(value, key, headers, delay, expires, priority, message_id)
        check_expected_offset(expected_offset)
        values, metas, _, _ = weighed
        await self._publishing.room(self.name, batch_cost(values, metas))
        reads = self._reads()
        if message_id is None and expected_offset is None and not reads:
            outgoing, index = self._gathered(weighed)
            return await self._publishing.answer(outgoing, index)
        about = self._said(message_id=message_id, expected_offset=expected_offset, reads=reads)
        return await self._publishing.answer(self._publishing.add(self._route, values, metas, about))

    async def publish_many(
        self,
        values: Sequence[T | bytes | str],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        expected_offset: int | None = None,
    ) -> Span:
        """Publish many at once: all or nothing, side by side; the first and the last position.

        `keys` gives a key (or None) for each value; the other options hold for all. With
        `expected_offset`, the first of them gets this offset or `OffsetConflict` is raised.
        """
        link = self._link
        if not link.loop_owner.is_here():
            return await link.loop_owner.visit(
                self.publish_many(
                    values,
                    keys=keys,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                    expected_offset=expected_offset,
                )
            )
        link.check_usable("publishing")
        data, metas, _, _ = publishing.checked_records(
            self.name, self._codec, values, keys, self._traced(headers), delay, expires, priority, self._now()
        )
        data = list(data)  # the caller may go on changing its own
        check_expected_offset(expected_offset)
        await self._publishing.room(self.name, batch_cost(data, metas))
        reads = self._reads()
        about = None
        if expected_offset is not None or reads:
            about = self._said(expected_offset=expected_offset, reads=reads)
        first = await self._publishing.answer(self._publishing.add(self._route, data, metas, about))
        return Span(first, Position(first.epoch, first.offset + len(data) - 1))

    async def publish_and_wait(
        self,
        value: T | bytes | str,
        *,
        timeout: float | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Publish, and wait until every current subscriber has asked for what comes next. For tests.

        After `timeout` seconds `Stalled` names the subscribers that have not.
        """
        link = self._link
        if not link.loop_owner.is_here():
            return await link.loop_owner.visit(self.publish_and_wait(value, timeout=timeout, key=key, headers=headers))
        link.check_usable("publishing")
        values, metas, _, _ = self._one(value, key, headers, None, None, 0, None)
        await self._publishing.room(self.name, batch_cost(values, metas))
        # Told apart by an id of its own and not by a number: its answer may take long, and others wait for none.
        about = self._said(wait=True, timeout=timeout, reads=self._reads(), message_id=token_hex(16))
        usual = link.options.timeout
        patience = None if timeout is None or usual is None else timeout + usual
        return await self._publishing.answer(self._publishing.add(self._route, values, metas, about, patience))

    def _one(
        self,
        value: object,
        key: object,
        headers: Mapping[str, str] | None,
        delay: Seconds | None,
        expires: Seconds | None,
        priority: int,
        message_id: str | None,
    ) -> CheckedRecords:
        """One record, if it may be published."""
        return publishing.checked_record(
            self.name,
            self._codec,
            value,
            key,
            self._traced(headers),
            delay,
            expires,
            priority,
            message_id,
            self._now(),
            tombstones=self._has_tombstones,
        )

    async def _ask_for_tombstones(self) -> None:
        """Whether a key without a value means something: that is the topic's, whatever this handle was told."""
        found = await self._link.call("describe", {"topic": self.name})
        self._has_tombstones = bool(found and found["options"].get("compact"))

    def _put(self, weighed: CheckedRecords, message_id: str | None) -> None:
        """Publish what was checked, if there is room for it."""
        self._link.check_usable("publishing")
        values, metas, _, _ = weighed
        self._publishing.check_room(self.name, batch_cost(values, metas))
        if message_id is None:
            self._gathered(weighed)
        else:
            self._publishing.add(self._route, values, metas, self._said(message_id=message_id))

    def _gathered(self, weighed: CheckedRecords) -> tuple[OutgoingBatch, int]:
        """Put one record, for which there is room, into what gathers. Remembers that for the short way, if it may."""
        values, metas, _, _ = weighed
        outgoing, index = self._publishing.gather(self._route, values[0], None if metas is None else metas[0])
        if self._codec is None and not self._publishing.tracing.is_active:
            self._outgoing, self._thread = outgoing, get_ident()
        else:
            self._outgoing = _NOWHERE  # every record may be part of another span, or has to be looked at
        return outgoing, index

    def _said(self, **more: Any) -> PublishDetails:
        return PublishDetails(**self._about, **more)

    def _reads(self) -> list[int]:
        """The subscriptions that this very task reads and a publish may wait for: that would be for ever."""
        blockers = self._link.blockers
        if not blockers:
            return []
        task = asyncio.current_task()
        return [handler.id for handler in blockers if handler.task is task and handler.id]

    def _traced(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        tracing = self._publishing.tracing
        return tracing.traced(headers) if tracing.is_active else headers

    def _traced_all(self, headers: Headers | None) -> Headers | None:
        tracing = self._publishing.tracing
        return tracing.traced_all(headers) if tracing.is_active else headers

    def _now(self) -> float:
        """The server's time: what is delayed or expires does so by its clock."""
        return self._link.clock.time() + self._link.skew()

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(self, *, group: str, **options: Unpack[SubscribeKeywords]) -> RemoteGroupSubscription[T]: ...
    @overload
    def subscribe(self, *, group: None = None, **options: Unpack[SubscribeKeywords]) -> RemoteSubscription[T]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self, *, group: str | None = None, **options: Unpack[SubscribeKeywords]
    ) -> RemoteSubscription[T] | RemoteGroupSubscription[T]:
        """Read this topic, with values of its type. Options as in `broker.subscribe`."""
        found: RemoteSubscription[T] | RemoteGroupSubscription[T] = open_subscription(
            self._link, self.name, group=group, codec=self._codec, **options
        )
        return found


def trim_note(before: int | datetime) -> Any:
    """Up to where to trim, as it travels."""
    if isinstance(before, datetime):
        if before.tzinfo is None:
            raise InvalidOption("before", before, "give the time a zone, such as datetime.now(UTC)")
        return {"time": before.isoformat()}
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise InvalidOption("before", before, "expected an offset, 0 or more, or a datetime")
    return before


def checked_options(options: TopicOptions, *, durable: bool) -> TopicOptions:
    """`options`, when a topic of the server can have them."""
    for option in () if durable else _DURABLE_ONLY:
        if value := getattr(options, option):
            raise NotSupported(f"{option}={value!r}", "the server keeps its topics in memory only")
    if options.compression:
        compress(options.compression, b"")  # raises now, and not when the first record is sent
    for option in ("compression", "compact") if options.durable is False else ():
        if getattr(options, option):
            raise NotSupported(option, "a topic with durable=False is kept in memory, as it is")
    return options
