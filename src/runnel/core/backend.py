"""The `Backend` port: where topics live, as the handles of `api` and the listeners of `server` see it.

`broker` implements it in this process, `client` over a connection to a server. Batches go in, batches come out. Nothing
here waits unless it returns an awaitable: a reader or member that has nothing calls `wake`, and is then asked again.
A `Topic` binds one writer and a subscription one reader, so that no call is dispatched twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.errors import RunnelError
from runnel.core.options import SubscribeOptions
from runnel.core.position import Position
from runnel.core.record import Gap, MissedRange, Record


class Feature(StrEnum):
    """What some backends cannot do: asked for all the same, it raises `NotSupported` with the reason."""

    DURABLE = "durable topics"
    HOLD = "subscriptions that hold records back from retention"
    STAGES = "stages"
    DURABLE_ACK = "durable acks"
    REPLAY_WHERE = "replay with a function"
    AUTO_CREATE = "auto_create=False"


# -- Reading ---------------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """What a reader gives next: what was missed, then records. Expired records are left out, and counted."""

    slices: list[Slice]
    missed: MissedRange | None


class SharedStep:
    """What one reader took, for others at the same position in the same moment."""

    __slots__ = ("count", "gap", "is_last", "position", "sent", "sequence", "shared", "slices")

    def __init__(self, gap: Gap | None, slices: list[Slice], position: int, sent: int, *, is_last: bool) -> None:
        self.gap, self.slices = gap, slices
        self.position, self.sent = position, sent  # of the cursor; behind the last record
        self.is_last = is_last  # whether there is nothing more, at this moment
        self.count = sum(map(len, slices))
        self.sequence: int | None = None  # behind the last record that it shows
        if slices:
            last = slices[-1]
            stretch = last.stretches[-1]
            self.sequence = stretch.sequence + last.end - stretch.offset
        self.shared: dict[Hashable, Any] = {}  # what a listener made of it, for the other readers of the same step

    def __repr__(self) -> str:
        return f"<SharedStep of {self.count} records up to {self.sent}>"


SharedSteps: TypeAlias = dict[Hashable, SharedStep]
"""The steps of one moment, by where they begin."""


class Reader(Protocol):
    """One subscription to records. A place is an offset or, of a pattern, a sequence.

    A record counts as processed when the place behind it is confirmed, not when it was taken: so named positions,
    `block` and `publish_and_wait` mean the same in process and over a network.
    """

    task: Any  # the asyncio task that reads, once it is known: publishing from it must not wait for this reader
    ended: bool  # no more than what was there before
    error: RunnelError | None  # why it ended, if not in peace: nothing more is taken then
    delivered: int  # records taken, less those that could not be decoded
    dropped_count: int
    expired: int

    @property
    def label(self) -> str:
        """How errors and statistics call it: its name, or its pattern and a number."""

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    @property
    def name(self) -> str | None:
        """The name that keeps its position."""

    @property
    def is_pattern(self) -> bool:
        """Whether it reads by sequence."""

    @property
    def is_exact(self) -> bool:
        """Whether each record must be confirmed by itself: its name keeps the place, or its policy counts it."""

    @property
    def is_eager(self) -> bool:
        """Whether it may be read ahead of its user: nothing was said about bounds, so nothing has to be exact."""

    @property
    def buffer(self) -> int:
        """Records that it may lag by."""

    @property
    def clock(self) -> Clock:
        """The clock of the backend."""

    def enter(self) -> Awaitable[None] | None:
        """Take up the start position; what to wait for until it stands (None: it does)."""

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records. None: nothing now; park, unless it has `ended`."""

    def park(self) -> None:
        """There was nothing to take: `wake` is called when there may be."""

    def ahead(self) -> int:
        """Records that can be taken, as far as is known here."""

    @property
    def lag(self) -> int:
        """Records published for it that were not taken up."""

    @property
    def position(self) -> int:
        """The place of the first record that was not confirmed."""

    def confirm(self, place: int) -> None:
        """The user asked beyond everything before `place`."""

    def unreadable(self, count: int) -> None:
        """So many of the records taken could not be decoded: they count as dropped."""

    def encoding_of(self, topic: str) -> str | None:
        """How the values of `topic` in the last take are written; None where nobody has said."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more records than are there; with an error, none."""

    def leave(self, place: int) -> None:
        """Nobody reads any more; everything before `place` was processed."""

    async def left(self) -> None:
        """Return when the backend knows that nobody reads any more."""

    # -- for listeners, which read on behalf of somebody far away -----------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""

    @property
    def epochs(self) -> Sequence[int]:
        """The epochs of the topics that it covers now."""

    @property
    def changes(self) -> int:
        """How often topics that it covers came or went."""

    @property
    def sent(self) -> int:
        """Behind the last record that was taken."""

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before the place where it was to finish."""

    def end_sequence(self) -> int | None:
        """Behind all that is visible now, if everything up to there was taken; None: it was not, or nobody knows."""

    def finish(self) -> None:
        """No more than what was published up to now, though others may publish on."""

    def finish_at(self, end: int) -> None:
        """No more than lies before `end`: an offset that there is, of the one topic that it reads."""

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """The same as `take`, shared with other readers that stand at the same place in this very moment."""

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """What the far reader took up in all, and what of it was of no use to it."""

    def count_all(self) -> None:
        """The far reader says nothing of that: what was taken for it, it has taken up."""

    def pass_all(self) -> None:
        """The far reader says nothing at all: what was taken for it, it has taken up and asked beyond."""


# -- Groups ----------------------------------------------------------------------------------------------


class SettleVerb(IntEnum):
    """What a member says of places of a lease."""

    BEGIN = 0  # the user took them up: the lease's time starts
    ACK = 1
    NACK = 2  # `number`: seconds until they come back
    REJECT = 3  # `reason`
    EXTEND = 4  # `number`: seconds


class Lease(Protocol):
    """Places [first, end) at one member, until it settles them or the lease ends."""

    first: int
    end: int
    attempt: int
    handed: int  # the first place that the user has not seen
    ended: bool  # what is said of it comes too late
    promised: dict[int, bool] | None  # places that a transaction acks; True: nobody else looks after them
    on_end: Callable[[], None] | None  # called when it ends before all was settled

    def __len__(self) -> int:
        """How many places are not settled."""

    def is_open(self, place: int) -> bool:
        """Whether `place` is still to be settled."""

    def open_ranges(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        """The places still to be settled in [first, end), as ranges."""


class Member(Protocol):
    """One member of a group: takes leases, and settles them. What it has not settled goes back when it leaves."""

    task: Any  # the asyncio task that reads, once it is known
    ended: bool
    error: RunnelError | None
    inbox: deque[Any]  # leases that were granted and not taken up

    @property
    def label(self) -> str:
        """The member's name."""

    @property
    def group(self) -> str:
        """The group's name."""

    @property
    def prefetch(self) -> int:
        """How many records it may hold."""

    @property
    def clock(self) -> Clock:
        """The clock of the backend."""

    @property
    def backend(self) -> object:
        """What tells brokers apart: one transaction acks deliveries of one broker."""

    def enter(self) -> Awaitable[None] | None:
        """Join the group; what to wait for until it has (None: it has)."""

    def take_up(self, lease: Any) -> bool:
        """Begin with a lease; False: there is nothing left to begin with."""

    def hand(self, lease: Any, first: int, end: int) -> None:
        """The user gets the places [first, end): their time begins."""

    def records(self, lease: Any, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a lease that was taken up."""

    def values(self, lease: Any, first: int, end: int) -> tuple[bytes, ...]:
        """Their values alone."""

    def parts(self, lease: Any) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""

    def encoding_of(self, lease: Any, topic: str) -> str | None:
        """How the values of a lease are written; None where nobody has said."""

    def check_durable(self) -> None:
        """Raise unless an ack can be made durable."""

    def settle(
        self,
        lease: Any,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
        *,
        durable: bool = False,
    ) -> Awaitable[None] | None:
        """Settle the places [first, end). With `durable`, what to wait for until that is on disk.

        `LeaseEnded` or `AlreadySettled` where it comes too late; `number` is a delay, or the seconds of an extension.
        """

    def flushed(self) -> Awaitable[None]:
        """Done when what was settled so far is on disk."""

    def leave(self) -> None:
        """Give back what was not settled, at once."""

    async def left(self) -> None:
        """Return when the backend knows that it left."""

    @property
    def blocks(self) -> object | None:
        """Whom a publish would wait for that nobody but this member reads; None: others do, too."""


class AckRange(NamedTuple):
    """Places [first, end) of a lease that a transaction acks; of a batch, what is open of them."""

    member: Any
    lease: Any
    first: int
    end: int
    batch: bool


class GroupAdmin(Protocol):
    """One group, to be steered."""

    name: str
    pattern: str

    def statistics(self) -> Any:
        """How far it is, and what each member holds: `GroupStatistics`."""

    def pause(self) -> None:
        """Grant nothing more; what is out may still be settled."""

    def resume(self) -> None:
        """Go on after a pause."""

    def reset(self, start: Any) -> None:
        """Go on from `start`, whatever was settled."""


# -- Pages of history ------------------------------------------------------------------------------------


class HistoryPage(NamedTuple):
    """Records of one topic; `next` is the offset to go on from, `first` and `end` what the topic holds."""

    records: list[Record[bytes]]
    gap: Gap | None
    epoch: int
    first: int
    end: int
    next: int


class DeadLetterPage(NamedTuple):
    """Some dead letters that are not done with; `next` is where to look further, below `end` if there may be more."""

    letters: list[Record[bytes]]
    epoch: int
    first: int
    end: int
    next: int
    open: int  # how many there are in all, about


class DeadLetterTopic(NamedTuple):
    """A topic that dead letters go to, with the groups that send theirs there."""

    name: str
    groups: list[str]
    open: int
    first: int
    end: int
    epoch: int


# -- The backend -----------------------------------------------------------------------------------------


class Backend(Protocol):
    """Where topics live. Handles and listeners know nothing else of it."""

    clock: Clock
    loop_owner: Any  # `runtime.loop_owner.LoopOwner`: whose event loop it is used on

    @property
    def supports(self) -> frozenset[Feature]:
        """What it can do of what some cannot."""

    @property
    def id(self) -> str:
        """What tells its sequences and epochs from those of others."""

    @property
    def is_durable(self) -> bool:
        """Whether it keeps what is published, unless a topic is told otherwise."""

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this loop."""

    async def open(self) -> None:
        """Be usable."""

    def close(self) -> None:
        """End every reader, after what was published; refuse everything else. Closing twice is harmless."""

    async def closed(self) -> None:
        """Return when everything that closing began is done."""

    async def flushed(self) -> None:
        """Return when what was said so far is durable, where anything is."""

    def reader(
        self, pattern: str | Sequence[str], options: SubscribeOptions, wake: Callable[[], None], *, far: bool = False
    ) -> Reader:
        """A reader that does nothing before it is entered; wrong options raise here.

        `far`: it reads for somebody far away, who says by `count` what was taken up.
        """

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> Member:
        """A member of the group that `options` names; it does nothing before it is entered."""

    # -- looking, and steering ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    async def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[Any]:
        """Where the topics that `patterns` cover begin and end: `TopicBounds`, by name."""

    async def end_sequence(self) -> int:
        """The sequence behind the last visible record."""

    async def place(self, places: Mapping[str, tuple[str, Position]], hold: bool | None) -> None:
        """Store where names stand that nobody reads under."""

    async def history(self, topic: str, start: Any, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start` on; below 0 it counts from the end."""

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The topics that dead letters go to, by name."""

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` dead letters of `topic` that are not done with, from an offset on."""
