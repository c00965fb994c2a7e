"""Stages: records that are durable and invisible until a transaction commits them.

A stage is written in batches of bounded size and through a window of its own, so that the commits of other publishers
stay short beside the largest stage. A stage of many topics is written in blocks, which keep the order of its records. A
later attempt supersedes an earlier one; an abandoned stage expires.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import TypeVar

import msgspec

from runnel.broker.durable.commit import AtomicWrite
from runnel.broker.durable.commit_queue import CommitQueue
from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.topic.log import Log
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.timeline import Timeline
from runnel.core.batch_format import BYTES, UnpackedBatch, read_batch_header, unpack
from runnel.core.clock import Clock, Timer, micros
from runnel.core.columns import Columns
from runnel.core.errors import BadBatch, BrokerClosed, RunnelError, StageEnded, StagingFull, TooLarge, UnknownStage
from runnel.core.publishing import Append, append_of_batch
from runnel.core.stages import MANY_TOPICS, StageKey, stage_name
from runnel.journal.format import staged_block
from runnel.journal.format.entry import STAGE_TOPIC, Part
from runnel.journal.format.ledger import BlockStageState, StageState, stage_dropped_part, stage_part, staged_part
from runnel.journal.format.staged_block import BlockDirectory, staged_block_part
from runnel.journal.read.segment_reader import FoundBatch, LostRange, blocks_commit
from runnel.journal.read.staged_blocks import read_whole_blocks
from runnel.journal.write.journal import Journal

T = TypeVar("T")

INLINE_BYTES = 1024 * 1024  # a stage below this is written once more when it is committed, and then leaves no trace


class PendingStageBatch:
    """A batch, or a block, of a stage on its way to the disk."""

    __slots__ = ("body", "count", "directory", "done", "error")

    def __init__(
        self, body: bytes, count: int, done: asyncio.Future[None], directory: BlockDirectory | None = None
    ) -> None:
        self.body, self.count, self.done = body, count, done
        self.directory = directory  # of a block
        self.error: Exception | None = None  # beside the future: a writer that was cancelled asks neither

    def land(self, error: Exception | None = None) -> None:
        """It is durable, or it is not."""
        self.error = error
        if not self.done.done() and not self.done.get_loop().is_closed():
            self.done.set_result(None)


class AnyStage(ABC):
    """A stage from its first write to its end. `state` is its durable state; the journal has its own copy."""

    __slots__ = ("announced", "committing", "ended", "flights", "kept", "records", "state", "turn")

    def __init__(self, state: StageState, *, announced: bool) -> None:
        self.state = state
        self.records = state.records  # counted on: adding them up takes longer with every write
        self.announced = announced  # whether the journal knows of it, or is about to
        self.flights: deque[PendingStageBatch] = deque()
        self.kept: list[bytes] | None = None if self.records else []  # its batches, while they are few and small
        self.turn = asyncio.Lock()  # one write at a time: a second one waits, and continues after it
        self.committing = False
        self.ended: str | None = None  # why

    def __repr__(self) -> str:
        return f"<Stage {stage_name(self.key)} of {self.topic!r}, {self.records} records>"

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic that it is for; `MANY_TOPICS`: it is for many."""

    @abstractmethod
    def is_for(self, log: Log) -> bool:
        """Whether it holds records of a topic."""

    @property
    @abstractmethod
    def must_check(self) -> bool:
        """Whether a topic has a type that not all records were checked against."""

    @abstractmethod
    def part_of(self, body: bytes, time: int) -> Part:
        """The part that stages `body` behind all that was staged before."""

    @abstractmethod
    def mismatch(self, journal: Journal) -> RunnelError | None:
        """Why a record does not fit the type of its topic; None: all fit. For any thread, once nothing is written."""

    @abstractmethod
    def was_checked(self) -> None:
        """All records fit the types of their topics."""

    @property
    def key(self) -> StageKey:
        """The name that its writer gave it."""
        return self.state.key

    @property
    def is_small(self) -> bool:
        """Whether it is better written again than remembered for good."""
        return self.state.bytes < INLINE_BYTES

    def check(self) -> None:
        """Raise unless it can be written to and committed."""
        why = self.ended or ("it is being committed" if self.committing else None)
        if why is not None:
            raise StageEnded(stage_name(self.key), why)

    async def settled(self) -> None:
        """Return when nothing of it is on its way."""
        while self.flights:
            await asyncio.wait([flight.done for flight in self.flights])

    def landed(self, flight: PendingStageBatch, time: int) -> None:
        """The oldest batch on its way is durable."""
        self.flights.remove(flight)
        self.add(flight, time)
        self.records += flight.count
        if self.kept is not None:
            self.kept.append(flight.body)

    @abstractmethod
    def add(self, flight: PendingStageBatch, time: int) -> None:
        """Count a batch that is durable."""

    def let_go(self) -> int:
        """Keep no batches in memory any more; how many bytes that were."""
        kept, self.kept = self.kept, None
        return sum(map(len, kept or ()))


