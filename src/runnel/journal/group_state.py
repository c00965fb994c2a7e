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

    __slots__ = ("_failed_end", "failed", "floor", "id", "name", "options", "pattern", "settled")

    def __init__(self, id: int, name: str, pattern: str, options: dict[str, Any], floor: int) -> None:
        self.id, self.name, self.pattern, self.options, self.floor = id, name, pattern, options, floor
        self.settled = Ranges()
        self.failed: dict[int, Failure] = {}
        self._failed_end = 0  # behind the last that ever failed: once it is settled, that is no further than `settled`

    def __repr__(self) -> str:
        return f"<GroupState {self.name!r} on {self.pattern!r} from {self.floor}, {len(self.failed)} failed>"

    @property
    def end(self) -> int:
        """Behind this place nothing was settled, and nothing failed."""
        return max(self.floor, self.settled.end, self._failed_end)

    def progress(self, settled: list[int], failed: list[tuple[int, int, float, str]]) -> None:
        """Places (flat ranges) were settled, others failed. Saying it twice changes nothing."""
        numbers = iter(settled)
        for first, end in zip(numbers, numbers, strict=True):
            if end > self.floor:
                self.settled.add(max(first, self.floor), end)
                self._forget_failed(max(first, self.floor), end)
        for place, attempts, due, reason in failed:
            if place >= self.floor and place not in self.settled:
                self.failed[place] = Failure(attempts, due, reason)
                self._failed_end = max(self._failed_end, place + 1)
        self.floor = self.settled.cut_below(self.floor)

    def _forget_failed(self, first: int, end: int) -> None:
        """What failed at [first, end) is settled. Costs as much as the smaller of the two: this is said per ack."""
        if end - first <= len(self.failed):
            for place in range(first, end):
                self.failed.pop(place, None)
        else:
            for place in [place for place in self.failed if first <= place < end]:
                del self.failed[place]

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
        group._failed_end = max(group.failed, default=-1) + 1
        return group
