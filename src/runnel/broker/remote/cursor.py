"""A subscription that is read over the network: packed batches out, confirmed positions back.

A record counts as processed when the remote reader confirms it, not when it was sent. So positions, `block` and
`publish_and_wait` mean over a network what they mean in process. A slice is packed once for all who read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from runnel.broker.read.cursor import SLICE
from runnel.broker.read.subscription import Subscription, SubscriptionReader
from runnel.broker.subscribe import open_subscription
from runnel.core.batch import Slice
from runnel.core.batch_format import BYTES, JSON, MSGPACK, pack
from runnel.core.clock import micros
from runnel.core.errors import OffsetOutOfRange, RunnelError
from runnel.core.position import Position
from runnel.core.record import Gap, Meta, Record

if TYPE_CHECKING:
    from runnel.broker.broker import Broker


class WireBatch(NamedTuple):
    """Records of one topic side by side, of one time, as a batch: offsets and sequences rise by one."""

    topic: str
    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    packed: bytes


def wire_batches(part: Slice, content_type: int) -> Iterator[WireBatch]:
    """The stretches of a slice. What had to be packed is remembered in it: others read the same one."""
    stretches = part.stretches
    if part.packs is None:
        part.packs = [None] * len(stretches)
    packs, last = part.packs, len(stretches) - 1
    for at, (offset, sequence, time) in enumerate(stretches):
        first = max(offset, part.start)
        packed = packs[at]
        if packed is None:
            end = stretches[at + 1].offset if at < last else part.end
            packed = packs[at] = _packed(part, first, end, content_type)
        yield WireBatch(part.topic, part.epoch, first, sequence + first - offset, micros(time), packed)


def range_wire_batches(part: Slice, first: int, end: int, content_type: int) -> Iterator[WireBatch]:
    """The records [first, end) of a slice."""
    return wire_batches(part if (first, end) == (part.start, part.end) else part.cut(first, end), content_type)


def slices_without(part: Slice, gone: Collection[Position]) -> Iterator[Slice]:
    """What is left of a slice without some records, in order."""
    start = part.start
    for offset in [*sorted(one.offset for one in gone if one.epoch == part.epoch), part.end]:
        if not part.start <= offset <= part.end:
            continue
        if start < offset:
            yield part.cut(start, offset)
        start = offset + 1


def wire_batch_of(record: Record[bytes], content_type: int) -> WireBatch:
    """A record by itself, with its key and headers."""
    meta = Meta(record.key, record.headers)
    packed = pack([record.value], [meta], content_type=content_type)
    return WireBatch(record.topic, record.epoch, record.offset, record.sequence, micros(record.time), packed)


def _packed(part: Slice, first: int, end: int, content_type: int) -> bytes:
    values = part.values[first - part.start : end - part.start]
    metas = None
    if part.metas:
        metas = [part.metas.get(offset) for offset in range(first, end)]
        if not any(metas):
            metas = None
    return pack(values, metas, content_type=content_type)


# -- Shared steps ----------------------------------------------------------------------------------------
# What one remote cursor took, for others at the same position. Valid for one moment, in which nothing is
# published, trimmed or deleted.


class SharedStep:
    """Slices, what was missed before them, and where a feed stands behind them."""

    __slots__ = ("count", "gap", "is_last", "position", "sent", "sequence", "shared", "slices")

    def __init__(self, gap: Gap | None, slices: list[Slice], position: int, sent: int, *, is_last: bool) -> None:
        self.gap, self.slices = gap, slices
        self.position, self.sent = position, sent  # of the cursor; behind the last record
        self.is_last = is_last  # whether there is nothing more, at this moment
        self.count = sum(map(len, slices))
        self.sequence: int | None = None  # behind the last record that it shows
        if slices:
            last = slices[-1]
            stretch = last.stretches[-1]
            self.sequence = stretch.sequence + last.end - stretch.offset
        self.shared: dict[Hashable, Any] = {}  # what a listener made of it, for the other readers of the same step

    def __repr__(self) -> str:
        return f"<SharedStep of {self.count} records up to {self.sent}>"


SharedSteps: TypeAlias = dict[Hashable, SharedStep]
"""The steps of one moment, by where they begin."""


# -- The cursor ------------------------------------------------------------------------------------------


_CONTENT = {None: BYTES, "json": JSON, "msgpack": MSGPACK}


class TakenWireBatches(NamedTuple):
    """What comes next for a feed: what was missed, then records."""

    gap: Gap | None
    pieces: list[WireBatch]


def open_remote_cursor(
    broker: Broker,
    pattern: str | Sequence[str],
    *,
    ready: Callable[[], None],
    drops: Callable[[WireBatch], None] | None = None,
    resume: Position | int | None = None,
    **options: Any,
) -> RemoteCursor:
    """A feed of a topic or pattern; options as in `broker.subscribe`, without group, type and functions.

    Of several names and patterns it is one feed, in the order of sequences; a name that nobody has published to is
    not made, but joins when it is.
    `ready` is called when there may be something to take, or it is over; `drops` for each record that a policy dropped.
    `resume` is where this very reader stood before its connection was lost: an offset's position, or a sequence.
    """
    backend = broker.backend
    content = ContentTypes(backend)

    def on_drop(record: Record[bytes]) -> None:
        assert drops is not None
        drops(wire_batch_of(record, content.of(record.topic)))

    opened = open_subscription(backend, pattern, on_drop=None if drops is None else on_drop, **options)
    return RemoteCursor(opened._reader, content, ready, resume)


class ContentTypes:
    """What the values of each topic are written in."""

    def __init__(self, backend: Any) -> None:
        self._logs = backend.catalog.logs

    def of(self, topic: str) -> int:
        """As the header of a batch says it."""
        log = self._logs.get(topic)
        known = None if log is None else log.codec or log.schema
        return _CONTENT[None if known is None else known.encoding]


class RemoteCursor(Subscription[bytes]):
    """One far subscription, on the broker's side."""

    def __init__(
        self,
        reader: SubscriptionReader,
        content: ContentTypes,
        ready: Callable[[], None],
        resume: Position | int | None,
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
        return f"<RemoteCursor {self.label!r} {self._state}, sent up to {self._sent}, asked beyond {self._place}>"

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
        return None if self.overflow.cursor.pending() else self._reader.end_sequence()

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
            cursor = self.overflow.cursor
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

    def take(self, max_records: int = SLICE) -> TakenWireBatches | None:
        """What comes next. None: nothing now; `ready` is called when there is, unless it has `ended`."""
        taken = self.take_slices(max_records)
        if taken is None:
            return None
        gap, slices = taken
        return TakenWireBatches(
            gap, [one for part in slices for one in wire_batches(part, self._content.of(part.topic))]
        )

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
                slices = list(chain.from_iterable(slices_without(part, gone) for part in slices))
            count = sum(map(len, slices))
            self._miss(taken.missed, count)
        except RunnelError:  # it is the feed's own end, and told as such
            return None
        self._given += count
        if slices:
            last = slices[-1]
            self._shown = (last.sequence if self.is_pattern else last.start) + len(last)
        return self._gap(), slices

    def take_step(self, steps: SharedSteps, max_records: int = SLICE) -> SharedStep | None:
        """The same again, in step with others: what a feed that stands at the same place took is taken over.

        `steps` are of this very moment; what is taken here joins them.
        """
        overflow = self._flow
        assert overflow is not None, "it was entered"
        cursor = overflow.cursor
        plain = (
            not (self._ended or overflow.strict or overflow.history)
            and overflow.missed is None
            and self._missed is None
        )
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
        step = SharedStep(*taken, cursor.position, self._sent, is_last=not (self._ended or cursor.pending()))
        if place is not None and step.gap is None and step.slices and self.expired == expired:
            steps[place] = step
        return step

    def park(self) -> None:
        """There is nothing to take: `ready` is called when there is. Only who took the last step in this moment."""
        self._reader.attachment.park(self)

    def _is_done(self) -> bool:
        if self._last is None or self.overflow.put_aside() is not None:
            return False  # what was put aside was there before
        return self.overflow.cursor.position >= self._last

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
            if self.overflow.strict:
                self._out.extend(zip(range(first, self._sent), map(len, part.values), strict=True))

    def confirm(self, place: int) -> None:
        """The reader has asked beyond everything before `place`."""
        if place < self._place or not self._entered:
            return  # it was overtaken by a later one
        if place > self._place and self.task is None:
            self.task = REMOTE_TASK  # somebody reads it
        self._place = place = self._sent if place >= self._shown else place
        while self._out and self._out[0][0] < place:
            self.overflow.done(self._out.popleft()[1])
        if not self._ended:
            if self._moved is not None:
                self._moved(self)
            self._reader.advanced(self)

    # -- what the reader counts ---------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Records published for it that its reader has not taken up, wherever they are: one that is frozen lags."""
        lag = self.overflow.lag()
        # strict: what is out is held, and counts
        return lag if self.overflow.strict else lag + self._given - self._taken

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
            self.task = REMOTE_TASK
            return
        self.confirm(self._sent)
        self.count(self._given, 0, 0)

    @property
    def position(self) -> int:
        """The offset (or sequence, of a pattern) of the first record that the reader has not asked beyond."""
        if self._place < self._sent:
            return self._place
        aside = self.overflow.put_aside()
        if aside is not None:
            return aside.sequence if self.is_pattern else aside.start
        return self.overflow.cursor.position


REMOTE_TASK: Any = object()  # stands for the task that reads a feed: it is not of this process
