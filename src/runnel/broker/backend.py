"""`LocalBackend`: the `Backend` of a broker in this process. Each method forwards to the part that does the work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from runnel.broker import dead_letters, positions, request
from runnel.broker.confirmations import confirm_archived, topic_floors
from runnel.broker.durable.folder import BrokerFolder
from runnel.broker.group.reader import GroupReader
from runnel.broker.history import read_history
from runnel.broker.packed_publisher import LocalPackedPublisher
from runnel.broker.parts import BrokerParts
from runnel.broker.presence import present
from runnel.broker.producer import LocalProducerNumbers
from runnel.broker.sample import take_sample
from runnel.broker.statistics import snapshot
from runnel.broker.telemetry import Telemetry
from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.tx.commit import CommitAttempt
from runnel.broker.tx.stage import LocalMixedStageWriter, LocalStageWriter, stage_infos
from runnel.broker.writer import LocalFastPath, LocalWriter
from runnel.core.backend import (
    Backend,
    DeadLetterPage,
    DeadLetterTopic,
    GroupVerb,
    HistoryPage,
    OutgoingRequest,
    ReplyRoute,
    RequestRecord,
    TopicUse,
)
from runnel.core.by_reference import REASON
from runnel.core.clock import Clock
from runnel.core.errors import NotSupported, UnknownTopic
from runnel.core.history import HistorySource
from runnel.core.markers import MarkerValue
from runnel.core.options import TopicOptions
from runnel.core.position import Position, Start
from runnel.core.presence import Present
from runnel.core.record import Record
from runnel.core.schema import Codec, ObjectCodec
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import (
    BackendSample,
    GroupStatistics,
    HandlerStatistics,
    PipelineStatistics,
    RelayStatistics,
    Statistics,
)
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.core.transaction import TransactionRequest


class LocalBackend(BrokerParts):
    """The topics of this process, in memory or in a folder. See `core.backend.Backend`."""

    fast_path = LocalFastPath

    def __init__(
        self,
        *,
        auto_create: bool = True,
        clock: Clock | None = None,
        folder: BrokerFolder | None = None,
        history: Sequence[HistorySource] = (),
        telemetry: float | None = None,
    ) -> None:
        super().__init__(
            auto_create=auto_create, clock=clock, folder=folder, history=history, measures=telemetry is not None
        )
        self._telemetry = None if telemetry is None else Telemetry(self, telemetry)

    def __repr__(self) -> str:
        return f"<LocalBackend {self.summary}>"

    @property
    def summary(self) -> str:
        """Location and state in a few words."""
        where = "in memory" if self.folder is None else f"in {str(self.folder.path)!r}"
        topics, readers = len(self.catalog.logs), len(self.readers)
        return f"{where}, {self.loop_owner.state}, {topics} topics, {readers} readers"

    @property
    def is_remote(self) -> bool:
        """No: its topics are in this process."""
        return False

    @property
    def fsync(self) -> str | None:
        """The `fsync` option of the journal; None: there is no journal."""
        return None if self.folder is None else self.folder.options.fsync

    @property
    def connection(self) -> Any:
        """Raises `NotSupported`: there is no connection."""
        raise NotSupported("connection", "the broker is in this process, and connected to nothing")

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this event loop."""
        self.loop_owner.check_usable(doing)

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable, or, on a primary, if it may not acknowledge publishes now."""
        self.loop_owner.check_usable(doing)
        if (replication := self.replication) is not None and (refusal := replication.refusal()) is not None:
            raise refusal

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> LocalWriter:
        """Create the writer of a topic; options that this backend does not support raise."""
        if isinstance(codec, ObjectCodec) and self.is_durable and options.durable is not False:
            why = f"{REASON}; give the topic durable=False, or open a broker in memory"
            raise NotSupported(f"type=object for the durable topic {topic!r}", why)
        return LocalWriter(self, topic, codec, self.catalog.check(options))

    def producer(self, id: int, *, named: bool) -> LocalProducerNumbers:
        """The numbers of a producer."""
        return LocalProducerNumbers(self.loop_owner, self.publisher, id)

    def stage(self, writer: LocalWriter, key: StageKey) -> LocalStageWriter:
        """Create the writer of a stage of the topic of `writer`."""
        return LocalStageWriter(self, writer, key)

    def mixed_stage(self, key: StageKey) -> LocalMixedStageWriter:
        """Create the writer of a stage of many topics."""
        return LocalMixedStageWriter(self, key)

    def commit(self, request: TransactionRequest) -> Coroutine[Any, Any, None]:
        """Commit a transaction durably, all of it or nothing."""
        return CommitAttempt(self, request).commit()

    def packed_publisher(self) -> LocalPackedPublisher:
        """For the listeners of a server."""
        return LocalPackedPublisher(self)

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> Backend:
        """Lock the folder and recover its journal. Does nothing in memory."""
        await self.open_folder()
        if self._telemetry is not None:
            self._telemetry.begin()
        return self

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""
        if self._telemetry is not None:
            self._telemetry.end()
        super().close()

    async def aclose(self) -> None:
        """Close it, and the sources of history."""
        self.close()
        if self.history_reads is not None:
            await self.history_reads.close_sources()

    # -- looking, and steering ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self.loop_owner.check_usable("listing topics")
        return self.catalog.names()

    def has_topic(self, topic: str) -> bool:
        """Whether the topic was declared or published to; subscribing to it makes none."""
        return self.topic_use(topic).exists

    def topic_use(self, topic: str) -> TopicUse:
        """Whether there is such a topic, and whether it is read now."""
        log = self.catalog.logs.get(topic)
        exists = log is not None and (log.stored is not None or bool(log.end) or log.options is not UNDECLARED)
        is_read = self.catalog.has_readers(topic)
        return TopicUse(exists, log is not None and log.stored is not None, is_read, log.live_bytes if log else 0)

    def reclaim(self, topic: str) -> bool:
        """Delete a topic in memory that no reader has subscribed to by its name. False: it stays."""
        return self.catalog.reclaim(topic)

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        self.loop_owner.check_usable("deleting a topic")
        self.catalog.delete(topic)
        await self.flushed()

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change options of a topic; return those that hold now."""
        self.loop_owner.check_usable("changing a topic")
        log = self.catalog.configure(topic, changes)
        await self.flushed()
        return log.options.given()

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options with which a topic was declared; None: there is no such topic."""
        log = self.catalog.logs.get(topic)
        return None if log is None else log.options.given()

    async def bounds(
        self,
        patterns: Sequence[str],
        time: datetime | None = None,
        sequence: int | None = None,
        *,
        history: bool = True,
    ) -> list[TopicBounds]:
        """The first and end offsets of the topics that match `patterns`, sorted by name."""
        self.loop_owner.check_usable("asking for bounds")
        places = None if sequence is None else await positions.offsets_at(self, patterns, sequence, history=history)
        return await positions.bounds_of(self, patterns, time, places, history=history)

    async def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """Store durably that the sources of history of these topics have all records before these positions."""
        self.loop_owner.check_usable("confirming what is archived")
        return await confirm_archived(self, positions)

    async def floors(self, patterns: Sequence[str]) -> list[TopicFloors]:
        """How far the topics that match have left the journal, sorted by name."""
        self.loop_owner.check_usable("asking for floors")
        return topic_floors(self, patterns)

    async def end_sequence(self) -> int:
        """The sequence after the last visible record."""
        return self.timeline.sequence

    async def place(self, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
        """Store the positions of named subscriptions that are not open."""
        if not self.loop_owner.is_here():
            await self.loop_owner.visit(self.place(places, hold))
            return
        self.loop_owner.check_usable("storing places")
        positions.store_places(self, places, hold)
        await self.flushed()

    async def forget(self, name: str) -> None:
        """Forget a named subscription: its position, and what it holds back from retention."""
        self.loop_owner.check_usable("forgetting a subscription")
        self.positions.forget(name)
        await self.flushed()

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is no such mark."""
        self.loop_owner.check_usable("reading a mark")
        return self.markers.values.get(name)

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        self.loop_owner.check_usable("reading marks")
        known, hidden = sorted(self.markers.values.items()), dead_letters.HIDDEN_PREFIX
        return {name: value for name, value in known if name.startswith(prefix) and not name.startswith(hidden)}

    async def producer_next(self, producer: int) -> int | None:
        """The next number of a producer; None: the producer is unknown."""
        return self.publisher.deduplicator.next(producer)

    async def stages(self) -> list[StageInfo]:
        """The open stages, sorted by key."""
        self.loop_owner.check_usable("listing stages")
        return stage_infos(self)

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> GroupReader:
        """A group that was joined at least once."""
        return self.groups.find(name, pattern)

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """Call a method of `group(name, pattern)`."""
        group = self.groups.find(name, pattern)
        if verb == "statistics":
            return group.statistics()
        if verb == "reset":
            group.reset(start)
        elif verb == "pause":
            group.pause()
        else:
            group.resume()
        return None

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and its progress."""
        self.loop_owner.check_usable("forgetting a group")
        self.groups.remove(name, pattern)
        await self.flushed()

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Publish dead letters to their original topics again, in order, each once; return how many."""
        return await dead_letters.replay(self, topic, limit, where)

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Replay or discard dead letters, each once: those at `offsets`, or all; return how many."""
        return await dead_letters.settle_dead_letters(self, topic, offsets, put_back=put_back)

    async def cancel(self, topic: str, message_id: str) -> None:
        """Hand a delayed record to no group any more."""
        self.loop_owner.check_usable("cancelling a record")
        if topic not in self.catalog.logs:
            raise UnknownTopic(topic)
        request = self.cancellations.request(topic, message_id, self.timeline.now())
        for group in self.groups:
            group.group.is_cancelled = self.cancellations.covers
        await self.commit(request)

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The dead-letter topics, sorted by name."""
        self.loop_owner.check_usable("listing dead letters")
        return dead_letters.dead_letter_topics(self)

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` open dead letters of `topic`, from the offset `start`."""
        return await dead_letters.list_dead_letters(self, topic, start, limit, max_bytes)

    async def present(self, topic: str) -> list[Present]:
        """The subscriptions that read `topic`."""
        self.loop_owner.check_usable("looking at the presence")
        return present(self, topic)

    # -- requests -----------------------------------------------------------------------------------------------

    def request(self, asked: OutgoingRequest) -> Coroutine[Any, Any, Record[bytes]]:
        """Publish a request, and wait for the reply."""
        return request.request(self, asked)

    def request_many(self, asked: OutgoingRequest, limit: int) -> Coroutine[Any, Any, list[Record[bytes]]]:
        """Publish a request, and gather replies until its `timeout`, or until there are `limit`."""
        return request.request_many(self, asked, limit)

    def reply(
        self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None
    ) -> Coroutine[Any, Any, bool]:
        """Reply to a request; False if the requester no longer waits."""
        return request.reply(self, record, value, headers)

    def route_replies(self, prefix: str, route: ReplyRoute | None) -> bool:
        """Give `route` the replies to inboxes that begin with `prefix`."""
        self.inboxes.route(prefix, route)
        return True

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """Counters and current state; of handlers, those that clients reported. From any thread."""
        return self.loop_owner.ask(lambda: snapshot(self, pattern, limit))

    async def snapshot(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """The same as `statistics()`."""
        return snapshot(self, pattern, limit)

    async def sample(self) -> BackendSample:
        """The figures of the console."""
        self.loop_owner.check_usable("looking at it")
        return await take_sample(self)

    async def report_relay(self, report: RelayStatistics) -> None:
        """Store the latest report of a relay or an archive of PostgreSQL."""
        self.loop_owner.check_usable("reporting")
        self.relay_reports.take(report, self.clock.time())

    async def report_pipeline(self, report: PipelineStatistics) -> None:
        """Store the latest report of a pipeline."""
        self.loop_owner.check_usable("reporting")
        self.pipeline_reports.take(report, self.clock.time())

    async def report_handlers(self, client: str, handlers: Sequence[HandlerStatistics]) -> None:
        """Take what the handlers of a client did since it started."""
        self.loop_owner.check_usable("reporting")
        self.handler_reports.take(client, handlers, self.clock.time())

    async def info(self) -> dict[str, Any]:
        """Version, journal and fsync."""
        return {"version": version("runnel-mq"), "journal": self.id, "fsync": self.fsync}

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start`; a negative `start` counts from the end."""
        return await read_history(self, topic, start, limit, max_bytes)
