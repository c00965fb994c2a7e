"""Trying to commit a transaction: all that may stand in the way is looked at, then all of it is handed over at once.

Whatever has to be waited for (room in the journal, a slow subscriber, a duplicate that is on its way) is waited for
with nothing handed over; then everything is looked at again.
Below: commits, marks, settling, publisher. Above: transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.committing import Committing
from runnel.broker.gate import Entry
from runnel.broker.log import Log
from runnel.broker.marks import Flight
from runnel.broker.settling import Settling
from runnel.broker.unit import Unit
from runnel.core.errors import NotSupported
from runnel.core.mark import Mark
from runnel.core.position import Position
from runnel.core.publication import Publication
from runnel.core.transaction_errors import OffsetConflict
from runnel.surface.waiting import tell

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.topic import Topic


class Wanted(NamedTuple):
    """A publish, as it was asked for."""

    topic: Topic[Any]
    entry: Entry
    publication: Publication


class Placed(NamedTuple):
    """A publish that is appended, and to what."""

    log: Log
    entry: Entry
    publication: Publication


class Attempt:
    """One transaction at its end. `is_over`: it was handed over (`has_begun`), or there was nothing to do."""

    __slots__ = (
        "_bus",
        "_flight",
        "_in_memory",
        "_known",
        "_marks",
        "_outcome",
        "_roomy",
        "_settling",
        "_stages",
        "_task",
        "_then",
        "_wanted",
        "applied",
        "has_begun",
        "is_over",
    )

    def __init__(
        self, bus: Bus, wanted: Sequence[Wanted], settling: Settling, marks: Sequence[Mark], stages: Committing
    ) -> None:
        self._bus, self._wanted, self._settling, self._marks = bus, wanted, settling, marks
        self._stages = stages
        self.is_over = self.has_begun = self.applied = False
        self._outcome: asyncio.Future[None] | None = None  # of what is on its way
        self._then: Awaitable[object] | None = None  # what to wait for next
        self._flight: Flight | None = None
        self._known: list[tuple[Publication, Position | Publication]] = []  # duplicates, and of what
        self._in_memory: list[Placed] = []  # appended when the rest has landed
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
        if any(self._bus.is_turn_over(placed.log) for placed in self._in_memory):
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
        bus = self._bus
        bus.home.check_usable("committing a transaction")
        if self._marks and bus.marks.are_past(self._marks):
            self.is_over, self._outcome = True, bus.marks.joined(self._marks)
            return None
        self._settling.check()
        _, on_its_way = self._place(self._there())
        if on_its_way is not None:
            return on_its_way
        if (staged := self._stages.in_the_way()) is not None:
            return staged
        placed, _ = self._place([wanted.topic._resolve() for wanted in self._wanted])  # only now are topics made
        durable = [one for one in placed if one.log.stored is not None]
        is_kept = bus.store is not None and bool(durable or self._stages or self._marks or self._settling.is_kept)
        if is_kept:
            assert bus.store is not None
            self._check_mixed(placed)
            if not self._roomy and not bus.store.commits.pending.has_room():
                self._roomy = True
                return bus.store.commits.pending.room()
        if (in_the_way := self._blocked(placed, turn)) is not None:
            return in_the_way
        self._in_memory = [one for one in placed if one.log.stored is None]
        self._hand_over(durable) if is_kept else self._append()
        self.is_over = self.has_begun = True
        return None

    def _place(self, logs: Sequence[Log | None]) -> tuple[list[Placed], Awaitable[object] | None]:
        """What is to be appended to those `logs` that are there; or something on its way to be waited for first."""
        bus, once = self._bus, self._bus.publisher.once
        placed: list[Placed] = []
        ends: dict[Log, int] = {}
        ids: dict[tuple[Log, str], Publication] = {}
        self._known = []
        for log, (_, entry, publication) in zip(logs, self._wanted, strict=True):
            if log is None:
                continue
            bus.publisher._check_type(log, entry)
            if (name := entry.message_id) is not None:
                if (twin := ids.setdefault((log, name), publication)) is not publication:
                    self._known.append((publication, twin))
                    continue
                if (found := once.find(log, entry)) is not None:
                    if (landing := once.landing(log, entry, found.offset)) is not None:
                        return [], landing
                    self._known.append((publication, found))
                    continue
            first = ends.get(log)
            if first is None:
                first = log.next
            if entry.expected_offset is not None and entry.expected_offset != first:
                if bus.publisher.is_on_its_way(log, entry.expected_offset):
                    return [], bus.publisher.until_known(log, entry.expected_offset)
                raise OffsetConflict(log.name, entry.expected_offset, first)
            ends[log] = first + len(entry.values)
            placed.append(Placed(log, entry, publication))
        return placed, None

    def _there(self) -> list[Log | None]:
        """The logs of all publishes, as far as they are there: what is wrong is said before any is made."""
        there = self._bus.catalog.logs
        made: dict[str, int] = {}
        for topic, entry, _ in self._wanted:
            if topic.name not in there:
                first = made.get(topic.name, 0)
                if entry.expected_offset is not None and entry.expected_offset != first:
                    raise OffsetConflict(topic.name, entry.expected_offset, first)
                made[topic.name] = first + len(entry.values)
        return [topic._resolve() if topic.name in there else None for topic, _, _ in self._wanted]

    @staticmethod
    def _check_mixed(placed: Sequence[Placed]) -> None:
        """What is in memory only is appended when the rest has landed: where that will be, nobody knows yet."""
        for log, entry, _ in placed:
            if log.stored is None and entry.expected_offset is not None:
                why = "the topic is in memory and the transaction goes to disk; others may publish there first"
                raise NotSupported(f"expected_offset for {log.name!r} in this transaction", why)

    def _blocked(self, placed: Sequence[Placed], turn: Log | None) -> asyncio.Future[int] | None:
        """A place in the queue for a topic one of whose readers has no room; None: all have."""
        publisher = self._bus.publisher
        for log in {one.log: None for one in placed}:
            if log.gate is None or not log.gate.limited:
                continue
            limited = set(log.gate.limited)  # a pattern among them counts what comes to its other topics too
            entries = [
                one.entry
                for one in placed
                if one.log is log or (one.log.gate is not None and not limited.isdisjoint(one.log.gate.limited))
            ]
            values = [value for entry in entries for value in entry.values]
            whole = Entry(values, None, sum(entry.size for entry in entries))
            if log.gate.refusing(log, whole) if turn is log else publisher._must_wait(log, whole):
                return publisher.queue(log, whole, self._task, partial(self._take_turn, log))
        return None

    def _take_turn(self, log: Log) -> int:
        """There is room in `log`, and it is this transaction's: go on now, before anybody else can."""
        self._then = self._try(log)
        return 0

    # -- doing --------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """All of it is in memory: there it is."""
        flight = self._bus.marks.hand_over(self._marks)
        self._settling.claim()
        self._apply(flight)

    def _hand_over(self, durable: list[Placed]) -> None:
        bus, marks, settling = self._bus, self._bus.marks, self._settling
        assert bus.store is not None
        commits = bus.store.commits
        staged, dropped = self._stages.take()
        unit = Unit(
            [*((one.log, one.entry) for one in durable), *staged],  # stages lie behind what is published beside them
            [*marks.parts(self._marks), *dropped],
            self._landed,
            self._failed,
            settling.parts,
        )
        unit.stages = bool(staged or dropped)
        try:
            firsts = commits.hand_over_unit(unit)
        except BaseException:  # it has done nothing
            self._stages.failed()
            raise
        self._known += self._stages.placed(firsts[len(durable) :])
        for one, first in zip(durable, firsts[: len(durable)], strict=True):
            if one.entry.message_id is not None:
                bus.publisher.once.remember(one.log, one.entry, first)
            self._known.append((one.publication, one.log.position(first)))
        self._outcome = commits.loop.create_future()
        self._flight = marks.hand_over(self._marks)
        settling.claim()
        for log, entry, _ in self._in_memory:  # room that is theirs
            log.coming += len(entry.values)
            log.coming_bytes += entry.size
        if self._in_memory:
            bus.timeline.cool()

    def _landed(self) -> None:
        """It is durable, and its records are visible: so is all the rest, at once."""
        assert self._flight is not None
        assert self._outcome is not None
        self._leave()
        self._stages.landed()
        self._apply(self._flight)
        tell(self._outcome)

    def _failed(self, error: Exception) -> None:
        """Nothing of it is there."""
        assert self._flight is not None
        assert self._outcome is not None
        tell(self._outcome, error)  # first: whatever the rest comes to, whoever waits is told
        self._leave()
        self._stages.failed()
        self._bus.marks.fail(self._flight, error)
        self._settling.give_back()

    def _leave(self) -> None:
        for log, entry, _ in self._in_memory:
            log.coming -= len(entry.values)
            log.coming_bytes -= entry.size

    def _apply(self, flight: Flight) -> None:
        # Topics of which an offset is expected come first: what is dropped in others may become a dead letter there.
        expecting = {log for log, entry, _ in self._in_memory if entry.expected_offset is not None}
        for log, entry, publication in sorted(self._in_memory, key=lambda placed: placed.log not in expecting):
            entry.expected_offset = None  # that was looked at, and nobody else came in between
            # A topic that was deleted meanwhile, was so right behind it.
            first = log.end if log.deleted else self._bus.publisher.append(log, entry)
            publication.put(log.position(first))
        for publication, where in self._known:
            if isinstance(where, Position):
                publication.put(where)
        for publication, where in self._known:
            if isinstance(where, Publication):
                publication.put(where.position)
        self._bus.marks.land(flight)
        self._settling.settle()
        self.applied = True
