"""Acks and failed attempts of one group that wait for the next commit: when an ack is on disk.

Acks are written as ranges. A failed attempt must be on disk before its record is delivered again (`must_wait`). The
ack of a record whose dead letter is not on disk yet is held back.
"""

from __future__ import annotations

from collections.abc import Callable

from runnel.journal.format.entry import Part
from runnel.journal.format.ledger import progress_part
from runnel.journal.format.offset_sets import merge_ranges, ranges_without, to_ranges


class PendingAcks:
    """The unsaid progress of one group."""

    __slots__ = ("_dirty", "_failed", "_failing", "_held", "_lives", "_places", "_ranges", "_touch", "id", "wake")

    def __init__(
        self, id: int, dirty: dict[PendingAcks, None], touch: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self.id, self._touch, self.wake = id, touch, wake
        self._dirty = dirty  # the groups that have something to be written: it adds itself
        self._places: list[int] = []
        self._ranges: list[int] = []
        self._failed: dict[int, tuple[int, float, str]] = {}
        self._held: set[int] = set()  # settled, but for a dead letter that is not on disk yet
        self._failing = 0  # commits under way that say what failed
        self._lives = 0  # how often all entries were forgotten; entries before that are not written again

    @property
    def must_wait(self) -> bool:
        """Whether an attempt failed that is not stored yet. Until it is, nothing is delivered again."""
        return bool(self._failed or self._failing)

    @property
    def is_urgent(self) -> bool:
        """Whether a failed attempt waits to be written."""
        return bool(self._failed)

    def forget(self) -> None:
        """Nothing that is not written yet counts any more."""
        self._places, self._ranges, self._failed = [], [], {}
        self._held.clear()
        self._lives += 1

    def settled(self, place: int) -> None:
        """One place is done with."""
        self._places.append(place)
        self._dirty[self] = None
        self._touch()

    def settled_range(self, first: int, end: int) -> None:
        """Places [first, end) are done with."""
        self._ranges += (first, end)
        self._dirty[self] = None
        self._touch()

    def empty(self, first: int, end: int) -> None:
        """Nothing at [first, end) is the group's. Worth no commit of its own: it goes along with the next one."""
        self._ranges += (first, end)
        self._dirty[self] = None

    def failed(self, place: int, attempts: int, due: float, reason: str) -> None:
        """An attempt failed."""
        self._failed[place] = (attempts, due, reason)
        self._dirty[self] = None
        self._touch()

    def hold(self, place: int) -> None:
        """Do not say that `place` is settled before it is released."""
        self._held.add(place)

    def release(self, place: int) -> None:
        """Now `place` is settled, if it was not said before."""
        if place in self._held:
            self._held.remove(place)
            self.settled(place)

    def take(self) -> tuple[Part, Callable[[], None], Callable[[], None]] | None:
        """The changes to write, and the callbacks for success and failure. None: no changes."""
        if not (self._places or self._ranges or self._failed):
            return None
        flat = to_ranges(self._places)
        if self._ranges:
            flat = merge_ranges(flat + self._ranges)
        if self._held:
            flat = ranges_without(flat, self._held)
        failed, life = self._failed, self._lives
        self._places, self._ranges, self._failed = [], [], {}
        self._failing += bool(failed)

        def landed() -> None:
            if failed:
                self._failing -= 1
                self.wake()

        def undo() -> None:
            self._failing -= bool(failed)
            if life == self._lives:
                self._ranges = merge_ranges(flat + self._ranges)  # or each try on a full disk would make it longer
                self._failed = failed | self._failed
                self._dirty[self] = None

        part = progress_part(self.id, flat, [(place, *facts) for place, facts in failed.items()])
        return part, landed, undo
