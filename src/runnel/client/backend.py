"""`RemoteBackend`: the topics of a server, over a connection that is replaced when it drops.

Subscriptions continue where they were. Unanswered publishes are sent again and stored once. Repeatable calls are sent
again after a reconnect; other calls raise `ConnectionLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any

import msgspec

from runnel.client import request
from runnel.client.address import parse_url
from runnel.client.group import RemoteGroup
from runnel.client.member import RemoteMember
from runnel.client.options import ClientOptions
from runnel.client.packed_publisher import RemotePackedPublisher
from runnel.client.producer import RemoteProducerNumbers
from runnel.client.reader import RemoteReader
from runnel.client.server_link import ServerLink
from runnel.client.stage import RemoteMixedStageWriter, RemoteStageWriter
from runnel.client.transactions import commit
from runnel.client.writer import RemoteFastPath, RemoteWriter, checked_options
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
from runnel.core.clock import Clock, micros
from runnel.core.errors import InvalidOption, NotSupported, Unreachable
from runnel.core.markers import MarkerValue
from runnel.core.options import NO_TOPIC_OPTIONS, SubscribeOptions, TopicOptions, check_message_id, positive
from runnel.core.pattern import check_name, check_pattern, is_pattern
from runnel.core.position import Position, Start, check_start
from runnel.core.presence import Present
from runnel.core.publishing import append_of
from runnel.core.record import Gap, Record
from runnel.core.schema import Codec, ObjectCodec
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import (
    BackendSample,
    GroupStatistics,
    HandlerStatistics,
    PipelineStatistics,
    RelayStatistics,
    Statistics,
    chosen_topics,
)
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.core.transaction import TransactionRequest
from runnel.runtime.clock import SystemClock
from runnel.runtime.connection_state import ConnectionState
from runnel.wire.msgpack_messages import AtSequence, Subscribe, read_record, wire_policy, wire_start

_numbers = count(1)


class RemoteBackend:
    """The topics of a server."""

    fast_path = RemoteFastPath

    def __init__(self, link: ServerLink) -> None:
        self.link, self.loop_owner, self.clock = link, link.loop_owner, link.clock

    @classmethod
    def at(cls, url: str, *, auto_create: bool = True, clock: Clock | None = None, **options: Any) -> RemoteBackend:
        """The topics of the server at `url`. Options: see `ClientOptions`."""
        if not auto_create:
            why = "whether topics are made on first use is the server's to say: give auto_create=False there"
            raise NotSupported("auto_create=False", why)
        addresses, written = parse_url(url)
        return cls(ServerLink(addresses, ClientOptions.of(options, written), clock or SystemClock()))

    def __repr__(self) -> str:
        return f"<RemoteBackend {self.summary}>"

    @property
    def summary(self) -> str:
        """Location and state in a few words."""
        return f"at {self.link.address}, {self.loop_owner.state}, {self.link.state}"

    # -- its life -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identifies the broker of the server; empty before the first connection."""
        return self.link.welcome.journal or ""

    @property
    def origin(self) -> str:
        """That of the server; empty before the first connection."""
        return self.link.origin or ""

    @property
    def is_durable(self) -> bool:
        """Whether topics of the server are durable unless they are declared otherwise."""
        return self.link.welcome.durable

    @property
    def is_remote(self) -> bool:
        """Yes: its topics are on a server."""
        return True

    @property
    def fsync(self) -> str | None:
        """The `fsync` option of the server's journal; None: it has no journal."""
        return self.link.welcome.fsync

    @property
    def connection(self) -> ConnectionState:
        """The state of the connection."""
        return self.link.connection

    @property
    def replication(self) -> None:
        """None: the journal is another process's."""
        return None

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this loop, and not given up."""
        self.link.check_usable(doing)

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable and connected now."""
        self.link.check_usable(doing)
        if self.link.state != "connected":
            error = self.link.connection.error
            raise Unreachable(self.link.address, getattr(error, "why", None) or "it was not reached yet") from error

    async def open(self) -> Backend:
        """Connect for the first time, or raise."""
        if not self.loop_owner.entered:
            await self.link.open()
        return self

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""
        self.link.close()

    async def aclose(self) -> None:
        """Close it, and return when all publishes are sent, for `close_timeout` seconds at most."""
        self.close()
        await self.link.ended()

    async def flushed(self) -> None:
        """Return when all earlier changes are durable, if the backend has a disk."""
        self.link.flush_all()
        with suppress(NotSupported):  # an earlier server writes it within milliseconds, without an answer
            await self._call_newer("flush", {})

    async def synced(self) -> None:
        """Return when all earlier changes are synced to the server's disk, whatever its `fsync` is."""
        self.link.flush_all()
        await self._call_newer("sync", {})

    async def _call_newer(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a call that earlier servers do not have."""
        try:
            return await self.link.call(method, args)
        except InvalidOption as error:
            if error.option != "method":
                raise
            raise NotSupported(f"{method}()", "the server is of an earlier version and cannot do it") from None

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> RemoteWriter:
        """Create the writer of a topic; options that the server does not support raise, once it is known."""
        if isinstance(codec, ObjectCodec):
            raise NotSupported(f"type=object for topic {topic!r}", REASON)
        durable = self.link.welcome.durable or not self.link.connection.connections
        return RemoteWriter(self.link, topic, codec, checked_options(options, durable=durable))

    def producer(self, id: int, *, named: bool) -> RemoteProducerNumbers:
        """The numbers of a producer."""
        return RemoteProducerNumbers(self.link, id, named=named)

    def stage(self, writer: RemoteWriter, key: StageKey) -> RemoteStageWriter:
        """Create the writer of a stage of the topic of `writer`."""
        return RemoteStageWriter(self.link, writer, key)

    def mixed_stage(self, key: StageKey) -> RemoteMixedStageWriter:
        """Create the writer of a stage of many topics."""
        return RemoteMixedStageWriter(self.link, key)

    async def commit(self, request: TransactionRequest) -> None:
        """Commit a transaction durably, all of it or nothing."""
        await commit(self.link, request)

    def packed_publisher(self) -> RemotePackedPublisher:
        """For the listeners of a server: from now on its clients share this connection."""
        self.link.carry_clients()
        return RemotePackedPublisher(self.link)

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
    ) -> RemoteReader:
        """Create a reader; nothing is sent before `enter`. Options that the server would refuse raise here."""
        several = isinstance(pattern, list | tuple)  # then it is read by sequence
        patterns = tuple(map(check_pattern, dict.fromkeys(pattern) if several else (pattern,)))
        options.check_for(patterns, several=several)
        if options.hold and not self.link.welcome.durable:
            raise NotSupported("hold=True", "this broker lives in memory only")
        start = wire_start(options.start)
        if resume is not None:
            start = wire_start(resume if isinstance(resume, Position) else AtSequence(resume))
        asked = Subscribe(
            pattern=" ".join(patterns),
            several=several,
            start=start,
            resume=resume is not None,
            until=until,
            policy=wire_policy(options.policy),
            drops=options.on_drop is not None,
            credit=self.link.options.credit,
            **options.shared(),
        )
        label = options.name or f"{asked.pattern}#{next(_numbers)}"
        return RemoteReader(self.link, asked, options, label, wake, far=far)

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> RemoteMember:
        """A new member of a group; it joins when it is entered.

        Whether a group can begin at `start` is checked when it is joined, as in process.
        """
        asked = Subscribe(
            pattern=pattern,
            start=wire_start(options.start),
            policy=wire_policy(options.policy),
            credit=self.link.options.credit,
            **options.shared(),
        )
        label = options.name or f"{options.group}#{next(_numbers)}"
        return RemoteMember(self.link, asked, label, options.prefetch, options.prefetch_bytes, self, wake)

    # -- looking, and steering ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        names: list[str] = await self.link.call("topics", {})
        return names

    async def administer(self, method: str, args: dict[str, Any]) -> Any:
        """The result of an administrative call of the server, such as `token_create`: once, not again after a loss."""
        return await self.link.call(method, args, again=False)

    def has_topic(self, topic: str) -> None:
        """Only the server knows."""

    def topic_use(self, topic: str) -> None:
        """Only the server knows."""

    def reclaim(self, topic: str) -> bool:
        """Only the server can."""
        return False

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        await self.writer(topic, None, NO_TOPIC_OPTIONS).delete()

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change options of a topic; return those that hold now."""
        held = await self._call_newer("configure", {"topic": topic, "changes": dict(changes)})
        return TopicOptions.of(held).given()

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options with which a topic was declared; None: there is no such topic."""
        found: dict[str, Any] | None = await self.link.call("describe", {"topic": topic})
        return None if found is None else found["options"]

    async def bounds(
        self,
        patterns: Sequence[str],
        time: datetime | None = None,
        sequence: int | None = None,
        *,
        history: bool = True,
    ) -> list[TopicBounds]:
        """The first and end offsets of the topics that match `patterns`, sorted by name."""
        if not patterns:
            return []  # to the server, none means all
        asked = {"patterns": tuple(patterns), "time": None if time is None else micros(time)}
        if sequence is not None:
            asked["sequence"] = sequence
        if not history:
            asked["history"] = False
        found = msgspec.convert(await self.link.call("bounds", asked), list[TopicBounds])
        if sequence is not None and any(one.at is None for one in found):
            raise NotSupported("bounds() with a sequence", "the server is of an earlier version and cannot do it")
        return found

    async def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """Store durably that the sources of history of these topics have all records before these positions."""
        said = [[topic, place.epoch, place.offset] for topic, place in positions.items()]
        return msgspec.convert(await self._call_newer("confirm_archived", {"positions": said}), list[TopicFloors])

    async def floors(self, patterns: Sequence[str]) -> list[TopicFloors]:
        """How far the topics that match have left the journal, sorted by name."""
        if not patterns:
            return []  # to the server, none means all
        found = await self._call_newer("floors", {"patterns": tuple(patterns)})
        return msgspec.convert(found, list[TopicFloors])

    async def end_sequence(self) -> int:
        """The sequence after the last visible record."""
        sequence: int = await self._call_newer("end_sequence", {})
        return sequence

    async def place(self, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
        """Store the positions of named subscriptions that are not open."""
        said = [
            [name, topic, 0, place] if isinstance(place, int) else [name, topic, place.epoch, place.offset]
            for name, (topic, place) in places.items()
        ]
        await self.link.call("place", {"places": said, "hold": hold})

    async def forget(self, name: str) -> None:
        """Forget a named subscription: its position, and what it holds back from retention."""
        await self.link.call("forget", {"name": name}, again=False)

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is no such mark."""
        value: MarkerValue | None = await self.link.call("mark", {"name": name})
        return value

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        values: dict[str, MarkerValue] = await self.link.call("marks", {"prefix": prefix})
        return values

    async def producer_next(self, producer: int) -> int | None:
        """The next number of a producer; None: the producer is unknown."""
        found: int | None = await self.link.call("producer_next", {"producer": producer})
        return found

    async def stages(self) -> list[StageInfo]:
        """The open stages, sorted by key."""
        return msgspec.convert(await self.link.call("stages", {}), list[StageInfo])

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> RemoteGroup:
        """A group that was joined at least once. Its methods block this thread until the server has answered."""
        return RemoteGroup(self.link, name, pattern)

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """The same as a method of `group(name, pattern)`, without blocking the loop."""
        asked: dict[str, Any] = {"name": name, "pattern": pattern}
        if verb == "statistics":
            return msgspec.convert(await self.link.call("group", asked), GroupStatistics)
        if verb == "reset":
            check_start(start, pattern, is_pattern=is_pattern(pattern))
            asked["start"] = wire_start(start)
        await self.link.call(f"group_{verb}", asked)  # of a reset, members learn before the answer which leases ended
        return None

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and its progress."""
        await self.link.call("forget_group", {"name": name, "pattern": pattern}, again=False)

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Publish dead letters to their original topics again, in order, each once; return how many."""
        if where is not None:
            raise NotSupported("replay(where=...)", "the server puts them back, and cannot run your function")
        args = {"topic": check_name(topic), "limit": None if limit is None else positive("limit", limit)}
        count: int = await self.link.call("replay", args, again=False)
        return count

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Replay or discard dead letters, each once: those at `offsets`, or all; return how many."""
        said = None if offsets is None else list(offsets)
        args: dict[str, Any] = {"topic": check_name(topic), "offsets": said}
        if put_back:
            args = {"topic": args["topic"], "limit": None, **({"all": True} if said is None else {"offsets": said})}
        count: int = await self.link.call("replay" if put_back else "discard", args, again=False)
        return count

    async def cancel(self, topic: str, message_id: str) -> None:
        """Hand a delayed record to no group any more."""
        args = {"topic": check_name(topic), "message_id": check_message_id("message_id", message_id)}
        await self._call_newer("cancel", args)

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The dead-letter topics, sorted by name."""
        return msgspec.convert(await self._call_newer("dead_letters", {}), list[DeadLetterTopic])

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` open dead letters of `topic`, from the offset `start`."""
        asked = {"topic": topic, "start": start, "limit": limit, "max_bytes": max_bytes}
        found = await self._call_newer("dead_letter_list", asked)
        letters = [read_record(one) for one in found.pop("letters")]
        return DeadLetterPage(letters, **{name: found[name] for name in DeadLetterPage._fields[1:]})

    async def present(self, topic: str) -> list[Present]:
        """The subscriptions that read `topic`."""
        return msgspec.convert(await self._call_newer("presence", {"topic": check_name(topic)}), list[Present])

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(self, asked: OutgoingRequest) -> Record[bytes]:
        """Publish a request, and wait for the reply."""
        return await request.request(self.link, asked)

    async def request_many(self, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
        """Publish a request, and gather replies until its `timeout`, or until there are `limit`."""
        return await request.request_many(self.link, asked, limit)

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """Reply to a request; False if the requester no longer waits."""
        if (elsewhere := request.topic_of_reply(record)) is not None:
            writer = self.writer(check_name(elsewhere), None, NO_TOPIC_OPTIONS)
            await writer.append(append_of(writer, value, headers=headers))
            return True
        return await request.reply(self.link, record, value, headers)

    def route_replies(self, prefix: str, route: ReplyRoute | None) -> bool:
        """Not possible: the inboxes are not in this process."""
        return False

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """Counters and current state of the server. A round trip that blocks the thread; from any thread."""
        return _statistics(self.link.ask("statistics", _asked_topics(pattern, limit)), pattern, limit)

    async def snapshot(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """The same as `statistics()`, without blocking the loop."""
        return _statistics(await self.link.call("statistics", _asked_topics(pattern, limit)), pattern, limit)

    async def sample(self) -> BackendSample:
        """The figures of the console."""
        return msgspec.convert(await self._call_newer("sample", {}), BackendSample)

    async def report_relay(self, report: RelayStatistics) -> None:
        """Tell the server what a relay or an archive of PostgreSQL reports of itself."""
        await self._call_newer("report_relay", {"report": report})

    async def report_pipeline(self, report: PipelineStatistics) -> None:
        """Send the server the report of a pipeline."""
        await self._call_newer("report_pipeline", {"report": report})

    async def report_handlers(self, client: str, handlers: Sequence[HandlerStatistics]) -> None:
        """Report to the server what the handlers of a client did since it started."""
        await self._call_newer("report_handlers", {"client": client, "handlers": handlers})

    async def info(self) -> dict[str, Any]:
        """Version, uptime, listeners, journal, limits and connections of the server."""
        return dict(await self.link.call("info", {}))

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start`; a negative `start` counts from the end."""
        asked = {"topic": topic, "start": wire_start(start), "limit": limit, "max_bytes": max_bytes}
        found = await self._call_newer("history", asked)
        records = [read_record(one) for one in found.pop("records")]
        gap = None if found["gap"] is None else msgspec.convert(found["gap"], Gap)
        return HistoryPage(records, gap, *(found[name] for name in HistoryPage._fields[2:]))


def _asked_topics(pattern: str | None, limit: int | None) -> dict[str, Any]:
    chosen_topics({}, pattern, limit)  # their errors are raised here
    return {name: value for name, value in (("pattern", pattern), ("limit", limit)) if value is not None}


def _statistics(found: dict[str, Any], pattern: str | None, limit: int | None) -> Statistics:
    # A server of an earlier version returns all topics.
    found["topics"] = {name: found["topics"][name] for name in chosen_topics(found["topics"], pattern, limit)}
    found["flowed"] = {(pattern, subscriber): flowed for pattern, subscriber, flowed in found["flowed"]}
    return msgspec.convert(found, Statistics)
