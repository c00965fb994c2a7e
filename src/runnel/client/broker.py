"""`RemoteBroker`: what `runnel.open("runnel://…")` returns. It has every method of the local `Broker`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec

from runnel.api.bridge import Bridge
from runnel.api.delivery_base import DeliveryBase
from runnel.api.group import Group
from runnel.api.handlers import Handler, HandlerRunner, Middleware
from runnel.client import request
from runnel.client.address import parse_url
from runnel.client.connection import ConnectionState
from runnel.client.group import RemoteGroup
from runnel.client.options import ClientOptions
from runnel.client.positions import RemotePositions
from runnel.client.producer import RemoteProducer
from runnel.client.server_link import ServerLink
from runnel.client.stage import RemoteStage
from runnel.client.subscription import open_subscription
from runnel.client.topic import RemoteTopic, checked_options
from runnel.client.transaction import RemoteTransaction
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.markers import MarkerValue, check_marker_name
from runnel.core.options import (
    PublishKeywords,
    PublishOptions,
    SubscribeKeywords,
    SubscribeOptions,
    TopicOptions,
    not_negative,
    positive,
    spell_out,
)
from runnel.core.pattern import check_name, check_pattern
from runnel.core.position import Position
from runnel.core.record import Record
from runnel.core.schema import Codec
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import HandlerStatistics, Statistics
from runnel.runtime.clock import SystemClock

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from runnel.client.group import RemoteGroupSubscription
    from runnel.client.subscription import RemoteSubscription

    V = DefaultingTypeVar("V", default=bytes)  # without a type, values are bytes
else:
    V = TypeVar("V")

F = TypeVar("F", bound=Callable[..., Any])

HANDLES = 1024  # topics whose handles are kept

_NO_OPTIONS = TopicOptions()


class RemoteBroker(RemotePositions):
    """Topics and subscriptions of a server. Get one from `runnel.open("runnel://host:7788")`; use it with `async with`.

    All that a broker in this process can do, over a connection that is made again when it is lost: subscriptions
    go on where they were, and what was published and not answered is sent again and stored once.
    """

    def __init__(self, url: str, *, auto_create: bool = True, clock: Clock | None = None, **options: Any) -> None:
        if not auto_create:
            why = "whether topics are made on first use is the server's to say: give auto_create=False there"
            raise NotSupported("auto_create=False", why)
        addresses, written = parse_url(url)
        self.link = ServerLink(addresses, ClientOptions.of(options, written), clock or SystemClock())
        self.loop_owner, self._publishing = self.link.loop_owner, self.link.publishing
        self._topics: dict[str, RemoteTopic[bytes]] = {}
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._workers: HandlerRunner | None = None

    def __repr__(self) -> str:
        return f"<Broker at {self.link.address}, {self.loop_owner.state}, {self.link.state}>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> RemoteBroker:
        if not self.loop_owner.entered:
            await self.link.open()
        self.loop_owner.check_usable("entering it again")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.link.ended()

    def close(self) -> None:
        """End every subscription, after what was published; refuse everything else. Closing twice is harmless.

        What was published without waiting is still sent, for `close_timeout` seconds at most; leaving the block
        waits for that.
        """
        self.link.close()

    @property
    def connection(self) -> ConnectionState:
        """Whether it is connected, to whom, and what went wrong: see `ConnectionState`."""
        return self.link.connection

    async def info(self) -> dict[str, Any]:
        """What the server says of itself: version, uptime, listeners, journal, limits, connections."""
        return dict(await self.link.call("info", {}))

    @property
    def id(self) -> str:
        """What tells the server's broker from all others: of a folder, the same in every life of it."""
        return self.link.welcome.journal or ""

    @property
    def is_durable(self) -> bool:
        """Whether it keeps what is published, unless a topic is told otherwise."""
        return self.link.welcome.durable

    @property
    def clock(self) -> Clock:
        """The clock it keeps."""
        return self.link.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it runs on, once it was used on one."""
        return self.loop_owner.loop

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str, type: type[V] | None = None, **options: Any) -> RemoteTopic[V]:
        """A handle on topic `name`; nothing happens before it is used.

        With a `type` (anything msgspec can encode) values are validated and encoded; without one they are bytes.
        Options: see `TopicOptions`.
        """
        durable = self.link.welcome.durable or not self.link.connection.connections
        chosen = checked_options(TopicOptions.of(options), durable=durable)
        codec: Codec[V] | None = None if type is None else Codec(type, chosen.encoding or "json")
        return RemoteTopic(self.link, check_name(name), codec, chosen)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        names: list[str] = await self.link.call("topics", {})
        return names

    async def delete(self, name: str) -> None:
        """Delete a topic and its records. Subscribers of it get `TopicDeleted`, those of patterns a gap."""
        await self._plain(name).delete()

    def _plain(self, name: str) -> RemoteTopic[bytes]:
        """The handle on a topic without a type and options; kept, so that what many calls publish is gathered."""
        handle = self._topics.get(name)
        if handle is None:
            if len(self._topics) >= HANDLES:
                self._topics.clear()
            handle = self._topics[name] = RemoteTopic(self.link, check_name(name), None, _NO_OPTIONS)
        return handle

    # -- publishing ---------------------------------------------------------------------------------------------

    @spell_out(PublishKeywords, PublishOptions)
    async def publish(self, topic: str, value: bytes | str | None, **options: Unpack[PublishKeywords]) -> Position:
        """Publish one record; its position. With a folder behind the server, it is on disk when this returns.

        `delay` (seconds) and `priority` (0-9) act in groups; an expired record is skipped by everybody;
        a `message_id` seen in the last two minutes is not stored again: its first position comes back, after a
        restart too. With `expected_offset`, the record gets this offset or `OffsetConflict` is raised.
        """
        return await self._plain(topic).publish(value, **options)

    def transaction(self) -> RemoteTransaction:
        """Publishes, acks and marks that happen together or not at all, at the end of the block. See `Transaction`.

        >>> async with broker.transaction() as tx:
        ...     tx.publish("paid", order.id)
        ...     tx.ack(delivery)
        """
        return RemoteTransaction(self)

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark that a transaction left; None: there is none of that name."""
        value: MarkerValue | None = await self.link.call("mark", {"name": check_marker_name(name)})
        return value

    async def marks(self, prefix: str = "") -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        values: dict[str, MarkerValue] = await self.link.call("marks", {"prefix": prefix})
        return values

    def producer(self, name: str | None = None) -> RemoteProducer:
        """A publisher that numbers its records, so that what it sends again is stored once. See `Producer`.

        With a name it goes on, after a restart too, behind what was stored under that name; without one it is new.
        """
        return RemoteProducer(self, name)

    async def request(
        self,
        topic: str,
        value: bytes | str,
        *,
        timeout: float = 5.0,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Record[bytes]:
        """Publish, and wait for a reply: a record. `NoResponders` at once when nobody is subscribed."""
        return await request.request(self.link, topic, value, timeout, key, headers)

    async def reply(
        self, record: Record[Any] | DeliveryBase[Any], value: bytes | str, *, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Answer a request; False when whoever asked has stopped waiting."""
        if (elsewhere := request.topic_of_reply(record)) is not None:
            await self._plain(elsewhere).publish(value, headers=headers)
            return True
        return await request.reply(self.link, record, value, headers)

    def stage(
        self, topic: str | RemoteTopic[V], *, writer: str, batch: int, part: int = 0, attempt: int = 0
    ) -> RemoteStage[V]:
        """A handle on a stage: records that are durable and invisible until `tx.commit(stage)`. No I/O yet.

        The key says what is staged: a `part` of a `batch` of a `writer`, and which `attempt` at it; the first write of
        a later attempt drops the earlier ones. Give a typed `Topic` to have values encoded and validated.
        """
        handle: RemoteTopic[Any] = self.topic(topic) if isinstance(topic, str) else topic
        return RemoteStage(self, handle, StageKey(writer, batch, part, attempt))

    async def stages(self) -> list[StageInfo]:
        """The stages that are open, by their key."""
        return msgspec.convert(await self.link.call("stages", {}), list[StageInfo])

    def bridge(
        self, pattern: str, to: Any | str | Path, *, name: str | None = None, into: str = "{topic}", **options: Any
    ) -> Bridge:
        """Publish what is published here to another broker too, each record once. See `Bridge`.

        `to` is an open broker, or where one is (`runnel.open` takes it). `into` names the topics there, such as
        "eu.{topic}"; `name` tells two bridges of one pattern apart. It goes on where it was, whatever was cut off.
        Options as in `subscribe`: a source in memory keeps 65,536 records for it unless told otherwise.
        """
        return Bridge(self, pattern, to, name=name, into=into, **options)

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, pattern: str, *, group: str, type: type[V] | None = None, **options: Unpack[SubscribeKeywords]
    ) -> RemoteGroupSubscription[V]: ...
    @overload
    def subscribe(
        self, pattern: str, *, group: None = None, type: type[V] | None = None, **options: Unpack[SubscribeKeywords]
    ) -> RemoteSubscription[V]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self,
        pattern: str,
        *,
        group: str | None = None,
        type: type[V] | None = None,
        **options: Unpack[SubscribeKeywords],
    ) -> RemoteSubscription[V] | RemoteGroupSubscription[V]:
        """Read a topic, or every topic that a pattern covers, now and later. Use it with `async with`.

        All as with a broker in this process: see `Broker.subscribe`. After a lost connection it goes on behind what
        was read, without a gap and without anything twice; what a group's member held goes back to the group.
        """
        found: RemoteSubscription[V] | RemoteGroupSubscription[V]
        found = open_subscription(self.link, pattern, group=group, type=type, **options)
        return found

    async def forget(self, name: str) -> None:
        """Forget a named subscription: where it stands, and what it holds. `NameInUse` while it is open."""
        await self.link.call("forget", {"name": name}, again=False)

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and all that it settled. `GroupInUse` while it has some."""
        await self.link.call("forget_group", {"name": name, "pattern": pattern}, again=False)

    def group(self, name: str, pattern: str) -> Group:
        """A handle on a group that has had a member: `pause()`, `resume()`, `reset(start)`, `statistics()`."""
        return Group(RemoteGroup(self, name, pattern))

    async def replay(
        self,
        topic: str,
        *,
        limit: int | None = None,
        where: Callable[[Record[bytes]], bool] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> int:
        """Publish the dead letters of `topic` again to where they came from, each once; how many.

        With `offsets`, only those. `where` is for a broker in this process: a server cannot run your function.
        """
        if where is not None:
            raise NotSupported("replay(where=...)", "the server puts them back, and cannot run your function")
        args: dict[str, Any] = {
            "topic": check_name(topic),
            "limit": None if limit is None else positive("limit", limit),
        }
        if offsets is not None:  # a server of an earlier version does not know them
            args["offsets"] = list(offsets)
        count: int = await self.link.call("replay", args, again=False)
        return count

    async def discard(self, topic: str, offsets: Sequence[int] | None = None) -> int:
        """Be done with dead letters of `topic`, at `offsets` or all that are there: never put back; how many."""
        args = {"topic": check_name(topic), "offsets": None if offsets is None else list(offsets)}
        count: int = await self.link.call("discard", args, again=False)
        return count

    # -- handlers -----------------------------------------------------------------------------------------------

    def on(
        self,
        pattern: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        retries: int | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Have a function called with the records of a topic or pattern, while `broker.run()` runs.

        All as with a broker in this process: see `Broker.on`.
        """
        check_pattern(pattern)
        positive("concurrency", concurrency)
        if retries is not None:
            if group is None:
                raise InvalidOption("retries", retries, "only a group tries again; give the handler a group")
            options["max_deliver"] = positive("retries + 1", retries + 1)

        def register(function: F) -> F:
            handler = Handler(function, pattern, group, concurrency, options)
            open_subscription(self.link, pattern, group=group, type=handler.type, **options)  # wrong options: here
            self._handlers.append(handler)
            return function

        return register

    def use(self, middleware: Middleware) -> Middleware:
        """Wrap every handler in `async def layer(message, call_next): return await call_next()`.

        The first one is outermost.
        """
        self._middleware.append(middleware)
        return middleware

    async def run(self, *, deadline: float = 30.0, signals: bool = True) -> None:
        """Run the handlers until SIGTERM, SIGINT, `broker.stop()` or the end of the broker.

        Then nothing new is taken, and what is in hand has `deadline` seconds to finish.
        """
        self.link.check_usable("running handlers")
        if self._workers is not None:
            raise NotSupported("a second run()", "the handlers of this broker are running already")
        self._workers = HandlerRunner(self, self._handlers, self._middleware)
        try:
            await self._workers.run(not_negative("deadline", deadline), signals=signals)
        finally:
            self._workers = None

    def stop(self) -> None:
        """Have `run()` drain and return. Harmless when nothing runs."""
        if self._workers is not None:
            self._workers.stop()

    def handlers(self) -> tuple[HandlerStatistics, ...]:
        """What each handler did so far."""
        return tuple(handler.statistics() for handler in self._handlers)

    def statistics(self) -> Statistics:
        """What happened on the server so far and what it holds now, as a frozen snapshot. From any thread.

        The handlers are those of this client. The server is asked, and this thread waits for its answer.
        """
        found = self.link.ask("statistics", {})
        found["flowed"] = {(pattern, subscriber): flowed for pattern, subscriber, flowed in found["flowed"]}
        statistics = msgspec.convert(found, Statistics)
        return msgspec.structs.replace(statistics, handlers=self.handlers())
