"""The broker in memory: all topics, all subscribers, one event loop.

Everything here runs on the loop's thread. Other threads hand over what they publish;
after a fork the child's copy says that it is dead.
Below: topic, reader, timeline. Above: runnel.open, blocking, every door.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker import request
from runnel.broker.clock import SystemClock
from runnel.broker.gate import TURN, Entry, Gate
from runnel.broker.log import KEEP_BYTES, KEEP_COUNT, Log
from runnel.broker.publisher import Publisher, Seconds
from runnel.broker.reader import Reader, Start, SubscribeOptions, Watch
from runnel.broker.statistics import Statistics, Totals, snapshot
from runnel.broker.subscription import Subscription
from runnel.broker.timeline import Timeline
from runnel.broker.topic import Topic
from runnel.core.clock import Clock
from runnel.core.codec import Codec
from runnel.core.errors import (
    BrokerClosed,
    Forked,
    Full,
    NotSupported,
    TopicConflict,
    TopicDeleted,
    UnknownTopic,
    UsageError,
)
from runnel.core.options import TopicOptions
from runnel.core.pattern import PatternTable, check_name
from runnel.core.policy import Policy
from runnel.core.position import Position
from runnel.core.record import Gap, Record

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    V = DefaultingTypeVar("V", default=bytes)  # without a type, values are bytes
else:
    V = TypeVar("V")

MAX_POSTED = 65_536  # records that other threads may have handed over and the loop has not yet taken

_DURABLE_ONLY = ("durable", "compact", "compression")

_open_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


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
        self.auto_create = auto_create
        self.clock: Clock = clock or SystemClock()
        self.timeline = Timeline(self.clock)
        self.timeline.before_compacting = self._settle_patterns
        self.publisher = Publisher(self)
        self.logs: dict[str, Log] = {}
        self.patterns: PatternTable[Subscription[Any]] = PatternTable()
        self.subscriptions: dict[Subscription[Any], None] = {}
        self.named: dict[str, Subscription[Any]] = {}
        self.positions: dict[str, tuple[str, Position | int]] = {}
        self.ended = Totals()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = self._forked = False
        self._numbers = 0
        self._epoch = 0
        self._posted: deque[tuple[Callable[[], Log], Entry]] = deque()
        _open_brokers.add(self)

    def __repr__(self) -> str:
        state = "forked" if self._forked else "closed" if self._closed else "open"
        return f"<Broker in memory, {state}, {len(self.logs)} topics, {len(self.subscriptions)} subscriptions>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Broker:
        self.check_usable("entering it again")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every subscription, after what was published; refuse everything else. Closing twice is harmless."""
        if self._closed or self._forked:
            return
        self._take_posted()
        self._closed = True
        self.timeline.cool()
        for log in list(self.publisher.blocked):
            self.publisher.refuse_blocked(log, BrokerClosed("publishing"))
        for subscription in list(self.subscriptions):
            subscription.end()
        _open_brokers.discard(self)

    def check_usable(self, doing: str) -> None:
        """Raise unless this broker is open, in this process and on this loop. Binds it to the first loop it meets."""
        if self._forked:
            raise Forked
        if self._closed:
            raise BrokerClosed(doing)
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                raise NotSupported(
                    doing, "no event loop is running; call from a coroutine, or use runnel.blocking"
                ) from None
            self._thread = get_ident()
            self.timeline.call_soon = self._loop.call_soon

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it runs on, once it was used on one."""
        return self._loop

    def is_at_home(self) -> bool:
        """Whether the caller is on the broker's own thread (or the broker has none yet)."""
        return self._loop is None or get_ident() == self._thread

    async def visit(self, call: Coroutine[Any, Any, T]) -> T:
        """Run `call` on the broker's loop, awaited from another one."""
        if self._forked or self._closed or self._loop is None:
            call.close()
            raise Forked if self._forked else BrokerClosed("publishing")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def post(self, resolve: Callable[[], Log], entry: Entry) -> None:
        """Take over an entry from another thread; it is appended at the loop's next turn."""
        if self._forked or self._closed or self._loop is None:
            raise Forked if self._forked else BrokerClosed("publishing")
        if len(self._posted) >= MAX_POSTED:
            raise Full("the loop's inbox", "event loop", MAX_POSTED)
        self._posted.append((resolve, entry))
        if len(self._posted) == 1:
            self._loop.call_soon_threadsafe(self._take_posted)

    def _take_posted(self) -> None:
        while self._posted:
            resolve, entry = self._posted.popleft()
            try:
                log = resolve()
                if self.publisher.append_now(log, entry) is None:
                    task = asyncio.ensure_future(self.publisher.append_later(log, entry))
                    task.add_done_callback(_report)
            except UsageError as error:
                _log_lost(error)

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
        chosen = TopicOptions.of(options)
        for option in _DURABLE_ONLY:
            if getattr(chosen, option):
                raise NotSupported(f"{option}={getattr(chosen, option)!r}", "this broker lives in memory only")
        codec: Codec[V] | None = None if type is None else Codec(type, chosen.encoding or "json")
        return Topic(self, check_name(name), codec, chosen)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self.check_usable("listing topics")
        return sorted(name for name in self.logs if name[0] != "$")

    async def delete(self, name: str) -> None:
        """Delete a topic and its records. Subscribers of it get `TopicDeleted`, those of patterns a gap."""
        self.check_usable("deleting a topic")
        if check_name(name) not in self.logs:
            raise UnknownTopic(name)
        self.drop_log(name)

    def log_for(
        self, name: str, options: TopicOptions | None = None, codec: Codec[Any] | None = None, *, declared: bool = False
    ) -> Log:
        """The log of a topic, made when it may be; its options and type must agree with what is asked."""
        self.check_usable("publishing")
        log = self.logs.get(name)
        if log is None:
            if not self.auto_create and not declared:
                raise UnknownTopic(name)
            log = self.make_log(check_name(name), options or TopicOptions())
        elif options is not None and log.options is not options:
            self._agree(log, options)
        if codec is not None and log.codec is not codec:
            if log.codec is not None:
                codec.succeed(name, log.codec)
            log.codec = codec
            self.timeline.cool()  # from now on every publish is checked
        return log

    def make_log(self, name: str, options: TopicOptions | None = None) -> Log:
        """A new log, joined by the subscriptions whose patterns cover it."""
        # Milliseconds and a counter: epochs rise, and no two lives of a topic ever share one.
        self._epoch = max(self._epoch + 1, int(self.clock.time() * 1000) << 11)
        log = self.logs[name] = Log(name, self._epoch, options or TopicOptions())
        for subscription in self.patterns.covering(name):
            subscription.join(log)
        return log

    def drop_log(self, name: str) -> None:
        """Delete a log and tell its readers."""
        self.timeline.cool()
        log = self.logs.pop(name)
        deleted = TopicDeleted(name, log.epoch)
        gate = log.gate or Gate()
        if name[0] != "$":
            self.ended.published += log.end
            self.ended.published_bytes += log.count_bytes()
        self._settle_patterns()
        self.timeline.forget(log)
        log.clear()
        self.publisher.refuse_blocked(log, deleted)
        for reader in list(gate.readers):
            reader.end(deleted)
        for reader in gate.patterns:
            reader.part(log)

    @staticmethod
    def _agree(log: Log, options: TopicOptions) -> None:
        has = log.options.given()
        for option, asked in options.given().items():
            if has.get(option) != asked:
                raise TopicConflict(log.name, option, has.get(option), asked)

    def _settle_patterns(self) -> None:
        for subscription in self.subscriptions:
            subscription.settle()

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

    async def reply(self, record: Record[Any], value: bytes | str, *, headers: Mapping[str, str] | None = None) -> bool:
        """Answer a request; False when whoever asked has stopped waiting."""
        return await request.reply(self, record, value, headers)

    def has_readers(self, topic: str) -> bool:
        """Whether anybody is subscribed to `topic` now."""
        log = self.logs.get(topic)
        if log is None:
            return bool(self.patterns.covering(topic))
        return log.gate is not None and any(True for _ in log.gate)

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

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = None,
        name: str | None = None,
        policy: Policy | str | None = None,
        buffer: int | None = None,
        buffer_bytes: int | None = None,
        type: type[V] | None = None,
        strict: bool = False,
        on_gap: Callable[[Gap], object] | None = None,
        on_drop: Callable[[Record[bytes]], object] | None = None,
        dead_letter: str | None = None,
        codec: Codec[V] | None = None,
    ) -> Subscription[V]:
        """Read a topic, or every topic that a pattern covers, now and later. Use it with `async with`.

        - `start`: "latest" (the default), "earliest", an offset, a time or a Position.
        - `name`: keep the position under this name; a named subscription starts at "earliest" the first time.
        - `policy`, `buffer`, `buffer_bytes`: what happens when it lags by more than that; see `Policy`.
        - `on_drop`, `dead_letter`: where dropped records go. `on_gap`: called for every gap; `strict`: gaps raise.
        - `type`: decode values as this type.
        """
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
        return Subscription(Reader(self, pattern, chosen), codec if type is None else Codec(type))

    def statistics(self) -> Statistics:
        """What happened so far and what is held now, as a frozen snapshot."""
        return snapshot(self)


def _log_lost(error: BaseException) -> None:
    import logging

    logging.getLogger("runnel").error("a record that another thread published was refused: %s", error)


def _report(task: asyncio.Task[int]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log_lost(error)


def _after_fork() -> None:
    for broker in list(_open_brokers):
        broker._forked = True
        broker.timeline.cool()


os.register_at_fork(after_in_child=_after_fork)
