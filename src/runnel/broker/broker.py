"""The broker in memory: all topics, all subscribers, one event loop.

Everything here runs on the loop's thread. Other threads hand over what they publish;
after a fork the child's copy says that it is dead.
Below: topic, reader, timeline. Above: runnel.open, blocking, every door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from runnel.broker import dead_letter as dead_letters
from runnel.broker import request
from runnel.broker.catalog import Catalog
from runnel.broker.clock import SystemClock
from runnel.broker.delivery import Delivery
from runnel.broker.gate import TURN, GateReader, Watch
from runnel.broker.group_reader import GroupReader
from runnel.broker.group_subscription import GroupSubscription
from runnel.broker.groups import Groups
from runnel.broker.handler import Handler, HandlerStatistics, Middleware
from runnel.broker.home import Home
from runnel.broker.log import KEEP_BYTES, KEEP_COUNT, Log
from runnel.broker.publisher import Publisher, Seconds
from runnel.broker.reader import Reader, SubscribeOptions
from runnel.broker.start import Start
from runnel.broker.statistics import Statistics, Totals, snapshot
from runnel.broker.subscription import Subscription
from runnel.broker.timeline import Timeline
from runnel.broker.topic import Topic
from runnel.broker.workers import Workers
from runnel.core.clock import Clock
from runnel.core.codec import Codec
from runnel.core.errors import (
    BrokerClosed,
    InvalidOption,
    NotSupported,
    UnknownTopic,
)
from runnel.core.options import TopicOptions, not_negative, positive
from runnel.core.pattern import check_name, check_pattern
from runnel.core.policy import Policy
from runnel.core.position import Position
from runnel.core.record import Gap, Record

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

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

    def __init__(self, *, auto_create: bool = True, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.timeline = Timeline(self.clock, self.settle_readers)
        self.home = Home(self.timeline.move_in, self.timeline.cool)
        self.catalog = Catalog(self, auto_create=auto_create)
        self.publisher = Publisher(self)
        self.readers: dict[GateReader, None] = {}
        self.groups = Groups(self)
        self.named: dict[str, Subscription[Any]] = {}
        self.positions: dict[str, tuple[str, Position | int]] = {}
        self.ended = Totals()
        self._numbers = 0
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._workers: Workers | None = None

    def __repr__(self) -> str:
        return f"<Broker in memory, {self.home.state}, {len(self.catalog.logs)} topics, {len(self.readers)} readers>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Broker:
        self.home.check_usable("entering it again")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every subscription, after what was published; refuse everything else. Closing twice is harmless."""
        if not self.home.closed and not self.home.forked:
            self.home.take_posted()
        if not self.home.close():
            return
        self.timeline.cool()
        for log in list(self.publisher.blocked):
            self.publisher.refuse_blocked(log, BrokerClosed("publishing"))
        for reader in list(self.readers):
            reader.end()

    def is_turn_over(self, log: Log) -> bool:
        """Whether a publisher should let the readers of `log` run before it goes on."""
        return self.timeline.published_in_turn() >= (TURN if log.gate is None else log.gate.turn)

    def next_number(self) -> int:
        """A number for whatever needs one of its own."""
        self._numbers += 1
        return self._numbers

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str, type: type[V] | None = None, **options: Any) -> Topic[V]:
        """A handle on topic `name`; nothing happens before it is used.

        With a `type` (anything msgspec can encode) values are validated and encoded; without one they are bytes.
        Options: see `TopicOptions`.
        """
        chosen = Catalog.check(TopicOptions.of(options))
        codec: Codec[V] | None = None if type is None else Codec(type, chosen.encoding or "json")
        return Topic(self, check_name(name), codec, chosen)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self.home.check_usable("listing topics")
        return self.catalog.names()

    async def delete(self, name: str) -> None:
        """Delete a topic and its records. Subscribers of it get `TopicDeleted`, those of patterns a gap."""
        self.home.check_usable("deleting a topic")
        if check_name(name) not in self.catalog.logs:
            raise UnknownTopic(name)
        self.catalog.delete(name)

    def settle_readers(self) -> None:
        """Have every reader of a pattern note what lies ahead of it, before records go."""
        for reader in self.readers:
            reader.settle()

    # -- publishing ---------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
    ) -> Position:
        """Publish one record; its position.

        `delay` (seconds) and `priority` (0-9) act in groups; an expired record is skipped by everybody;
        a `message_id` seen in the last two minutes is not stored again: its first position comes back.
        """
        return await self.topic(topic).publish(
            value, key=key, headers=headers, delay=delay, expires=expires, priority=priority, message_id=message_id
        )

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
        return await request.request(self, topic, value, timeout, key, headers)

    async def reply(
        self, record: Record[Any] | Delivery[Any], value: bytes | str, *, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Answer a request; False when whoever asked has stopped waiting."""
        return await request.reply(self, record, value, headers)

    def watch(self, log: Log, position: Position) -> dict[asyncio.Future[None], str]:
        """A future per current subscriber of `log`, done once it has processed `position`; and its label."""
        watched: dict[asyncio.Future[None], str] = {}
        if log.gate is not None and log.epoch == position.epoch:
            loop = asyncio.get_running_loop()
            for reader in log.gate:
                watched[future := loop.create_future()] = reader.label
                reader.watch(log, Watch(position.offset, future))
        return watched

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, pattern: str, *, group: str, type: type[V] | None = None, **options: Any
    ) -> GroupSubscription[V]: ...
    @overload
    def subscribe(
        self, pattern: str, *, group: None = None, type: type[V] | None = None, **options: Any
    ) -> Subscription[V]: ...
    def subscribe(  # type: ignore[misc]  # the options are spelled out here, once, for those who read
        self,
        pattern: str,
        *,
        start: Start = None,
        name: str | None = None,
        group: str | None = None,
        policy: Policy | str | None = None,
        buffer: int | None = None,
        buffer_bytes: int | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        type: type[V] | None = None,
        strict: bool = False,
        on_gap: Callable[[Gap], object] | None = None,
        on_drop: Callable[[Record[bytes]], object] | None = None,
        dead_letter: str | None = None,
        ack_wait: float | None = None,
        max_ack_pending: int | None = None,
        max_deliver: int | None = None,
        backoff: Sequence[float] | None = None,
        jitter: float | None = None,
        codec: Codec[V] | None = None,
    ) -> Subscription[V] | GroupSubscription[V]:
        """Read a topic, or every topic that a pattern covers, now and later. Use it with `async with`.

        - `start`: "latest" (the default), "earliest", an offset, a time or a Position.
        - `name`: keep the position under this name; a named subscription starts at "earliest" the first time.
        - `type`: decode values as this type.

        Alone, every subscriber sees every record:

        - `policy`, `buffer`, `buffer_bytes`: what happens when it lags by more than that; see `Policy`.
        - `on_drop`, `dead_letter`: where dropped records go. `on_gap`: called for every gap; `strict`: gaps raise.

        With `group`, each record goes to one member, as a delivery to be settled; a new group starts at "earliest":

        - `prefetch`, `prefetch_bytes`: how much this member may hold; `name`: what it is called.
        - `ack_wait`, `max_ack_pending`, `max_deliver`, `backoff`, `jitter`, `dead_letter`: see `GroupOptions`. They
          are the group's, so its members must agree. `buffer`, `buffer_bytes`: when publishers wait for the group.
        """
        if type is not None:
            codec = Codec(type)
        said: dict[str, Any] = {
            "ack_wait": ack_wait,
            "max_ack_pending": max_ack_pending,
            "max_deliver": max_deliver,
            "backoff": None if backoff is None else tuple(backoff),
            "jitter": jitter,
        }
        said = {option: value for option, value in said.items() if value is not None}
        if group is not None:
            alone = {"policy": policy, "on_gap": on_gap, "on_drop": on_drop, "strict": strict or None}
            refuse("with group=", alone)
            if dead_letter is not None:
                said["dead_letter"] = dead_letter
            label = name or f"{group}#{self.next_number()}"
            check_pattern(pattern)

            def member_of() -> GroupReader:
                return self.groups.join(group, pattern, said, start, buffer, buffer_bytes)

            return GroupSubscription(member_of, label, codec, prefetch, prefetch_bytes)
        refuse("without group=", {**said, "prefetch": prefetch, "prefetch_bytes": prefetch_bytes})
        chosen = SubscribeOptions(
            start,
            name,
            Policy.of(policy),
            KEEP_COUNT if buffer is None else buffer,
            KEEP_BYTES if buffer_bytes is None else buffer_bytes,
            strict,
            on_gap,
            on_drop,
            dead_letter,
        )
        return Subscription(Reader(self, pattern, chosen), codec)

    def group(self, name: str, pattern: str) -> GroupReader:
        """A group that somebody has joined: to `pause()`, `resume()` or `reset(start)` it, or to look at it."""
        return self.groups.find(name, pattern)

    async def replay(
        self, topic: str, *, limit: int | None = None, where: Callable[[Record[bytes]], bool] | None = None
    ) -> int:
        """Publish the dead letters of `topic` again to where they came from, each once; how many.

        `where` picks them; those it refuses are passed over for good.
        """
        return await dead_letters.replay(self, topic, limit, where)

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

        What it wants is read off its parameter: a value (`Order`, `str`, `bytes`), a `Record[Order]` or a
        `Delivery[Order]`. A function that is not async runs in a thread. With `group`, a record is acked when
        the function returns and nacked, with the exception as reason, when it raises: `retries` times, then it
        is a dead letter; `raise Reject(reason)` makes it one at once. Without, a failure is logged. What a
        function returns answers the record if it is a request. Other options as in `subscribe`.
        """
        check_pattern(pattern)
        positive("concurrency", concurrency)
        if retries is not None:
            if group is None:
                raise InvalidOption("retries", retries, "only a group tries again; give the handler a group")
            options["max_deliver"] = 1 + int(not_negative("retries", retries))

        def register(function: F) -> F:
            self._handlers.append(Handler(function, pattern, group, concurrency, options))
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
        self.home.check_usable("running handlers")
        if self._workers is not None:
            raise NotSupported("a second run()", "the handlers of this broker are running already")
        self._workers = Workers(self, self._handlers, self._middleware)
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
        """What happened so far and what is held now, as a frozen snapshot. From any thread."""
        return self.home.ask(lambda: snapshot(self))


def refuse(when: str, options: dict[str, Any]) -> None:
    """Raise for the first option that was given, since it means nothing here."""
    for option, value in options.items():
        if value is not None:
            raise InvalidOption(option, value, f"it means nothing {when}")
