"""How far a subscriber may lag, and what happens then: one class per policy.

Dropping the oldest needs nobody's attention while publishing: how much is gone can be
told from two numbers when the subscriber reads next. Only the flows that say `limited`
are asked on the way in, and only when the log's trip is reached.
Below: cursor. Above: subscription (takes), gate (asks).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar, Protocol

from runnel.broker.cursor import Cursor, Missed, Taken, joined
from runnel.broker.log import CHUNK, SMALL
from runnel.core.batch import Slice
from runnel.core.policy import Policy, PolicyKind

TOO_SLOW = "the subscriber was too slow"


class Owner(Protocol):
    """The subscription that a flow belongs to."""

    task: asyncio.Task[Any] | None  # the one that reads, when the flow is strict

    @property
    def label(self) -> str:
        """How errors call it."""

    def dropped(self, slices: list[Slice]) -> None:
        """These records were dropped; hand them on."""

    def disconnect(self, drops: int) -> None:
        """End the subscription: it was too slow for too long."""

    def made_room(self) -> None:
        """Publishers that wait, or that passed this subscriber by, may ask again."""


class Flow:
    """Drop the oldest: the default, and what the others build on.

    `eager` flows hand each dropped record on, so they must look at every overflow at once.
    """

    __slots__ = (
        "buffer",
        "buffer_bytes",
        "cursor",
        "eager",
        "held",
        "held_bytes",
        "limited",
        "missed",
        "owner",
        "policy",
    )

    asked: ClassVar[bool] = False  # whether publishers must always ask
    strict: ClassVar[bool] = False  # whether the subscriber must report each record that it is done with

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: Owner, *, eager: bool = False
    ) -> None:
        self.cursor, self.policy, self.owner, self.eager = cursor, policy, owner, eager
        self.buffer, self.buffer_bytes = buffer, buffer_bytes
        self.limited = eager or self.asked
        self.held = self.held_bytes = 0  # out of the cursor and not done with; only strict flows count it
        self.missed: Missed | None = None  # to be told with the next records

    # -- the subscriber's side ----------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """The next records, after dropping what exceeds the bounds."""
        self.settle()
        return self._told(self.cursor.take(limit))

    def settle(self) -> None:
        """Drop what exceeds the bounds now."""
        excess = self._excess()
        if excess > 0:
            self.missed = joined(self.missed, self.cursor.skip(excess, TOO_SLOW))

    def lag(self) -> int:
        """Records published for this subscriber that it is not done with."""
        return self.cursor.pending() + self.held

    def drops(self) -> int:
        """Records that the next look will find dropped."""
        return max(0, self._excess())

    def put_aside(self) -> Slice | None:
        """What lies between the subscriber and its cursor, if anything."""
        return None

    def done(self, size: int) -> None:
        """The subscriber is done with a record of `size` bytes."""
        self.held -= 1
        self.held_bytes -= size

    def _told(self, taken: Taken | None) -> Taken | None:
        """`taken`, with what was missed before."""
        if taken is None or self.missed is None:
            return taken
        missed, self.missed = self.missed, None
        return Taken(taken.slices, joined(missed, taken.missed))

    def _hold(self, slices: list[Slice]) -> None:
        for part in slices:
            self.held += len(part)
            self.held_bytes += sum(map(len, part.values))

    def _excess(self) -> int:
        cursor = self.cursor
        return max(cursor.pending() - self.buffer, cursor.excess_bytes(self.buffer_bytes))

    # -- the publishers' side -----------------------------------------------------------------------------------

    def room(self) -> int:
        """How many small records may come before this flow must be asked again."""
        free = self.buffer_bytes - self.cursor.pending_bytes() - self.held_bytes
        return min(self.buffer - self.lag(), free // SMALL)

    def fits(self, count: int, size: int) -> bool:
        """Whether publishers may go on with `count` records of `size` bytes."""
        return True

    def appended(self) -> None:
        """Look at the bounds right after an append; only an eager flow is asked."""
        self._hand_over(self._excess())

    def _hand_over(self, count: int) -> None:
        """Drop the next `count` records and hand them on."""
        while count > 0 and (taken := self.cursor.take(count)) is not None:
            self.missed = joined(self.missed, taken.missed)
            count -= taken.missed.count if taken.missed else 0
            if taken.slices:
                dropped, end = sum(map(len, taken.slices)), self.cursor.position
                first = end - dropped if len(taken.slices) == 1 else taken.slices[0].records[0].sequence
                self.missed = joined(self.missed, Missed(first, end, dropped, TOO_SLOW))
                count -= dropped
                self.owner.dropped(taken.slices)


class DropNewest(Flow):
    """Keep the oldest: what is published while the buffer is full goes.

    Once full it stays full until the subscriber is done with a record, so a full
    subscriber keeps its own references and costs publishers nothing.
    """

    __slots__ = ("_full", "_stash")

    asked = strict = True

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: Owner, *, eager: bool = False
    ) -> None:
        super().__init__(cursor, policy, buffer, buffer_bytes, owner, eager=eager)
        self._stash: deque[Taken] = deque()
        self._full = False

    def take(self, limit: int) -> Taken | None:
        """The next records: first what was put aside."""
        if self._stash:
            taken, rest = _split(self._stash.popleft(), limit)
            if rest.slices:
                self._stash.appendleft(rest)
            return taken
        if self._full:
            return None
        found = self._told(self.cursor.take(limit))
        if found is not None:
            self._hold(found.slices)
        return found

    def settle(self) -> None:
        """Nothing: what is kept is kept, and what is dropped is counted when there is room again."""

    def lag(self) -> int:
        """Records accepted and not yet done with."""
        return self.held + (0 if self._full else self.cursor.pending())

    def put_aside(self) -> Slice | None:
        """The first slice of the stash."""
        return next((part for taken in self._stash for part in taken.slices), None)

    def drops(self) -> int:
        """Records that came since it was full."""
        return self.cursor.pending() if self._full else 0

    def done(self, size: int) -> None:
        """A record is done with, so there is room; what came meanwhile is gone."""
        super().done(size)
        if self._full:
            self._full = False
            self.missed = joined(self.missed, self.cursor.skip(self.cursor.pending(), TOO_SLOW))
            self.owner.made_room()

    def room(self) -> int:
        """How many small records may come; a full one need not be asked, unless it hands drops on."""
        if self._full:
            return 0 if self.eager else CHUNK
        return super().room()

    def appended(self) -> None:
        """Put aside what fits, and be full."""
        if not self._full:
            size = self.cursor.pending_bytes() + self.held_bytes
            if self.lag() <= self.buffer and (size <= self.buffer_bytes or self.lag() == 1):
                return
            self._stash_fitting()
            self._full = True
        if self.eager:
            self._hand_over(self.cursor.pending())

    def _stash_fitting(self) -> None:
        while fit := self._fitting():
            taken = self._told(self.cursor.take(fit))
            if taken is None:
                return
            self._hold(taken.slices)
            self._stash.append(taken)

    def _fitting(self) -> int:
        """How many of the next records fit, as far as one look can tell."""
        room = self.buffer - self.held
        free = self.buffer_bytes - self.held_bytes
        if room <= 0:
            return 0
        if self.cursor.pending_bytes() <= free:
            return room
        # The bytes decide: one at a time. The first is always let in when nothing else is held.
        return 1 if self.held == 0 or self.cursor.next_bytes() <= free else 0


class Block(Flow):
    """Lose nothing: publishers wait until the subscriber is done with enough."""

    __slots__ = ()

    asked = strict = True

    def take(self, limit: int) -> Taken | None:
        """The next records. They count against the bounds until they are done with."""
        taken = self.cursor.take(limit)
        if taken is not None:
            self._hold(taken.slices)
        return taken

    def settle(self) -> None:
        """Nothing: nobody could publish beyond the bounds."""

    def drops(self) -> int:
        """None, ever."""
        return 0

    def done(self, size: int) -> None:
        """A record is done with: there is room for another."""
        super().done(size)
        self.owner.made_room()

    def fits(self, count: int, size: int) -> bool:
        """Whether so much may be published; one record always may when nothing waits."""
        lag = self.lag()
        if lag + count > self.buffer:
            return False
        return lag == 0 or self.cursor.pending_bytes() + self.held_bytes + size <= self.buffer_bytes

    def appended(self) -> None:
        """Nothing: it fitted, or the publisher would still wait."""


class Disconnect(Flow):
    """Drop the oldest, and end the subscription after so many drops in a row."""

    __slots__ = ("_row",)

    asked = True

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: Owner, *, eager: bool = False
    ) -> None:
        super().__init__(cursor, policy, buffer, buffer_bytes, owner, eager=eager)
        self._row = 0  # drops handed on since the subscriber last read

    def take(self, limit: int) -> Taken | None:
        """The next records; reading ends the row of drops."""
        self._row = 0
        return super().take(limit)

    def room(self) -> int:
        """Up to the drop that is one too many."""
        return super().room() + (0 if self.eager else self.policy.after - 1)

    def appended(self) -> None:
        """See whether that was one too many."""
        drops = self._row + max(0, self._excess())
        if drops >= self.policy.after:
            self.owner.disconnect(drops)
        elif self.eager:
            self._row = drops
            super().appended()


def _split(taken: Taken, limit: int) -> tuple[Taken, Taken]:
    """`taken` cut after `limit` records; the gap stays with the first part."""
    head: list[Slice] = []
    tail: list[Slice] = []
    for part in taken.slices:
        if limit >= len(part):
            head.append(part)
        else:
            if limit:
                head.append(part.cut(part.start, part.start + limit))
            tail.append(part.cut(part.start + limit, part.end))
        limit = max(0, limit - len(part))
    return Taken(head, taken.missed), Taken(tail, None)


FLOWS: dict[PolicyKind, type[Flow]] = {
    PolicyKind.DROP_OLDEST: Flow,
    PolicyKind.DROP_NEWEST: DropNewest,
    PolicyKind.BLOCK: Block,
    PolicyKind.DISCONNECT: Disconnect,
}
