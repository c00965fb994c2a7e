"""A transaction: publishes, acks, markers and stages that happen together or not at all.

The block only notes what is wanted. At its end everything is checked, handed over as one atomic write, and visible when
that is on disk. Whatever has to be waited for is waited for with nothing handed over; then all is checked again.
A small stage is written again as a plain batch in the transaction's entry; a large one is named there, and a few bytes
give its records their offsets where they lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from runnel.broker.durable.commit import AtomicWrite
from runnel.broker.durable.staging import INLINE_BYTES, INLINE_RAW_BYTES, OpenStage, append_of_stage
from runnel.broker.group.logic.group import Claim
from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.subscription import Delivery, DeliveryBatch
from runnel.broker.markers import PendingMarkers
from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import Append
from runnel.broker.topic_handle import Topic
from runnel.broker.tx.stage import Stage, staging_of
from runnel.core.errors import (
    AlreadySettled,
    InvalidOption,
    LeaseEnded,
    NotSupported,
    OffsetConflict,
    StageEnded,
    TooLarge,
    TransactionEnded,
)
from runnel.core.markers import ANYTHING, Marker, NoExpectation
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Publication, Seconds, check_expected_offset
from runnel.core.stages import StageKey, checked_stage_key, stage_name
from runnel.journal.format.entry import Part
from runnel.journal.format.ledger import StageState, progress_part, stage_dropped_part
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend
    from runnel.broker.durable.staging import StagingArea
    from runnel.broker.group.reader import GroupReader
    from runnel.core.markers import MarkerValue


INLINE_TOTAL = 4 * INLINE_BYTES  # bytes of small stages that one commit writes again


class TransactionStages:
    """What a transaction was told to commit, by key, and where that is once it is visible."""

    __slots__ = ("_staging", "_taken", "_wanted")

    def __init__(self) -> None:
        self._staging: StagingArea | None = None
        self._wanted: dict[StageKey, Publication] = {}
        self._taken: list[OpenStage] = []

    def __len__(self) -> int:
        return len(self._wanted)

    def note(self, staging: StagingArea, key: StageKey, publication: Publication) -> None:
        """Commit the stage of that key. Whether it is there is looked at when the transaction is."""
        if key in self._wanted:
            raise StageEnded(stage_name(key), "this transaction commits it already")
        self._staging, self._wanted[key] = staging, publication

    # -- looking ------------------------------------------------------------------------------------------------

    def in_the_way(self) -> Awaitable[object] | None:
        """What to wait for first: writes that are on their way, small ones that are to be read again. None: nothing."""
        for stage, inline in self._stages():
            if stage.flights or stage.turn.locked() or (inline and stage.kept is None):
                assert self._staging is not None
                return self._staging.settle(stage, remembered=inline)
        return None

    def _stages(self) -> list[tuple[OpenStage, bool]]:
        """The stages, and whether each is small enough to be written again."""
        room = INLINE_TOTAL
        found: list[tuple[OpenStage, bool]] = []
        for key in self._wanted:
            assert self._staging is not None
            stage = self._staging.known(key)
            inline = stage.is_small and stage.state.bytes <= room
            room -= stage.state.bytes if inline else 0
            found.append((stage, inline))
        return found

    # -- doing --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[tuple[Log, Append | StageState]], list[Part]]:
        """What a unit has to hold so that they are committed with it. They take nothing more, unless it fails."""
        entries: list[tuple[Log, Append | StageState]] = []
        parts: list[Part] = []
        stages, room = self._stages(), INLINE_RAW_BYTES
        for stage, inline in stages:
            small = append_of_stage(stage, room) if inline else None
            if small is not None:
                room -= small.size + small.extra
                entries.append((stage.log, small))
            elif stage.state.counts:
                entries.append((stage.log, stage.state))
            if small is not None or not stage.state.counts:
                parts.append(stage_dropped_part(stage.state.id))
        self._taken = [stage for stage, _ in stages]
        for stage in self._taken:
            stage.committing = True
        return entries, parts

    def placed(self, firsts: Sequence[int]) -> list[tuple[Publication, Position]]:
        """Where they will be: the unit was handed over, and these are the offsets that its entries begin at."""
        following = iter(firsts)
        found: list[tuple[Publication, Position]] = []
        for stage in self._taken:
            publication, records = self._wanted[stage.key], stage.records
            publication.holds(stage.log.name, records)
            found.append((publication, stage.log.position(next(following) if records else stage.log.next)))
        return found

    def landed(self) -> None:
        """They are durable and visible."""
        for stage in self._taken:
            assert self._staging is not None
            self._staging.committed(stage)

    def failed(self) -> None:
        """They are not, or nobody knows."""
        taken, self._taken = self._taken, []
        for stage in taken:
            assert self._staging is not None
            self._staging.not_committed(stage)


# -- Acks in a transaction -------------------------------------------------------------------------------
# While the commit is on its way no other task can settle these deliveries, and their leases do not end.


GIVEN_UP = "its transaction was given up"


class PlannedAck(NamedTuple):
    """Places [first, end) of a lease that are to be acked; of a batch, what is open of them."""

    reader: GroupReader
    lease: Lease
    first: int
    end: int
    batch: bool


class TransactionAcks:
    """The deliveries of one transaction."""

    __slots__ = ("_backend", "_claims", "_noted")

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._noted: list[PlannedAck] = []
        self._claims: list[tuple[GroupReader, Claim]] = []

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def is_kept(self) -> bool:
        """Whether any of it is to be remembered on disk."""
        return any(noted.reader.pending_acks is not None for noted in self._noted)

    def note(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Have a delivery, or a batch of them, acked at the end. Raises if that is too late already."""
        if isinstance(delivery, Delivery):
            found = [PlannedAck(delivery._reader, delivery._lease, delivery._place, delivery._place + 1, False)]
        elif isinstance(delivery, DeliveryBatch):
            found = [PlannedAck(delivery._reader, part.lease, part.first, part.end, True) for part in delivery._parts]
        else:
            raise InvalidOption("delivery", delivery, "expected what a group delivered: a Delivery or a DeliveryBatch")
        if delivery._reader.publisher is not self._backend.publisher:
            why = "it has a journal of its own, so the two cannot be written in one; publish first, then ack there"
            raise NotSupported("acking a delivery of another broker in a transaction", why)
        for noted in found:
            _check_open(noted)
        for noted in found:
            if not noted.batch:
                noted.lease.promised = {**(noted.lease.promised or {}), noted.first: False}
        self._noted += found

    def check(self) -> None:
        """Raise unless all of it can be acked now."""
        for noted in self._noted:
            _check_open(noted)

    # -- with a commit ------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """The commit is on its way: nobody else settles them, and no lease ends."""
        now = self._backend.clock.time()
        for reader, lease, first, end, _ in self._noted:
            for low, high in list(lease.open_ranges(first, end)):
                self._claims.append((reader, Claim(reader.group, lease, low, high, now)))

    def parts(self) -> list[Part]:
        """What is written of it. A group that was reset meanwhile wants nothing of it."""
        settled: dict[int, list[int]] = {}
        for reader, claim in self._claims:
            if reader.pending_acks is not None and not claim.void:
                settled.setdefault(reader.pending_acks.id, []).extend((claim.first, claim.end))
        return [progress_part(group, flat, []) for group, flat in settled.items()]

    def settle(self) -> None:
        """The commit landed."""
        now = self._backend.clock.time()
        for noted in self._noted:
            _unpromise(noted.lease, noted.first)
        for _, claim in self._claims:
            claim.settle(now)
        for reader in {reader for reader, _ in self._claims}:
            reader._after_settling()

    def give_back(self) -> None:
        """The commit failed: all is as it was, and whoever holds it has as long as ever."""
        now = self._backend.clock.time()
        for reader, claim in self._claims:
            reader.dead_letters.publish(claim.give_back(now))
            reader.wake()
        self._claims.clear()
        self.forget()

    def forget(self, *, done: bool = False) -> None:
        """Nothing is acked by it. Deliveries whose blocks were left go the way they would have gone.

        That is back to the group; or, `done` by another transaction as they are, out of it.
        """
        noted, self._noted = self._noted, []
        for reader, lease, first, _, batch in noted:
            if not batch and _unpromise(lease, first) and lease.is_open(first) and not lease.ended:
                if done:
                    reader.ack(lease, first)
                else:
                    reader.nack(lease, first, None, GIVEN_UP)