class OpenStage(AnyStage):
    """A stage of one topic: batches, numbered through."""

    __slots__ = ("checked", "log")

    def __init__(self, state: StageState, log: Log, *, announced: bool) -> None:
        super().__init__(state, announced=announced)
        self.log = log
        # Whether all of it was checked against the type of its topic. One of an earlier life was perhaps not.
        self.checked = log.type is not None and not announced

    @property
    def topic(self) -> str:
        """The topic that it is for."""
        return self.log.name

    def is_for(self, log: Log) -> bool:
        """Whether it holds records of a topic."""
        return self.log is log

    @property
    def following(self) -> int:
        """Which of its batches the next one is."""
        return len(self.state.counts) + sum(1 for flight in self.flights if flight.body)

    @property
    def must_check(self) -> bool:
        """Whether its topic has a type that not all records were checked against."""
        return self.log.type is not None and not self.checked

    def part_of(self, body: bytes, time: int) -> Part:
        """The part that stages a packed batch."""
        if self.following >= MAX_BATCHES:
            what, advice = f"the stage {stage_name(self.key)}, in writes,", "write longer lists, or begin another part"
            raise TooLarge(what, self.following + 1, "MAX_BATCHES", MAX_BATCHES, advice)
        return staged_part(self.state.id, self.following, body, time)

    def mismatch(self, journal: Journal) -> RunnelError | None:
        """Why a record does not fit the type of its topic."""
        return type_mismatch(self.kept if self.kept is not None else stage_batches(journal, self.state), self.log)

    def was_checked(self) -> None:
        """All records fit the type of their topic."""
        self.checked = True

    def add(self, flight: PendingStageBatch, time: int) -> None:
        """Count a batch that is durable."""
        state = self.state
        state.counts.append(flight.count)
        state.bytes += len(flight.body)
        state.time = max(state.time, time)


class OpenBlockStage(AnyStage):
    """A stage of many topics: blocks, whose records are numbered through."""

    __slots__ = ("logs", "unchecked")
    state: BlockStageState

    def __init__(self, state: BlockStageState, logs: dict[int, Log], *, announced: bool) -> None:
        super().__init__(state, announced=announced)
        self.logs = logs  # by the id of the topic
        self.unchecked = set(logs)  # topics with records that were not checked against a type

    @property
    def topic(self) -> str:
        """It is for many."""
        return MANY_TOPICS

    def is_for(self, log: Log) -> bool:
        """Whether it holds records of a topic."""
        return log.stored is not None and log.stored.id in self.logs

    @property
    def must_check(self) -> bool:
        """Whether a topic has a type that not all records were checked against."""
        return any(self.logs[topic].type is not None for topic in self.unchecked)

    @property
    def following(self) -> int:
        """Which of its records the next one is."""
        return self.records + sum(flight.count for flight in self.flights)

    def records_of(self, topic: int) -> int:
        """The number of durable records of a topic, and the number including writes under way."""
        count = self.state.topics.get(topic, (0, 0))[0]
        for flight in self.flights:
            if flight.directory is not None and (held := flight.directory.topics.get(topic)) is not None:
                count += held.records
        return count

    def part_of(self, body: bytes, time: int) -> Part:
        """The part that stages a block."""
        return staged_block_part(self.state.id, body, time)

    def mismatch(self, journal: Journal) -> RunnelError | None:
        """Why a record does not fit the type of its topic."""
        state, logs = self.state, self.logs
        shares = {topic: (0, state.topics[topic][0] - 1) for topic in self.unchecked if topic in state.topics}
        if not shares:
            return None
        for found, _ in read_whole_blocks(journal.history, blocks_commit(state.id, 0, state.total, 0, shares)):
            if isinstance(found, LostRange):
                raise OSError(found.reason)
            for one in found:
                if (error := type_mismatch((one.body,), logs[one.topic])) is not None:
                    return error
        return None

    def was_checked(self) -> None:
        """All records fit the types of their topics."""
        self.unchecked = {topic for topic in self.unchecked if self.logs[topic].type is None}

    def add(self, flight: PendingStageBatch, time: int) -> None:
        """Count a block that is durable."""
        assert flight.directory is not None, "a block has one"
        self.state.add(flight.directory, len(flight.body), time)


