"""Reading old records from the sources of history, which keep what retention took from the journal.

Every call to a source runs in a task of its own, so it delays no publisher and no other reader. A call that fails is
repeated, with a growing pause, until it succeeds or its reader leaves. A reader holds one answer of a source, and one
more is on its way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.read.catch_up import END, CatchUp, EndOfJournal
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.batch import PackedSlice, Slice
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, HistoryUnavailable, InvalidOption
from runnel.core.history import HistorySource
from runnel.core.statistics import HistoryStatistics
from runnel.journal.format.removed_offsets import count_unexplained
from runnel.journal.read.segment_reader import LostRange
from runnel.runtime.waiting import resolve_waiter

FIRST_PAUSE, LAST_PAUSE = 0.05, 10.0  # seconds before a call that failed is repeated; doubled each time
WARN_EVERY = 10.0  # seconds between two warnings about one source
WINDOW_BYTES = 1 << 20  # records of the journal that wait while the sources are queried for the same sequences
WINDOW_RECORDS = 4096

logger = logging.getLogger("runnel")

T = TypeVar("T")


class HistoryReads:
    """The sources of a broker, and the calls to them that are under way."""

    def __init__(self, sources: Iterable[HistorySource], timeline: Timeline, clock: Clock) -> None:
        self.sources = tuple(sources)
        self._timeline, self._clock = timeline, clock
        self.reads: JournalReads | None = None  # set when the folder is open
        self.readers: set[HistoryReader] = set()  # those that read from a source now
        self.records = self.errors = 0
        self.last_error: str | None = None
        self._warned: dict[HistorySource, float] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[Any]] = set()
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<HistoryReads {len(self.sources)} sources, {len(self.readers)} readers, {self.errors} errors>"

    def statistics(self) -> HistoryStatistics:
        """The records read from the sources, and the failures."""
        waiting = sum(reader.failure is not None for reader in self.readers)
        return HistoryStatistics(len(self.readers), waiting, self.records, self.errors, self.last_error)

    # -- which source -------------------------------------------------------------------------------------------

    def source_of(self, topic: str) -> HistorySource | None:
        """The source of a topic; `InvalidOption` if several cover it."""
        if topic[0] == "$":
            return None
        found = [source for source in self.sources if source.covers(topic)]
        if len(found) > 1:
            names = " and ".join(repr(source) for source in found)
            raise InvalidOption("history", topic, f"{names} cover this topic: at most one source may")
        return found[0] if found else None

    def of_topic(self, log: Log) -> TopicHistory | None:
        """The source of one topic, to read from; None: it has none."""
        source = self.source_of(log.name)
        return None if source is None else TopicHistory(self, source, log, self._timeline)

    def of_patterns(self, patterns: Sequence[str]) -> PatternHistory:
        """The sources of several topics."""
        return PatternHistory(self, patterns, self._timeline)

    def unexplained(self, log: Log, first: int, end: int) -> int:
        """How many of the offsets [first, end) should have been in a source."""
        known = None
        if self.reads is not None and log.stored is not None:
            known = self.reads.journal.ledger.topics.get(log.stored.id)
        return count_unexplained(() if known is None else known.gone, first, end)

    # -- calls --------------------------------------------------------------------------------------------------

    def call(
        self,
        source: HistorySource,
        ask: Callable[[], Awaitable[T]],
        about: str,
        came: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> asyncio.Task[None]:
        """Have `ask` called until it succeeds. `came` gets the answer; `failed` hears of each failure."""
        task = asyncio.get_running_loop().create_task(self._call(source, ask, about, came, failed))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _call(
        self,
        source: HistorySource,
        ask: Callable[[], Awaitable[T]],
        about: str,
        came: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await ask()
            except Exception as error:  # not only what a source may raise: a bug in it must not end the reader
                self._failed(source, about, error)
                failed(error)
            else:
                if self._warned.pop(source, None) is not None:
                    logger.info("reading old records works again: %s", about)
                came(answer)
                return
            await self._rest(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LAST_PAUSE)

    def _failed(self, source: HistorySource, about: str, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{about}: {_said(error)}"
        now = self._clock.time()
        if now - self._warned.get(source, -WARN_EVERY) >= WARN_EVERY:
            self._warned[source] = now
            logger.warning("reading old records failed, and is tried again: %s", self.last_error)

    async def _rest(self, seconds: float) -> None:
        rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(seconds, partial(resolve_waiter, rested))
        try:
            await rested
        finally:
            timer.cancel()

    async def answer(
        self, source: HistorySource, ask: Callable[[], Awaitable[T]], topic: str, *, once: bool = False
    ) -> T:
        """The answer of a source, whenever it comes; with `once`, `HistoryUnavailable` if the first call fails."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def came(answer: T) -> None:
            if not waiter.done():
                waiter.set_result(answer)

        def failed(error: Exception) -> None:
            if once:
                resolve_waiter(waiter, unavailable(topic, error))

        if self.is_closed:
            raise BrokerClosed("reading old records")
        self._waiters.add(waiter)
        task = self.call(source, ask, f"where {topic!r} begins", came, failed)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            task.cancel()

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel all calls: their readers end, and waiting requests are refused."""
        self.is_closed = True
        for waiter in list(self._waiters):
            resolve_waiter(waiter, BrokerClosed("reading old records"))
        for reader in list(self.readers):
            reader.stop()
        for task in list(self._calls):
            if not task.get_loop().is_closed():
                task.cancel()

    async def close_sources(self) -> None:
        """Close the sources."""
        for source in self.sources:
            try:
                await source.close()
            except Exception as error:
                logger.warning("closing %r failed: %s", source, error)


def unavailable(topic: str, error: Exception) -> HistoryUnavailable:
    """`error` of a source, for a caller that does not wait until it is over."""
    return HistoryUnavailable(topic, _said(error))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


# -- Reading from one source -----------------------------------------------------------------------------


class HistoryReader:
    """A forward read of a source, from a place on: an offset of one topic, or a sequence of several.

    The answer of the source for the places before `_covered` is final: it has no records there but those held here.
    """

    __slots__ = ("_ask", "_by_sequence", "_call", "_covered", "_held", "_reads", "_source", "_wake", "about", "failure")

    def __init__(
        self,
        reads: HistoryReads,
        source: HistorySource,
        ask: Callable[[int, int], Awaitable[Sequence[Slice]]],
        about: str,
        wake: Callable[[], None],
        *,
        by_sequence: bool,
    ) -> None:
        self._reads, self._source, self._ask, self._wake = reads, source, ask, wake
        self.about, self._by_sequence = about, by_sequence
        self.failure: Exception | None = None  # of the last call, until one succeeds
        self._held: deque[Slice] = deque()
        self._covered = 0
        self._call: asyncio.Task[None] | None = None
        reads.readers.add(self)

    def find(self, place: int, end: int) -> Slice | Literal[EndOfJournal.END] | None:
        """The next records at `place` or behind it. END: there are none before `end`. None: not yet, `wake` follows.

        They are found again until `place` has passed them.
        """
        held = self._held
        while held and self._end(held[0]) <= place:
            held.popleft()
        if len(held) <= 1:
            self._read_on(place, end)  # the next answer comes while the last slice is worked on
        if held:
            behind = place - self._place(held[0])
            if behind > 0:
                held[0] = held[0].cut(held[0].start + behind, held[0].end)
            return held[0]
        return END if max(place, self._covered) >= end else None

    def stop(self) -> None:
        """Read nothing more."""
        self._reads.readers.discard(self)
        self._held.clear()
        if self._call is not None and not self._call.get_loop().is_closed():
            self._call.cancel()
        self._call = None

    def _read_on(self, place: int, end: int) -> None:
        start = max(place, self._covered)
        if start >= end or self._call is not None or self not in self._reads.readers or self._reads.is_closed:
            return
        self._call = self._reads.call(
            self._source, lambda: self._read(start, end), self.about, partial(self._came, end), self._failed
        )

    async def _read(self, start: int, end: int) -> list[Slice]:
        """The answer of the source, if it is one: in order, and within [start, end)."""
        found = list(await self._ask(start, end))
        place = start
        for part in found:
            if self._place(part) < place or self._end(part) > end or not len(part):
                raise OSError(f"the source gave {part!r} where [{place}, {end}) was asked for")
            place = self._end(part)
        return found

    def _came(self, end: int, found: list[Slice]) -> None:
        self._call = self.failure = None
        self._held.extend(found)
        self._covered = self._end(found[-1]) if found else end
        self._wake()

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self._wake()

    def _place(self, part: Slice) -> int:
        return part.sequence if self._by_sequence else part.start

    def _end(self, part: Slice) -> int:
        return self._place(part) + len(part)


class TopicHistory:
    """The source of one topic."""

    __slots__ = ("_log", "_reads", "_source", "_timeline")

    def __init__(self, reads: HistoryReads, source: HistorySource, log: Log, timeline: Timeline) -> None:
        self._reads, self._source, self._log, self._timeline = reads, source, log, timeline

    @property
    def is_needed(self) -> bool:
        """Whether retention took something that the source may have."""
        log = self._log
        return log.stored is not None and not log.deleted and self._timeline.first(log) > log.trimmed

    def reader(self, wake: Callable[[], None]) -> HistoryReader:
        """A reader by offset."""
        log, source = self._log, self._source

        def ask(start: int, end: int) -> Awaitable[Sequence[Slice]]:
            return source.read(log.name, log.epoch, start, end)

        return HistoryReader(self._reads, source, ask, f"topic {log.name!r}", wake, by_sequence=False)

    def served(self, count: int) -> None:
        """Records of the source were handed to a subscriber."""
        self._reads.records += count

    def unexplained(self, first: int, end: int) -> int:
        """How many of the offsets [first, end) should have been in the source."""
        return self._reads.unexplained(self._log, first, end)

    async def first(self, *, once: bool = False) -> int:
        """The oldest offset that can be read, from the source or from the journal."""
        log, source = self._log, self._source
        bounds = await self._reads.answer(source, lambda: source.bounds(log.name, log.epoch), log.name, once=once)
        first = self._timeline.first(log)
        if bounds is None or bounds.first >= min(first, bounds.end) or bounds.end <= log.trimmed:
            return first
        return max(bounds.first, log.trimmed)

    async def offset_at(self, time: datetime, *, once: bool = False) -> int:
        """The offset of the first record that is not older than `time`, in the source or in the journal."""
        log, source, reads = self._log, self._source, self._reads.reads
        assert reads is not None, "asked for once the folder is open"
        found = await self._reads.answer(
            source, lambda: source.offset_at(log.name, log.epoch, time), log.name, once=once
        )
        stored = reads.offset_at(log, time)
        return stored if found is None else min(max(found, log.trimmed), stored)

    async def offset_at_sequence(self, sequence: int, stored: int) -> int:
        """The offset of the first record at `sequence` or behind it: `stored`, or one before, in the source."""
        log, source = self._log, self._source
        found = await self._reads.answer(
            source, lambda: source.offset_at_sequence(log.name, log.epoch, sequence), log.name, once=True
        )
        return stored if found is None else min(max(found, log.trimmed), stored)


# -- Several topics --------------------------------------------------------------------------------------


class PatternHistory:
    """The sources of the topics of a pattern."""

    __slots__ = ("_found", "_patterns", "_reads", "_timeline", "readers")

    def __init__(self, reads: HistoryReads, patterns: Sequence[str], timeline: Timeline) -> None:
        self._reads, self._patterns, self._timeline = reads, tuple(patterns), timeline
        self._found: dict[Log, HistorySource | None] = {}
        self.readers: dict[HistorySource, HistoryReader] = {}  # of the cursor, read up to the needed place

    def source_of(self, log: Log) -> HistorySource | None:
        """The source of a topic."""
        if log not in self._found:
            self._found[log] = self._reads.source_of(log.name)
        return self._found[log]

    def first(self, log: Log) -> int:
        """The oldest offset of `log` that may be handed out, wherever it comes from."""
        if log.stored is None or self.source_of(log) is None:
            return self._timeline.first(log)
        return log.trimmed

    def is_needed(self, log: Log, due: int = 0) -> bool:
        """Whether retention took records of `log` from the offset `due` on that its source may have."""
        if log.stored is None or log.deleted or self.source_of(log) is None:
            return False
        return self._timeline.first(log) > max(due, log.trimmed)

    def wanted(self, source: HistorySource, log: Log | None, found: Slice) -> Slice | None:
        """The part of an answer of `source` that may be handed out; None: nothing."""
        if log is None or log.deleted or log.epoch != found.epoch or self.source_of(log) is not source:
            return None
        if found.end <= log.trimmed:
            return None
        return found if found.start >= log.trimmed else found.cut(log.trimmed, found.end)

    def open(self, logs: Iterable[Log], wake: Callable[[], None]) -> None:
        """Have a reader for each source of these topics."""
        for log in logs:
            source = self.source_of(log) if log.stored is not None else None
            if source is not None and source not in self.readers:
                ask = partial(source.read_sequences, self._patterns)
                about = f"topics {' '.join(self._patterns)!r}"
                self.readers[source] = HistoryReader(self._reads, source, ask, about, wake, by_sequence=True)

    def stop(self) -> None:
        """Read nothing more."""
        for reader in self.readers.values():
            reader.stop()
        self.readers.clear()

    def served(self, count: int) -> None:
        """Records of a source were handed to a subscriber."""
        self._reads.records += count

    def unexplained(self, log: Log, first: int, end: int) -> int:
        """How many of the offsets [first, end) of `log` should have been in its source."""
        return self._reads.unexplained(log, first, end)

    async def sequence_at(self, logs: Collection[Log], time: datetime, sequence: int) -> int:
        """The sequence of the first record that is not older than `time`: `sequence`, or one before, in a source."""
        sources = {self.source_of(log) for log in logs if self.is_needed(log)}
        for source in sources:
            if source is not None:
                ask = partial(source.sequence_at, self._patterns, time)
                found = await self._reads.answer(source, ask, " ".join(self._patterns))
                sequence = sequence if found is None else min(sequence, found)
        return sequence


class HistoryCatchUp:
    """Reads the journal and the sources of a pattern together, by sequence. Replaces `CatchUp`.

    Retention runs meanwhile, so the order of the reads matters: first the journal, into a window of bounded size,
    then the sources for the sequences of that window. A record that the journal had lost when it was read was in its
    source by then, so it is in one of the two; a record in both is handed out once. The sources are queried only where
    a topic has missing records.
    """

    __slots__ = (
        "_end",
        "_expected",
        "_history",
        "_is_dropped",
        "_is_merging",
        "_is_source",
        "_journal",
        "_log_of",
        "_logs",
        "_timeline",
        "_until",
        "_wake",
        "_window",
    )

    def __init__(
        self,
        journal: CatchUp,
        history: PatternHistory,
        timeline: Timeline,
        logs: Callable[[], Collection[Log]],
        log_of: Callable[[Slice], Log | None],
        expected: dict[Log, int],
        until: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._journal, self._history, self._timeline, self._wake = journal, history, timeline, wake
        self._logs, self._log_of, self._until = logs, log_of, until
        self._expected = expected  # by topic, the offset behind the last record that was handed out
        self._window: deque[Slice | LostRange] = deque()  # what the journal has before `_end`
        self._end = 0  # up to which sequence the journal was read
        self._is_merging = False  # whether the sources have something to add before `_end`
        self._is_dropped = False  # whether the sources are not asked any more
        self._is_source = False  # whether the last records found are from a source

    def take(self, place: int, limit: int) -> Slice | LostRange | Literal[EndOfJournal.END] | None:
        """The next records at `place` or behind it, up to `limit` of them. None: not yet, the owner will be woken.

        It is found again until `place` has passed it.
        """
        while True:
            while self._window and _place_behind(self._window[0]) <= place:
                self._window.popleft()
            if place >= self._end:
                if place >= self._until():
                    return END
                if not self._read_journal(place):
                    return None
                self._is_merging = not self._is_dropped and any(
                    self._history.is_needed(log, self._expected.get(log, 0)) for log in self._logs()
                )
            found = _from(self._window[0], place) if self._window else END
            self._is_source = False
            if self._is_merging:
                old = self._from_sources(place)
                if old is None:
                    return None
                if old is not END and (found is END or old.sequence <= _place_of(found)):
                    # Records in both are equal; but a source may have records that the journal cannot read.
                    if found is END or old.sequence < _place_of(found) or isinstance(found, LostRange):
                        found, self._is_source = old, True
                elif old is not END and isinstance(found, LostRange) and old.sequence < found.end:
                    found = LostRange(found.first, old.sequence, found.reason)
            if found is not END:
                if isinstance(found, Slice) and len(found) > limit:
                    found = found.cut(found.start, found.start + limit)
                return found
            place = self._end

    def put_back(self, found: Slice | LostRange) -> None:
        """Take it again later: nothing is lost before its place is passed."""

    def adds_to(self, log: Log) -> bool:
        """Whether records of `log` may come from a source."""
        return self._history.source_of(log) is not None

    def missing(self, log: Log, found: Slice, due: int | None) -> int:
        """`found` is handed out next of its topic; how many records before it are neither here nor there."""
        if self._is_source:
            self._history.served(len(found))
        if self._is_dropped:
            return 0
        expected = self._expected.get(log, due)
        self._expected[log] = found.end
        if expected is None or found.start < expected:
            return 0  # the first of its topic: earlier records were never its own
        end = min(found.start, self._timeline.first(log))
        lost = self._history.unexplained(log, expected, end) if end > expected else 0
        return lost + max(0, min(log.trimmed, found.end) - max(expected, found.start))

    def follows(self, log: Log, found: Slice, due: int | None) -> bool:
        """Whether `missing` would find nothing, by a cheap check."""
        if self._is_dropped:
            return True
        expected = self._expected.get(log, due)
        return log.trimmed <= found.start and (expected is None or found.start <= expected)

    def drop_history(self) -> None:
        """Hand out no more records of the sources: the reader is too slow for the newer ones."""
        self._is_dropped, self._is_merging = True, False
        self._history.stop()

    def _read_journal(self, place: int) -> bool:
        """Read the next window; False: not yet."""
        until, journal = self._until(), self._journal
        at, size, records = place, 0, 0
        while size < WINDOW_BYTES and records < WINDOW_RECORDS:
            found = journal.take(at, WINDOW_RECORDS)
            if found is None:
                if not self._window:
                    return False
                break
            if found is END or _place_of(found) >= until:
                if found is not END:
                    journal.put_back(found)
                at = until
                break
            if _place_behind(found) > until:
                if isinstance(found, LostRange):
                    found = LostRange(found.first, until, found.reason)
                else:
                    cut = found.start + until - found.sequence
                    journal.put_back(found.cut(cut, found.end))
                    found = found.cut(found.start, cut)
            at = _place_behind(found)
            if isinstance(found, Slice):
                if (kept := self._kept(found)) is None:
                    continue
                found = kept
            self._window.append(found)
            if isinstance(found, Slice):
                records += len(found)
                size += weight(found)
        self._end = at
        return True

    def _kept(self, found: Slice) -> Slice | None:
        """The records of `found` that the journal still has. Those removed by retention are read from the source."""
        log = self._log_of(found)
        if log is None or not self.adds_to(log) or (first := self._timeline.first(log)) <= found.start:
            return found
        return found.cut(first, found.end) if first < found.end else None

    def _from_sources(self, place: int) -> Slice | Literal[EndOfJournal.END] | None:
        """The first records at `place` or behind it that a source has before the end of the window."""
        if not self._history.readers:
            self._history.open(self._logs(), self._wake)
        first: Slice | None = None
        is_waiting = False
        for source, reader in self._history.readers.items():
            at = place
            while True:
                found = reader.find(at, self._end)
                if found is None or found is END:
                    is_waiting = is_waiting or found is None
                    break
                if (wanted := self._history.wanted(source, self._log_of(found), found)) is not None:
                    if first is None or wanted.sequence < first.sequence:
                        first = wanted
                    break
                at = found.sequence + len(found)
        return None if is_waiting else END if first is None else first


def _place_of(item: Slice | LostRange) -> int:
    return item.first if isinstance(item, LostRange) else item.sequence


def _place_behind(item: Slice | LostRange) -> int:
    return item.end if isinstance(item, LostRange) else item.sequence + len(item)


def _from(item: Slice | LostRange, place: int) -> Slice | LostRange:
    """`item` without the records before `place`."""
    behind = place - _place_of(item)
    if behind <= 0:
        return item
    return (
        LostRange(place, item.end, item.reason)
        if isinstance(item, LostRange)
        else item.cut(item.start + behind, item.end)
    )


def weight(part: Slice) -> int:
    """The bytes of a slice, without unpacking it."""
    if isinstance(part, PackedSlice):
        return sum(len(one) for one in part.packs or () if one is not None)
    return part.size
