"""What is written whole or not at all: records for several topics, and state, in one commit.

Below: gate, log. Above: commits, which writes it; transaction, which makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runnel.broker.gate import Entry
from runnel.broker.log import Log
from runnel.journal.entry import Part
from runnel.journal.stage_state import StageState

if TYPE_CHECKING:
    from runnel.broker.gathering import Gathering


class Unit:
    """One all-or-nothing piece of a commit, and who is told how it ended: `landed` or `failed`, once.

    An entry is what a publish appends, or a stage, whose records become visible where they lie.
    """

    __slots__ = ("entries", "failed", "gatherings", "landed", "late", "parts", "stages")

    def __init__(
        self,
        entries: Sequence[tuple[Log, Entry | StageState]],
        parts: Sequence[Part],
        landed: Callable[[], None],
        failed: Callable[[Exception], None],
        late: Callable[[], Sequence[Part]] | None = None,
    ) -> None:
        self.entries, self.parts = entries, parts
        self.landed, self.failed = landed, failed
        self.late = late  # more parts, as they are when it is written and not when it is handed over
        self.stages = False  # whether it is there to stage records, or to commit them
        self.gatherings: list[Gathering] = []  # its records, one batch a topic; filled in when it is handed over

    def __repr__(self) -> str:
        return f"<Unit of {len(self.entries)} publishes and {len(self.parts)} parts of state>"

    def state(self) -> list[Part]:
        """What is written of it besides its records. Asked once, when its commit is made."""
        return [*self.parts, *(self.late() if self.late is not None else ())]

    @property
    def size(self) -> int:
        """Its bytes, as far as they are to be written: of a stage, nothing is."""
        records = sum(entry.size + entry.extra for _, entry in self.entries if isinstance(entry, Entry))
        return records + sum(len(part.body) for part in self.parts)
