"""Message ids seen lately, so that a retried publish is stored once.

Each topic remembers its last `MAX_IDS` ids for `MAX_SECONDS`, all topics together `MAX_TOTAL`:
whichever bound is met first, the oldest go. Time is an argument, in seconds.
Below: position. Above: journal.ledger, broker.once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace
from itertools import islice
from typing import Any

from runnel.core.position import Position

MAX_IDS = 65_536
MAX_SECONDS = 120.0
MAX_TOTAL = 262_144  # of all topics together: 55 MB, with ids of 36 characters
SOME = 64  # when there are too many, this part of them goes at once


class MessageIds:
    """Where each recent message id of one topic was stored."""

    __slots__ = ("_order", "_seen", "epoch", "fresh", "max_ids", "max_seconds")

    def __init__(self, max_ids: int = MAX_IDS, max_seconds: float = MAX_SECONDS) -> None:
        self.max_ids, self.max_seconds = max_ids, max_seconds
        self.epoch = 0  # of the topic
        self.fresh = 0  # ids that no checkpoint holds; at least so many
        self._seen: dict[str, tuple[float, int]] = {}  # when, and at which offset
        # By both, oldest first. A dict knows that too, but to find its first key it passes all that were deleted.
        self._order: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: str, now: float) -> Position | None:
        """Where `message_id` was stored first, if that is still remembered."""
        self.expire(now)
        found = self._seen.get(message_id)
        return Position(self.epoch, found[1]) if found else None

    def remember(self, message_id: str, position: Position, now: float) -> None:
        """Note that `message_id` was stored at `position`, behind all others."""
        self.epoch = position.epoch
        if message_id in self._seen:
            self._order.remove(message_id)  # whoever let it come again had forgotten it
        self._order.append(message_id)
        self._seen[message_id] = (now, position.offset)
        self.fresh += 1
        self.expire(now)

    def forget_from(self, offset: int) -> None:
        """What was to be stored at `offset` and behind it was not."""
        while self._order and self._seen[self._order[-1]][1] >= offset:
            del self._seen[self._order.pop()]

    def copy(self) -> MessageIds:
        """The same, apart."""
        twin = MessageIds(self.max_ids, self.max_seconds)
        twin.epoch, twin._seen, twin._order = self.epoch, self._seen.copy(), self._order.copy()
        return twin

    @property
    def oldest(self) -> float:
        """When its oldest id was stored; there must be one."""
        return self._seen[self._order[0]][0]

    def drop_oldest(self) -> None:
        """Forget one id."""
        del self._seen[self._order.popleft()]

    def expire(self, now: float) -> None:
        """Forget what is too old, or too much."""
        while self._order and (len(self._order) > self.max_ids or self.oldest <= now - self.max_seconds):
            self.drop_oldest()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def encode(self, *, everything: bool) -> list[Any]:
        """For a checkpoint: the epoch, how many ids earlier ones hold, and all others; or all there are."""
        held = 0 if everything else max(0, len(self._seen) - self.fresh)
        return [self.epoch, held, [[name, *self._seen[name]] for name in islice(self._order, held, None)]]

    def restore(self, encoded: list[Any]) -> None:
        """From a checkpoint, on top of what those before it say."""
        epoch, held, found = encoded
        if not held:
            self._seen.clear()
            self._order.clear()
        for name, time, offset in found:
            self.remember(name, Position(epoch, offset), time)
        self.fresh = 0


class Allowance:
    """How many more ids there may be in all; looks at the windows only when that may be used up."""

    __slots__ = ("_left", "limit")

    def __init__(self, limit: int = MAX_TOTAL) -> None:
        self.limit, self._left = limit, 0

    def take(self, count: int, windows: Callable[[], Iterable[MessageIds]]) -> None:
        """`count` ids came; if there may be too many now, the oldest of all go, some at a time."""
        self._left -= count
        if self._left < 0:
            self._left = self.limit - shrink(windows(), self.limit)


def shrink(windows: Iterable[MessageIds], limit: int) -> int:
    """Bring the windows down to `limit` ids and a little less, if they are above it; how many are left."""
    filled = [window for window in windows if len(window)]
    total = sum(map(len, filled))
    if total > limit:
        heads = [(window.oldest, number, window) for number, window in enumerate(filled)]
        heapify(heads)
        for _ in range(total - (limit - limit // SOME)):
            _, number, window = heads[0]
            window.drop_oldest()
            # An empty one goes last: there are always enough ids in the others.
            heapreplace(heads, (window.oldest if len(window) else float("inf"), number, window))
            total -= 1
    return total