def _check_open(noted: PlannedAck) -> None:
    reader, lease, first, _, batch = noted
    if lease.ended:
        raise LeaseEnded(reader.name, first, lease.attempt)
    if not batch and not lease.is_open(first):
        raise AlreadySettled(reader.name, first)


def _unpromise(lease: Lease, place: int) -> bool:
    """Nobody will ack `place` but whoever holds it; whether its block was left already."""
    return lease.promised is not None and lease.promised.pop(place, False)


# -- Committing ------------------------------------------------------------------------------------------
# Everything that may stand in the way is checked, then everything is handed over at once.


class PlannedPublish(NamedTuple):
    """A publish, as it was asked for."""

    topic: Topic[Any]
    entry: Append
    publication: Publication


class PlacedPublish(NamedTuple):
    """A publish that is appended, and to what."""

    log: Log
    entry: Append
    publication: Publication


class CommitAttempt:
    """One transaction at its end. `is_over`: it was handed over (`has_begun`), or there was nothing to do."""

    __slots__ = (
        "_acks",
        "_backend",
        "_flight",
        "_in_memory",
        "_known",
        "_marks",
        "_outcome",
        "_roomy",
        "_stages",
        "_task",
        "_then",
        "_wanted",
        "applied",
        "has_begun",
        "is_over",
    )

    def __init__(
        self,
        backend: LocalBackend,
        wanted: Sequence[PlannedPublish],
        acks: TransactionAcks,
        marks: Sequence[Marker],
        stages: TransactionStages,
    ) -> None:
        self._backend, self._wanted, self._acks, self._marks = backend, wanted, acks, marks
        self._stages = stages
        self.is_over = self.has_begun = self.applied = False
        self._outcome: asyncio.Future[None] | None = None  # of what is on its way
        self._then: Awaitable[object] | None = None  # what to wait for next
        self._flight: PendingMarkers | None = None
        self._known: list[tuple[Publication, Position | Publication]] = []  # duplicates, and of what
        self._in_memory: list[PlacedPublish] = []  # appended when the rest has landed
        self._roomy = False  # whether it has waited for room in the journal: it does so once
        self._task: asyncio.Task[Any] | None = None

    async def commit(self) -> None:
        """Return when all of it is durable and visible, or raise: then nothing of it is."""
        self._task = asyncio.current_task()
        self._then = self._try()
        try:
            while not self.is_over:
                then, self._then = self._then, None
                if then is not None:
                    await then  # it may have been tried again meanwhile, by whoever made room
                if not self.is_over and self._then is None:
                    self._then = self._try()
            if self._outcome is not None:
                await self._outcome
        except BaseException:
            self._stop_waiting()
            raise
        if any(self._backend.publisher.is_turn_over(placed.log) for placed in self._in_memory):
            await asyncio.sleep(0)

    def _stop_waiting(self) -> None:
        """Nobody hears how it ends; and what was to be waited for next must not take its turn later."""
        if self._outcome is not None:
            self._outcome.cancel()
        if isinstance(self._then, Coroutine):
            self._then.close()
        elif isinstance(self._then, asyncio.Future):
            self._then.cancel()

    # -- looking ------------------------------------------------------------------------------------------------

    def _try(self, turn: Log | None = None) -> Awaitable[object] | None:
        """Hand all of it over; or what to wait for before trying again. `turn`: a topic in whose queue it is first."""
        backend = self._backend
        backend.loop_owner.check_usable("committing a transaction")
        if self._marks and backend.markers.are_past(self._marks):
            self.is_over, self._outcome = True, backend.markers.joined(self._marks)
            return None
        self._acks.check()
        _, on_its_way = self._place(self._there())
        if on_its_way is not None:
            return on_its_way
        if (staged := self._stages.in_the_way()) is not None:
            return staged
        placed, _ = self._place([wanted.topic._resolve() for wanted in self._wanted])  # only now are topics made
        durable = [one for one in placed if one.log.stored is not None]
        is_kept = backend.store is not None and bool(durable or self._stages or self._marks or self._acks.is_kept)
        if is_kept:
            assert backend.store is not None
            self._check_mixed(placed)
            if not self._roomy and not backend.store.commits.pending.has_room():
                self._roomy = True
                return backend.store.commits.pending.room()
        if (in_the_way := self._blocked(placed, turn)) is not None:
            return in_the_way
        self._in_memory = [one for one in placed if one.log.stored is None]
        self._hand_over(durable) if is_kept else self._append()
        self.is_over = self.has_begun = True
        return None

    def _place(self, logs: Sequence[Log | None]) -> tuple[list[PlacedPublish], Awaitable[object] | None]:
        """What is to be appended to those `logs` that are there; or something on its way to be waited for first."""
        backend, deduplicator = self._backend, self._backend.publisher.deduplicator
        placed: list[PlacedPublish] = []
        ends: dict[Log, int] = {}
        ids: dict[tuple[Log, str], Publication] = {}
        self._known = []
        for log, (_, entry, publication) in zip(logs, self._wanted, strict=True):
            if log is None:
                continue
            backend.publisher.check_type(log, entry)
            if (name := entry.message_id) is not None:
                if (twin := ids.setdefault((log, name), publication)) is not publication:
                    self._known.append((publication, twin))
                    continue
                if (found := deduplicator.find(log, entry)) is not None:
                    if (landing := backend.publisher.landing(log, entry, found.offset)) is not None:
                        return [], landing
                    self._known.append((publication, found))
                    continue
            first = ends.get(log)
            if first is None:
                first = log.next
            if entry.expected_offset is not None and entry.expected_offset != first:
                if backend.publisher.is_on_its_way(log, entry.expected_offset):
                    return [], backend.publisher.until_known(log, entry.expected_offset)
                raise OffsetConflict(log.name, entry.expected_offset, first)
            ends[log] = first + len(entry.values)
            placed.append(PlacedPublish(log, entry, publication))
        return placed, None

    def _there(self) -> list[Log | None]:
        """The logs of all publishes, as far as they are there: what is wrong is said before any is made."""
        there = self._backend.catalog.logs
        made: dict[str, int] = {}
        for topic, entry, _ in self._wanted:
            if topic.name not in there:
                first = made.get(topic.name, 0)
                if entry.expected_offset is not None and entry.expected_offset != first:
                    raise OffsetConflict(topic.name, entry.expected_offset, first)
                made[topic.name] = first + len(entry.values)
        return [topic._resolve() if topic.name in there else None for topic, _, _ in self._wanted]

    @staticmethod
    def _check_mixed(placed: Sequence[PlacedPublish]) -> None:
        """What is in memory only is appended when the rest has landed: where that will be, nobody knows yet."""
        for log, entry, _ in placed:
            if log.stored is None and entry.expected_offset is not None:
                why = "the topic is in memory and the transaction goes to disk; others may publish there first"
                raise NotSupported(f"expected_offset for {log.name!r} in this transaction", why)

    def _blocked(self, placed: Sequence[PlacedPublish], turn: Log | None) -> asyncio.Future[int] | None:
        """A place in the queue for a topic one of whose readers has no room; None: all have."""
        publisher = self._backend.publisher
        for log in {one.log: None for one in placed}:
            if log.topic_readers is None or not log.topic_readers.limited:
                continue
            limited = set(log.topic_readers.limited)  # a pattern among them counts what comes to its other topics too
            entries = [
                one.entry
                for one in placed
                if one.log is log
                or (one.log.topic_readers is not None and not limited.isdisjoint(one.log.topic_readers.limited))
            ]
            values = [value for entry in entries for value in entry.values]
            whole = Append(values, None, sum(entry.size for entry in entries))
            if log.topic_readers.refusing(log, whole) if turn is log else publisher.must_wait(log, whole):
                return publisher.queue(log, whole, self._task, partial(self._take_turn, log))
        return None

    def _take_turn(self, log: Log) -> int:
        """There is room in `log`, and it is this transaction's: go on now, before anybody else can."""
        self._then = self._try(log)
        return 0

    # -- doing --------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """All of it is in memory: there it is."""
        flight = self._backend.markers.hand_over(self._marks)
        self._acks.claim()
        self._apply(flight)

    def _hand_over(self, durable: list[PlacedPublish]) -> None:
        backend, marks, acks = self._backend, self._backend.markers, self._acks
        assert backend.store is not None
        commits = backend.store.commits
        staged, dropped = self._stages.take()
        atomic_write = AtomicWrite(
            [*((one.log, one.entry) for one in durable), *staged],  # stages lie behind what is published beside them
            [*marks.parts(self._marks), *dropped],
            self._landed,
            self._failed,
            acks.parts,
        )
        atomic_write.stages = bool(staged or dropped)
        try:
            firsts = commits.hand_over_atomic_write(atomic_write)
        except BaseException:  # it has done nothing
            self._stages.failed()
            raise
        self._known += self._stages.placed(firsts[len(durable) :])
        for one, first in zip(durable, firsts[: len(durable)], strict=True):
            if one.entry.message_id is not None:
                backend.publisher.deduplicator.remember(one.log, one.entry, first)
            self._known.append((one.publication, one.log.position(first)))
        self._outcome = commits.loop.create_future()
        self._flight = marks.hand_over(self._marks)
        acks.claim()
        for log, entry, _ in self._in_memory:  # room that is theirs
            log.coming += len(entry.values)
            log.coming_bytes += entry.size
        if self._in_memory:
            backend.timeline.cool()

    def _landed(self) -> None:
        """It is durable, and its records are visible: so is all the rest, at once."""
        assert self._flight is not None
        assert self._outcome is not None
        self._leave()
        self._stages.landed()
        self._apply(self._flight)
        resolve_waiter(self._outcome)

    def _failed(self, error: Exception) -> None:
        """Nothing of it is there."""
        assert self._flight is not None
        assert self._outcome is not None
        resolve_waiter(self._outcome, error)  # first: whatever the rest comes to, whoever waits is told
        self._leave()
        self._stages.failed()
        self._backend.markers.fail(self._flight, error)
        self._acks.give_back()

    def _leave(self) -> None:
        for log, entry, _ in self._in_memory:
            log.coming -= len(entry.values)
            log.coming_bytes -= entry.size

    def _apply(self, flight: PendingMarkers) -> None:
        # Topics of which an offset is expected come first: what is dropped in others may become a dead letter there.
        expecting = {log for log, entry, _ in self._in_memory if entry.expected_offset is not None}
        for log, entry, publication in sorted(self._in_memory, key=lambda placed: placed.log not in expecting):
            entry.expected_offset = None  # that was looked at, and nobody else came in between
            # A topic that was deleted meanwhile, was so right behind it.
            first = log.end if log.deleted else self._backend.publisher.append(log, entry)
            publication.put(log.position(first))
        for publication, where in self._known:
            if isinstance(where, Position):
                publication.put(where)
        for publication, where in self._known:
            if isinstance(where, Publication):
                publication.put(where.position)
        self._backend.markers.land(flight)
        self._acks.settle()
        self.applied = True


