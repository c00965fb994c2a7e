"""Following a commit of a stage: its batches, found by their ordinals, get the places that the commit gave them.

Staged batches are read as if their stage were a topic, whose offsets are ordinals: `topic_of` names it for
`History.plan`. The stage may lie in other segments than its commit.
Below: found, history, packing. Above: extract, cleaner, compaction, broker.stage_reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from runnel.core.errors import BadBatch
from runnel.core.packing import read_header
from runnel.journal.entry import STAGE_TOPIC
from runnel.journal.found import Found, Lost, Staged
from runnel.journal.history import History

MISSING = "a staged batch of it is not there any more"


def topic_of(staged: Staged) -> int:
    """What stands for the topic where the batches of its stage are looked for."""
    return STAGE_TOPIC | staged.stage


class Placing:
    """Gives the batches of a committed stage their offsets and sequences, in order, and misses none in silence."""

    __slots__ = ("_before", "_sequence", "_staged", "ordinal")

    def __init__(self, staged: Staged, place: int, *, by_sequence: bool) -> None:
        self._staged, self._sequence = staged, by_sequence
        self._before = [0, *accumulate(staged.counts)]  # records before each batch, and of all
        skipped = place - (staged.sequence if by_sequence else staged.base)
        self.ordinal = 0  # the next one that is wanted
        while self.ordinal < len(staged.counts) and self._before[self.ordinal + 1] <= skipped:
            self.ordinal += 1

    def __repr__(self) -> str:
        return f"<Placing of stage {self._staged.stage}, {self.ordinal} of {len(self._staged.counts)} batches>"

    @property
    def done(self) -> bool:
        """Whether every batch has come, or was told to be lost."""
        return self.ordinal == len(self._staged.counts)

    def placed(self, items: Iterable[Found | Staged | Lost]) -> Iterator[Found | Lost]:
        """What was found in the stage, as what it is in the topic."""
        for item in items:
            if isinstance(item, Lost):
                yield from self._lost(item.first, MISSING)
                yield from self._lost(item.end, item.reason)
                continue
            ordinal = item.base
            if isinstance(item, Staged) or not self.ordinal <= ordinal < len(self._staged.counts):
                continue
            yield from self._lost(ordinal, MISSING)
            count = self._staged.counts[ordinal]
            try:
                held = read_header(item.body).count
            except BadBatch as error:
                yield from self._lost(ordinal + 1, f"cannot be decoded: {error.why}")
                continue
            if held != count:
                yield from self._lost(ordinal + 1, f"a staged batch holds {held} records, and {count} were committed")
                continue
            staged, before = self._staged, self._before[ordinal]
            first = staged.base + before
            self.ordinal = ordinal + 1
            yield Found(staged.topic, first, first + count - 1, staged.sequence + before, staged.time, item.body)

    def rest(self) -> Iterator[Lost]:
        """Nothing more is in the stage."""
        yield from self._lost(len(self._staged.counts), MISSING)

    def _lost(self, ordinal: int, reason: str) -> Iterator[Lost]:
        """The batches before `ordinal` that have not come will not."""
        ordinal = min(ordinal, len(self._staged.counts))
        if ordinal > self.ordinal:
            start = self._staged.sequence if self._sequence else self._staged.base
            yield Lost(start + self._before[self.ordinal], start + self._before[ordinal], reason)
            self.ordinal = ordinal


def followed(history: History, staged: Staged, place: int, *, by_sequence: bool) -> Iterator[Found | Lost | int]:
    """What a commit made visible, from `place` on, out of where it was staged; after each chunk, its bytes."""
    placing, stage = Placing(staged, place, by_sequence=by_sequence), topic_of(staged)
    plan = history.plan(stage, placing.ordinal)
    while plan is not None and not placing.done:
        parsed = history.parse(plan, history.fetch(plan), (stage,), by_sequence=False)
        yield from placing.placed(parsed.items)
        if parsed.position <= plan.position:
            break
        yield parsed.position - plan.position
        plan = history.plan(stage, parsed.place, plan, parsed.position)
    yield from placing.rest()
