"""How far a group has come, as the journal remembers it."""

from __future__ import annotations

from typing import Any, NamedTuple

from runnel.journal.ranges import Ranges


class Failure(NamedTuple):
    """A record that was tried and not settled: how often, when it may be tried again, and why it failed."""

    attempts: int
    due: float
    reason: str


class GroupState:
    """A group on a topic or pattern. Everything below `floor` is settled, and so are the `settled` ranges."""

    __slots__ = ("failed", "floor", "id", "name", "options", "pattern", "settled")

    def __init__(self, id: int, name: str, pattern: str, options: dict[str, Any], floor: int) -> None:
        self.id, self.name, self.pattern, self.options, self.floor = id, name, pattern, options, floor
        self.settled = Ranges()
        self.failed: dict[int, Failure] = {}

    def __repr__(self) -> str:
        return f"<GroupState {self.name!r} on {self.pattern!r} from {self.floor}, {len(self.failed)} failed>"

    @property
    def end(self) -> int:
        """Behind this place nothing was settled, and nothing failed."""
        settled = max((end for _, end in self.settled), default=self.floor)
        return max(settled, max(self.failed, default=-1) + 1)

    def progress(self, settled: list[int], failed: list[tuple[int, int, float, str]]) -> None:
        """Places (flat ranges) were settled, others failed. Saying it twice changes nothing."""
        numbers = iter(settled)
        for first, end in zip(numbers, numbers, strict=True):
            if end > self.floor:
                self.settled.add(max(first, self.floor), end)
        for place, attempts, due, reason in failed:
            if place >= self.floor and place not in self.settled:
                self.failed[place] = Failure(attempts, due, reason)
        self.floor = self.settled.cut_below(self.floor)
        if settled and self.failed:
            self.failed = {
                place: failure
                for place, failure in self.failed.items()
                if place >= self.floor and place not in self.settled
            }

    def encode(self) -> list[Any]:
        """For a checkpoint."""
        failed = [[place, *failure] for place, failure in self.failed.items()]
        return [self.id, self.name, self.pattern, self.options, self.floor, self.settled.flat(), failed]

    @classmethod
    def decode(cls, found: list[Any]) -> GroupState:
        """From a checkpoint."""
        group_id, name, pattern, options, floor, settled, failed = found
        group = cls(group_id, name, pattern, options, floor)
        group.settled = Ranges(settled)
        group.failed = {place: Failure(attempts, due, reason) for place, attempts, due, reason in failed}
        return group
