"""The shared state of a broker: topics, readers, groups, markers, positions, and the event loop.

Every part still reaches the others through it. All of it is used on one event loop, the one that `loop_owner` knows.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runnel.api.handlers import Handler
from runnel.broker.durable.store import Store
from runnel.broker.group.registry import GroupRegistry
from runnel.broker.read.subscription import Subscription
from runnel.broker.statistics import Totals
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import PUBLISH_TURN, Append, ProcessedWaiter, TopicReader
from runnel.broker.topic.timeline import Timeline
from runnel.broker.tx.markers import Markers
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, NameInUse, UnknownName
from runnel.core.position import Position
from runnel.runtime.loop_owner import LoopOwner


class Bus:
    """Topics, readers and groups, the order between them, and the loop they run on."""

    def __init__(self, *, auto_create: bool, clock: Clock, durable: bool = False) -> None:
        self.clock = clock
        self.is_durable = durable  # whether a store comes, when the broker is entered
        self._id = secrets.token_hex(16)  # of a life in memory
        self.store: Store | None = None
        self.timeline = Timeline(clock, self.settle_readers)
        self.loop_owner = LoopOwner(self.timeline.move_in, self._forked, entered=not durable)
        self.catalog = TopicCatalog(self, auto_create=auto_create)
        self.publisher = Publisher(self)
        self.readers: dict[TopicReader, None] = {}
        self.groups = GroupRegistry(self)
        self.marks = Markers(self)
        self.handlers: list[Handler] = []
        self.named: dict[str, Subscription[Any]] = {}  # the open subscriptions that have a name
        self.positions: dict[str, tuple[str, Position | int]] = {}  # where names were when they left
        self.replaying: set[str] = set()  # topics whose dead letters are being put back
        self.ended = Totals()
        self.life = secrets.token_hex(6)  # no two brokers share it, nor two lives of one folder
        self._numbers = 0

    def close(self) -> None:
        """End every reader, after what was published; refuse everything else. Closing twice is harmless."""
        if self.loop_owner.state == "open":
            self.loop_owner.take_posted()
        if not self.loop_owner.close():
            return
        if self.loop_owner.loop is not None and self.loop_owner.loop.is_closed():
            self._move_out()
        try:
            self._end()
        finally:
            if self.store is not None:
                self.store.close()  # whatever happened: or nobody could open the folder again

    def _end(self) -> None:
        self.timeline.cool()
        for log in list(self.publisher.blocked):
            self.publisher.refuse_blocked(log, BrokerClosed("publishing"))
        if self.store is not None:
            with self._heard_or_not():
                self.store.commits.drain()  # what was handed over is published, so the readers shall see it
        for reader in list(self.readers):
            with self._heard_or_not():
                reader.end()

    def _move_out(self) -> None:
        """The loop is closed: have nothing more to do with it."""
        self.loop_owner.loop = self.timeline.call_soon = None
        for log in self.publisher.blocked:
            if log.topic_readers is not None:
                log.topic_readers.blocked = None  # and nobody publishes in their name
        self.publisher.blocked.clear()

    @contextmanager
    def _heard_or_not(self) -> Iterator[None]:
        """Nobody who waits on a loop that is closed can be told, nor needs to be."""
        try:
            yield
        except RuntimeError:
            if self.loop_owner.loop is not None:
                raise

    def _forked(self) -> None:
        """Be the copy in the child of a fork."""
        self.timeline.cool()
        if self.store is not None:
            self.store.abandon()

    @property
    def id(self) -> str:
        """What sequences and epochs of this broker are told from those of others by."""
        return self._id if self.store is None else self.store.journal.manifest.journal

    def wake_patterns(self) -> None:
        """Have those look again who read several topics in the order of sequences."""
        for reader in self.readers:
            if reader.is_pattern:
                reader.wake()

    def keep_position(self, name: str, pattern: str, place: Position | int) -> None:
        """Remember where `name` stands, as durably as this broker remembers anything."""
        self.positions[name] = (pattern, place)
        if self.store is not None:
            self.store.pending_state.keep(name)

    def forget_position(self, name: str) -> None:
        """Forget where `name` stands, and what it holds."""
        if name in self.named:
            raise NameInUse(name)
        if self.positions.pop(name, None) is None:
            raise UnknownName(name)
        if self.store is not None:
            self.store.pending_state.forget(name)

    async def until_durable(self, log: Log, entry: Append, first: int) -> None:
        """Return when `entry`, whose first record is at `first` of a durable topic, is on disk, and visible."""
        if (landed := entry.landed or self.publisher.deduplicator.landing(log, entry, first)) is not None:
            await landed

    async def flushed(self) -> None:
        """Return when what was said so far is durable, where anything is."""
        if self.store is not None:
            await self.store.commits.flushed()

    def next_number(self) -> int:
        """A number for whatever needs one of its own."""
        self._numbers += 1
        return self._numbers

    def settle_readers(self) -> None:
        """Have every reader of a pattern note what lies ahead of it, before records go."""
        for reader in self.readers:
            reader.settle()

    def is_turn_over(self, log: Log) -> bool:
        """Whether a publisher should let the readers of `log` run before it goes on."""
        return self.timeline.published_in_turn() >= (
            PUBLISH_TURN if log.topic_readers is None else log.topic_readers.turn
        )

    def watch(self, log: Log, position: Position) -> dict[asyncio.Future[None], str]:
        """A future per current reader of `log`, done once it has processed `position`; and its label."""
        watched: dict[asyncio.Future[None], str] = {}
        if log.topic_readers is not None and log.epoch == position.epoch:
            loop = asyncio.get_running_loop()
            for reader in log.topic_readers:
                watched[future := loop.create_future()] = reader.label
                reader.watch(log, ProcessedWaiter(position.offset, future))
        return watched
