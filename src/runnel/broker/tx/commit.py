"""Commit a transaction: publishes, acks, markers and stages that happen together or not at all.

Everything is checked, handed over as one atomic write, and visible when that is on disk. Waiting (for room, for a
stage) happens before anything is handed over; then all is checked again. A small stage is written again as a plain
batch in the transaction's entry; a large one is named there, and a few bytes give its records their offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.durable.commit import AtomicWrite, StageShare
from runnel.broker.durable.staging import (
    INLINE_BYTES,
    INLINE_RAW_BYTES,
    AnyStage,
    OpenBlockStage,
    OpenStage,
    append_of_stage,
    appends_of_blocks,
)
from runnel.broker.group.logic.group import Claim
from runnel.broker.markers import PendingMarkers
from runnel.broker.parts import BrokerParts
from runnel.broker.topic.log import Log
from runnel.broker.tx.stage import staging_of
from runnel.broker.writer import LocalWriter
from runnel.core.errors import NotSupported, OffsetConflict
from runnel.core.markers import Marker
from runnel.core.position import Position
from runnel.core.publishing import Append, Publication
from runnel.core.stages import StageKey
from runnel.core.transaction import TransactionRequest
from runnel.journal.format.entry import Part
from runnel.journal.format.ledger import StageState, progress_part, stage_dropped_part
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.broker.durable.staging import StagingArea
    from runnel.broker.group.reader import GroupReader


INLINE_TOTAL = 4 * INLINE_BYTES  # bytes of small stages that one commit writes again


class TransactionStages:
    """The stages that a transaction commits, by key, and their positions once they are visible."""

    __slots__ = ("_staging", "_taken", "_wanted")

    def __init__(self, staging: StagingArea | None, wanted: dict[StageKey, Publication]) -> None:
        self._staging, self._wanted = staging, wanted
        self._taken: list[tuple[AnyStage, list[Log]]] = []  # and the logs of the records handed over in each

    def __len__(self) -> int:
        return len(self._wanted)

    # -- looking ------------------------------------------------------------------------------------------------

    def in_the_way(self) -> Awaitable[object] | None:
        """The awaitables to wait for first: writes under way, reading back a small stage, or a type. None: no wait."""
        for stage, inline in self._stages():
            if stage.must_check:
                assert self._staging is not None
                return self._staging.check_type(stage)
            must_read = inline and stage.kept is None and isinstance(stage, OpenStage)
            if stage.flights or stage.turn.locked() or must_read:
                assert self._staging is not None
                return self._staging.settle(stage, remembered=inline)
        return None

    def _stages(self) -> list[tuple[AnyStage, bool]]:
        """The stages, and whether each is small enough to be written again."""
        room = INLINE_TOTAL
        found: list[tuple[AnyStage, bool]] = []
        for key in self._wanted:
            assert self._staging is not None
            stage = self._staging.known(key)
            inline = stage.is_small and stage.state.bytes <= room
            room -= stage.state.bytes if inline else 0
            found.append((stage, inline))
        return found

    # -- doing --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[tuple[Log, Append | StageState | StageShare]], list[Part]]:
        """The entries and parts that commit the stages. Closes the stages for writes, unless the commit fails."""
        entries: list[tuple[Log, Append | StageState | StageShare]] = []
        parts: list[Part] = []
        stages, room = self._stages(), INLINE_RAW_BYTES
        for stage, inline in stages:
            small = _appends_of(stage, room) if inline else None
            if small is not None:
                room -= sum(append.size + append.extra for _, append in small if isinstance(append, Append))
            if small is not None or not stage.records:
                parts.append(stage_dropped_part(stage.state.id))
            mine = _entries_of(stage) if small is None else small
            entries += mine
            self._taken.append((stage, [log for log, _ in mine]))
        for stage, _ in stages:
            stage.committing = True
        return entries, parts

    def placed(self, firsts: Sequence[int]) -> list[tuple[Publication, Position]]:
        """The positions of the stages, from the first offsets of the entries that were handed over."""
        following = iter(firsts)
        found: list[tuple[Publication, Position]] = []
        for stage, logs in self._taken:
            publication, records = self._wanted[stage.key], stage.records
            offsets = [next(following) for _ in logs]
            if isinstance(stage, OpenStage):
                publication.holds(stage.log.name, records)
                found.append((publication, stage.log.position(offsets[0] if records else stage.log.next)))
            elif logs:  # of many topics: it says where the records of the first one are
                assert isinstance(stage, OpenBlockStage), "there are two kinds of stages"
                assert logs[0].stored is not None, "only durable logs are handed over"
                publication.holds(logs[0].name, stage.state.topics[logs[0].stored.id][0])
                found.append((publication, logs[0].position(offsets[0])))
            else:
                publication.holds(stage.topic, 0)
                found.append((publication, Position(0, 0)))
        return found

    def landed(self) -> None:
        """The commit succeeded: the stages are visible."""
        for stage, _ in self._taken:
            assert self._staging is not None
            self._staging.committed(stage)

    def failed(self) -> None:
        """The commit failed, or its outcome is unknown."""
        taken, self._taken = self._taken, []
        for stage, _ in taken:
            assert self._staging is not None
            self._staging.not_committed(stage)


def _appends_of(stage: AnyStage, room: int) -> Sequence[tuple[Log, Append | StageState | StageShare]] | None:
    """A small stage as a transaction publishes it; None: it has to be named."""
    if isinstance(stage, OpenBlockStage):
        return appends_of_blocks(stage, room)
    assert isinstance(stage, OpenStage), "there are two kinds of stages"
    small = append_of_stage(stage, room)
    return None if small is None else [(stage.log, small)]


def _entries_of(stage: AnyStage) -> Sequence[tuple[Log, Append | StageState | StageShare]]:
    """A stage by its name, for each of its topics."""
    if isinstance(stage, OpenBlockStage):
        return [(stage.logs[share.topic], share) for share in StageShare.all_of(stage.state)]
    assert isinstance(stage, OpenStage), "there are two kinds of stages"
    return [(stage.log, stage.state)] if stage.records else []


# -- Acks in a transaction -------------------------------------------------------------------------------
# While the commit is under way no other task can settle these deliveries, and their leases do not end.


class ClaimedAcks:
    """The deliveries that one transaction acks."""

    __slots__ = ("_claims", "_parts", "_request")

    def __init__(self, parts: BrokerParts, request: TransactionRequest) -> None:
        self._parts, self._request = parts, request
        self._claims: list[tuple[GroupReader, Claim]] = []

    @property
    def is_kept(self) -> bool:
        """Whether any of the acks are stored on disk."""
        return any(ack.member.reader.pending_acks is not None for ack in self._request.acks)

    # -- with a commit ------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """The commit has begun: no other task settles the deliveries, and no lease ends."""
        now = self._parts.clock.time()
        for member, lease, first, end, _ in self._request.acks:
            reader: GroupReader = member.reader
            for low, high in list(lease.open_ranges(first, end)):
                self._claims.append((reader, Claim(reader.group, lease, low, high, now)))

    def parts(self) -> list[Part]:
        """The parts to write. Groups that were reset in the meantime are left out."""
        settled: dict[int, list[int]] = {}
        for reader, claim in self._claims:
            if reader.pending_acks is not None and not claim.void:
                settled.setdefault(reader.pending_acks.id, []).extend((claim.first, claim.end))
        return [progress_part(group, flat, []) for group, flat in settled.items()]

    def settle(self) -> None:
        """The commit succeeded."""
        now = self._parts.clock.time()
        self._request.settle()
        for _, claim in self._claims:
            claim.settle(now)
        for reader in {reader for reader, _ in self._claims}:
            reader.after_settling()

    def give_back(self) -> None:
        """The commit failed: release the deliveries, with the full time of their leases."""
        now = self._parts.clock.time()
        for reader, claim in self._claims:
            reader.dead_letters.publish(claim.give_back(now))
            reader.wake()
        self._claims.clear()
        self._request.forget()


# -- Committing ------------------------------------------------------------------------------------------
# Everything that may stand in the way is checked, then everything is handed over at once.


class PlacedPublish(NamedTuple):
    """A publish and the log to which it is appended."""

    log: Log
    entry: Append
    publication: Publication


class CommitAttempt:
    """The commit of one transaction. `is_over`: it was handed over (`has_begun`), or there was nothing to do."""

    __slots__ = (
        "_acks",
        "_flight",
        "_gave_way",
        "_in_memory",
        "_known",
        "_marks",
        "_outcome",
        "_parts",
        "_request",
        "_roomy",
        "_stages",
        "_task",
        "_then",
        "_wanted",
        "is_over",
    )

    def __init__(self, parts: BrokerParts, request: TransactionRequest) -> None:
        self._parts, self._request = parts, request
        self._wanted: list[tuple[LocalWriter, Append, Publication]] = request.publishes  # type: ignore[assignment]
        self._marks: list[Marker] = list(request.markers.values())
        self._acks = ClaimedAcks(parts, request)
        self._stages = TransactionStages(staging_of(parts) if request.stages else None, request.stages)
        self.is_over = False
        self._outcome: asyncio.Future[None] | None = None  # of the write under way
        self._then: Awaitable[object] | None = None  # what to wait for next
        self._flight: PendingMarkers | None = None
        self._known: list[tuple[Publication, Position | Publication]] = []  # duplicates, and their originals
        self._in_memory: list[PlacedPublish] = []  # appended when the rest has landed
        self._gave_way: set[Log] = set()  # topics to whose readers it has given way, which it does once
        self._roomy = False  # whether it has waited for room in the journal, which it does once
        self._task: asyncio.Task[Any] | None = None

    async def commit(self) -> None:
        """Return when all of it is durable and visible, or raise: then nothing of it is."""
        self._task = asyncio.current_task()
        try:
            while not self.is_over:
                then, self._then = self._then, None
                if then is not None:
                    await then  # it may have been retried in the meantime, when there was room
                if not self.is_over and self._then is None:
                    self._then = self._try()
            if self._outcome is not None:
                await self._outcome
        except BaseException:
            self._stop_waiting()
            if not self._request.has_begun:
                self._request.forget()
            raise
        if not self._request.applied:
            self._request.forget(done=True)
        if self._in_memory and self._parts.publisher.is_long_turn():
            await asyncio.sleep(0)

    def _stop_waiting(self) -> None:
        """Abandon the outcome, and leave the queue of the topic."""
        if self._outcome is not None:
            self._outcome.cancel()
        if isinstance(self._then, Coroutine):
            self._then.close()
        elif isinstance(self._then, asyncio.Future):
            self._then.cancel()

    # -- looking ------------------------------------------------------------------------------------------------

    def _try(self, turn: Log | None = None) -> Awaitable[object] | None:
        """Hand all of it over, or set what to wait for before a retry. `turn`: a topic in whose queue it is first."""
        backend = self._parts
        backend.loop_owner.check_usable("committing a transaction")
        if self._marks and backend.markers.are_past(self._marks):
            self.is_over, self._outcome = True, backend.markers.joined(self._marks)
            return None
        self._request.check_acks()
        _, on_its_way = self._place(self._there())
        if on_its_way is not None:
            return on_its_way
        if (staged := self._stages.in_the_way()) is not None:
            return staged
        placed, _ = self._place([writer.resolve() for writer, _, _ in self._wanted])  # topics are created only now
        durable = [one for one in placed if one.log.stored is not None]
        is_kept = backend.store is not None and bool(durable or self._stages or self._marks or self._acks.is_kept)
        if is_kept:
            assert backend.store is not None
            self._check_mixed(placed)
            if not self._roomy and not backend.store.commits.pending.has_room():
                self._roomy = True
                return backend.store.commits.pending.room()
        if (hurried := self._hurried(placed)) is not None:
            return hurried
        if (in_the_way := self._blocked(placed, turn)) is not None:
            return in_the_way
        self._in_memory = [one for one in placed if one.log.stored is None]
        self._hand_over(durable) if is_kept else self._append()
        self.is_over = self._request.has_begun = True
        return None

    def _place(self, logs: Sequence[Log | None]) -> tuple[list[PlacedPublish], Awaitable[object] | None]:
        """The appends to the existing `logs`, or a write under way that has to be awaited first."""
        backend, deduplicator = self._parts, self._parts.publisher.deduplicator
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
        """The existing logs of all publishes: errors are raised before any topic is created."""
        there = self._parts.catalog.logs
        made: dict[str, int] = {}
        for writer, entry, _ in self._wanted:
            if (topic := writer.topic) not in there:
                first = made.get(topic, 0)
                if entry.expected_offset is not None and entry.expected_offset != first:
                    raise OffsetConflict(topic, entry.expected_offset, first)
                made[topic] = first + len(entry.values)
        return [writer.resolve() if writer.topic in there else None for writer, _, _ in self._wanted]

    @staticmethod
    def _check_mixed(placed: Sequence[PlacedPublish]) -> None:
        """Set aside publishes to topics in memory: they are appended after the durable part, and get offsets then."""
        for log, entry, _ in placed:
            if log.stored is None and entry.expected_offset is not None:
                why = "the topic is in memory and the transaction goes to disk; others may publish there first"
                raise NotSupported(f"expected_offset for {log.name!r} in this transaction", why)

    def _hurried(self, placed: Sequence[PlacedPublish]) -> Awaitable[None] | None:
        """Done when the readers of a topic in memory that keep up have room; None: all have."""
        publisher = self._parts.publisher
        for log in {one.log: None for one in placed if one.log not in self._gave_way}:
            whole = _whole(one.entry for one in placed if one.log is log)
            if publisher.is_hurried(log, whole):
                self._gave_way.add(log)
                return publisher.give_way(log, whole)
        return None

    def _blocked(self, placed: Sequence[PlacedPublish], turn: Log | None) -> asyncio.Future[int] | None:
        """A place in the queue of a topic whose readers have no room; None: all have room."""
        publisher = self._parts.publisher
        for log in {one.log: None for one in placed}:
            if log.topic_readers is None or not log.topic_readers.limited:
                continue
            limited = set(log.topic_readers.limited)  # a pattern also counts records of its other topics
            whole = _whole(
                one.entry
                for one in placed
                if one.log is log
                or (one.log.topic_readers is not None and not limited.isdisjoint(one.log.topic_readers.limited))
            )
            if log.topic_readers.refusing(log, whole) if turn is log else publisher.must_wait(log, whole):
                return publisher.queue(log, whole, self._task, partial(self._take_turn, log))
        return None

    def _take_turn(self, log: Log) -> int:
        """There is room in `log`, and this transaction is first in the queue: continue before any other publish."""
        self._then = self._try(log)
        return 0

    # -- doing --------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """Everything is in memory: append it."""
        flight = self._parts.markers.hand_over(self._marks)
        self._acks.claim()
        self._apply(flight)

    def _hand_over(self, durable: list[PlacedPublish]) -> None:
        backend, marks, acks = self._parts, self._parts.markers, self._acks
        assert backend.store is not None
        commits = backend.store.commits
        staged, dropped = self._stages.take()
        atomic_write = AtomicWrite(
            [*((one.log, one.entry) for one in durable), *staged],  # stages come after the publishes to the same topic
            [*marks.parts(self._marks), *dropped],
            self._landed,
            self._failed,
            acks.parts,
        )
        atomic_write.stages = bool(staged or dropped)
        try:
            firsts = commits.hand_over_atomic_write(atomic_write)
        except BaseException:  # nothing was done
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
        for log, entry, _ in self._in_memory:  # reserve room
            log.coming += len(entry.values)
            log.coming_bytes += entry.size
        if self._in_memory:
            backend.timeline.cool()

    def _landed(self) -> None:
        """The durable part is visible: make the rest visible at once."""
        assert self._flight is not None
        assert self._outcome is not None
        self._leave()
        self._stages.landed()
        self._apply(self._flight)
        resolve_waiter(self._outcome)

    def _failed(self, error: Exception) -> None:
        """The write failed: nothing was committed."""
        assert self._flight is not None
        assert self._outcome is not None
        resolve_waiter(self._outcome, error)  # first, so that the committing task gets it in any case
        self._leave()
        self._stages.failed()
        self._parts.markers.fail(self._flight, error)
        self._acks.give_back()

    def _leave(self) -> None:
        for log, entry, _ in self._in_memory:
            log.coming -= len(entry.values)
            log.coming_bytes -= entry.size

    def _apply(self, flight: PendingMarkers) -> None:
        # Topics of which an offset is expected come first: records dropped in others may become dead letters there.
        expecting = {log for log, entry, _ in self._in_memory if entry.expected_offset is not None}
        for log, entry, publication in sorted(self._in_memory, key=lambda placed: placed.log not in expecting):
            entry.expected_offset = None  # it was checked, and no publish came in between
            # A topic deleted in the meantime counts as deleted right after the commit.
            first = log.end if log.deleted else self._parts.publisher.append(log, entry)
            publication.put(log.position(first))
        for publication, where in self._known:
            if isinstance(where, Position):
                publication.put(where)
        for publication, where in self._known:
            if isinstance(where, Publication):
                publication.put(where.position)
        self._parts.markers.land(flight)
        self._acks.settle()


def _whole(entries: Iterable[Append]) -> Append:
    """All of `entries` as one, to ask for room."""
    found = list(entries)
    return Append([value for entry in found for value in entry.values], None, sum(entry.size for entry in found))
