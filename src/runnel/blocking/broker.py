"""`runnel.Broker` without asyncio; `open` and `attach`, which return one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from runnel.blocking.portal import Portal
from runnel.blocking.publishing import MixedStage, Producer, Stage, Topic, Transaction
from runnel.blocking.subscription import Delivery, GroupSubscription, Subscription
from runnel.blocking.table import Table
from runnel.blocking.watch import Presence
from runnel.core.errors import NotSupported
from runnel.core.options import (
    PublishKeywords,
    PublishManyKeywords,
    PublishOptions,
    SubscribeKeywords,
    SubscribeOptions,
    spell_out,
)
from runnel.core.position import Position, Span, Start
from runnel.core.record import Record
from runnel.core.replies import Replies
from runnel.core.stages import StageInfo
from runnel.core.statistics import Statistics
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.runtime.connection_state import ConnectionState

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from runnel.api import broker as aio
    from runnel.core.markers import MarkerValue

    V = DefaultingTypeVar("V", default=bytes)
else:
    V = TypeVar("V")


def open(where: str | Path | None = None, **options: Any) -> Broker:
    """A broker without asyncio, to be used with `with`. Places and options are those of `runnel.open`.

    >>> with runnel.blocking.open() as broker:
    ...     with broker.subscribe("greetings") as greetings:
    ...         broker.publish("greetings", "hello")
    ...         print(greetings.receive(timeout=1).value)
    """
    # Imported by name: backends are in layers above, and the location decides which one is loaded.
    return Broker(import_module("runnel.opening").open(where, **options), None)


def attach(broker: aio.Broker) -> Broker:
    """A way to use a broker that runs on an event loop from other threads. Closing it leaves the broker open."""
    loop = broker.loop
    if loop is None:
        raise NotSupported("attaching", "the broker has not been used on an event loop yet; enter it first")
    return Broker(broker, loop)


class Broker:
    """`runnel.Broker` without asyncio. Made by `runnel.blocking.open` or `attach`."""

    def __init__(self, broker: aio.Broker, loop: asyncio.AbstractEventLoop | None) -> None:
        self._broker = broker
        self._portal = Portal(loop)

    def __repr__(self) -> str:
        return f"<Blocking {self._broker!r}>"

    def __enter__(self) -> Broker:
        self._portal.start()
        try:
            self._portal.run(self._broker.__aenter__())
        except BaseException:
            self._portal.stop()  # or a thread would be left for every server that was not there
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.owned and not self._portal.is_forked:
            try:
                self._portal.run(self._broker.__aexit__(kind, error, trace))
            finally:
                self._portal.stop()

    @property
    def id(self) -> str:
        """Identifies the broker. Of a folder it stays the same; in memory it is new for every broker."""
        return self._broker.id

    @property
    def is_durable(self) -> bool:
        """Whether its topics are durable unless they are declared otherwise."""
        return self._broker.is_durable

    @property
    def connection(self) -> ConnectionState:
        """The state of the connection to its server. Raises `NotSupported` if the broker is in this process."""
        return self._broker.connection

    def info(self) -> dict[str, Any]:
        """Version, journal and fsync of the broker; of a server also its uptime, listeners and limits."""
        return self._portal.run(self._broker.info())

    def sync(self) -> None:
        """Return when everything that was published and settled before is synced to disk."""
        self._portal.run(self._broker.sync())

    def topic(self, name: str, type: type[V] | None = None, **options: Any) -> Topic[V]:
        """A handle on topic `name`; nothing happens before it is used. As `runnel.Broker.topic`."""
        return Topic(self._broker.topic(name, type, **options), self._portal, self._broker.clock)

    def table(self, name: str, type: type[V] | None = None, **options: Any) -> Table[V]:
        """A handle on topic `name` as a key-value table; nothing happens before it is used."""
        return Table(self._broker.table(name, type, **options), self._portal, self._broker.clock)

    def presence(self, topic: str) -> Presence:
        """Who is subscribed to `topic`: iterate over it for the members now, or `watch()` the changes."""
        return Presence(self._broker.presence(topic), self._portal, self._broker.clock)

    @spell_out(PublishKeywords, PublishOptions)
    def publish(self, topic: str, value: bytes | str | None, **options: Unpack[PublishKeywords]) -> Position:
        """Publish one record; its position."""
        return self.topic(topic).publish(value, **options)

    @spell_out(PublishManyKeywords, PublishOptions)
    def publish_many(self, topic: str, values: Sequence[bytes | str], **options: Unpack[PublishManyKeywords]) -> Span:
        """Publish many records to one topic, all or none; the first and the last position."""
        return self.topic(topic).publish_many(values, **options)

    def transaction(self) -> Transaction:
        """Publishes, acks and marks that happen together or not at all, at the end of the block. Use it with `with`."""
        return Transaction(self._broker.transaction(), self._portal)

    @overload
    def stage(self, topic: str | Topic[V], *, writer: str, batch: int, part: int = 0, attempt: int = 0) -> Stage[V]: ...

    @overload
    def stage(self, topic: None = None, *, writer: str, batch: int, part: int = 0, attempt: int = 0) -> MixedStage: ...

    def stage(
        self, topic: str | Topic[V] | None = None, *, writer: str, batch: int, part: int = 0, attempt: int = 0
    ) -> Stage[V] | MixedStage:
        """A handle on a stage: records that are durable and invisible until `tx.commit(stage)`. No I/O yet.

        Without a topic it holds records of many topics, in one order.
        """
        if topic is None:
            mixed = self._broker.stage(writer=writer, batch=batch, part=part, attempt=attempt)
            return MixedStage(mixed, self._portal)
        bare: Any = topic._topic if isinstance(topic, Topic) else topic
        stage = self._broker.stage(bare, writer=writer, batch=batch, part=part, attempt=attempt)
        return Stage(stage, self._portal)

    def stages(self) -> list[StageInfo]:
        """The stages that are open, by their key."""
        return self._portal.run(self._broker.stages())

    def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark that a transaction left; None: there is none of that name."""
        return self._portal.run(self._broker.mark(name))

    def marks(self, prefix: str = "") -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        return self._portal.run(self._broker.marks(prefix))

    def producer(self, name: str | None = None) -> Producer:
        """A publisher that numbers its records, so that what it sends again is stored once."""
        return Producer(self._broker.producer(name), self._portal)

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
        """Read a topic or pattern. Use it with `with`; options as in `runnel.Broker.subscribe`."""
        if group is None:
            alone = self._broker.subscribe(pattern, type=type, **options)
            return Subscription(alone, self._portal, self._broker.clock)
        member = self._broker.subscribe(pattern, group=group, type=type, **options)
        return GroupSubscription(member, self._portal, self._broker.clock)

    def pause(self, group: str, pattern: str) -> None:
        """Pause a group; records that members hold can still be settled."""
        self._portal.call(lambda: self._broker.group(group, pattern).pause())

    def resume(self, group: str, pattern: str) -> None:
        """Resume a paused group."""
        self._portal.call(lambda: self._broker.group(group, pattern).resume())

    def reset(self, group: str, pattern: str, start: Start) -> None:
        """Move a group to `start`, and forget what was settled."""
        self._portal.call(lambda: self._broker.group(group, pattern).reset(start))

    def replay(self, topic: str, **options: Any) -> int:
        """Publish the dead letters of `topic` again to where they came from, each once; how many."""
        return self._portal.run(self._broker.replay(topic, **options))

    def discard(self, topic: str, offsets: Sequence[int] | None = None) -> int:
        """Mark dead letters of `topic` as done, at `offsets` or all, without publishing them; return their number."""
        return self._portal.run(self._broker.discard(topic, offsets))

    def request(self, topic: str, value: bytes | str, **options: Any) -> Record[Any]:
        """Publish, and wait for a reply. Options as in `runnel.Broker.request`."""
        return self._portal.run(self._broker.request(topic, value, **options))

    def request_many(self, topic: str, value: bytes | str, **options: Any) -> Replies[Any]:
        """Publish, and gather replies until a deadline. Options as in `runnel.Broker.request_many`."""
        return self._portal.run(self._broker.request_many(topic, value, **options))

    def reply(self, record: Record[Any] | Delivery[Any], value: Any, **options: Any) -> bool:
        """Answer a request; False if the requester no longer waits."""
        request = record.record if isinstance(record, Delivery) else record
        return self._portal.run(self._broker.reply(request, value, **options))

    def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a delayed record by its message id."""
        self._portal.run(self._broker.cancel(topic, message_id))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._portal.run(self._broker.topics())

    def bounds(self, *patterns: str, time: datetime | None = None, sequence: int | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end, by name; of all topics if none is named."""
        return self._portal.run(self._broker.bounds(*patterns, time=time, sequence=sequence))

    def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """Say that the archive has all records before these positions. See `runnel.Broker.confirm_archived`."""
        return self._portal.run(self._broker.confirm_archived(positions))

    def floors(self, *patterns: str) -> list[TopicFloors]:
        """How far the topics that match have left the journal: below which offsets they are moved, and gone."""
        return self._portal.run(self._broker.floors(*patterns))

    def place(self, places: Mapping[str, tuple[str, Position | int]], *, hold: bool | None = None) -> None:
        """Store the positions of named subscriptions that are not open: name to (topic, position)."""
        self._portal.run(self._broker.place(places, hold=hold))

    def delete(self, name: str) -> None:
        """Delete a topic and its records."""
        self._portal.run(self._broker.delete(name))

    def forget(self, name: str) -> None:
        """Delete the position of a named subscription, and release what it holds."""
        self._portal.run(self._broker.forget(name))

    def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and all that it settled."""
        self._portal.run(self._broker.forget_group(name, pattern))

    def statistics(self, pattern: str | None = None, *, limit: int | None = None) -> Statistics:
        """The counters and contents, as a frozen snapshot; of the topics, the requested ones."""
        return self._broker.statistics(pattern, limit=limit)
