"""`Broker`: what `runnel.open` returns, over a `Backend` in this process or on a server.

It checks what it is given, makes handles, and leaves the work to the backend.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec

from runnel.api.bridge import Bridge
from runnel.api.delivery import Delivery
from runnel.api.group import Group
from runnel.api.group_subscription import GroupSubscription, open_subscription
from runnel.api.handlers import Handler, HandlerRunner, Middleware
from runnel.api.presence import Presence, PresenceWatches
from runnel.api.producer import Producer
from runnel.api.request import opened_replies, opened_reply, reply_value
from runnel.api.schedules import GROUP, Schedule
from runnel.api.stage import MixedStage, Stage
from runnel.api.subscription import Subscription
from runnel.api.table import MAX_BYTES, Table
from runnel.api.topic import Topic, TopicHandles
from runnel.api.transaction import Transaction
from runnel.core.backend import Backend, OutgoingRequest
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, InvalidOption, NotSupported
from runnel.core.group_options import GroupOptions
from runnel.core.markers import check_marker_name
from runnel.core.options import (
    PublishKeywords,
    PublishManyKeywords,
    PublishOptions,
    SubscribeKeywords,
    SubscribeOptions,
    TopicOptions,
    above_zero,
    not_negative,
    options_of,
    positive,
    spell_out,
    unknown_option,
)
from runnel.core.pattern import check_name, check_pattern
from runnel.core.position import Position, Span, check_start, checked_confirmations, checked_positions
from runnel.core.record import Record
from runnel.core.replies import Replies, checked_gathering
from runnel.core.schema import Codec, codec_of
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import HandlerStatistics, Statistics, summed_handlers
from runnel.core.timing import Cron, Interval, Timing, time_zone
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.runtime.connection_state import ConnectionState
from runnel.runtime.waiting import resolve_waiter

HANDLER_OPTIONS = ("group", "concurrency", "retries", "rate", "time_limit", "publish", "middleware")

TABLES = 16  # handles on tables that are kept

F = TypeVar("F", bound=Callable[..., Any])
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from runnel.core.markers import MarkerValue

    V = DefaultingTypeVar("V", default=bytes)  # without a type, values are bytes
else:
    V = TypeVar("V")


class Broker:
    """Topics and subscriptions. Get one from `runnel.open()`; close it by leaving the block.

    >>> async with runnel.open() as broker:
    ...     async with broker.subscribe("greetings") as greetings:
    ...         await broker.publish("greetings", "hello")
    ...         async for record in greetings:
    ...             print(record.value)
    ...             break
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._topics = TopicHandles(backend)
        self._early: list[Topic[Any]] = []  # handles created before opening, which may choose another backend
        self._tables: dict[tuple[str, Any, TopicOptions, int], Table[Any]] = {}  # those used last, with their views
        self._watches = PresenceWatches(lambda: self._backend)
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._schedules: list[Schedule] = []
        self._workers: HandlerRunner | None = None
        self._client = os.urandom(8).hex()  # names this object in the reports of its handlers to a server
        self._awaiting_run: list[asyncio.Future[HandlerRunner]] = []  # calls of `ready` before `run`

    def __repr__(self) -> str:
        return f"<Broker {self._backend.summary}>"

    @property
    def backend(self) -> Any:
        """The `Backend` where its topics live: see `runnel.core.backend`."""
        return self._backend

    # -- opening and closing ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Broker:
        backend = await self._backend.open()
        early, self._early = self._early, []
        if backend is not self._backend:
            self._backend, self._topics = backend, TopicHandles(backend)
            for handle in early:
                handle._bind(backend)
        backend.check_usable("entering it again")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_waiting()
        await self._backend.aclose()

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise NotSupported("with", "write `async with runnel.open(...)`, or use runnel.blocking.open")

        def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """End every subscription after the published records, and refuse all other calls. Closing twice is harmless.

        With a server, records of `publish_nowait` are still sent, for `close_timeout` seconds at most; leaving the
        block waits for that.
        """
        self._end_waiting()
        self._backend.close()

    def _end_waiting(self) -> None:
        """Calls of `ready` end with the broker, if `run` was never called."""
        waiting, self._awaiting_run = self._awaiting_run, []
        for waiter in waiting:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.get_loop().call_soon_threadsafe(resolve_waiter, waiter, BrokerClosed("waiting for its handlers"))

    @property
    def connection(self) -> ConnectionState:
        """The state of the connection to its server, with the address and the last error: see `ConnectionState`.

        Raises `NotSupported` if the broker is in this process.
        """
        found: ConnectionState = self._backend.connection
        return found

    async def info(self) -> dict[str, Any]:
        """Version, journal and fsync of the broker; of a server also its uptime, listeners and limits."""
        return await self._backend.info()

    async def sync(self) -> None:
        """Return when everything that was published and settled before is synced to disk.

        With `fsync="commit"`, the default, a publish that has returned is on disk without it. With "interval" and
        "os" call it before something elsewhere depends on the records. Of a broker in memory it returns at once.
        """
        self._backend.check_usable("syncing")
        await self._backend.synced()

    @property
    def id(self) -> str:
        """Identifies the broker. Of a folder it stays the same; in memory it is new for every broker."""
        return self._backend.id

    @property
    def is_durable(self) -> bool:
        """Whether its topics are durable unless they are declared otherwise."""
        return self._backend.is_durable

    @property
    def clock(self) -> Clock:
        """The clock that it uses."""
        return self._backend.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it belongs to, once it was used on one."""
        loop: asyncio.AbstractEventLoop | None = self._backend.loop_owner.loop
        return loop

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str, type: type[V] | None = None, **options: Any) -> Topic[V]:
        """A handle on topic `name`; nothing happens before it is used.

        With a `type`, values are validated when they are published, and subscribers get them back as that type: a
        msgspec.Struct, a dataclass, a TypedDict, a Pydantic model, `int`, `list[str]` and so on. `object` passes
        Python objects by reference, in memory only. Without a type values are bytes, and text is sent as UTF-8.
        Options: see `TopicOptions`.

        >>> orders = broker.topic("orders", Order, retention_age=86400)
        >>> await orders.publish(Order(id=7))
        """
        chosen = TopicOptions.of(options)
        codec: Codec[V] | None = None if type is None else codec_of(type, chosen.encoding or "json")
        handle = Topic(self._backend, check_name(name), codec, chosen)
        if not self._backend.loop_owner.entered:
            self._early.append(handle)
        return handle

    def table(self, name: str, type: type[V] | None = None, *, max_bytes: int = MAX_BYTES, **options: Any) -> Table[V]:
        """A handle on topic `name` as a key-value table; nothing happens before it is used. See `Table`.

        With a `type` values are validated, encoded and decoded; without one they are bytes. A handle holds the keys
        and values in memory, up to `max_bytes`. Other options are those of the topic. The same arguments give the same
        handle.
        """
        chosen = TopicOptions.of(options)
        codec: Codec[V] | None = None if type is None else codec_of(type, chosen.encoding or "json")
        which = check_name(name), codec, chosen, max_bytes
        table = self._tables.pop(which, None)
        if table is None:
            table = Table(lambda: self._backend, name, codec, chosen, max_bytes)
        self._tables[which] = table
        if len(self._tables) > TABLES:
            del self._tables[next(iter(self._tables))]
        return table

    def presence(self, topic: str) -> Presence:
        """Who is subscribed to `topic`: `await` it for the members now, or `watch()` who comes and goes.

        What a member says of itself is the option `presence` of its `subscribe`.
        """
        return Presence(self._watches, check_name(topic))

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await self._backend.topics()

    async def delete(self, name: str) -> None:
        """Delete a topic and its records. Subscribers of it get `TopicDeleted`, those of patterns a gap."""
        await self._backend.delete(check_name(name))

    async def bounds(
        self, *patterns: str, time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """The first and end offsets of the topics that match, sorted by name; without patterns, of all topics.

        With a `time`, also the first offset that is not older; with a `sequence`, the first that does not lie before
        it: the same point in the order of the broker for all of them. Only visible records count.
        """
        patterns = tuple(check_pattern(one) for one in patterns or (">",))
        if time is not None:
            check_start(time, patterns[0], is_pattern=False)
        if sequence is not None:
            if time is not None:
                raise InvalidOption("sequence", sequence, "give a time or a sequence, not both")
            if not isinstance(sequence, int) or isinstance(sequence, bool) or sequence < 0:
                raise InvalidOption("sequence", sequence, "expected a whole number, 0 or more")
        return await self._backend.bounds(patterns, time, sequence)

    async def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """Say that the archive has all records before these positions: topic to `Position(epoch, next offset)`.

        For the program that archives topics with `retention_until="archived"`, after it has committed. The broker asks
        the source of history of each topic first; `NotArchived` if the source has less, and then nothing is
        confirmed. All are stored together, and durable when this returns. A position before what was confirmed
        earlier changes nothing. Returns how far these topics have left the journal.

        >>> await broker.confirm_archived({"orders": Position(epoch, 5000)})
        """
        return await self._backend.confirm_archived(checked_confirmations(positions))

    async def floors(self, *patterns: str) -> list[TopicFloors]:
        """How far the topics that match have left the journal, sorted by name; without patterns, all topics.

        Below `gone` nothing can be read any more, [gone, moved) is read from the source of history, and below
        `confirmed` the source has all records. An archive may erase records below `gone`.
        """
        return await self._backend.floors(tuple(check_pattern(one) for one in patterns or (">",)))

    async def place(self, places: Mapping[str, tuple[str, Position | int]], *, hold: bool | None = None) -> None:
        """Store the positions of named subscriptions that are not open: name to (topic, position).

        Of one that reads a pattern: name to (pattern, sequence).
        For programs that read in another way, such as a query of Spark: statistics show their lag like any other.
        With `hold=True` retention and `trim` keep the records from these positions on, with False they may go; None
        changes nothing. All positions are stored together, and durable when this returns; if it raises, none is.
        `NameInUse` while a subscription with one of the names is open.
        """
        await self._backend.place(checked_positions(places, hold), hold)

    # -- publishing ---------------------------------------------------------------------------------------------

    @spell_out(PublishKeywords, PublishOptions)
    async def publish(self, topic: str, value: bytes | str | None, **options: Unpack[PublishKeywords]) -> Position:
        """Publish one record, and return its position. With a folder, also of a server, it is then on disk.

        `delay` (seconds) and `priority` (0-9) act in groups; an expired record is skipped by every reader;
        a `message_id` seen in the last two minutes is not stored again: its first position comes back, after a
        restart too. With `expected_offset`, the record gets this offset or `OffsetConflict` is raised.
        """
        if not options:  # to pass on none costs a quarter of a publish
            return await self._topics[topic].publish(value)
        try:
            return await self._topics[topic].publish(value, **options)
        except TypeError:
            PublishOptions.of(options)  # raises InvalidOption for a name that is no option
            raise

    @spell_out(PublishManyKeywords, PublishOptions)
    async def publish_many(
        self, topic: str, values: Sequence[bytes | str], **options: Unpack[PublishManyKeywords]
    ) -> Span:
        """Publish many records to one topic, all or none. As `Topic.publish_many`, which also takes typed values."""
        return await self._topics[topic].publish_many(values, **options)

    def transaction(self) -> Transaction:
        """Publishes, acks and marks that are committed together or not at all. See `Transaction`.

        >>> async with broker.transaction() as tx:
        ...     tx.publish("paid", order.id)
        ...     tx.ack(delivery)
        """
        return Transaction(self._backend)

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark that a transaction set; None: there is no such mark."""
        return await self._backend.mark(check_marker_name(name))

    async def marks(self, prefix: str = "") -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        return await self._backend.marks(prefix)

    def producer(self, name: str | None = None) -> Producer:
        """A publisher that numbers its records, so that a record that is sent again is stored once. See `Producer`.

        With a name it continues the numbers stored under that name, also after a restart; without one it is new.
        """
        return Producer(self._backend, name)

    async def request(
        self,
        topic: str,
        value: bytes | str,
        *,
        type: type[V] | None = None,
        timeout: float = 5.0,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Record[V]:
        """Publish a request, and return the reply, with its value decoded as `type`; without a type it is bytes.

        `NoResponders` at once if the topic has no subscriber, `RequestTimeout` if no reply comes in time,
        `RequestFailed` if the responder raised. `Topic.request` takes a value of the type of its topic.

        >>> (await broker.request("square", "12", type=int, timeout=2)).value
        144
        """
        seconds = above_zero("timeout", timeout)
        found = await self._backend.request(OutgoingRequest(topic, value, seconds, key, headers))
        return opened_reply(topic, found, type)

    async def request_many(
        self,
        topic: str,
        value: bytes | str,
        *,
        type: type[V] | None = None,
        timeout: float = 1.0,
        limit: int | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Replies[V]:
        """Publish a request, and gather the replies of all responders for `timeout` seconds, or until `limit` came.

        Returns them in the order in which they came, with their values decoded as `type`; maybe none. `failures` of
        the result has the responders that raised. `NoResponders` at once if the topic has no subscriber. It ends early
        when the replies exceed 10,000 or 8 MiB; a group is one responder.
        """
        seconds, most = checked_gathering(timeout, limit)
        asked = OutgoingRequest(topic, value, seconds, key, headers)
        return opened_replies(topic, await self._backend.request_many(asked, most), type)

    async def reply(
        self, record: Record[Any] | Delivery[Any], value: Any, *, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Reply to a request; False if the requester no longer waits, or has a reply already.

        The value is bytes or str, or anything that msgspec or Pydantic encodes: it is sent as JSON.
        """
        return await self._backend.reply(record, reply_value(record.topic, value), headers)

    @overload
    def stage(self, topic: str | Topic[V], *, writer: str, batch: int, part: int = 0, attempt: int = 0) -> Stage[V]: ...

    @overload
    def stage(self, topic: None = None, *, writer: str, batch: int, part: int = 0, attempt: int = 0) -> MixedStage: ...

    def stage(
        self, topic: str | Topic[V] | None = None, *, writer: str, batch: int, part: int = 0, attempt: int = 0
    ) -> Stage[V] | MixedStage:
        """A handle on a stage: records that are durable and invisible until `tx.commit(stage)`. No I/O yet.

        The key is a `part` of a `batch` of a `writer`, and the `attempt`; the first write of a later attempt drops the
        earlier ones. With a typed `Topic`, values are encoded and validated. Without a topic, the stage is a
        `MixedStage`: it holds records of many topics, in one order.
        """
        key = StageKey(writer, batch, part, attempt)
        if topic is None:
            return MixedStage(self._backend, key)
        handle: Topic[Any] = self.topic(topic) if isinstance(topic, str) else topic
        return Stage(self._backend, handle, key)

    async def stages(self) -> list[StageInfo]:
        """The open stages, sorted by key."""
        return await self._backend.stages()

    def bridge(
        self, pattern: str, to: Broker | str | Path, *, name: str | None = None, into: str = "{topic}", **options: Any
    ) -> Bridge:
        """Copy records to another broker, each record once. See `Bridge`.

        `to` is an open broker, or a location for `runnel.open`. `into` names the topics there, such as "eu.{topic}";
        `name` distinguishes two bridges of one pattern. After an interruption it continues where it was. Options as
        in `subscribe`: a source in memory buffers 65,536 records for it by default.
        """
        return Bridge(self, pattern, to, name=name, into=into, **options)

    async def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a delayed record: what was published to `topic` with this `message_id` and a delay.

        No group is given it from now on, of those that exist and those made later. A member that has it keeps it, and
        subscribers without a group have read it: for them there is no delay. In a group it counts as expired when it
        becomes due.
        """
        await self._backend.cancel(check_name(topic), message_id)

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, pattern: str, *, group: str, type: type[V] | None = None, **options: Unpack[SubscribeKeywords]
    ) -> GroupSubscription[V]: ...
    @overload
    def subscribe(
        self, pattern: str, *, group: None = None, type: type[V] | None = None, **options: Unpack[SubscribeKeywords]
    ) -> Subscription[V]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self,
        pattern: str,
        *,
        group: str | None = None,
        type: type[V] | None = None,
        **options: Unpack[SubscribeKeywords],
    ) -> Subscription[V] | GroupSubscription[V]:
        """Read a topic, or every topic that matches a pattern, now and later. Use it with `async with`.

        - `start`: "latest" (the default), "earliest", an offset, a time or a Position.
        - `name`: store the position under this name; a named subscription starts at "earliest" the first time.
        - `hold`: with a name, keep unread records from retention, `trim` and compaction, also while the subscription
          is not open. False ends that, None (the default) changes nothing.
        - `type`: decode values as this type.

        Without `group`, every subscriber gets every record:

        - `policy`, `buffer`, `buffer_bytes`: what happens when it lags too far, and how far that is; see `Policy`.
        - `on_drop`, `dead_letter`: where dropped records go. `on_gap`: called for every gap; `strict`: a gap raises.

        With `group`, each record goes to one member, as a delivery to be settled; a new group starts at "earliest":

        - `prefetch`, `prefetch_bytes`: how much this member may hold; `name`: the name of the member.
        - `ack_wait`, `max_ack_pending`, `max_deliver`, `backoff`, `jitter`, `dead_letter`: options of the group, equal
          for all members. `buffer`, `buffer_bytes`: when publishers wait for the group.

        With a server, it continues after a lost connection where it was, without a gap or a duplicate; records that a
        group member held return to the group.
        """
        found: Subscription[V] | GroupSubscription[V]
        found = open_subscription(self.backend, pattern, group=group, type=type, **options)
        return found

    async def forget(self, name: str) -> None:
        """Forget a named subscription: its position, and what it holds. `NameInUse` while it is open."""
        await self._backend.forget(name)

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and its progress. `GroupInUse` while it has members."""
        await self._backend.forget_group(name, pattern)

    def group(self, name: str, pattern: str) -> Group:
        """A handle on a group that was joined at least once: `pause()`, `resume()`, `reset(start)`, `statistics()`."""
        return Group(self._backend.group(name, pattern))

    async def replay(
        self,
        topic: str,
        *,
        limit: int | None = None,
        where: Callable[[Record[bytes]], bool] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> int:
        """Publish the dead letters of `topic` to their original topics again, each once; return how many.

        `where` selects dead letters; those for which it returns False are skipped permanently. It works in this process
        only: a server cannot run the function, and raises `NotSupported`. With `offsets`, only the letters at these.
        """
        if offsets is not None and (limit is not None or where is not None):
            raise InvalidOption("offsets", offsets, "they say which; leave out limit and where")
        if offsets is not None:
            return await self._backend.settle_dead_letters(topic, offsets, put_back=True)
        return await self._backend.replay(topic, limit, where)

    async def discard(self, topic: str, offsets: Sequence[int] | None = None) -> int:
        """Mark dead letters of `topic` as done, at `offsets` or all: they are not replayed; return how many.

        The records stay in the topic until `trim` or retention removes them.
        """
        return await self._backend.settle_dead_letters(topic, offsets, put_back=False)

    # -- handlers -----------------------------------------------------------------------------------------------

    def on(
        self,
        pattern: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        retries: int | None = None,
        rate: float | None = None,
        time_limit: float | None = None,
        publish: str | Topic[Any] | None = None,
        middleware: Middleware | Sequence[Middleware] = (),
        **options: Any,
    ) -> Callable[[F], F]:
        """Call a function with the records of a topic or pattern while `broker.run()` runs.

        The annotation of its parameter says what it gets: a value (`Order`, `str`, `bytes`), a `Record[Order]` or a
        `Delivery[Order]`. A function that is not async runs in a thread. With `group`, a record is acked when
        the function returns and nacked, with the exception as reason, when it raises: `retries` times, then it
        is a dead letter; `raise Reject(reason)` makes it one at once. Without a group, a failure is logged. If the
        record is a request, the return value is the reply.

        - `concurrency`: so many calls at once. `rate`: so many in a second, in this process.
        - `time_limit`: seconds after which a call is cancelled and counts as failed (`TimeLimitExceeded`).
        - `publish`: a topic, or a handle on one, that the return value is published to, under the key of the record.
          The record is acked in the same transaction, so each record has one result; None publishes nothing.
        - `middleware`: around this handler alone, inside of what `use` adds: one layer or a list of them.

        Other options as in `subscribe`: `backoff`, `ack_wait`, `prefetch`, `start` and so on.

        >>> @broker.on("orders", group="billing", concurrency=10, retries=5, time_limit=30, publish="invoices")
        ... async def bill(order: Order) -> Invoice:
        ...     return Invoice(order.id, await charge(order))
        """
        if callable(pattern):
            name = getattr(pattern, "__name__", str(pattern))
            raise InvalidOption("pattern", name, 'say which topic or pattern: @broker.on("orders")')
        check_pattern(pattern)
        if self._workers is not None:
            raise NotSupported("registering a handler now", "the handlers run already; register it before run()")
        known = (*HANDLER_OPTIONS, *(name for name in options_of(SubscribeOptions) if name != "type"))
        for name, value in options.items():
            if name not in known:
                raise unknown_option("a handler", name, value, known)
        positive("concurrency", concurrency)
        layers = tuple(middleware) if isinstance(middleware, Sequence) else (middleware,)
        for layer in layers:
            if not callable(layer):
                raise InvalidOption("middleware", layer, "expected a function of (message, call_next), or a list")
        if isinstance(publish, str):
            check_name(publish)
        elif publish is not None and not isinstance(publish, Topic):
            raise InvalidOption("publish", publish, "expected the name of a topic, or a handle on one")
        if rate is not None:
            above_zero("rate", rate, "a number of calls in a second")
            if group is not None:
                options.setdefault("prefetch", 1)  # records buffered here could be handed to any other member instead
        if time_limit is not None:
            above_zero("time_limit", time_limit)
            if group is not None and time_limit >= GroupOptions().ack_wait:
                options.setdefault("ack_wait", 2 * time_limit)  # the lease must outlast the call
        if retries is not None:
            if group is None:
                raise InvalidOption("retries", retries, "only a group tries again; give the handler a group")
            if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
                raise InvalidOption("retries", retries, "expected a whole number, 0 or more")
            options["max_deliver"] = retries + 1

        def register(function: F) -> F:
            handler = Handler(
                function,
                pattern,
                group,
                concurrency,
                options,
                rate=rate,
                time_limit=time_limit,
                publish=publish,
                middleware=layers,
            )
            open_subscription(self.backend, pattern, group=group, type=handler.type, **options)  # wrong options: here
            self._handlers.append(handler)
            return function

        return register

    def every(
        self, seconds: float, *, name: str | None = None, missed: str = "once", **options: Any
    ) -> Callable[[F], F]:
        """Call a function every so many seconds while `broker.run()` runs, once however many processes run it.

        It is due at multiples of `seconds` since 1970, so every process means the same times. The function takes
        nothing, or a `Firing`. Each firing is a record of the topic `schedules.NAME`, published and counted in one
        transaction, and a group works on it: a function that raises is called again (`retries`, `backoff`).

        - `name`: what the schedule is stored under; the name of the function by default.
        - `missed`: firings while no process ran are left out ("skip"), made up for by one ("once"), or by all of
          them, up to 1,000 ("all").

        Other options as in `on`: `retries`, `time_limit`, `publish` and so on.

        >>> @broker.every(60, missed="skip")
        ... async def measure(firing: runnel.Firing) -> None:
        ...     print("for", firing.due)
        """
        above_zero("seconds", seconds)
        return self._scheduled(Interval(seconds), name, missed, options)

    def cron(
        self,
        expression: str,
        tz: str | tzinfo = "UTC",
        *,
        name: str | None = None,
        missed: str = "once",
        **options: Any,
    ) -> Callable[[F], F]:
        """Call a function at the times of a cron expression, as a clock in the time zone `tz` shows them. See `every`.

        Minute, hour, day of the month, month, day of the week: `"0 9 * * mon-fri"`. A time that clocks skip in
        spring is due when they continue, one that comes twice in autumn the first time.

        >>> @broker.cron("0 9 * * mon-fri", "Europe/Berlin", retries=3)
        ... async def greet() -> None: ...
        """
        return self._scheduled(Cron(expression, time_zone(tz)), name, missed, options)

    def _scheduled(self, timing: Timing, name: str | None, missed: str, options: dict[str, Any]) -> Callable[[F], F]:
        if "group" in options:
            raise InvalidOption("group", options["group"], f"the group of a schedule is {GROUP!r}; leave it out")

        def register(function: F) -> F:
            schedule = Schedule(name or str(getattr(function, "__name__", "")), timing, missed)
            if any(schedule.name == other.name for other in self._schedules):
                raise InvalidOption("name", schedule.name, "another schedule of this broker has that name; give one")
            self.on(schedule.topic, group=GROUP, **options)(function)
            self._schedules.append(schedule)
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

        Then no new records are taken, and running handlers have `deadline` seconds to finish.
        """
        self._backend.check_usable("running handlers")
        if self._workers is not None:
            raise NotSupported("a second run()", "the handlers of this broker are running already")
        self._workers = HandlerRunner(self, self._handlers, self._middleware, self._schedules, self._client)
        waiting, self._awaiting_run = self._awaiting_run, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(self._workers)
        try:
            await self._workers.run(not_negative("deadline", deadline), signals=signals)
        finally:
            self._workers = None

    async def ready(self) -> None:
        """Return when every handler is subscribed: a record published from now on reaches it.

        Waits for `run()`, which another task has begun or is about to begin. Raises what `run()` raises, if it fails
        before that. Without handlers it returns at once.

        >>> running = asyncio.create_task(broker.run())
        >>> await broker.ready()
        """
        if not self._handlers:
            return
        workers = self._workers
        if workers is None:
            self._backend.check_usable("waiting for its handlers")
            waiter: asyncio.Future[HandlerRunner] = asyncio.get_running_loop().create_future()
            self._awaiting_run.append(waiter)
            workers = await waiter
        await asyncio.shield(workers.ready)

    def stop(self) -> None:
        """Make `run()` drain and return. Harmless if it does not run."""
        if self._workers is not None:
            self._workers.stop()

    def handlers(self) -> tuple[HandlerStatistics, ...]:
        """The statistics of each handler."""
        return tuple(handler.statistics() for handler in self._handlers)

    def statistics(self, pattern: str | None = None, *, limit: int | None = None) -> Statistics:
        """Counters and current state, as a frozen snapshot. From any thread.

        With very many topics, ask for some: those that match `pattern`, a name or with wildcards, and at most `limit`
        of them, in the order in which they were created. All other figures are those of the whole broker. The handlers
        are those of this object, and those that clients of a served broker reported; at a client that has handlers,
        its own alone. With a server, this is a round trip that blocks the thread.
        """
        found = self._backend.statistics(pattern, limit)
        if not self._handlers:
            return found
        reported = () if self._backend.is_remote else found.handlers
        return msgspec.structs.replace(found, handlers=summed_handlers((*self.handlers(), *reported)))