# -- The transaction -------------------------------------------------------------------------------------


T = TypeVar("T")

ADVICE = "split it into several, or stage what is large first"

_PLAIN = TopicOptions()


class Transaction:
    """Publishes to any topics, acks of deliveries and marks: all of it, or nothing. Made by `broker.transaction()`.

    >>> async with broker.transaction() as tx:
    ...     tx.publish("paid", order.id)
    ...     tx.ack(delivery)

    An exception in the block leaves nothing behind. When the block is left, everything is durable and is seen by
    every subscriber at once; or it raises, and nothing happened. Cancelled while it waits for the disk, the outcome is
    unknown: all of it may still be stored, or nothing.
    """

    __slots__ = (
        "_acks",
        "_attempt",
        "_backend",
        "_bytes",
        "_marks",
        "_records",
        "_stages",
        "_state",
        "_topics",
        "_wanted",
    )

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._state = "new"
        self._wanted: list[PlannedPublish] = []
        self._acks = TransactionAcks(backend)
        self._marks: dict[str, Marker] = {}
        self._stages = TransactionStages()
        self._topics: dict[str, Topic[Any]] = {}  # handles on topics that were given by name
        self._records = self._bytes = 0
        self._attempt: CommitAttempt | None = None

    def __repr__(self) -> str:
        noted = f"{len(self._wanted)} publishes, {len(self._acks)} acks, {len(self._marks)} marks"
        return f"<Transaction of {noted}, {'applied' if self.applied else self._state}>"

    @property
    def applied(self) -> bool:
        """Whether it was committed. False after the block: a mark said that it had been done before."""
        return self._attempt is not None and self._attempt.applied

    @property
    def has_begun(self) -> bool:
        """Whether some of it may be written already: it cannot be taken back any more."""
        return self._attempt is not None and self._attempt.has_begun

    # -- what is wanted -----------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str | Topic[T],
        value: T | bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Publication:
        """Publish one record at the end of the block; its `position` is known then. Options as in `broker.publish`.

        With `expected_offset`, the record must get this offset; else `OffsetConflict` is raised at the end of the
        block, and nothing happens.
        """
        handle = self._handle(topic)
        entry = self._backend.publisher.one(
            handle.name, handle._codec, value, key, headers, delay, expires, priority, message_id
        )
        return self._want(handle, entry, expected_offset)

    def publish_many(
        self,
        topic: str | Topic[T],
        values: Sequence[T | bytes | str],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        expected_offset: int | None = None,
    ) -> Publication:
        """Publish many records side by side at the end of the block; their `span` is known then."""
        handle = self._handle(topic)
        entry = self._backend.publisher.many(
            handle.name, handle._codec, values, keys, headers, delay, expires, priority
        )
        entry.values = tuple(entry.values)  # the caller may go on changing its own
        return self._want(handle, entry, expected_offset)

    def commit(self, *stages: Stage[Any] | tuple[str, int, int, int]) -> list[Publication]:
        """Make what was staged visible at the end of the block; of each stage, where that is.

        A stage is given as its handle or, where somebody else staged it, as (writer, batch, part, attempt). Its
        records come behind those that the transaction itself publishes to the topic. `StageEnded` is raised at the
        end of the block for one that was committed, dropped or superseded before, and nothing happens.
        """
        self._check_open()
        staging = staging_of(self._backend)
        found: list[Publication] = []
        for stage in stages:
            key = stage.key if isinstance(stage, Stage) else checked_stage_key(stage)
            found.append(Publication(stage.topic if isinstance(stage, Stage) else stage_name(key), 0))
            self._stages.note(staging, key, found[-1])
        return found

    def ack(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block. Until then it can still be nacked.

        Raises if its lease has ended or it was settled, now or at the end of the block.
        """
        self._check_open()
        self._acks.note(delivery)

    def mark(
        self, name: str, value: MarkerValue | None, expected: MarkerValue | NoExpectation | None = ANYTHING
    ) -> None:
        """Have the mark `name` moved forward to `value` (an int, a str or bytes), or forgotten (None).

        If it is there already, or further, the transaction was done before: nothing of it happens, and `applied` is
        False. With `expected`, the mark must be that (None: must not be there) unless it is `value` already; else
        `MarkConflict` is raised at the end of the block, and nothing happens.
        """
        self._check_open()
        mark = Marker(name, value, expected)
        if name in self._marks:
            raise InvalidOption("mark", name, "a transaction moves each mark once")
        self._marks[name] = mark

    def _handle(self, topic: str | Topic[Any]) -> Topic[Any]:
        self._check_open()
        if isinstance(topic, Topic):
            if topic._backend is not self._backend:
                why = "it has a journal of its own, so the two cannot be written in one"
                raise NotSupported(f"publishing to {topic.name!r} of another broker in a transaction", why)
            return topic
        if (known := self._topics.get(topic)) is None:
            known = self._topics[topic] = Topic(self._backend, check_name(topic), None, _PLAIN)
        return known

    def _want(self, topic: Topic[Any], entry: Append, expected_offset: int | None) -> Publication:
        entry.expected_offset = check_expected_offset(expected_offset)
        records, size = self._records + len(entry.values), self._bytes + entry.size + entry.extra
        if records > MAX_ENTRY_RECORDS:
            raise TooLarge("a transaction", records, "max_entry_records", MAX_ENTRY_RECORDS, ADVICE)
        if size > MAX_ENTRY_BYTES:
            raise TooLarge("a transaction", size, "max_entry_bytes", MAX_ENTRY_BYTES, ADVICE)
        self._records, self._bytes = records, size
        publication = Publication(topic.name, len(entry.values))
        self._wanted.append(PlannedPublish(topic, entry, publication))
        return publication

    def _check_open(self) -> None:
        if self._state == "new":
            raise NotSupported("a transaction outside of its block", "use `async with broker.transaction() as tx`")
        if self._state != "open":
            raise TransactionEnded

    # -- its life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction:
        if self._state != "new":
            raise TransactionEnded
        if self._backend.loop_owner.is_here():
            self._backend.loop_owner.check_usable("a transaction")
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._commit() if error is None else self._give_up()
        self._state = "over"
        if self._backend.loop_owner.is_here():
            await end
        else:
            await self._backend.loop_owner.visit(end)

    async def _give_up(self) -> None:
        self._acks.forget()

    async def _commit(self) -> None:
        if not (self._wanted or self._marks or self._acks or self._stages):
            return
        attempt = self._attempt = CommitAttempt(
            self._backend, self._wanted, self._acks, list(self._marks.values()), self._stages
        )
        try:
            await attempt.commit()
        except BaseException:
            if not attempt.has_begun:
                self._acks.forget()
            raise
        if not attempt.applied:
            self._acks.forget(done=True)
