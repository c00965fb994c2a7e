"""Retention of durable topics: move their first offset by count, age or bytes, and trim on request.

By count at once (`Log.first`). By age when the oldest record's time has come: a heap knows when, so topics that are not
due cost nothing. By bytes when a commit takes a topic over its limit by more than the slack. Facts that are not in
memory are read from disk in a thread, a few topics at a time; all else runs on the loop, a bounded number of topics per
turn.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from runnel.broker.durable.commit_queue import CommitQueue
from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.clock import Clock, Timer, from_micros, micros
from runnel.core.options import TopicOptions
from runnel.journal.format.entry import Part
from runnel.journal.format.ledger import Ledger, TopicState, trim_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.write import retention

PER_TURN = 256  # topics looked at before others on the loop get their turn
AT_A_TIME = 64  # topics looked up on disk in one go
REST = 9  # times as long as that took, until the next go: at most a tenth of a core
SOON = 1.0  # seconds between two looks at one topic whose records grow too old one after the other
OLDER = 1e-3  # a record exactly at the limit stays
TELL = 60.0  # seconds until what moved in memory is written, unless a segment is sealed before
HELD = 10.0  # seconds until a topic with holds is looked at again
SLACK = 16  # a topic may hold so many parts of its limit more
LEAST_SLACK = 1024 * 1024

logger = logging.getLogger("runnel")


class _RetainedTopic:
    """The retention state of one topic."""

    __slots__ = ("below", "due", "told")

    def __init__(self, told: int, below: int | None) -> None:
        self.told = told  # the first offset that the journal has, or is about to get
        self.below = below  # the bytes of all its batches before the first that is kept, about; None: look it up
        self.due: float | None = None  # when it is looked at for its age


class _Lookup(NamedTuple):
    log: Log
    id: int
    first: int
    end: int
    bytes: int  # of all its batches ever
    oldest: int | None  # microseconds: older records expire
    keep: int | None  # bytes
    options: TopicOptions  # the limit of the last request


class _LookupResult(NamedTuple):
    question: _Lookup
    young: retention.FirstKept | None = None
    leaving: retention.KeptBytes | None = None
    error: OSError | None = None


class TopicRetention:
    """The durable topics of a broker that have retention, and when each is to be looked at."""

    def __init__(self, reads: JournalReads, commits: CommitQueue, timeline: Timeline, clock: Clock) -> None:
        self._reads, self._commits, self._timeline, self._clock = reads, commits, timeline, clock
        self.unsettled: Callable[[Log], int] = lambda log: log.end  # from where on groups need records of a topic
        self._topics: dict[Log, _RetainedTopic] = {}
        self._heap: list[tuple[float, int, Log]] = []
        self._pushed = 0
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._moved: dict[Log, None] = {}  # topics with publishes since their kept range was last written
        self._tell_timer: Timer | None = None
        self._sweep: deque[Log] = deque()
        self._sweeping = False
        self._asked: dict[Log, None] = {}  # to be looked up on disk
        self._looking = False  # a check runs, or rests after it
        self._out = False  # a check runs
        self._in_a_hurry = True  # the first check of everything does not rest
        self._stopped = False
        self._least_slack = min(LEAST_SLACK, reads.journal.options.segment_bytes // SLACK)

    def __repr__(self) -> str:
        return (
            f"<TopicRetention {len(self._topics)} topics, {len(self._heap)} by age, {len(self._asked)} to be looked up>"
        )

    @property
    def is_busy(self) -> bool:
        """Whether something is being looked up, or to be."""
        return not self._stopped and (self._out or bool(self._asked) or bool(self._sweep))

    # -- coming and going ---------------------------------------------------------------------------------------

    def adopt(self, log: Log, known: TopicState | None = None) -> None:
        """A durable topic is there: new, or `known` to the journal."""
        if log.options.retains and log.stored is not None:
            self._topics[log] = _RetainedTopic(0, 0) if known is None else _RetainedTopic(known.first, None)

    def configured(self, log: Log) -> None:
        """The options of a durable topic changed: look at it as if it had just been opened."""
        if self._stopped or log.stored is None:
            return
        self._topics.pop(log, None)  # its heap entry is no longer due
        if not log.options.retains:
            return
        known = self._reads.journal.ledger.topics.get(log.stored.id)
        is_empty = log.first >= log.end
        below = (0 if known is None else known.bytes) if is_empty else None
        self._topics[log] = _RetainedTopic(0 if known is None else known.first, below)
        if not is_empty:
            self._ask(log)
        self._queue([log])

    def begin(self) -> None:
        """Everything is there: look at all of it."""
        for log in self._topics:
            options = log.options
            if log.first < log.end and not (options.retention_age is options.retention_bytes is None):
                self._asked[log] = None
        self._look()
        self.sweep()

    def forget(self, log: Log) -> None:
        """A topic was deleted."""
        self._topics.pop(log, None)
        self._moved.pop(log, None)
        self._asked.pop(log, None)
        if len(self._heap) > 2 * len(self._topics) + PER_TURN:  # or topics that come and go would stay until due
            self._heap = [one for one in self._heap if one[2] in self._topics]
            heapq.heapify(self._heap)

    def stop(self) -> None:
        """Look at nothing more."""
        self._stopped = True
        for timer in (self._timer, self._tell_timer):
            if timer is not None:
                timer.cancel()

    # -- what happens -------------------------------------------------------------------------------------------

    def landed(self, log: Log) -> None:
        """Records of a topic with retention are durable and visible."""
        kept = self._topics.get(log)
        if kept is None or self._stopped:
            return
        if log.options.retention_age is not None and kept.due is None:
            self._be_due(log, kept, self._clock.time() + log.options.retention_age + OLDER)
        if log.options.retention_bytes is not None and self._is_over(log, kept):
            self._ask(log)
        self._note_moved(log)

    def released(self, logs: list[Log]) -> None:
        """These topics are held no longer, or less of them."""
        for log in logs:
            kept = self._topics.get(log)
            if kept is None or self._stopped:
                continue
            if log.held is None:
                self._ask(log)
                self._queue([log])
                continue
            if log.options.retention_until is not None:
                self._queue([log])
            self._note_moved(log)  # a reader with a hold moved: that comes often, and is no reason to write each time
            if log.options.retention_bytes is not None and self._is_over(log, kept):
                self._ask(log)
            if (age := log.options.retention_age) is not None:
                due = self._clock.time() + min(SOON, age / 10)
                if kept.due is None or due < kept.due:
                    self._be_due(log, kept, due)

    def sweep(self) -> None:
        """A segment was sealed, or space is short: have the journal know where every topic begins."""
        self._queue(self._topics)

    def last_trims(self) -> Iterator[Part]:
        """Changes that the journal has not stored yet, for its last entry."""
        for log in list(self._topics):
            self._timeline.first(log)
            if (part := self._trim(log)) is not None:
                yield part

    def _note_moved(self, log: Log) -> None:
        """Where a topic begins may be news, within a minute."""
        self._moved[log] = None
        if self._tell_timer is None:
            self._tell_timer = self._clock.call_later(TELL, self._tell_moved)

    # -- a few topics per turn ----------------------------------------------------------------------------------

    def _tell_moved(self) -> None:
        self._tell_timer = None
        moved, self._moved = self._moved, {}
        self._queue(moved)

    def _queue(self, logs: Iterable[Log]) -> None:
        self._sweep.extend(logs)
        if self._sweep and not self._sweeping:
            self._sweeping = True
            self._commits.loop.call_soon(self._sweep_some)

    def _sweep_some(self) -> None:
        for _ in range(min(PER_TURN, len(self._sweep))):
            log = self._sweep.popleft()
            if (kept := self._topics.get(log)) is not None and not self._stopped:
                if not log.options.is_limited:
                    # It is kept until it is archived, and no longer; but groups do not read from sources of history.
                    log.begin_at(min(log.confirmed, self.unsettled(log)), RemovalReason.ARCHIVED)
                self._timeline.first(log)
                self._say(log)
                if log.options.retention_bytes is not None and self._is_over(log, kept):
                    self._ask(log)
        self._sweeping = bool(self._sweep) and not self._stopped
        if self._sweeping:
            self._commits.loop.call_soon(self._sweep_some)

    def _say(self, log: Log) -> None:
        if (part := self._trim(log)) is not None:
            self._commits.tell(part)

    def _trim(self, log: Log) -> Part | None:
        """The new first offset of a topic for the journal, if it changed."""
        kept, stored = self._topics[log], log.stored
        if stored is None or log.deleted or log.first <= kept.told:
            return None
        if stored.id not in self._reads.journal.ledger.topics:
            return None  # it is only being made; the next look comes
        kept.told = log.first
        return trim_part(stored.id, log.first, 0, log.reason, int(self._clock.time() * 1e6))

    # -- by age -------------------------------------------------------------------------------------------------

    def _be_due(self, log: Log, kept: _RetainedTopic, due: float) -> None:
        """Look at a topic at `due`."""
        kept.due = due
        self._pushed += 1
        heapq.heappush(self._heap, (due, self._pushed, log))
        if self._timer is None or due < self._timer_due:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._stopped:
            self._timer_due = self._heap[0][0]
            self._timer = self._clock.call_later(max(0.0, self._timer_due - self._clock.time()), self._on_time)

    def _on_time(self) -> None:
        now, self._timer = self._clock.time(), None
        for _ in range(PER_TURN):
            if not self._heap or self._heap[0][0] > now:
                break
            due, _, log = heapq.heappop(self._heap)
            kept = self._topics.get(log)
            if kept is None or kept.due != due:
                continue  # deleted, or due at another time since
            kept.due = None
            self._grow_old(log, kept, now)
        self._set_timer()

    def _grow_old(self, log: Log, kept: _RetainedTopic, now: float) -> None:
        """Expire records that are too old, if their times are in memory; else look them up on disk."""
        first = self._timeline.first(log)
        if first < log.base and log.held != first:
            self._ask(log)
        else:
            self._say(log)
            self._due_again(log, kept, None, now)

    def _due_again(self, log: Log, kept: _RetainedTopic, oldest: float | None, now: float) -> None:
        """Find out when its oldest record, of that time if it is known, will be too old."""
        age, first = log.options.retention_age, log.first
        if age is None or first >= log.end:
            return
        if first == log.held:
            due = now + HELD
        else:
            if first >= log.base:
                oldest = log.time_of(first).timestamp()
            soonest = now + min(SOON, age / 10)
            due = soonest if oldest is None else max(soonest, oldest + age + OLDER)
        if kept.due is None or due < kept.due:
            self._be_due(log, kept, due)

    # -- by bytes -----------------------------------------------------------------------------------------------

    def slack(self, limit: int) -> int:
        """The bytes over its limit that a topic may hold before its records on disk are examined."""
        return max(limit // SLACK, self._least_slack)

    def _is_over(self, log: Log, kept: _RetainedTopic) -> bool:
        limit, stored = log.options.retention_bytes, log.stored
        if limit is None or stored is None or kept.below is None:
            return False
        topic = self._reads.journal.ledger.topics.get(stored.id)
        return topic is not None and topic.bytes - kept.below > limit + self.slack(limit) and log.held != log.first

    # -- on disk ------------------------------------------------------------------------------------------------

    def _ask(self, log: Log) -> None:
        self._asked[log] = None
        if not self._looking:
            self._look()

    def _look(self) -> None:
        """Have the next few looked up in a thread."""
        self._looking = False
        if self._stopped or not self._asked:
            self._in_a_hurry = False
            return
        now = micros(self._timeline.now())
        questions: list[_Lookup] = []
        for log in list(self._asked)[:AT_A_TIME]:
            del self._asked[log]
            options, stored = log.options, log.stored
            topic = None if stored is None else self._reads.journal.ledger.topics.get(stored.id)
            if stored is not None and topic is not None and not log.deleted:
                limit, age = options.retention_bytes, options.retention_age
                keep = None if limit is None else limit + self.slack(limit) // 2
                oldest = None if age is None else now - int(age * 1e6)
                questions.append(_Lookup(log, stored.id, log.first, log.end, topic.bytes, oldest, keep, options))
        self._looking = self._out = True
        history, ledger = self._reads.journal.history, self._reads.journal.ledger
        began = time.monotonic()
        self._reads.look(
            lambda: _look_up(history, ledger, questions), lambda found: self._found(found, questions, began)
        )

    def _found(self, found: Any, questions: list[_Lookup], began: float) -> None:
        self._out = False
        if self._stopped:
            return
        if isinstance(found, OSError):  # the readers are closed, or there is a bug in them
            found = [_LookupResult(question, error=found) for question in questions]
        now = self._clock.time()
        for answer in found:
            log = answer.question.log
            if (kept := self._topics.get(log)) is not None and not log.deleted:
                self._take(answer, log, kept, now)
        if self._in_a_hurry:
            self._look()
        else:
            self._commits.loop.call_later(REST * (time.monotonic() - began), self._look)

    def _take(self, answer: _LookupResult, log: Log, kept: _RetainedTopic, now: float) -> None:
        oldest: float | None = None
        if answer.question.options is not log.options:
            self._asked[log] = None  # they changed meanwhile: what the old ones would remove may stay now
            return
        if answer.error is not None:
            logger.warning("what is too old or too much of %r could not be looked up: %s", log.name, answer.error)
            if log.options.retention_age is not None:
                self._be_due(log, kept, now + TELL)
            return
        if answer.leaving is not None:
            log.begin_at(min(answer.leaving.first, log.end), RemovalReason.BYTES)
            # While some of it is held, there is more than there should be: it is checked when the hold moves on.
            is_held = log.first < answer.leaving.first
            kept.below = 0 if is_held else answer.question.bytes - answer.leaving.bytes
        if answer.young is not None:
            offset = answer.young.offset
            # If there is none, all records present at the time of the request are too old.
            log.begin_at(answer.question.end if offset is None else min(offset, log.end), RemovalReason.AGE)
            if answer.young.time is not None:
                oldest = from_micros(answer.young.time).timestamp()
        self._timeline.first(log)
        self._say(log)
        self._due_again(log, kept, oldest, now)


def _look_up(history: JournalReader, ledger: Ledger, questions: list[_Lookup]) -> list[_LookupResult]:
    """Look topics up. In a thread."""
    committed = ledger.committed_shares()
    answers = []
    for question in questions:
        young = leaving = None
        try:
            if question.oldest is not None:
                young = retention.first_not_older(history, question.id, question.first, question.oldest)
            if question.keep is not None:
                leaving = retention.first_within_bytes(history, question.id, question.first, question.keep, committed)
            answers.append(_LookupResult(question, young, leaving))
        except OSError as error:
            answers.append(_LookupResult(question, error=error))
    return answers
