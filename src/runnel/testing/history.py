"""The history of a run, and whether it kept its promises.

Tell a `History` what the clients of a broker did and saw; `check()` then says what was lost,
duplicated, reordered, missed without a reported gap, or invented. It believes the clients only:
it never looks into the broker.

    history = History()
    history.intend("orders", "o-1", publisher="shop")         # before handing over
    position = await orders.publish(b"o-1")
    history.acknowledged("orders", "o-1", position.epoch, position.offset)
    ...
    history.saw("billing", record)                            # delivered(), and the gap before it
    ...
    history.check().raise_if_any()

Several programs, some of which get killed, record into files and are judged together:

    with open(f"{name}.jsonl", "ab", buffering=0) as file:    # unbuffered: survives kill -9
        history = History(clock=time.monotonic, write=file.write)
    ...
    verdict = History.read(itertools.chain.from_iterable(open(f, "rb") for f in files)).check()

The order of events counts only within one publisher and within one subscriber, so files may be
read in any order. Where parties meet (who held a lease when, was this published after that
subscription opened) `at` decides. The default clock counts the events of this one History; several
programs need a clock they share, such as `time.monotonic` on one machine.

Pure: no loop, no file, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import msgspec

from runnel.core.record import Record
from runnel.testing import history_events as events
from runnel.testing.checker import check_history
from runnel.testing.history_events import Epoch, Event, Id
from runnel.testing.verdict import Verdict

__all__ = ["BadLine", "History"]


class BadLine(ValueError):
    """A line of a history is no event. A torn last line is not this: it is skipped and counted."""

    def __init__(self, number: int, line: bytes, reason: str) -> None:
        self.number, self.line, self.reason = number, line, reason
        super().__init__(f"line {number} of the history is no event ({reason}): {line[:80]!r}; remove it to go on")


class History:
    """Everything the clients of a broker did and saw, in the order they saw it.

    `clock` stamps each event. With `write`, each event goes there as one JSON line (one call, so
    that lines of several programs never mix) and is not kept in memory.

    Ids name published values: unique per topic; str, int, or the value's own bytes.
    """

    def __init__(
        self, *, clock: Callable[[], float] | None = None, write: Callable[[bytes], object] | None = None
    ) -> None:
        self.events: list[Event] = []
        self.torn = 0
        self._now: Callable[[], float] = clock if clock is not None else count(1).__next__
        self._add: Callable[[Event], object] = self.events.append
        if write is not None:
            self._add = lambda event: write(events.encode(event) + b"\n")

    # -- publishers ---------------------------------------------------------------------------

    def intend(self, topic: str, id: Id | bytes, publisher: str = "publisher") -> None:
        """`publisher` is about to hand over `id`. Call it before publishing, or a crash in between invents it.

        A publisher is one task: its acknowledged publishes have to keep their order. Telling the
        same id again is a retry, which may land anywhere but still only once.
        """
        self._add(events.Intended(self._now(), topic, _text(id), publisher))

    def acknowledged(self, topic: str, id: Id | bytes, epoch: Epoch, offset: int) -> None:
        """The publish of `id` returned this position. From now on it must not be lost."""
        self._add(events.Acknowledged(self._now(), topic, _text(id), epoch, offset))

    def failed(self, topic: str, id: Id | bytes) -> None:
        """The publish of `id` was refused: surely not written, so it must never be delivered."""
        self._add(events.Failed(self._now(), topic, _text(id)))

    def unknown(self, topic: str, id: Id | bytes) -> None:
        """It is not known whether `id` was written. An intent without an outcome means the same."""
        self._add(events.Unknown(self._now(), topic, _text(id)))

    # -- plain subscribers --------------------------------------------------------------------

    def subscribed(self, subscriber: str, topic: str, start: int | None = None, epoch: Epoch | None = None) -> None:
        """The subscription is open; it is owed every record from offset `start` on.

        None is "latest": owed from the first record it saw, and everything handed over after this
        call. For a pattern, tell it once for each topic. Without `ended`, the subscriber counts as
        listening to the very end, and is owed everything.
        """
        self._add(events.Subscribed(self._now(), subscriber, topic, start, epoch))

    def resumed(self, subscriber: str, topic: str) -> None:
        """A durable name is open again. It may see again what it saw before, but skips nothing new."""
        self._add(events.Resumed(self._now(), subscriber, topic))

    def delivered(
        self, subscriber: str, topic: str, epoch: Epoch, offset: int, id: Id | bytes, sequence: int | None = None
    ) -> None:
        """`subscriber` has the record in hand. With `sequence`, order across topics is judged too."""
        self._add(events.Delivered(self._now(), subscriber, topic, epoch, offset, _text(id), sequence))

    def gap(self, subscriber: str, topic: str, epoch: Epoch, first: int, end: int, count: int | None) -> None:
        """The broker reported that `count` records in [first, end) will not come; None: it cannot know."""
        self._add(events.GapTold(self._now(), subscriber, topic, epoch, first, end, count))

    def sequence_gap(self, subscriber: str, first: int, end: int, count: int | None) -> None:
        """The same for a pattern, whose gaps are in sequences of the broker."""
        self._add(events.SequencesTold(self._now(), subscriber, first, end, count))

    def saw(self, subscriber: str, record: Record[Any]) -> None:
        """`delivered`, and the gap before it if one was reported, from a record as runnel delivers it."""
        gap = record.gap
        if gap is not None and gap.topic == record.topic:
            self.gap(subscriber, gap.topic, record.epoch, gap.first, gap.end, gap.count)
        elif gap is not None:
            self.sequence_gap(subscriber, gap.first, gap.end, gap.count)
        self.delivered(subscriber, record.topic, record.epoch, record.offset, record.value, record.sequence)

    def ended(self, reader: str, topic: str | None = None, end: int | None = None) -> None:
        """A subscriber or a group stopped; without `topic`, on all its topics.

        It is owed everything below offset `end`; None: up to the last it saw, which is all that can
        be said of a killed one.
        """
        self._add(events.Ended(self._now(), reader, topic, end))

    # -- consumer groups ----------------------------------------------------------------------

    def grouped(self, group: str, topic: str, start: int = 0, epoch: Epoch | None = None) -> None:
        """The group exists; each record from `start` on is owed to one of its members."""
        self._add(events.Grouped(self._now(), group, topic, start, epoch))

    def leased(
        self,
        group: str,
        member: str,
        topic: str,
        epoch: Epoch,
        offset: int,
        id: Id | bytes,
        attempt: int = 1,
        until: float | None = None,
    ) -> None:
        """`member` has the delivery in hand, for itself until `until` on the history's clock."""
        self._add(events.Leased(self._now(), group, member, topic, epoch, offset, _text(id), attempt, until))

    def extended(self, group: str, member: str, topic: str, epoch: Epoch, offset: int, until: float) -> None:
        """The lease was prolonged. Tell it after the broker agreed."""
        self._add(events.Extended(self._now(), group, member, topic, epoch, offset, until))

    def acked(self, group: str, member: str, topic: str, epoch: Epoch, offset: int) -> None:
        """The ack was accepted for good. Tell it after the broker agreed, and never for a refused one."""
        self._add(events.Acked(self._now(), group, member, topic, epoch, offset))

    def nacked(self, group: str, member: str, topic: str, epoch: Epoch, offset: int) -> None:
        """The delivery goes back. Tell it before asking: another member may have it before you know."""
        self._add(events.Nacked(self._now(), group, member, topic, epoch, offset))

    def rejected(self, group: str, member: str, topic: str, epoch: Epoch, offset: int) -> None:
        """The record was refused for good (or ran out of attempts) and counts as dealt with."""
        self._add(events.Rejected(self._now(), group, member, topic, epoch, offset))

    def left(self, group: str, member: str) -> None:
        """The member is gone. For a killed member, the killer calls this first."""
        self._add(events.Left(self._now(), group, member))

    def drained(self, group: str, topic: str) -> None:
        """Nothing was left for the group: whatever is neither acked nor rejected by now is lost."""
        self._add(events.Drained(self._now(), group, topic))

    # -- the broker ---------------------------------------------------------------------------

    def cleaned(self, topic: str, epoch: Epoch, first: int, end: int) -> None:
        """Retention, compaction or expiry took [first, end): not seeing these is no violation."""
        self._add(events.Cleaned(self._now(), topic, epoch, first, end))

    def restarted(self) -> None:
        """The broker died and came back: leases are void. Tell it before it serves again."""
        self._add(events.Restarted(self._now()))

    # -- keeping and judging ------------------------------------------------------------------

    def lines(self) -> Iterator[bytes]:
        """The events as JSON lines, newline included."""
        for event in self.events:
            yield events.encode(event) + b"\n"

    @classmethod
    def read(cls, lines: Iterable[bytes | str]) -> History:
        """A history from JSON lines, such as open files give them.

        A killed program may leave a last line that is cut short and has no newline: it is skipped
        and counted in `torn`. Any other bad line raises `BadLine`.
        """
        history = cls()
        add, decode = history.events.append, events.decode
        for number, line in enumerate(lines, 1):
            try:
                add(decode(line))
            except msgspec.DecodeError as error:
                raw = line.encode() if isinstance(line, str) else line
                if not raw.strip():
                    continue
                if raw.endswith(b"\n"):
                    raise BadLine(number, raw, str(error)) from None
                history.torn += 1
        return history

    def check(self) -> Verdict:
        """Judge all events so far. Changes nothing, so it may be called again later."""
        return check_history(self.events, torn=self.torn)

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<History of {len(self.events):,} events>"


def _text(id: Id | bytes) -> Id:
    # Untyped topics encode str as UTF-8 and deliver bytes: both name the same value.
    return id.decode("utf-8", "backslashreplace") if isinstance(id, bytes) else id