# -- Small stages ----------------------------------------------------------------------------------------
# A small stage is written again as one plain batch when it is committed, and leaves nothing behind.


# stages that compression made small are not written again: in memory they are not small
INLINE_RAW_BYTES = 4 * INLINE_BYTES
INLINE_RUNS = 256  # of a stage of many topics: each becomes a batch of its own


def append_of_stage(stage: OpenStage, room: int = INLINE_RAW_BYTES) -> Append | None:
    """The staged records as one append. None: they are not in memory, or larger there than `room`."""
    kept = stage.kept
    if not kept or len(kept) != len(stage.state.counts):
        return None
    values: list[bytes] = []
    columns = Columns()
    size = 0
    for body in kept:
        try:
            room -= read_batch_header(body).raw_length
            if room < 0:
                return None
            batch = unpack(body, verify=False)  # it was checked when it was read, or never left memory
        except BadBatch as error:
            raise StageEnded(stage_name(stage.key), f"its records cannot be read any more ({error.why})") from None
        if (carried := batch.columns) is not None:
            columns.extend(len(values), carried)
        values += batch.values
        size += sum(map(len, batch.values))
    return Append(values, columns or None, size, None, True, columns.weight)


def appends_of_blocks(stage: OpenBlockStage, room: int = INLINE_RAW_BYTES) -> list[tuple[Log, Append]] | None:
    """The staged blocks, run by run, as a transaction publishes them. None: they are not in memory, or too large."""
    found: list[tuple[int, Log, UnpackedBatch, int, int]] = []  # number, log, batch, first and end in the batch
    for body in stage.kept or ():
        for held, runs, packed in staged_block.contents_of(body):
            room -= read_batch_header(packed).raw_length
            if room < 0 or len(found) + len(runs) > INLINE_RUNS:
                return None
            batch, at = unpack(bytes(packed), verify=False), 0
            for run in runs:
                found.append((run.sequence, stage.logs[held.topic], batch, at, at + run.count))
                at += run.count
    appends: list[tuple[Log, Append]] = []
    for _, log, batch, first, end in sorted(found, key=itemgetter(0)):
        values = batch.values[first:end]
        columns = None if batch.columns is None else batch.columns.part(first, end)
        extra = 0 if columns is None else columns.weight
        appends.append((log, Append(values, columns, sum(map(len, values)), None, True, extra)))
    return appends or None


def stage_batches(journal: Journal, stage: StageState) -> Iterator[bytes]:
    """The batches of a stage, from disk. For any thread; the stage must not be written to meanwhile."""
    topic, wanted = STAGE_TOPIC | stage.id, len(stage.counts)
    found = 0
    history = journal.history
    plan = history.plan(topic, 0)
    while plan is not None and found < wanted:
        parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
        for item in parsed.items:
            if isinstance(item, FoundBatch) and item.base == found:
                yield item.body
                found += 1
        plan = history.plan(topic, parsed.place, plan, parsed.position)
    if found < wanted:
        raise OSError(f"batch {found} of {wanted} is missing or damaged")


def type_mismatch(batches: Iterable[bytes], log: Log) -> RunnelError | None:
    """Why a value of a stage does not fit the type of its topic; None: all fit. For any thread.

    Batches that say how their values are encoded were written, and checked, when the topic had its type.
    """
    try:
        for body in batches:
            if read_batch_header(body).content_type == BYTES:
                batch = unpack(body, verify=False)
                Publisher.check_type(log, append_of_batch(log.name, body, batch, None))
    except RunnelError as error:
        return error
    return None


