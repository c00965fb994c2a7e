"""`LocalBackend`: the `Backend` of a broker in this process. Each method forwards to the part that does the work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from runnel.broker import dead_letters, positions, request
from runnel.broker.group.reader import GroupReader
from runnel.broker.history import read_history
from runnel.broker.packed_publisher import LocalPackedPublisher
from runnel.broker.parts import BrokerParts
from runnel.broker.producer import LocalProducerNumbers
from runnel.broker.sample import take_sample
from runnel.broker.statistics import snapshot
from runnel.broker.tx.commit import CommitAttempt
from runnel.broker.tx.stage import LocalStageWriter, stage_infos
from runnel.broker.writer import LocalFastPath, LocalWriter
from runnel.core.backend import (
    DURABLE_FEATURES,
    Backend,
    DeadLetterPage,
    DeadLetterTopic,
    Feature,
    GroupVerb,
    HistoryPage,
    RequestRecord,
)
from runnel.core.errors import NotSupported
from runnel.core.markers import MarkerValue
from runnel.core.options import TopicOptions
from runnel.core.position import Position, Start
from runnel.core.record import Record
from runnel.core.schema import Codec
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import BackendSample, GroupStatistics, Statistics
from runnel.core.topic_bounds import TopicBounds
from runnel.core.transaction import TransactionRequest


class LocalBackend(BrokerParts):
    """The topics of this process, in memory or in a folder. See `core.backend.Backend`."""

    fast_path = LocalFastPath

    def __repr__(self) -> str:
        return f"<LocalBackend {self.summary}>"

    @property
    def summary(self) -> str:
        """Where it is and in which state, in a few words."""
        where = "in memory" if self.folder is None else f"in {str(self.folder.path)!r}"
        topics, readers = len(self.catalog.logs), len(self.readers)
        return f"{where}, {self.loop_owner.state}, {topics} topics, {readers} readers"

    @property
    def supports(self) -> frozenset[Feature]:
        """What it can do of what some cannot."""
        return frozenset(Feature) if self.is_durable else frozenset(Feature) - DURABLE_FEATURES

    @property
    def is_remote(self) -> bool:
        """No: its topics are in this process."""
        return False

    @property
    def fsync(self) -> str | None:
        """When what was published is on disk; None: never."""
        return None if self.folder is None else self.folder.options.fsync

    @property
    def connection(self) -> Any:
        """`NotSupported`: it is in this process."""
        raise NotSupported("connection", "the broker is in this process, and connected to nothing")

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this loop."""
        self.loop_owner.check_usable(doing)

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable."""
        self.loop_owner.check_usable(doing)

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> LocalWriter:
        """A writer for a topic; options that a topic here cannot have raise."""
        return LocalWriter(self, topic, codec, self.catalog.check(options))

    def producer(self, id: int, *, named: bool) -> LocalProducerNumbers:
        """The numbers of a producer."""
        return LocalProducerNumbers(self.loop_owner, self.publisher, id)

    def stage(self, writer: LocalWriter, key: StageKey) -> LocalStageWriter:
        """A writer for a stage of the topic of `writer`."""
        return LocalStageWriter(self, writer, key)

    def commit(self, request: TransactionRequest) -> Coroutine[Any, Any, None]:
        """Do all that a transaction asks for, durably, or nothing."""
        return CommitAttempt(self, request).commit()

    def packed_publisher(self) -> LocalPackedPublisher:
        """For the listeners of a server."""
        return LocalPackedPublisher(self)

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> Backend:
        """Own the folder and recover its journal. Nothing to do in memory."""
        await self.open_folder()
        return self

    async def aclose(self) -> None:
        """Close it; nothing is left to wait for."""
        self.close()

    # -- looking, and steering ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self.loop_owner.check_usable("listing topics")
        return self.catalog.names()

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        self.loop_owner.check_usable("deleting a topic")
        self.catalog.delete(topic)
        await self.flushed()

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options that a topic was given; None: there is none of that name."""
        log = self.catalog.logs.get(topic)
        return None if log is None else log.options.given()

    async def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics that `patterns` cover begin and end, by name."""
        self.loop_owner.check_usable("asking for bounds")
        return list(positions.bounds_of(self, patterns, time))

    async def end_sequence(self) -> int:
        """The sequence behind the last visible record."""
        return self.timeline.sequence

    async def place(self, places: Mapping[str, tuple[str, Position]], hold: bool | None) -> None:
        """Store where names stand under which nobody reads."""
        if not self.loop_owner.is_here():
            await self.loop_owner.visit(self.place(places, hold))
            return
        self.loop_owner.check_usable("storing places")
        positions.store_places(self, places, hold)
        await self.flushed()

    async def forget(self, name: str) -> None:
        """Forget a named subscription: where it stands, and what it holds."""
        self.loop_owner.check_usable("forgetting a subscription")
        self.positions.forget(name)
        await self.flushed()

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is none of that name."""
        self.loop_owner.check_usable("reading a mark")
        return self.markers.values.get(name)

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""
        self.loop_owner.check_usable("reading marks")
        known, hidden = sorted(self.markers.values.items()), dead_letters.HIDDEN_PREFIX
        return {name: value for name, value in known if name.startswith(prefix) and not name.startswith(hidden)}

    async def producer_next(self, producer: int) -> int | None:
        """The number that a producer has to use next; None: nothing is known of it."""
        return self.publisher.deduplicator.next(producer)

    async def stages(self) -> list[StageInfo]:
        """The stages that are open, by their key."""
        self.loop_owner.check_usable("listing stages")
        return stage_infos(self)

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> GroupReader:
        """A group that has had a member."""
        return self.groups.find(name, pattern)

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """The same as a method of `group(name, pattern)`."""
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
        """Forget a group that has no members, and all that it settled."""
        self.loop_owner.check_usable("forgetting a group")
        self.groups.remove(name, pattern)
        await self.flushed()

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Publish dead letters again to where they came from, in order, each once; how many."""
        return await dead_letters.replay(self, topic, limit, where)

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Have dead letters put back or discarded, each once: those at `offsets`, or all that are there; how many."""
        return await dead_letters.settle_dead_letters(self, topic, offsets, put_back=put_back)

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The topics that dead letters go to, by name."""
        self.loop_owner.check_usable("listing dead letters")
        return dead_letters.dead_letter_topics(self)

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` dead letters of `topic` that are not done with, from an offset on."""
        return await dead_letters.list_dead_letters(self, topic, start, limit, max_bytes)

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(
        self,
        topic: str,
        value: bytes | str,
        timeout: float,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
    ) -> Record[bytes]:
        """Publish, and wait for a reply."""
        return await request.request(self, topic, value, timeout, key, headers)

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """Answer a request; False when the requester no longer waits."""
        return await request.reply(self, record, value, headers)

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """What happened so far and what is held now, without handlers. From any thread."""
        return self.loop_owner.ask(lambda: snapshot(self))

    async def snapshot(self) -> Statistics:
        """The same as `statistics()`."""
        return snapshot(self)

    async def sample(self) -> BackendSample:
        """What a console shows, of about one moment."""
        self.loop_owner.check_usable("looking at it")
        return await take_sample(self)

    async def info(self) -> dict[str, Any]:
        """What it says of itself."""
        return {"version": version("runnel-mq"), "journal": self.id, "fsync": self.fsync}

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start` on; below 0 it counts from the end."""
        return await read_history(self, topic, start, limit, max_bytes)
