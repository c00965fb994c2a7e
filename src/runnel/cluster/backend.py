"""`ClusterBackend`: topics in a NATS JetStream cluster. See `core.backend.Backend`.

The cluster replicates, elects leaders and stores; this process packs records into messages, keeps the order of a topic
and finds out the outcome of a publish. Functions that JetStream lacks raise `NotSupported` with the reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from threading import Lock, Thread
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from runnel.cluster import request as requests
from runnel.cluster import transactions
from runnel.cluster.catalog import ClusterCatalog
from runnel.cluster.checks import check_cluster
from runnel.cluster.counting import TopicCount, TopicCounts, count_from, count_records
from runnel.cluster.group import ClusterGroup, named, statistics_of
from runnel.cluster.jetstream import EXPECTED, ROLLUP, Acknowledged, JetStream, Outgoing, StoredCopy
from runnel.cluster.layout import (
    StoredMessage,
    covering,
    first_offset,
    schedule_id,
    stored_message,
    stream_sequence,
)
from runnel.cluster.link import NatsLink
from runnel.cluster.member import ClusterMember
from runnel.cluster.options import ClusterOptions, parse_url
from runnel.cluster.packed_publisher import ClusterPackedPublisher
from runnel.cluster.publishing import ClusterPublishing
from runnel.cluster.pulling import OrderedConsumer
from runnel.cluster.range_reader import ClusterRangeReader
from runnel.cluster.reader import ClusterReader, ReadersOf, StoredPosition, check_known, stored_before
from runnel.cluster.writer import ClusterFastPath, ClusterWriter, delete_topic
from runnel.core.backend import (
    Backend,
    DeadLetterPage,
    DeadLetterTopic,
    GroupVerb,
    HistoryPage,
    OutgoingRequest,
    ReplyRoute,
    RequestRecord,
)
from runnel.core.by_reference import REASON
from runnel.core.clock import Clock
from runnel.core.errors import (
    NameInUse,
    NotSupported,
    OffsetOutOfRange,
    RunnelError,
    TopicDeleted,
    UnknownName,
    UnknownTopic,
    Unreachable,
)
from runnel.core.markers import MarkerValue
from runnel.core.options import SubscribeOptions, TopicOptions, check_message_id
from runnel.core.pattern import check_pattern, matches
from runnel.core.position import Position, Start, reads_by_sequence
from runnel.core.presence import Present
from runnel.core.record import Gap, Record
from runnel.core.schema import Codec, ObjectCodec
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import (
    BackendSample,
    CursorStatistics,
    GroupStatistics,
    HandlerReports,
    HandlerStatistics,
    PipelineReports,
    PipelineStatistics,
    RelayReports,
    RelayStatistics,
    Statistics,
    SubscriptionSample,
    SubscriptionStatistics,
    TopicSample,
    TopicStatistics,
    chosen_topics,
)
from runnel.core.topic_bounds import TopicBounds
from runnel.core.transaction import TransactionRequest
from runnel.runtime.clock import SystemClock
from runnel.runtime.connection_state import ConnectionState
from runnel.runtime.loop_owner import LoopOwner
from runnel.wire.nats import Message

T = TypeVar("T")

_NO_NUMBERS = "a cluster knows message ids, for two minutes, and no numbers of producers; give a message_id"
_NO_ARCHIVE = "the retention of a stream asks no archive; set its limits with the tools of NATS"
_NO_STAGES = "JetStream has no records that are stored and not visible; use a transaction of at most 999 messages"
_NO_LETTERS = "the letters are records of their topic: read it, publish what should be tried again, and trim it"


class ClusterBackend:
    """The topics of a cluster."""

    fast_path = ClusterFastPath

    def __init__(self, link: NatsLink, options: ClusterOptions, clock: Clock, *, auto_create: bool) -> None:
        self.link, self.options, self.clock = link, options, clock
        self.loop_owner = LoopOwner(
            lambda loop: None,
            link.forked,
            entered=False,
            before="it is connected",
            refused=link.connection.count_failed,
        )
        self.js = JetStream(link, options.stream, options.timeout)
        self._catalog = ClusterCatalog(self.js, clock.time, auto_create=auto_create)
        self.publishing = ClusterPublishing(
            self.js, self._catalog, clock, self.loop_owner, link.connection, options.max_pending_bytes
        )
        self._readers = ReadersOf(self.publishing, options.credit)
        self._groups: dict[tuple[str, str], ClusterGroup] = {}
        self._counts = TopicCounts(self.js)
        self._relays, self._pipelines, self._handlers = RelayReports(), PipelineReports(), HandlerReports()
        self._id = ""
        self._sync: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocking: BlockingCalls | None = None
        self._closing: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    def at(cls, url: str, *, auto_create: bool = True, clock: Clock | None = None, **options: Any) -> ClusterBackend:
        """The topics of the cluster at `url`. Options: see `ClusterOptions`."""
        servers, written = parse_url(url)
        chosen = ClusterOptions.of(options, written)
        time = clock or SystemClock()

        def again() -> ClusterBackend:
            return cls(NatsLink(servers, chosen), chosen, time, auto_create=auto_create)

        made = again()
        made._blocking = BlockingCalls(again)
        return made

    def __repr__(self) -> str:
        return f"<ClusterBackend {self.summary}>"

    # -- its life -----------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """Location and state in a few words."""
        return f"at {self.link.connection.address}, {self.loop_owner.state}, {self.link.state}"

    @property
    def id(self) -> str:
        """Identifies the stream: its name and the time when it was made."""
        return self._id

    @property
    def origin(self) -> str:
        """The same: a stream is not replaced."""
        return self._id

    @property
    def is_durable(self) -> bool:
        """Yes."""
        return True

    @property
    def is_remote(self) -> bool:
        """Yes: its topics are on servers."""
        return True

    @property
    def fsync(self) -> str | None:
        """Whether servers sync every write ("commit") or not ("interval"); None: not known."""
        return self._sync

    @property
    def connection(self) -> ConnectionState:
        """The state of the connection."""
        return self.link.connection

    @property
    def replication(self) -> None:
        """None: the journal is another process's."""
        return None

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this loop."""
        self.loop_owner.check_usable(doing)

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable and connected now."""
        if self.loop_owner.entered:
            self.loop_owner.check_usable(doing)
        if self.link.state != "connected" or not self.loop_owner.entered:
            error = self.link.connection.error
            raise Unreachable(
                self.link.connection.address or "", getattr(error, "why", None) or "it was not reached yet"
            ) from error

    async def open(self, *, quiet: bool = False) -> Backend:
        """Connect, check the cluster, make the stream if it is not there, and read the catalog."""
        if not self.loop_owner.entered:
            try:
                await self.link.open()
                self._id, self._sync = await check_cluster(self.js, self.options, quiet=quiet)
                await self._catalog.open()
            except BaseException:
                self.link.close()
                raise
            self.loop_owner.entered = True
            self.loop_owner.check_usable("opening")
            self._watch = asyncio.get_running_loop().create_task(self.js.watch())
        return self

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls."""
        if self.loop_owner.loop is not None and self.loop_owner.is_here() and not self.loop_owner.closed:
            self.loop_owner.take_posted()
        if self.loop_owner.close():
            self._readers.is_closed = True
            self.publishing.seal()
            if not self.publishing.bytes:
                self._end_readers()
            if self.loop_owner.entered:
                self._closing = asyncio.get_running_loop().create_task(self._close())

    def _end_readers(self) -> None:
        for one in list(self._readers.open):
            one.end()

    async def _close(self) -> None:
        """Send pending publishes, and let readers finish, for `close_timeout` seconds at most."""
        readers = [one for one in self._readers.open if isinstance(one, ClusterReader)]
        members = [one for one in self._readers.open if isinstance(one, ClusterMember)]
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.close_timeout):
                await self.publishing.idle()
                self._end_readers()  # behind the records that were on their way
                await asyncio.gather(*(one.finished() for one in readers), *(one.left() for one in members))
                await self.publishing.idle()  # dead letters of members that left
                if self.link.state == "connected":
                    with suppress(RunnelError):
                        await self.link.flushed()
        self._end_readers()
        for one in readers:
            one.stop()
        self.publishing.fail()
        if self._blocking is not None:
            await asyncio.to_thread(self._blocking.close)
        self._catalog.close()
        if self._watch is not None:
            self._watch.cancel()
        self.link.close()

    async def aclose(self) -> None:
        """Close it, and return when all publishes are stored, for `close_timeout` seconds at most."""
        self.close()
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def flushed(self) -> None:
        """Return when all earlier changes are stored: publishes, positions and acks."""
        await self.publishing.idle()
        for one in list(self._readers.open):
            if isinstance(one, ClusterReader):
                await one.kept()
            else:
                await one.flushed()

    async def synced(self) -> None:
        """The same as `flushed`: whether servers sync every write is their `sync_interval`."""
        await self.flushed()

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> ClusterWriter:
        """Create the writer of a topic; options that a cluster does not support raise."""
        if isinstance(codec, ObjectCodec):
            raise NotSupported(f"type=object for topic {topic!r}", REASON)
        return ClusterWriter(self.publishing, topic, codec, options)

    def producer(self, id: int, *, named: bool) -> NoReturn:
        """Not possible."""
        raise NotSupported("producer()", _NO_NUMBERS)

    def stage(self, writer: Any, key: StageKey) -> NoReturn:
        """Not possible."""
        raise NotSupported("stage()", _NO_STAGES)

    def mixed_stage(self, key: StageKey) -> NoReturn:
        """Not possible."""
        raise NotSupported("stage()", _NO_STAGES)

    async def commit(self, request: TransactionRequest) -> None:
        """Commit a transaction, all of it or nothing."""
        self.loop_owner.check_usable("committing")
        await transactions.commit(self.publishing, request)

    def packed_publisher(self) -> ClusterPackedPublisher:
        """For the listeners of a server."""
        return ClusterPackedPublisher(self.publishing)

    # -- reading ------------------------------------------------------------------------------------------------

    def reader(
        self,
        pattern: str | Sequence[str],
        options: SubscribeOptions,
        wake: Callable[[], None],
        resume: Position | int | None = None,
        until: int | None = None,
        *,
        far: bool = False,
    ) -> ClusterReader:
        """Create a reader; nothing is sent before `enter`."""
        several = isinstance(pattern, list | tuple)
        patterns = tuple(map(check_pattern, dict.fromkeys(pattern) if several else (pattern,)))
        options.check_for(patterns, several=several)
        return ClusterReader(self._readers, patterns, options, wake, resume, until, several=several)

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> ClusterMember:
        """A new member of a group; it joins when it is entered."""
        group = self._group(options.group or "", pattern)
        return ClusterMember(self._readers, self.publishing, group, options, self, wake)

    def _group(self, name: str, pattern: str) -> ClusterGroup:
        found = self._groups.get((name, pattern))
        if found is None:
            found = self._groups[name, pattern] = ClusterGroup(self.js, self._catalog, self.clock, name, pattern)
            found.tell_requester = self._give_up
        return found

    def _give_up(self, record: Record[bytes], reason: str) -> None:
        task = asyncio.get_running_loop().create_task(requests.give_up(self.publishing, record, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- catalog and positions ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self.loop_owner.check_usable("listing topics")
        return self._catalog.names()

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        self.loop_owner.check_usable("deleting a topic")
        await delete_topic(self.publishing, topic)

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> NoReturn:
        """Not possible."""
        why = "each message says how long it is kept, and a change could not reach those that are stored"
        raise NotSupported("configure()", f"{why}; delete the topic, and declare it again")

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options with which a topic was declared; None: there is no such topic."""
        entry = self._catalog.get(topic)
        return None if entry is None else entry.options.given()

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
        names = [name for name in self._catalog.names() if any(matches(one, name) for one in patterns)]
        limit = asyncio.Semaphore(64)

        async def look(name: str) -> TopicBounds:
            async with limit:
                return await self._bounds(name, time, sequence)

        return list(await asyncio.gather(*map(look, names)))

    async def range_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same for readers of ranges: with weights, and beginning where no record is known to be missing.

        Offsets have holes, so records before the first one existed only if a writer or a trim says so.
        The size of records, and their number per message, are taken from the last message.
        """
        self.loop_owner.check_usable("asking for bounds")
        messages: Counter[str] = Counter()
        for filter in covering(patterns):
            for subject, count in (await self.js.message_counts(self.js.subjects.every_bucket(filter))).items():
                messages[self.js.subjects.topic_of(subject)] += count
        behind = await self.end_sequence()
        limit = asyncio.Semaphore(64)

        async def look(topic: str) -> TopicBounds:
            entry, everything = check_known(self._catalog, topic), self.js.subjects.every_bucket(topic)
            async with limit:
                ends = await asyncio.gather(self.js.next(everything), self.js.last(everything))
            first, last = (None if one is None else _message(topic, one) for one in ends)
            if first is None or last is None:
                return TopicBounds(topic, entry.epoch, entry.trimmed, behind, schema=entry.schema, records=0)
            return TopicBounds(
                topic,
                entry.epoch,
                max(entry.trimmed, first.link.previous),
                first_offset(last.first) + last.records,
                len(last.payload) * messages[topic],
                schema=entry.schema,
                records=last.own * messages[topic],
            )

        names = [name for name in self._catalog.names() if any(matches(one, name) for one in patterns)]
        return list(await asyncio.gather(*map(look, names)))

    def range_reader(self, topic: str, epoch: int, first: int, end: int) -> ClusterRangeReader:
        """Reads the records of a topic in [first, end)."""
        return ClusterRangeReader(self.js, self._catalog, topic, epoch, first, end)

    async def _bounds(self, topic: str, time: datetime | None = None, sequence: int | None = None) -> TopicBounds:
        everything = self.js.subjects.every_bucket(topic)
        entry = check_known(self._catalog, topic)
        (end, _), first = await asyncio.gather(self.publishing.end(topic), self.js.next(everything))
        if first is None and entry.options.retention_age is not None and not end:
            end = first_offset(await self.js.last_sequence() + 1)  # what it had is past its retention, and lay before
        start = end if first is None else _first_of(topic, first)
        at: int | None = None
        if time is not None:
            found = await self.js.next(everything, time=time)
            at = end if found is None else _first_of(topic, found)
        elif sequence is not None:
            found = await self.js.next(everything, stream_sequence(sequence))
            at = end if found is None else max(_first_of(topic, found), min(sequence, end))
        return TopicBounds(topic, entry.epoch, start, end, at=at, schema=entry.schema)

    def has_topic(self, topic: str) -> bool:
        """Whether the catalog has it."""
        return topic in self._catalog.names()

    def topic_use(self, topic: str) -> None:
        """Not supported: no single client of a cluster knows all readers of a topic."""

    def reclaim(self, topic: str) -> bool:
        """A cluster has no topics in memory."""
        return False

    async def confirm_archived(self, positions: Mapping[str, Position]) -> NoReturn:
        """Not possible."""
        raise NotSupported("confirm_archived()", _NO_ARCHIVE)

    async def floors(self, patterns: Sequence[str]) -> NoReturn:
        """Not possible."""
        raise NotSupported("floors()", _NO_ARCHIVE)

    async def end_sequence(self) -> int:
        """The sequence after the last visible record."""
        self.loop_owner.check_usable("asking for the end")
        return first_offset(await self.js.last_sequence() + 1)

    async def place(self, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
        """Store the positions of named subscriptions that are not open."""
        if not self.loop_owner.is_here():
            await self.loop_owner.visit(self.place(places, hold))
            return
        self.loop_owner.check_usable("storing places")
        if hold:
            raise NotSupported("hold=True", "JetStream's retention asks no subscriber")
        for name in places:
            if any(one.name == name for one in self._readers.open):
                raise NameInUse(name)
        said = {
            name: StoredPosition(topic, 0, at) if isinstance(at, int) else StoredPosition(topic, at.epoch, at.offset)
            for name, (topic, at) in places.items()
        }
        found = await asyncio.gather(*(self._checked_place(*one) for one in said.items()))
        js = self.js
        await js.store_all(
            [
                Outgoing(js.subjects.position(name), msgspec.json.encode(one), {ROLLUP: "sub", EXPECTED: str(replaced)})
                for (name, one), replaced in zip(said.items(), found, strict=True)
            ]
        )

    async def _checked_place(self, name: str, said: StoredPosition) -> int:
        """The stream sequence of the position that one replaces, if a subscription could continue there; 0: of none."""
        if reads_by_sequence(said.pattern):
            if said.offset > (end := await self.end_sequence()):
                raise OffsetOutOfRange(said.pattern, said.offset, 0, end)
            return await stored_before(self.js, name, said.pattern)
        entry = check_known(self._catalog, said.pattern)
        if said.epoch != entry.epoch:
            raise TopicDeleted(said.pattern, said.epoch)
        bounds = await self._bounds(said.pattern)
        if said.offset > bounds.end:
            raise OffsetOutOfRange(said.pattern, said.offset, bounds.first, bounds.end)
        return await stored_before(self.js, name, said.pattern)

    async def forget(self, name: str) -> None:
        """Forget a named subscription: its position."""
        self.loop_owner.check_usable("forgetting a subscription")
        if any(one.name == name for one in self._readers.open):
            raise NameInUse(name)
        if await self.js.last(self.js.subjects.position(name)) is None:
            raise UnknownName(name)
        await self.js.purge(self.js.subjects.position(name))

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is no such mark."""
        self.loop_owner.check_usable("reading a mark")
        return (await transactions.read_marker(self.js, name))[0]

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        self.loop_owner.check_usable("reading marks")
        found: dict[str, MarkerValue] = {}
        for message in await self._latest(self.js.subjects.all_markers):
            name = self.js.subjects.named(message.subject)
            value = msgspec.msgpack.decode(message.payload)
            if name.startswith(prefix) and value is not None:
                found[name] = value
        return dict(sorted(found.items()))

    async def _latest(self, subject: str) -> list[StoredCopy]:
        """The last message of every subject below one with a wildcard."""
        found: list[StoredCopy] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def arrived(message: Message, about: Acknowledged) -> None:
            found.append(StoredCopy(message.subject, about.sequence, message.head, message.payload, about.nanoseconds))

        def caught_up() -> None:
            if not done.done():
                done.set_result(None)

        consumer = OrderedConsumer(self.js, [subject], arrived, last_per_subject=True, caught_up=caught_up)
        try:
            await consumer.start()
            await done
        finally:
            consumer.end()
        return found

    async def producer_next(self, producer: int) -> int | None:
        """None: no producer is known."""
        return None

    async def stages(self) -> list[StageInfo]:
        """There are none."""
        return []

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> BlockingGroup:
        """A group that was joined at least once. Its methods block this thread until the cluster has answered."""
        assert self._blocking is not None
        self._blocking.call(lambda backend: backend.check_group(name, pattern))
        return BlockingGroup(self._blocking, name, pattern, self._forget_leases)

    async def check_group(self, name: str, pattern: str) -> None:
        """Raise `UnknownGroup` unless there is such a group."""
        await self._group(name, pattern).known()

    def _forget_leases(self, name: str, pattern: str) -> None:
        """A group was reset: members of this process hold nothing any more. Others hear it from the cluster."""
        group = self._groups.get((name, pattern))
        if group is not None and self.loop_owner.is_here():
            for member in list(group.members):
                member.forget()

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """Call a method of `group(name, pattern)` without blocking the loop."""
        self.loop_owner.check_usable("asking a group")
        group = self._group(name, pattern)
        if verb == "statistics":
            return await group.statistics()
        if verb == "reset":
            await group.reset(start)
        else:
            await group.pause(paused=verb == "pause")
        return None

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and its progress."""
        self.loop_owner.check_usable("forgetting a group")
        await self._group(name, pattern).forget()
        self._groups.pop((name, pattern), None)

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Not possible."""
        raise NotSupported("replay()", _NO_LETTERS)

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Not possible."""
        raise NotSupported("replay()" if put_back else "discard()", _NO_LETTERS)

    async def cancel(self, topic: str, message_id: str) -> None:
        """Have the cluster forget a delayed record that is not due yet."""
        self.loop_owner.check_usable("cancelling a record")
        check_message_id("message_id", message_id)
        if self._catalog.get(topic) is None:
            raise UnknownTopic(topic)
        await self.js.purge(self.js.subjects.schedule(schedule_id(topic, message_id), ">"))

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """Not possible."""
        raise NotSupported("dead_letter_topics()", _NO_LETTERS)

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """Not possible."""
        raise NotSupported("dead_letters()", _NO_LETTERS)

    async def present(self, topic: str) -> list[Present]:
        """Not possible."""
        why = "processes of a cluster do not know each other's subscribers; have them subscribe through one server"
        raise NotSupported("presence()", why)

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(self, asked: OutgoingRequest) -> Record[bytes]:
        """Publish a request, and wait for the reply."""
        return await requests.request(self.publishing, asked)

    async def request_many(self, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
        """Publish a request, and gather replies until its `timeout`, or until there are `limit`."""
        return await requests.request_many(self.publishing, asked, limit)

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """Reply to a request; False if the requester no longer waits."""
        return await requests.reply(self.publishing, record, value, headers)

    def route_replies(self, prefix: str, route: ReplyRoute | None) -> bool:
        """Not possible: the inboxes are not in this process."""
        return False

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """Counters of this process and the state of the cluster. Round trips that block the thread; from any."""
        if self.loop_owner.closed or self._blocking is None:
            return self._statistics(pattern, limit, {}, (), ())
        found = self._blocking.call(lambda backend: backend.snapshot(pattern, limit))
        return self.loop_owner.ask(lambda: self._merged(found))

    def _merged(self, found: Statistics) -> Statistics:
        """The cluster's figures, with the subscriptions, members and counters of this backend."""
        own = self._statistics(None, None, {}, (), ())
        live = {one.name for one in own.subscriptions}
        groups = tuple(
            msgspec.structs.replace(one, **_own_figures(self._groups[one.name, one.pattern]))
            if (one.name, one.pattern) in self._groups
            else one
            for one in found.groups
        )
        topics = {
            name: msgspec.structs.replace(one, published_bytes=here.published_bytes, subscribers=here.subscribers)
            for name, one in found.topics.items()
            if (here := own.topics.get(name)) is not None
        }
        cursors = tuple(one for one in found.cursors if one.name not in live)
        return msgspec.structs.replace(own, topics=topics, groups=groups, cursors=cursors)

    async def snapshot(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """The same, with the ends of topics and the groups and positions that the cluster knows."""
        self.loop_owner.check_usable("asking for statistics")
        names = list(chosen_topics(dict.fromkeys(self._catalog.names()), pattern, limit))
        limited = asyncio.Semaphore(64)

        async def look(name: str) -> tuple[str, SeenTopic]:
            async with limited:
                found = await self._bounds(name)
                counted = await self._counts.of(name, found.epoch, found.first, found.end)
                return name, SeenTopic(found, counted)

        bounds = dict(await asyncio.gather(*map(look, names)))
        by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for consumer in await self.js.consumers():
            if (group := named(consumer)) is not None:
                by_group.setdefault(group, []).append(consumer)

        async def progress(of: tuple[str, str], found: list[dict[str, Any]]) -> GroupStatistics:
            async with limited:
                return await self._group(*of).shown(found)

        groups = tuple(await asyncio.gather(*(progress(*one) for one in sorted(by_group.items()))))
        live = {one.name for one in self._readers.open if one.name is not None}
        cursors: list[CursorStatistics] = []
        for message in await self._latest(self.js.subjects.all_positions):
            name = self.js.subjects.named(message.subject)
            if name not in live:
                kept = msgspec.json.decode(message.payload, type=StoredPosition)
                filters = [self.js.subjects.every_bucket(one) for one in covering(kept.pattern.split(" "))]
                lag = await count_from(self.js, filters, kept.offset)
                cursors.append(CursorStatistics(name, kept.pattern, kept.offset, lag, False))
        readers = [one for one in self._readers.open if isinstance(one, ClusterReader)]
        lags = dict(zip(readers, await asyncio.gather(*(one.pending_records() for one in readers)), strict=True))
        return self._statistics(pattern, limit, bounds, groups, tuple(sorted(cursors, key=lambda one: one.name)), lags)

    def _statistics(
        self,
        pattern: str | None,
        limit: int | None,
        seen: Mapping[str, SeenTopic],
        groups: tuple[GroupStatistics, ...],
        cursors: tuple[CursorStatistics, ...],
        lags: Mapping[ClusterReader, int] = MappingProxyType({}),
    ) -> Statistics:
        topics: dict[str, TopicStatistics] = {}
        for name in chosen_topics(dict.fromkeys(self._catalog.names()), pattern, limit):
            entry, found = check_known(self._catalog, name), seen.get(name)
            readers = sum(matches(one, name) for reader in self._readers.open for one in reader.pattern.split(" "))
            count, size = self.publishing.published_to.get(name, (0, 0))
            if found is None:
                topics[name] = TopicStatistics(name, entry.epoch, count, size, 0, 0, 0, readers)
            else:
                (first, end), (kept, ever) = (found.bounds.first, found.bounds.end), found.counted
                ever = max(ever, count)
                topics[name] = TopicStatistics(name, entry.epoch, ever, size, first, end, 0, readers, records=kept)
        readers_open = [one for one in self._readers.open if isinstance(one, ClusterReader)]
        subscriptions = tuple(
            _subscription(one, lags.get(one, one.lag)) for one in sorted(readers_open, key=lambda one: one.label)
        )
        flowed = self._readers.flowed(lags)
        return Statistics(
            topics,
            subscriptions,
            groups,
            self._handlers.current(self.clock.time()),
            flowed,
            self.publishing.published,
            self.publishing.published_bytes,
            sum(one.delivered for one in flowed.values()),
            sum(one.dropped for one in flowed.values()),
            0,
            None,
            cursors,
            relays=self._relays.current(self.clock.time()),
            pipelines=self._pipelines.current(self.clock.time()),
        )

    async def sample(self) -> BackendSample:
        """The figures of the console."""
        found = await self.snapshot()
        topics = tuple(
            TopicSample(one, check_known(self._catalog, name).options, True) for name, one in found.topics.items()
        )
        subscriptions = tuple(SubscriptionSample(at, one) for at, one in enumerate(found.subscriptions))
        return BackendSample(
            topics,
            subscriptions,
            found.groups,
            (),
            found.published,
            found.published_bytes,
            found.delivered,
            found.dropped,
            0,
            None,
            found.relays,
            cursors=found.cursors,
        )

    async def report_relay(self, report: RelayStatistics) -> None:
        """Take what a relay or an archive of PostgreSQL reports of itself."""
        self.loop_owner.check_usable("reporting")
        self._relays.take(report, self.clock.time())

    async def report_pipeline(self, report: PipelineStatistics) -> None:
        """Take what a pipeline reports of itself."""
        self.loop_owner.check_usable("reporting")
        self._pipelines.take(report, self.clock.time())

    async def report_handlers(self, client: str, handlers: Sequence[HandlerStatistics]) -> None:
        """Take what the handlers of a client of a server in front of the cluster did since it started."""
        self.loop_owner.check_usable("reporting")
        self._handlers.take(client, handlers, self.clock.time())

    async def info(self) -> dict[str, Any]:
        """Version, stream and server."""
        return {
            "version": version("runnel-mq"),
            "journal": self.id,
            "fsync": self.fsync,
            "server": self.link.connection.server,
            "stream": self.options.stream,
        }

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start`; a negative `start` counts from the end."""
        self.loop_owner.check_usable("reading a topic")
        bounds = await self._bounds(topic)
        skip = 0
        if isinstance(start, int) and start < 0:
            skip, start = -start, await self._near_the_end(topic, bounds, -start)
        options = SubscribeOptions(start="earliest" if start is None else start)
        woken = asyncio.Event()
        reader = ClusterReader(self._readers, (topic,), options, woken.set, None, bounds.end, several=False)
        records: list[Record[bytes]] = []
        gap: Gap | None = None
        size = 0
        following = bounds.end
        await reader.enter()
        try:
            while bounds.end > bounds.first:
                taken = reader.take(4096 if skip else limit - len(records))
                if taken is None:
                    if reader.error is not None:
                        raise reader.error
                    if reader.ended:
                        break
                    woken.clear()
                    await woken.wait()
                    continue
                if taken.missed is not None and gap is None:
                    missed = taken.missed
                    gap = Gap(topic, missed.first, missed.end, missed.count, missed.reason)
                found = [record for part in taken.slices for record in part.records]
                if skip:
                    records = (records + found)[-skip:]
                    continue
                is_full = False
                for record in found:
                    size += len(record.value)
                    if records and size > max_bytes:
                        is_full = True
                        break
                    records.append(record)
                if is_full or len(records) >= limit:
                    following = records[-1].offset + 1
                    break
        finally:
            reader.stop()
        if skip:
            records = records[:limit]
            following = records[-1].offset + 1 if records else bounds.end
        return HistoryPage(records, gap, bounds.epoch, bounds.first, bounds.end, following)

    async def _near_the_end(self, topic: str, bounds: TopicBounds, records: int) -> int:
        """An offset from which on a topic has at least so many records, if it has so many at all."""
        filters, back = [self.js.subjects.every_bucket(topic)], max(64, 2 * records)
        last, first = stream_sequence(max(bounds.first, bounds.end - 1)), stream_sequence(bounds.first)
        while last - back > first:
            if (await count_records(self.js, filters, last - back)).records >= records:
                return first_offset(last - back)
            back *= 8
        return bounds.first


class SeenTopic(NamedTuple):
    """A topic as the cluster shows it."""

    bounds: TopicBounds
    counted: TopicCount


class BlockingCalls:
    """Calls that block their thread, which may be the event loop's: made on a connection and a thread of their own."""

    def __init__(self, make: Callable[[], ClusterBackend]) -> None:
        self._make = make
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._backend: ClusterBackend | None = None

    def call(self, ask: Callable[[ClusterBackend], Coroutine[Any, Any, T]]) -> T:
        """The result of a method of a backend that is connected to the same cluster."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name="runnel cluster calls", daemon=True)
                self._thread.start()
            loop = self._loop

            async def made() -> T:
                if self._backend is None:
                    backend = self._make()
                    await backend.open(quiet=True)
                    self._backend = backend
                return await ask(self._backend)

            return asyncio.run_coroutine_threadsafe(made(), loop).result()

    def close(self) -> None:
        """End the connection and the thread."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            if self._backend is not None:
                asyncio.run_coroutine_threadsafe(self._backend.aclose(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = self._backend = None


class BlockingGroup:
    """Administration of a group: every method blocks its thread. See `core.backend.GroupAdmin`."""

    def __init__(self, calls: BlockingCalls, name: str, pattern: str, was_reset: Callable[[str, str], None]) -> None:
        self._calls, self.name, self.pattern, self._was_reset = calls, name, pattern, was_reset

    def _ask(self, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        return self._calls.call(lambda backend: backend.ask_group(self.name, self.pattern, verb, start))

    def statistics(self) -> GroupStatistics:
        """The progress of the group, as the cluster knows it."""
        found = self._ask("statistics")
        assert found is not None
        return found

    def pause(self) -> None:
        """Grant no more leases."""
        self._ask("pause")

    def resume(self) -> None:
        """Continue after a pause."""
        self._ask("resume")

    def reset(self, start: Start) -> None:
        """Continue from `start`."""
        self._ask("reset", start)
        self._was_reset(self.name, self.pattern)


def _own_figures(group: ClusterGroup) -> dict[str, Any]:
    """The counters of this process's members."""
    shown = statistics_of(group, [])
    names = ("acked", "redelivered", "dead_lettered", "expired", "members")
    return {name: getattr(shown, name) for name in names}


def _message(topic: str, found: StoredCopy) -> StoredMessage:
    return stored_message(topic, found.sequence, found.nanoseconds, found.head, found.payload)


def _first_of(topic: str, found: StoredCopy) -> int:
    return first_offset(_message(topic, found).first)


def _subscription(reader: ClusterReader, lag: int) -> SubscriptionStatistics:
    return SubscriptionStatistics(
        reader.label,
        reader.pattern,
        reader.name,
        reader.policy,
        reader.buffer,
        lag,
        reader.delivered,
        reader.dropped_count + reader.untold,
        reader.expired,
    )
