"""The same broker without asyncio: for scripts, threads and synchronous frameworks.

`open` runs a broker on an event loop in a thread of its own; `attach` reaches a broker
that already runs on some loop from any other thread. Every method may be called from
any thread and blocks until it is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.broker import broker as aio
from runnel.broker.place import open as open_async
from runnel.broker.statistics import Statistics
from runnel.broker.subscription import Subscription as AsyncSubscription
from runnel.broker.topic import Topic as AsyncTopic
from runnel.broker.waiting import all_done
from runnel.core.batch import Batch
from runnel.core.errors import BrokerClosed, NotSupported, SubscriptionEnded, WouldDeadlock
from runnel.core.position import Position, Span
from runnel.core.record import Record

__all__ = ["Broker", "Subscription", "Topic", "attach", "open"]

R = TypeVar("R")
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    V = DefaultingTypeVar("V", default=bytes)
else:
    V = TypeVar("V")

Seconds = float | timedelta

GRACE = 1.0  # seconds that calls of other threads have to end in when a broker is closed


def open(where: str | Path | None = None, **options: Any) -> Broker:
    """A broker without asyncio, to be used with `with`. Places and options are those of `runnel.open`.

    >>> with runnel.blocking.open() as broker:
    ...     with broker.subscribe("greetings") as greetings:
    ...         broker.publish("greetings", "hello")
    ...         print(greetings.receive(timeout=1).value)
    """
    return Broker(open_async(where, **options), None)


def attach(broker: aio.Broker) -> Broker:
    """A way to use a broker that runs on an event loop from other threads. Closing it leaves the broker open."""
    loop = broker.loop
    if loop is None:
        raise NotSupported("attaching", "the broker has not been used on an event loop yet; enter it first")
    return Broker(broker, loop)


class _Portal:
    """An event loop in another thread, and a way to run coroutines there."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.owned = loop is None
        self.loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.owned:
            self._thread = threading.Thread(target=self.loop.run_forever, name="runnel", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self.run(_let_finish())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """The result of `call`, run on the loop. Interrupting the caller cancels it."""
        try:
            running: object = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop:
            call.close()
            raise WouldDeadlock("the event loop", "runnel.blocking, called from the loop's own thread")
        if self.loop.is_closed() or (self.owned and self._thread is None):
            call.close()
            raise BrokerClosed("this")
        future = asyncio.run_coroutine_threadsafe(call, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _let_finish() -> None:
    """Let the calls of other threads end, now that the broker is closed; cancel those that do not."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        _, late = await asyncio.wait(calls, timeout=GRACE)
        for call in late:
            call.cancel()
        await asyncio.sleep(0)


class Broker:
    """`runnel.Broker` without asyncio. Made by `runnel.blocking.open` or `attach`."""

    def __init__(self, broker: aio.Broker, loop: asyncio.AbstractEventLoop | None) -> None:
        self._broker = broker
        self._portal = _Portal(loop)

    def __repr__(self) -> str:
        return f"<Blocking {self._broker!r}>"

    def __enter__(self) -> Broker:
        self._portal.start()
        self._portal.run(self._broker.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.owned:
            self._portal.run(self._broker.__aexit__(kind, error, trace))
            self._portal.stop()

    def topic(self, name: str, type: type[V] | None = None, **options: Any) -> Topic[V]:
        """A handle on topic `name`; nothing happens before it is used."""
        return Topic(self._broker.topic(name, type, **options), self._portal)

    def publish(
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
        """Publish one record; its position."""
        return self.topic(topic).publish(
            value, key=key, headers=headers, delay=delay, expires=expires, priority=priority, message_id=message_id
        )

    def subscribe(self, pattern: str, *, type: type[V] | None = None, **options: Any) -> Subscription[V]:
        """Read a topic or pattern. Use it with `with`; options as in `runnel.Broker.subscribe`."""
        return Subscription(self._broker.subscribe(pattern, type=type, **options), self._portal, self._broker)

    def request(self, topic: str, value: bytes | str, **options: Any) -> Record[bytes]:
        """Publish, and wait for a reply."""
        return self._portal.run(self._broker.request(topic, value, **options))

    def reply(self, record: Record[Any], value: bytes | str, **options: Any) -> bool:
        """Answer a request; False when whoever asked has stopped waiting."""
        return self._portal.run(self._broker.reply(record, value, **options))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._portal.run(self._broker.topics())

    def delete(self, name: str) -> None:
        """Delete a topic and its records."""
        self._portal.run(self._broker.delete(name))

    def statistics(self) -> Statistics:
        """What happened so far and what is held now, as a frozen snapshot."""

        async def look() -> Statistics:
            return self._broker.statistics()

        return self._portal.run(look())


class Topic(Generic[T]):
    """`runnel.Topic` without asyncio."""

    def __init__(self, topic: AsyncTopic[T], portal: _Portal) -> None:
        self._topic, self._portal = topic, portal

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    def declare(self) -> None:
        """Make the topic now, or check that it is there with these options and this type."""
        self._portal.run(self._topic.declare())

    def delete(self) -> None:
        """Delete the topic and its records."""
        self._portal.run(self._topic.delete())

    def publish(self, value: T | bytes | str, **options: Any) -> Position:
        """Publish one record; its position."""
        return self._portal.run(self._topic.publish(value, **options))

    def publish_nowait(self, value: T | bytes | str, **options: Any) -> None:
        """Hand one record over without waiting; the quickest way from a thread."""
        self._topic.publish_nowait(value, **options)

    def publish_many(self, values: Sequence[T | bytes | str], **options: Any) -> Span:
        """Publish many at once, all or nothing; the first and the last position."""
        return self._portal.run(self._topic.publish_many(values, **options))

    def publish_and_wait(self, value: T | bytes | str, **options: Any) -> Position:
        """Publish, and wait until every current subscriber has processed it. For tests."""
        return self._portal.run(self._topic.publish_and_wait(value, **options))

    def subscribe(self, **options: Any) -> Subscription[T]:
        """Read this topic, with values of its type."""
        return Subscription(self._topic.subscribe(**options), self._portal, self._topic.broker)


class Subscription(Generic[T]):
    """Records to iterate over with a plain `for`, or one by one with `receive`."""

    def __init__(self, subscription: AsyncSubscription[T], portal: _Portal, broker: aio.Broker) -> None:
        self._subscription, self._portal, self._broker = subscription, portal, broker
        self._next: asyncio.Future[Record[T] | None] | None = (
            None  # outlives a time-out: cancelling it would end the reading
        )

    def __repr__(self) -> str:
        return f"<Blocking {self._subscription!r}>"

    def __enter__(self) -> Subscription[T]:
        self._portal.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.loop.is_closed():  # else the broker was closed first, and this with it
            self._portal.run(self._leave())

    @property
    def label(self) -> str:
        """How errors and statistics call it."""
        return self._subscription.label

    def __iter__(self) -> Iterator[Record[T]]:
        while (record := self._portal.run(self._receive(None))) is not None:
            yield record

    def receive(self, timeout: float | None = None) -> Record[T]:
        """The next record. After `timeout` seconds without one, TimeoutError; at the end, SubscriptionEnded."""
        record = self._portal.run(self._receive(timeout))
        if record is None:
            raise SubscriptionEnded(self.label)
        return record

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> Iterator[Batch[T]]:
        """Read in batches: far quicker than one by one, since each batch crosses threads once."""
        batches = self._subscription.batches(max_records, max_wait)

        async def following() -> Batch[T] | None:
            return await anext(batches, None)

        while (batch := self._portal.run(following())) is not None:
            yield batch

    async def _receive(self, timeout: float | None) -> Record[T] | None:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(aiter(self._subscription), None))
        if not await all_done([self._next], timeout, self._broker.clock):
            raise TimeoutError(f"no record for {self.label!r} within {timeout:g} s")
        found, self._next = self._next, None
        return found.result()

    async def _leave(self) -> None:
        self._subscription.end()
        if self._next is not None:
            await asyncio.wait([self._next])
            self._next.exception()
        await self._subscription.__aexit__(None, None, None)
