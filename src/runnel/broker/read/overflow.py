"""Overflow policies, applied when a subscriber lags: one class for each.

Dropping the oldest needs no work while publishing: the number of dropped records follows from two numbers when the
subscriber reads next. Only `limited` policies are called on publish, and only when the log's `trip` is reached. A
cursor that is behind memory may have no records yet: no policy may take that for the end, or drop records that it must
hand on.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import ClassVar, Protocol

from runnel.broker.read.cursor import Cursor
from runnel.broker.topic.log import CHUNK, SMALL
from runnel.broker.topic.readers import UNKNOWN, LaggingReader
from runnel.core.backend import Taken
from runnel.core.batch import Slice
from runnel.core.options import Policy, PolicyKind
from runnel.core.record import TOO_SLOW, MissedRange, joined_missed


class PolicyOwner(LaggingReader, Protocol):
    """The subscription that a flow belongs to."""

    @property
    def position(self) -> int:
        """The place of the first record that the user is not done with."""

    def dropped(self, slices: list[Slice]) -> None:
        """These records were dropped; hand them on."""

    def disconnect(self, drops: int) -> None:
        """End the subscription: it was too slow for too long."""

    def made_room(self) -> None:
        """Waiting publishers may continue."""

    def report(self) -> None:
        """Have `passed` called with what the user has processed by now."""

    def hurry(self, count: int = 0, size: int = 0) -> None:
        """Tell as soon as the user is done with so many more records, of so many bytes; without: with any."""

    def limit(self, *, limited: bool) -> None:
        """Have publishers ask this flow, or not any more."""

    def wake(self) -> None:
        """Look again: there may be something to read."""


class OverflowPolicy:
    """Drop the oldest: the default, and the base of the others.

    `eager` flows hand each dropped record on, so they must look at every overflow at once. Records to drop that are on
    disk only are read first.
    """

    __slots__ = (
        "buffer",
        "buffer_bytes",
        "cursor",
        "eager",
        "held",
        "held_bytes",
        "history",
        "history_bytes",
        "limited",
        "missed",
        "owner",
        "policy",
        "until",
    )

    asked: ClassVar[bool] = False  # whether publishers must always ask
    strict: ClassVar[bool] = False  # whether records count until the subscriber is done with them
    clear_end = clear_bytes = 0  # a policy that knows up to where it has room says so
    paced: ClassVar[bool] = True  # whether awaited publishes give way to the subscriber before it drops records

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: PolicyOwner, *, eager: bool = False
    ) -> None:
        self.cursor, self.policy, self.owner, self.eager = cursor, policy, owner, eager
        cursor.wake = owner.wake
        self.buffer, self.buffer_bytes = buffer, buffer_bytes
        self.limited = eager or self.asked
        self.held = self.held_bytes = 0  # out of the cursor and not done with; only strict flows count it
        self.until: float = UNKNOWN if self.paced else inf  # see `LagLimit`
        self.missed: MissedRange | None = None  # to be reported with the next records
        self.history = cursor.pending()  # records that were there at the start: no fault of the subscriber's
        self.history_bytes = cursor.pending_bytes() if self.history else 0

    # -- the subscriber's side ----------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """The next records, after dropping what exceeds the bounds."""
        if not self.cursor.pending():
            return None
        if not self.eager:
            self.settle()
        elif not self._drop_eagerly():
            return None  # the owner will be woken
        taken = self._told(self.cursor.take(limit))
        if self.history and taken is not None:
            for part in taken.slices:
                self._read_history(len(part), part.weight)
        return taken

    def settle(self) -> None:
        """Drop the records beyond the bounds now, except those on disk that must be handed on."""
        excess = self._unseen()
        if excess > 0:
            self.history = self.history_bytes = 0
            self.missed = joined_missed(self.missed, self.cursor.skip(excess, TOO_SLOW))

    def pending(self) -> int:
        """How many records lie ahead of the cursor."""
        return self.cursor.pending()

    def lag(self) -> int:
        """Records published for this subscriber, and not dropped, that it is not done with."""
        return self.cursor.pending() + self.held - self._unseen()

    def drops(self) -> int:
        """Dropped records that are reported to the subscriber with the next ones."""
        return self._unseen() + self._untold()

    def _unseen(self) -> int:
        """Records as good as dropped, without those that an eager flow has on disk: they are dropped when handed on."""
        if self.eager and self._is_waiting():
            return 0
        excess = self._excess()
        return excess if excess > 0 else 0

    def _is_waiting(self) -> bool:
        """Whether what it drops next must come from disk first, to be handed on."""
        return self.eager and self.cursor.is_behind

    def _untold(self) -> int:
        return 0 if self.missed is None else self.missed.count

    def put_aside(self) -> Slice | None:
        """Records between the subscriber and its cursor, if any."""
        return None

    def passed(self, size: int, count: int) -> None:
        """The subscriber is done with `count` records of `size` bytes together."""
        self.held -= count
        self.held_bytes -= size
        if self.history:
            self._read_history(count, size)

    def told(self) -> None:
        """The subscriber has confirmed records: publishers may have more room."""

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing before the subscriber is done with a record."""
        return False

    def _read_history(self, count: int, size: int) -> None:
        self.history = max(0, self.history - count)
        self.history_bytes = max(0, self.history_bytes - size) if self.history else 0

    def _told(self, taken: Taken | None) -> Taken | None:
        """`taken`, with the gap before it."""
        if self.history and taken is not None and taken.missed is not None:
            self._read_history(taken.missed.count, 0)
        if taken is None or self.missed is None:
            return taken
        missed, self.missed = self.missed, None
        return Taken(taken.slices, joined_missed(missed, taken.missed))

    def _hold(self, slices: list[Slice]) -> None:
        for part in slices:
            self.held += len(part)
            self.held_bytes += part.size

    def _excess(self) -> int:
        """How many records must go. History counts only once the newer ones alone exceed the buffer."""
        pending = self.cursor.pending()
        if not pending:
            return 0
        is_within = pending <= self.buffer + self.history
        if is_within and not self.cursor.excess_bytes(self.buffer_bytes + self.history_bytes):
            return 0
        return max(pending - self.buffer, self.cursor.excess_bytes(self.buffer_bytes))

    def _bounds(self) -> tuple[int, int]:
        """Records and bytes that may be ahead of the subscriber; history comes on top."""
        return self.buffer + self.history, self.buffer_bytes + self.history_bytes

    # -- the publishers' side -----------------------------------------------------------------------------------

    @property
    def progress(self) -> int:
        """Up to where records were taken, plus up to where the subscriber has gone through them.

        One that goes through them one by one takes nothing for as many turns of the event loop as it took records.
        """
        return self.cursor.position + self.owner.position

    def needed(self) -> int:
        """How many of the newest records may still be taken."""
        return min(self.buffer + self.history, self.cursor.pending())

    def needed_bytes(self) -> int:
        """How many bytes of the newest records may still be taken."""
        return min(self.buffer_bytes + self.history_bytes, self.cursor.most_bytes())

    def spare(self) -> int:
        """At least how many more small records fit without a drop; negative: some were dropped."""
        max_count, max_size = self._bounds()
        count, size = max_count - self._ahead(), max_size - self.cursor.most_bytes() - self.held_bytes
        if count < 0 or (size < 0 and self.cursor.excess_bytes(max(0, max_size - self.held_bytes))):
            return -1
        return min(count, max(0, size) // SMALL)

    def spares(self, count: int, size: int) -> bool:
        """Whether so much fits without a drop, or nothing else is ahead."""
        ahead = self._ahead()
        if not ahead:
            return True
        max_count, max_size = self._bounds()
        return ahead + count <= max_count and not self.cursor.excess_bytes(max(0, max_size - self.held_bytes - size))

    def caught_up(self) -> bool:
        """The subscriber has read everything: awaited publishes give way to it; whether they did not before."""
        if not self.paced or self.until != inf:
            return False
        self.until = UNKNOWN
        return True

    def pressed(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> None:
        """A publisher waits until there is room for `count` records of `size` bytes, behind those on their way."""
        # History counts on top of the bounds until it was read: dropping it makes no room.
        missing = self.lag() + coming + count - self.buffer
        missing_bytes = self.cursor.pending_bytes() + self.held_bytes + coming_bytes + size - self.buffer_bytes
        self.owner.hurry(max(1, missing), missing_bytes)

    def _ahead(self) -> int:
        """Records that count against the bounds."""
        return self.cursor.pending()

    def room(self) -> int:
        """How many small records may come before this policy must be called again."""
        lag = self.lag()
        count, size = self._bounds()
        return min(count - lag, (size - self.cursor.pending_bytes() - self.held_bytes) // SMALL)

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether publishers may continue with `count` records of `size` bytes, behind the pending ones."""
        return True

    def appended(self) -> None:
        """Check the bounds right after an append; only an eager policy is called."""
        self._drop_eagerly()

    def _pass_gone(self) -> int:
        """Skip missing records; how many."""
        if (gone := self.cursor.pass_gone()) is None:
            return 0
        self.missed = joined_missed(self.missed, gone)
        self._read_history(gone.count, 0)
        return gone.count

    def _drop_eagerly(self) -> bool:
        """Hand on what exceeds the bounds; False: some of it is still to be read from disk."""
        if (excess := self._excess()) <= 0:
            return True
        self.history = self.history_bytes = 0
        return self._hand_over(excess)  # once: the receiver may publish, which would loop for ever

    def _hand_over(self, count: int) -> bool:
        """Drop the next `count` records and hand them on; False: some are still to be read from disk."""
        while count > 0:
            if gone := self._pass_gone():
                count -= gone
                continue
            if (taken := self.cursor.take(count)) is None:
                return False
            if taken.missed is not None:
                self.missed = joined_missed(self.missed, taken.missed)
                self._read_history(taken.missed.count, 0)
                count -= taken.missed.count
            if taken.slices:
                dropped, end = sum(map(len, taken.slices)), self.cursor.position
                first = end - dropped if len(taken.slices) == 1 else taken.slices[0].sequence
                self.missed = joined_missed(self.missed, MissedRange(first, end, dropped, TOO_SLOW))
                count -= dropped
                self.owner.dropped(taken.slices)
        return True


class KeepOnDisk(OverflowPolicy):
    """Drop nothing and block no publisher: a reader that is behind reads from disk."""

    __slots__ = ()

    def lag(self) -> int:
        """Records published for this subscriber that it is not done with."""
        return self.cursor.known() + self.held

    def spare(self) -> int:
        """Of topics in memory only, which a pattern may cover too, no more than that is kept."""
        return self.buffer - self.cursor.volatile()

    def spares(self, count: int, size: int) -> bool:
        """The same, for so many records."""
        ahead = self.cursor.volatile()
        return not ahead or ahead + count <= self.buffer

    def _excess(self) -> int:
        return 0


class DropNewest(OverflowPolicy):
    """Keep the oldest: records published while the buffer is full are dropped.

    Once full it stays full until the subscriber is done with a record, so a full
    subscriber keeps its own references and costs publishers nothing. While it reads from disk it keeps no references,
    and is never full.
    """

    __slots__ = ("_full", "_stash")

    asked = strict = True

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: PolicyOwner, *, eager: bool = False
    ) -> None:
        super().__init__(cursor, policy, buffer, buffer_bytes, owner, eager=eager)
        self._stash: deque[Taken] = deque()
        self._full = False

    def take(self, limit: int) -> Taken | None:
        """The next records: first those put aside."""
        if self._stash:
            taken, rest = _split(self._stash.popleft(), limit)
            if rest.slices:
                self._stash.appendleft(rest)
            return taken
        if self._full:
            return None
        if was_behind := self.cursor.is_behind:
            limit = min(limit, max(self.history, self.buffer))  # it may catch up on the way
        found = self._told(self.cursor.take(limit))
        if found is not None:
            self._hold(found.slices)
            if was_behind:
                self.appended()  # as soon as it has caught up the bounds hold again
        return found

    def settle(self) -> None:
        """Records in the buffer are kept; later ones, published while it was full, are dropped."""
        if unseen := self._unseen():
            self.missed = joined_missed(self.missed, self.cursor.skip(unseen, TOO_SLOW))

    def lag(self) -> int:
        """Records accepted and not yet done with."""
        self.owner.report()
        return self.held + self.cursor.pending() - self._unseen()

    def _ahead(self) -> int:
        return self.lag()

    @property
    def progress(self) -> int:
        """Up to where records were taken, plus up to where the subscriber is done with them."""
        self.owner.report()
        return 2 * self.cursor.position - self.held

    def put_aside(self) -> Slice | None:
        """The first slice of the stash."""
        return next((part for taken in self._stash for part in taken.slices), None)

    def _unseen(self) -> int:
        """Records that came since it was full."""
        return self.cursor.pending() if self._full and not self._is_waiting() else 0

    def _untold(self) -> int:
        return super()._untold() + sum(taken.missed.count for taken in self._stash if taken.missed)

    def told(self) -> None:
        """Records are done with, so there is room; records published meanwhile are dropped."""
        if self._full:
            self.settle()
            self._full = False
            self.owner.limit(limited=True)

    def room(self) -> int:
        """How many small records may come; a full one need not be called, unless it hands drops on."""
        if self._full:
            return 0 if self.eager else CHUNK
        return super().room()

    def spare(self) -> int:
        """A full one drops whatever comes."""
        return -1 if self._full else super().spare()

    def spares(self, count: int, size: int) -> bool:
        """A full one drops whatever comes."""
        return not self._full and super().spares(count, size)

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing before the subscriber is done with a record."""
        return self._full

    def appended(self) -> None:
        """Put aside what fits, and be full."""
        if not self._full:
            if self.cursor.is_behind:
                return
            lag = self.lag()
            size = self.cursor.pending_bytes() + self.held_bytes
            max_count, max_size = self._bounds()
            if lag <= max_count and (size <= max_size or lag == 1):
                return
            self._stash_fitting()
            self._full = self.held > 0  # else no record would ever be confirmed
            if self._full:
                self.owner.hurry()
                if not self.eager:
                    self.owner.limit(limited=False)
        if self._full and self.eager:
            self._hand_over(self.cursor.pending())

    def _stash_fitting(self) -> None:
        self._pass_gone()
        while fit := self._fitting():
            taken = self._told(self.cursor.take(fit))
            if taken is None:
                return
            self._hold(taken.slices)
            self._stash.append(taken)
            self._pass_gone()

    def _fitting(self) -> int:
        """How many of the next records fit, by one check."""
        max_count, max_size = self._bounds()
        room, free = max_count - self.held, max_size - self.held_bytes
        if room <= 0:
            return 0
        if self.cursor.pending_bytes() <= free:
            return room
        # The bytes decide: one at a time. The first is always let in when nothing else is held.
        return 1 if self.held == 0 or self.cursor.next_bytes() <= free else 0


class BlockPublishers(OverflowPolicy):
    """Lose nothing: publishers wait until the subscriber is done with enough."""

    __slots__ = ()

    asked = strict = True
    paced = False  # publishers wait for it instead

    def take(self, limit: int) -> Taken | None:
        """The next records. They count against the bounds until they are done with."""
        taken = self._told(self.cursor.take(limit))
        if taken is not None:
            self._hold(taken.slices)
            if taken.missed is not None:
                self.owner.made_room()  # what retention or a deletion took away takes no room
        return taken

    def _excess(self) -> int:
        return 0  # no publisher could exceed the bounds

    def told(self) -> None:
        """Records are done with: there is room for others."""
        self.owner.made_room()

    def lag(self) -> int:
        """Records published for this subscriber that it is not done with."""
        self.owner.report()
        return self.cursor.pending() + self.held

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether so much may be published; one record always may when nothing waits."""
        lag = self.lag() + coming
        max_count, max_size = self._bounds()
        if lag + count > max_count:
            return False
        return lag == 0 or self.cursor.pending_bytes() + self.held_bytes + coming_bytes + size <= max_size

    def appended(self) -> None:
        """Nothing: it fitted, or the publisher would still wait."""


class Disconnect(OverflowPolicy):
    """Drop the oldest, and end the subscription after so many drops in a row."""

    __slots__ = ("_row",)

    asked = True

    def __init__(
        self, cursor: Cursor, policy: Policy, buffer: int, buffer_bytes: int, owner: PolicyOwner, *, eager: bool = False
    ) -> None:
        super().__init__(cursor, policy, buffer, buffer_bytes, owner, eager=eager)
        self._row = 0  # drops since the subscriber last read that the cursor has passed

    def take(self, limit: int) -> Taken | None:
        """The next records; reading ends the row of drops."""
        taken = super().take(limit)
        self._row = 0
        return taken

    def settle(self) -> None:
        """Drop what exceeds the bounds now; it still counts."""
        self._row += self._unseen()
        super().settle()

    def room(self) -> int:
        """Up to the drop that exceeds the limit. Under a byte bound one record may drop many: unpredictable."""
        # As long as there is history, drops come many at once: all of it, and what exceeds the buffer.
        spare = 0 if self.eager or self.history else self.policy.after - 1
        max_count, max_size = self._bounds()
        return min(max_count + spare - self.cursor.pending(), (max_size - self.cursor.pending_bytes()) // SMALL)

    def appended(self) -> None:
        """See whether that was one too many."""
        drops = self._row + max(0, self._excess())
        if drops >= self.policy.after:
            self.owner.disconnect(drops)
        elif self.eager:
            super().appended()
            self._row = drops - max(0, self._excess())  # records not yet read from disk count when they are read


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


OVERFLOW_POLICIES: dict[PolicyKind, type[OverflowPolicy]] = {
    PolicyKind.DROP_OLDEST: OverflowPolicy,
    PolicyKind.DROP_NEWEST: DropNewest,
    PolicyKind.BLOCK: BlockPublishers,
    PolicyKind.DISCONNECT: Disconnect,
}
