"""The stages that a transaction commits: waited for, written with it, and over when it landed.

A small stage is written again as a plain batch, in the transaction's own entry, and leaves nothing behind. A large
one is named there: a few bytes give its records their offsets, where they lie.
Below: staging, small_stage. Above: attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from runnel.broker.open_stage import INLINE, OpenStage
from runnel.broker.small_stage import RAW, entry_of
from runnel.core.position import Position
from runnel.core.stage import StageKey, name_of
from runnel.core.transaction_errors import StageEnded
from runnel.journal.entry import Part
from runnel.journal.parts import stage_dropped_part
from runnel.journal.stage_state import StageState

if TYPE_CHECKING:
    from runnel.broker.gate import Entry
    from runnel.broker.log import Log
    from runnel.broker.staging import Staging
    from runnel.core.publication import Publication

INLINE_TOTAL = 4 * INLINE  # bytes of small stages that one commit writes again


class Committing:
    """What a transaction was told to commit, by key, and where that is once it is visible."""

    __slots__ = ("_staging", "_taken", "_wanted")

    def __init__(self) -> None:
        self._staging: Staging | None = None
        self._wanted: dict[StageKey, Publication] = {}
        self._taken: list[OpenStage] = []

    def __len__(self) -> int:
        return len(self._wanted)

    def note(self, staging: Staging, key: StageKey, publication: Publication) -> None:
        """Commit the stage of that key. Whether it is there is looked at when the transaction is."""
        if key in self._wanted:
            raise StageEnded(name_of(key), "this transaction commits it already")
        self._staging, self._wanted[key] = staging, publication

    # -- looking ------------------------------------------------------------------------------------------------

    def in_the_way(self) -> Awaitable[object] | None:
        """What to wait for first: writes that are on their way, small ones that are to be read again. None: nothing."""
        for stage, inline in self._stages():
            if stage.flights or stage.turn.locked() or (inline and stage.kept is None):
                assert self._staging is not None
                return self._staging.settle(stage, remembered=inline)
        return None

    def _stages(self) -> list[tuple[OpenStage, bool]]:
        """The stages, and whether each is small enough to be written again."""
        room = INLINE_TOTAL
        found: list[tuple[OpenStage, bool]] = []
        for key in self._wanted:
            assert self._staging is not None
            stage = self._staging.known(key)
            inline = stage.is_small and stage.state.bytes <= room
            room -= stage.state.bytes if inline else 0
            found.append((stage, inline))
        return found

    # -- doing --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[tuple[Log, Entry | StageState]], list[Part]]:
        """What a unit has to hold so that they are committed with it. They take nothing more, unless it fails."""
        entries: list[tuple[Log, Entry | StageState]] = []
        parts: list[Part] = []
        stages, room = self._stages(), RAW
        for stage, inline in stages:
            small = entry_of(stage, room) if inline else None
            if small is not None:
                room -= small.size + small.extra
                entries.append((stage.log, small))
            elif stage.state.counts:
                entries.append((stage.log, stage.state))
            if small is not None or not stage.state.counts:
                parts.append(stage_dropped_part(stage.state.id))
        self._taken = [stage for stage, _ in stages]
        for stage in self._taken:
            stage.committing = True
        return entries, parts

    def placed(self, firsts: Sequence[int]) -> list[tuple[Publication, Position]]:
        """Where they will be: the unit was handed over, and these are the offsets that its entries begin at."""
        following = iter(firsts)
        found: list[tuple[Publication, Position]] = []
        for stage in self._taken:
            publication, records = self._wanted[stage.key], stage.records
            publication.holds(stage.log.name, records)
            found.append((publication, stage.log.position(next(following) if records else stage.log.next)))
        return found

    def landed(self) -> None:
        """They are durable and visible."""
        for stage in self._taken:
            assert self._staging is not None
            self._staging.committed(stage)

    def failed(self) -> None:
        """They are not, or nobody knows."""
        taken, self._taken = self._taken, []
        for stage in taken:
            assert self._staging is not None
            self._staging.not_committed(stage)
