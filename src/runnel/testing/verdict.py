"""The result of checking a history: violations, each a value and a sentence, and their counts.

A violation holds its facts as fields, for tests and tools, and says them as a sentence, for people. Its `kind` is the
guarantee that was broken.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import msgspec

from runnel.testing.history_events import Epoch, Id

SHOWN = 4
"""How many violations of each kind a printed verdict spells out."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was broken, at one place in one topic. `id` is None where no single record is meant."""

    kind: ClassVar[str] = "violation"
    _says: ClassVar[str] = "{id!r}"  # the sentence over its fields, behind the place

    topic: str
    epoch: Epoch
    offset: int
    id: Id | None = None

    @property
    def place(self) -> str:
        """Where it happened, as people say it."""
        return f"{self.topic!r} offset {self.offset} (epoch {self.epoch})"

    def __str__(self) -> str:
        return f"{self.place}: {self._says.format_map(msgspec.structs.asdict(self))}"


class LostRecord(Violation, frozen=True, kw_only=True):
    """Acknowledged, yet it never reached a reader it was owed to, and no gap was reported."""

    kind = "lost"
    publisher: str
    reader: str
    story: str = "never got it, and no gap was reported"
    _says = "{id!r} of {publisher!r} was acknowledged, but {reader!r} {story}"


class MissedRecord(Violation, frozen=True, kw_only=True):
    """A hole in what a subscriber saw, where others saw a record, and no gap reported."""

    kind = "missed"
    subscriber: str
    witness: str
    _says = "{subscriber!r} missed {id!r} without a reported gap; {witness!r} got it"


class DeliveredTwice(Violation, frozen=True, kw_only=True):
    """One plain subscriber got one record twice."""

    kind = "duplicated"
    subscriber: str
    _says = "{subscriber!r} got {id!r} twice"


class WrittenTwice(Violation, frozen=True, kw_only=True):
    """One id stands at two places."""

    kind = "duplicated"
    other_epoch: Epoch
    other_offset: int
    _says = "{id!r} stands also at offset {other_offset} (epoch {other_epoch})"


class OffsetTakenTwice(Violation, frozen=True, kw_only=True):
    """One (epoch, offset) names two records."""

    kind = "duplicated"
    other: Id
    _says = "names two records, {id!r} and {other!r}"


class DeliveredOutOfOrder(Violation, frozen=True, kw_only=True):
    """A subscriber's offsets (or its sequences across topics) did not rise."""

    kind = "reordered"
    subscriber: str
    after: str
    _says = "{subscriber!r} got {id!r} after {after}"


class WrittenOutOfOrder(Violation, frozen=True, kw_only=True):
    """One publisher's acknowledged publishes do not stand in the order it made them."""

    kind = "reordered"
    publisher: str
    earlier: Id
    earlier_offset: int
    _says = "{publisher!r} handed over {earlier!r} before {id!r}, but it stands later, at offset {earlier_offset}"


class InventedRecord(Violation, frozen=True, kw_only=True):
    """A reader got a record that was never published, or whose publish surely failed."""

    kind = "invented"
    reader: str
    failed: bool

    def __str__(self) -> str:
        why = "whose publish had surely failed" if self.failed else "which was never published"
        return f"{self.place}: {self.reader!r} got {self.id!r}, {why}"


class WrongGap(Violation, frozen=True, kw_only=True):
    """A reported gap does not fit what happened. `offset` is its first offset (a pattern's: sequence)."""

    kind = "gap wrong"
    subscriber: str
    end: int
    count: int | None
    why: str

    def __str__(self) -> str:
        many = "an unknown number" if self.count is None else f"{self.count:,}"
        return (
            f"{self.topic!r} (epoch {self.epoch}): {self.subscriber!r} got a reported gap of {many} "
            f"in [{self.offset}, {self.end}), but {self.why}"
        )


class DeliveredAfterAck(Violation, frozen=True, kw_only=True):
    """A group got a record again though it was done with it."""

    kind = "redelivered"
    group: str
    member: str
    settler: str
    _says = "group {group!r} gave {id!r} to {member!r} again after {settler!r} had settled it"


class LeasedTwice(Violation, frozen=True, kw_only=True):
    """Two members of a group held one record at once."""

    kind = "held twice"
    group: str
    member: str
    holder: str
    _says = "group {group!r} gave {id!r} to {member!r} while {holder!r} still held it"


class HistoryViolated(AssertionError):
    """A history breaks promises; `verdict` holds which."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(str(verdict))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a history came to. Falsy never: ask `clean`, or call `raise_if_any()`."""

    violations: tuple[Violation, ...]
    intended: int
    acknowledged: int
    failed: int
    unknown: int
    deliveries: int
    subscribers: int
    groups: int
    gaps: int
    torn: int

    @property
    def clean(self) -> bool:
        """No promise was broken."""
        return not self.violations

    @property
    def tally(self) -> dict[str, int]:
        """How many violations of each kind, the most frequent first."""
        return dict(Counter(violation.kind for violation in self.violations).most_common())

    def raise_if_any(self) -> None:
        """Raise `HistoryViolated`, an AssertionError that reads well in a test's output."""
        if self.violations:
            raise HistoryViolated(self)

    def _scope(self) -> str:
        readers = [_many(self.subscribers, "subscriber")] if self.subscribers else []
        readers += [_many(self.groups, "group")] if self.groups else []
        parts = [
            f"{_many(self.intended, 'publish', 'publishes')} ({self.acknowledged:,} acknowledged, "
            f"{self.failed:,} failed, {self.unknown:,} unknown)",
            f"{_many(self.deliveries, 'delivery', 'deliveries')} to {' and '.join(readers) or 'no reader'}",
        ]
        if self.gaps:
            parts.append(_many(self.gaps, "reported gap"))
        if self.torn:
            parts.append(f"{_many(self.torn, 'torn line')} skipped")
        return ", ".join(parts)

    def __str__(self) -> str:
        if self.clean:
            return f"clean: {self._scope()}"
        tally = ", ".join(f"{count:,} {kind}" for kind, count in self.tally.items())
        width = max(map(len, self.tally))
        rows = [f"{_many(len(self.violations), 'violation')}: {tally}", f"  in {self._scope()}"]
        for kind, count in self.tally.items():
            few = [violation for violation in self.violations if violation.kind == kind][:SHOWN]
            rows += [f"  {kind:<{width}}  {violation}" for violation in few]
            if count > SHOWN:
                rows.append(f"  {'':<{width}}  … and {count - SHOWN:,} more {kind}")
        return "\n".join(rows)


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"
