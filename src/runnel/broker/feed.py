"""A subscription that somebody far away reads: pieces out, places back.

What the reader asked beyond is what it says (`confirm`), not what was sent: so positions, `block` and
`publish_and_wait` mean over a network what they mean in process.
Below: subscription, piece. Above: server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.cursor import SLICE
from runnel.broker.piece import Piece, one_piece, pieces, without
from runnel.broker.reader import Reader
from runnel.broker.step import Step, Steps
from runnel.broker.subscribing import open_subscription
from runnel.broker.subscription import Subscription
from runnel.core.batch import Slice
from runnel.core.errors import OffsetOutOfRange, RunnelError
from runnel.core.packing import BYTES, JSON, MSGPACK
from runnel.core.position import Position
from runnel.core.record import Gap, Record

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

_CONTENT = {None: BYTES, "json": JSON, "msgpack": MSGPACK}


class Taking(NamedTuple):
    """What comes next for a feed: what was missed, then records."""

    gap: Gap | None
    pieces: list[Piece]


def open_feed(
    broker: Broker,
    pattern: str | Sequence[str],
    *,
    ready: Callable[[], None],
    drops: Callable[[Piece], None] | None = None,
    resume: Position | int | None = None,
    **options: Any,
) -> Feed:
    """A feed of a topic or pattern; options as in `broker.subscribe`, without group, type and functions.

    Of several names and patterns it is one feed, in the order of sequences; a name that nobody has published to is
    not made, but joins when it is.
    `ready` is called when there may be something to take, or it is over; `drops` for each record that a policy dropped.
    `resume` is where this very reader stood before its connection was lost: an offset's position, or a sequence.
    """
    bus = broker._bus
    content = Content(bus)

    def on_drop(record: Record[bytes]) -> None:
        assert drops is not None
        drops(one_piece(record, content.of(record.topic)))

    opened = open_subscription(bus, pattern, on_drop=None if drops is None else on_drop, **options)
    return Feed(opened._reader, content, ready, resume)


class Content:
    """What the values of each topic are written in."""

    def __init__(self, bus: Any) -> None:
        self._logs = bus.catalog.logs

    def of(self, topic: str) -> int:
        """As the header of a batch says it."""
        log = self._logs.get(topic)
        known = None if log is None else log.codec or log.schema
        return _CONTENT[None if known is None else known.encoding]


class Feed(Subscription[bytes]):
    """One far subscription, on the broker's side."""

    def __init__(
        self, reader: Reader, content: Content, ready: Callable[[], None], resume: Position | int | None
    ) -> None:
        super().__init__(reader, None)
        reader.resume = resume
        self._warned = True  # whoever reads it is warned where it is
        self._content, self._ready = content, ready
        self.attachment = reader.attachment  # its `changes` tell whether topics came or went
        self._place = self._sent = 0  # what the reader asked beyond, and what was taken for it
        self._shown = 0  # behind the last record that it was told of: what lies between that and `_sent` has expired
        self._given = self._taken = 0  # records that it gave, and that its reader took up
        self._unreadable = self._expired_there = 0  # of those: what it said of them
        self._last: int | None = None  # once it is to finish: the place behind what it still has to give
        self._alike = ""  # the same for feeds that would take the same where they stand at the same place
        self._out: deque[tuple[int, int]] = deque()  # strict flows: place and size of each record that is out

    def __repr__(self) -> str:
        return f"<Feed {self.label!r} {self._state}, sent up to {self._sent}, asked beyond {self._place}>"

    @property
    def eager(self) -> bool:
        """Whether it may run ahead of its reader: nothing was said about bounds, so nothing has to be exact."""
        return self._reader.options.lags

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""
        return None if self.is_pattern else next(iter(self._reader.attachment.logs)).epoch

    @property
    def sent(self) -> int:
        """Behind the last record that was taken: an offset, or a sequence."""
        return self._sent

    def end_sequence(self) -> int | None:
        """Behind all that is visible now, if it has taken everything of its own up to there; None: it has not."""
        return None if self.flow.cursor.pending() else self._reader.end_sequence()

    @property
    def epochs(self) -> list[int]:
        """The epochs of the topics that it covers now."""
        return [log.epoch for log in self._reader.attachment.logs]

    @property
    def ended(self) -> bool:
        """Whether there will be no more than what was published until then."""
        return self._ended

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before the place where it was to finish."""
        return self._last is not None and self._ended and not self._is_done()

    @property
    def error(self) -> RunnelError | None:
        """What ended it, if it was not over in peace."""
        return self._error

    # -- its life -----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take up the start position, and be told of what is published from now on."""
        self._check_not_entered()
        self._flow = self._reader.start(self)
        self._moved = self._reader.moves()
        self._entered = True
        self._place = self._sent = self._flow.cursor.position
        options = self._reader.options
        alike = (self.pattern, self.is_pattern, type(self._flow), options.buffer, options.buffer_bytes)
        self._alike = intern(repr(alike))  # one object for all: found quickly
        self._reader.attach(self)

    def finish(self) -> None:
        """No more than what was published up to now, though others may publish on."""
        if self._last is not None and not self._ended:
            return  # it knows its end
        if not self._ended and self._entered:
            cursor = self.flow.cursor
            self._last = self._reader.end_sequence() if self.is_pattern else cursor.position + cursor.pending()
        self.end()

    def finish_at(self, end: int) -> None:
        """No more than lies before `end`: an offset that there is, of the one topic that it reads."""
        (log,) = self._reader.attachment.logs
        if end > log.end:
            raise OffsetOutOfRange(log.name, end, log.first, log.end)
        self._last = end

    def leave(self) -> None:
        """Nobody reads any more."""
        self._left = True
        self.end()

    def wake(self) -> None:
        """There may be something to take, or it is over."""
        self._ready()

    # -- reading ------------------------------------------------------------------------------------------------

    def take(self, max_records: int = SLICE) -> Taking | None:
        """What comes next. None: nothing now; `ready` is called when there is, unless it has `ended`."""
        taken = self.take_slices(max_records)
        if taken is None:
            return None
        gap, slices = taken
        return Taking(gap, [one for part in slices for one in pieces(part, self._content.of(part.topic))])

    def take_slices(self, max_records: int = SLICE) -> tuple[Gap | None, list[Slice]] | None:
        """The same as slices, for whoever writes records in a form of its own."""
        try:
            taken = None if self._is_done() else self._take(max_records)
            if taken is None:
                if not self._ended:
                    if self._is_done():  # also where nothing was left but a hole
                        self.end()
                    else:
                        self._reader.attachment.park(self)
                return None
            slices = taken.slices if self._last is None else self._up_to(self._last, taken.slices)
            if taken.missed is not None and slices and self._place >= self._sent:
                part = slices[0]  # nothing is out: what was missed is behind it, also if that is raised now
                self._place = part.sequence if self.is_pattern else part.start
            self._went_out(slices)
            if any(part.metas for part in slices) and (gone := self._reader.expired(slices)):
                self.expired += len(gone)
                slices = list(chain.from_iterable(without(part, gone) for part in slices))
            count = sum(map(len, slices))
            self._miss(taken.missed, count)
        except RunnelError:  # it is the feed's own end, and told as such
            return None
        self._given += count
        if slices:
            last = slices[-1]
            self._shown = (last.sequence if self.is_pattern else last.start) + len(last)
        return self._gap(), slices

    def take_step(self, steps: Steps, max_records: int = SLICE) -> Step | None:
        """The same again, in step with others: what a feed that stands at the same place took is taken over.

        `steps` are of this very moment; what is taken here joins them.
        """
        flow = self._flow
        assert flow is not None, "it was entered"
        cursor = flow.cursor
        plain = not (self._ended or flow.strict or flow.history) and flow.missed is None and self._missed is None
        place = (self._alike, cursor.position) if plain and cursor.is_clear else None
        if place is not None and (step := steps.get(place)) is not None:
            cursor.follow(step.position, is_last=step.is_last)
            self._sent = self._shown = step.sent
            self._given += step.count
            return step
        expired = self.expired
        taken = self.take_slices(max_records)
        if taken is None:
            return None
        step = Step(*taken, cursor.position, self._sent, is_last=not (self._ended or cursor.pending()))
        if place is not None and step.gap is None and step.slices and self.expired == expired:
            steps[place] = step
        return step

    def park(self) -> None:
        """There is nothing to take: `ready` is called when there is. Only who took the last step in this moment."""
        self._reader.attachment.park(self)

    def _is_done(self) -> bool:
        if self._last is None or self.flow.put_aside() is not None:
            return False  # what was put aside was there before
        return self.flow.cursor.position >= self._last

    def _up_to(self, last: int, slices: list[Slice]) -> list[Slice]:
        """What lies before `last`."""
        kept: list[Slice] = []
        for part in slices:
            first = part.sequence if self.is_pattern else part.start
            if first + len(part) <= last:
                kept.append(part)
            elif first < last:
                kept.append(part.cut(part.start, part.start + last - first))
        return kept

    def _went_out(self, slices: list[Slice]) -> None:
        for part in slices:
            first = part.sequence if self.is_pattern else part.start
            self._sent = first + len(part)
            if self.flow.strict:
                self._out.extend(zip(range(first, self._sent), map(len, part.values), strict=True))

    def confirm(self, place: int) -> None:
        """The reader has asked beyond everything before `place`."""
        if place < self._place or not self._entered:
            return  # it was overtaken by a later one
        if place > self._place and self.task is None:
            self.task = FAR  # somebody reads it
        self._place = place = self._sent if place >= self._shown else place
        while self._out and self._out[0][0] < place:
            self.flow.done(self._out.popleft()[1])
        if not self._ended:
            if self._moved is not None:
                self._moved(self)
            self._reader.advanced(self)

    # -- what the reader counts ---------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Records published for it that its reader has not taken up, wherever they are: one that is frozen lags."""
        lag = self.flow.lag()
        return lag if self.flow.strict else lag + self._given - self._taken  # strict: what is out is held, and counts

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """What the reader took up of what it was given, in all; and what of it was of no use to it."""
        self._taken = max(self._taken, min(taken, self._given))
        if expired > self._expired_there:
            self.expired += expired - self._expired_there
            self._expired_there = expired
        if unreadable > self._unreadable:
            self.dropped_count += unreadable - self._unreadable
            self._unreadable = unreadable
        self.delivered = max(self.delivered, self._taken - self._expired_there - self._unreadable)

    def count_all(self) -> None:
        """The reader says nothing of that: what it was given it has taken up."""
        self.count(self._given, 0, 0)

    def pass_all(self) -> None:
        """The reader says nothing at all: what was taken for it, it has taken up and asked beyond."""
        if self._moved is None and not self._out and not self._reader.watches:
            self._place, self._taken = self._sent, self._given
            self.delivered = self._given - self._expired_there - self._unreadable
            self.task = FAR
            return
        self.confirm(self._sent)
        self.count(self._given, 0, 0)

    @property
    def position(self) -> int:
        """The offset (or sequence, of a pattern) of the first record that the reader has not asked beyond."""
        if self._place < self._sent:
            return self._place
        aside = self.flow.put_aside()
        if aside is not None:
            return aside.sequence if self.is_pattern else aside.start
        return self.flow.cursor.position


FAR: Any = object()  # stands for the task that reads a feed: it is not of this process