# -- All stages of a broker ------------------------------------------------------------------------------


MAX_STAGES = 65_536
MAX_BATCHES = 1_000_000  # of one stage: the record count of each part is remembered until the stage ends
REMEMBERED_ENDS = 4096  # ends of stages, so that a late writer gets the reason
KEPT_BYTES = 16 * INLINE_BYTES  # bytes of small stages in memory; of more, they are read again when they are committed

EXPIRY_PAUSE = 1.0  # seconds between two checks for expired stages

COMMITTED = "it was committed"
DELETED_TOPIC = "one of its topics was deleted"
DROPPED = "it was dropped"

logger = logging.getLogger("runnel")

Task = tuple[str, int, int]  # a writer's batch, and one part of it, whatever the attempt


class StagingArea:
    """Every stage that is open, by its key."""

    def __init__(
        self,
        reads: JournalReads,
        commits: CommitQueue,
        timeline: Timeline,
        logs: Mapping[str, Log],
        clock: Clock,
    ) -> None:
        self._reads, self.commits, self._timeline, self._logs, self._clock = reads, commits, timeline, logs, clock
        self._open: dict[StageKey, AnyStage] = {}
        self._attempts: dict[Task, dict[int, AnyStage]] = {}
        self._ended: dict[Task, tuple[int, str]] = {}  # the last attempt that ended, and why
        self._next = 1
        self._kept = 0  # bytes in memory
        self.bytes = 0  # durable, in all stages that are open
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<StagingArea, {len(self._open)} open, {self.bytes:,} bytes>"

    def __iter__(self) -> Iterator[AnyStage]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    # -- life ---------------------------------------------------------------------------------------------------

    def restore(self, stages: Iterable[StageState], following: int) -> None:
        """Take up what the journal knows. New stages are numbered from `following` on."""
        self._next = following
        logs = {log.stored.id: log for log in self._logs.values() if log.stored is not None}
        for state in sorted(stages, key=lambda one: one.key):
            # The journal changes its own copy, in its own thread.
            if isinstance(state, BlockStageState):
                own = msgspec.structs.replace(state, topics=dict(state.topics))
                self._add(OpenBlockStage(own, {topic: logs[topic] for topic in state.topics}, announced=True))
                self.bytes += state.bytes
            elif (log := logs.get(state.topic)) is not None:
                mine = msgspec.structs.replace(state, counts=list(state.counts))
                self._add(OpenStage(mine, log, announced=True))
                self.bytes += state.bytes
        for attempts in [one for one in self._attempts.values() if len(one) > 1]:
            self._drop_all(self._earlier(attempts, max(attempts)), f"attempt {max(attempts)} superseded it")
        self._expire()

    def stop(self) -> None:
        """Nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self, log: Log) -> None:
        """A topic was deleted, and in the journal its stages with it."""
        for stage in [one for one in self._open.values() if one.is_for(log)]:
            self._end(stage, "its topic was deleted" if isinstance(stage, OpenStage) else DELETED_TOPIC)

    # -- finding and opening ------------------------------------------------------------------------------------

    def find(self, key: StageKey) -> AnyStage | None:
        """The stage of that key, if it is open."""
        return self._open.get(key)

    def why_over(self, key: StageKey) -> str | None:
        """Why nothing may be staged under `key`, from the remembered stages; None: it may be."""
        task = _task(key)
        later = max(self._attempts.get(task, ()), default=-1)
        if later > key.attempt:
            return f"attempt {later} superseded it"
        attempt, why = self._ended.get(task, (-1, ""))
        if attempt < key.attempt:
            return None
        return why if attempt == key.attempt else f"attempt {attempt} came later ({why})"

    def opened(self, key: StageKey, log: Log | None) -> AnyStage:
        """The stage of that key, begun if need be; earlier attempts are over then. Without a `log`: of many topics."""
        if (found := self._open.get(key)) is not None:
            return found
        if (why := self.why_over(key)) is not None:
            raise StageEnded(stage_name(key), why)
        if len(self._open) >= MAX_STAGES:
            raise StagingFull("stages", len(self._open) + 1, "MAX_STAGES", MAX_STAGES)
        stage: AnyStage
        if log is None:
            stage = OpenBlockStage(BlockStageState(self._next, *key, 0, self._now()), {}, announced=False)
        else:
            assert log.stored is not None, "only a durable topic has stages"
            stage = OpenStage(StageState(self._next, *key, log.stored.id, self._now()), log, announced=False)
        self._next += 1
        self._add(stage)
        self._arm()
        return stage

    def give_up(self, stage: AnyStage) -> None:
        """Forget a stage that nothing of came to the journal: it was refused before."""
        if not stage.announced and not stage.flights and stage.ended is None:
            self._remove(stage)

    def _add(self, stage: AnyStage) -> None:
        self._open[stage.key] = stage
        self._attempts.setdefault(_task(stage.key), {})[stage.key.attempt] = stage

    @staticmethod
    def _earlier(attempts: dict[int, AnyStage], attempt: int) -> list[AnyStage]:
        return [one for number, one in sorted(attempts.items()) if number < attempt and not one.committing]

    def _now(self) -> int:
        return micros(self._timeline.now())

    # -- writing ------------------------------------------------------------------------------------------------

    def put(self, stage: AnyStage, body: bytes, count: int) -> PendingStageBatch:
        """Hand a packed batch, or a block, over; of `count` 0, only that the stage is there. It lands, or it fails."""
        stage.check()
        commits, now = self.commits, self._now()
        amount, limit = self.bytes + commits.staged.bytes + len(body), self._reads.journal.options.max_staged_bytes
        if body and amount > limit:
            raise StagingFull("bytes", amount, "max_staged_bytes", limit)
        parts: list[Part] = []
        superseded: list[AnyStage] = []
        if is_first := not stage.announced:
            superseded = self._earlier(self._attempts[_task(stage.key)], stage.key.attempt)
            parts += [*(stage_dropped_part(one.state.id) for one in superseded), stage_part(stage.state)]
        directory = None
        if body:
            parts.append(stage.part_of(body, now))
            if isinstance(stage, OpenBlockStage):
                directory = staged_block.directory_of(body)
        flight = PendingStageBatch(body, count, commits.loop.create_future(), directory)

        def failed(error: Exception) -> None:
            self._landed(stage, flight, now, error)
            if is_first:
                stage.announced = False  # the next write says so again
                for one in superseded:
                    commits.tell(stage_dropped_part(one.state.id))  # in memory they are over

        atomic_write = AtomicWrite([], parts, partial(self._landed, stage, flight, now, None), failed)
        atomic_write.stages = True
        commits.hand_over_atomic_write(atomic_write)
        stage.announced = True
        stage.flights.append(flight)
        commits.staged.bytes += len(body)
        for one in superseded:
            self._end(one, f"attempt {stage.key.attempt} superseded it")
        return flight

    def _landed(self, stage: AnyStage, flight: PendingStageBatch, time: int, error: Exception | None) -> None:
        window = self.commits.staged
        window.bytes -= len(flight.body)
        if error is not None or not flight.body or stage.ended is not None:
            stage.flights.remove(flight)
        else:
            stage.landed(flight, time)
            self.bytes += len(flight.body)
            if stage.kept is not None:
                self._kept += len(flight.body)
                if not stage.is_small or self._kept > KEPT_BYTES:
                    self._kept -= stage.let_go()
        flight.land(error)
        window.make_room()

    # -- committing ---------------------------------------------------------------------------------------------

    def known(self, key: StageKey) -> AnyStage:
        """The stage of that key, which is to be committed."""
        stage = self._open.get(key)
        if stage is None:
            if (why := self.why_over(key)) is not None:
                raise StageEnded(stage_name(key), why)
            raise UnknownStage(stage_name(key))
        stage.check()
        if not (stage.announced or stage.flights):  # its first write failed, and raised
            raise UnknownStage(stage_name(key))
        return stage

    async def settle(self, stage: AnyStage, *, remembered: bool) -> None:
        """Return when all that was written to a stage is durable, and (`remembered`) in memory."""
        async with stage.turn:  # a write under way finishes first, and none starts while it is read
            await stage.settled()
            if remembered and isinstance(stage, OpenStage) and stage.kept is None and stage.ended is None:
                await self._read_back(stage)

    async def _read_back(self, stage: OpenStage) -> None:
        """Have the batches of a stage in memory again."""
        found = await self._looked(stage, lambda: list(stage_batches(self._reads.journal, stage.state)))
        if stage.ended is None:
            stage.kept = found
            self._kept += stage.state.bytes

    async def check_type(self, stage: AnyStage) -> None:
        """Raise unless a stage fits the type that its topic was given after the stage was begun."""
        async with stage.turn:
            await stage.settled()
            mismatch = await self._looked(stage, lambda: stage.mismatch(self._reads.journal))
            if mismatch is not None:
                raise mismatch
            stage.was_checked()

    async def _looked(self, stage: AnyStage, look: Callable[[], T]) -> T:
        """Facts about a stage on disk, found by a reader thread."""
        came: asyncio.Future[T | OSError] = self.commits.loop.create_future()
        self._reads.look(look, lambda found: None if came.done() else came.set_result(found))
        found = await came
        if self._reads.is_closed:
            raise BrokerClosed("committing a stage")
        if isinstance(found, OSError):
            raise StageEnded(stage_name(stage.key), f"its records cannot be read any more ({found})")
        return found

    def committed(self, stage: AnyStage) -> None:
        """Its records are visible."""
        stage.committing = False
        if stage.ended is None:  # its topic may have been deleted since
            self._end(stage, COMMITTED)

    def not_committed(self, stage: AnyStage) -> None:
        """Its records are not visible, and it is as open as before; unless a later attempt came meanwhile."""
        stage.committing = False
        if stage.ended is None and (later := max(self._attempts[_task(stage.key)])) > stage.key.attempt:
            self._drop_all([stage], f"attempt {later} superseded it")

    # -- ending -------------------------------------------------------------------------------------------------

    async def drop(self, key: StageKey, why: str = DROPPED) -> None:
        """Give a stage up; durable when this returns. A stage that is over, or was never there, is left alone."""
        if (stage := self._open.get(key)) is None:
            return
        async with stage.turn:
            await stage.settled()  # or writes under way would land behind its end
        if self._open.get(key) is stage:
            stage.check()
            self._drop_all([stage], why)
            await self.commits.flushed()

    def _drop_all(self, stages: Iterable[AnyStage], why: str) -> None:
        for stage in list(stages):
            if stage.announced:
                self.commits.tell(stage_dropped_part(stage.state.id))
            self._end(stage, why)

    def _end(self, stage: AnyStage, why: str) -> None:
        """The stage is over until the next start."""
        stage.ended = why
        self._kept -= stage.let_go()
        self.bytes -= stage.state.bytes
        self._remove(stage)
        task, attempt = _task(stage.key), stage.key.attempt
        if self._ended.get(task, (-1,))[0] <= attempt:
            self._ended.pop(task, None)
            self._ended[task] = (attempt, why)
            if len(self._ended) > REMEMBERED_ENDS:
                del self._ended[next(iter(self._ended))]

    def _remove(self, stage: AnyStage) -> None:
        del self._open[stage.key]
        attempts = self._attempts[_task(stage.key)]
        del attempts[stage.key.attempt]
        if not attempts:
            del self._attempts[_task(stage.key)]

    # -- expiring -----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Look for stages that expire, when the oldest might."""
        if self._timer is None and self._open:
            oldest = min(stage.state.time for stage in self._open.values()) / 1e6
            after = oldest + self._reads.journal.options.stage_expiry - self._clock.time()
            self._timer = self._clock.call_later(max(EXPIRY_PAUSE, after), self._expire)

    def _expire(self) -> None:
        """Drop those without a write for too long."""
        self._timer = None
        if self.commits.stopped:
            return
        seconds = self._reads.journal.options.stage_expiry
        oldest = int((self._clock.time() - seconds) * 1e6)
        for stage in list(self._open.values()):
            idle = not (stage.flights or stage.committing or stage.turn.locked())
            if idle and stage.state.time <= oldest:
                logger.warning(
                    "stage %s of %r expired with %d records: no write for %g seconds",
                    stage_name(stage.key),
                    stage.topic,
                    stage.records,
                    seconds,
                )
                self._drop_all([stage], f"it expired: no write for {seconds:g} seconds")
        self._arm()


def _task(key: StageKey) -> Task:
    return key[:3]
