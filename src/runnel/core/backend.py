"""The `Backend` port: where topics live, as the handles of `api` and the listeners of `server` see it.

`broker` implements it in this process, `client` over a connection to a server. Batches go in, batches come out. Nothing
here waits unless it returns an awaitable: a reader or member that has nothing calls `wake`, and is then asked again.
A `Topic` binds one writer and a subscription one reader, so that no call is dispatched twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from runnel.core.batch import Slice
from runnel.core.batch_format import UnpackedBatch
from runnel.core.clock import Clock
from runnel.core.errors import RunnelError
from runnel.core.options import SubscribeOptions, TopicOptions
from runnel.core.position import Position, Span, Start
from runnel.core.publishing import Append, AppendTarget, PublishDetails
from runnel.core.record import Gap, MissedRange, Record
from runnel.core.schema import Codec, Schema
from runnel.core.stages import StageKey

if TYPE_CHECKING:
    from runnel.core.markers import MarkerValue
    from runnel.core.stages import StageInfo
    from runnel.core.statistics import BackendSample, GroupStatistics, Statistics
    from runnel.core.topic_bounds import TopicBounds
    from runnel.core.transaction import TransactionRequest


class Feature(StrEnum):
    """What some backends cannot do: asked for all the same, it raises `NotSupported` with the reason."""

    DURABLE = "durable topics"
    HOLD = "subscriptions that hold records back from retention"
    STAGES = "stages"
    DURABLE_ACK = "durable acks"
    REPLAY_WHERE = "replay with a function"
    AUTO_CREATE = "auto_create=False"


DURABLE_FEATURES = frozenset({Feature.DURABLE, Feature.HOLD, Feature.STAGES, Feature.DURABLE_ACK})
"""What only a backend with a disk can do."""


# -- Reading ---------------------------------------------------------------------------------------------


SLICE = 4096  # records taken at a time; readers side by side meet on multiples of it


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
    is_quiet: bool  # whether the user need not confirm record by record now, because `in_hand` says where it is
    in_hand: Callable[[], int | None]  # the place of the record that the user has and has not asked beyond
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

    def leave(self, place: int | None = None) -> None:
        """Nobody reads any more; everything before `place` was processed."""

    async def left(self) -> None:
        """Return when the backend knows that nobody reads any more."""

    # -- for listeners, which read on behalf of somebody far away -----------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""

    @property
    def epochs(self) -> Sequence[int] | None:
        """The epochs of the topics that it covers now; None: only a server behind it knows."""

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

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """The same as `take`, shared with other readers that stand at the same place in this very moment.

        It parks where there is nothing.
        """

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
    inbox: deque[Any]  # leases that were granted and not taken up; `wake` is called when one comes

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
    def prefetch_bytes(self) -> int | None:
        """How many bytes of values it may hold."""

    @property
    def clock(self) -> Clock:
        """The clock of the backend."""

    @property
    def backend(self) -> object:
        """What tells brokers apart: one transaction acks deliveries of one broker."""

    @property
    def ack(self) -> Callable[[Any, int], None]:
        """`settle` of one place with ACK, without a detour."""

    @property
    def hand(self) -> Callable[[Any, int, int], None] | None:
        """To be called when the user gets places [first, end) of a lease: their time begins. None: no need to."""

    def enter(self) -> Awaitable[None] | None:
        """Join the group; what to wait for until it has (None: it has)."""

    def take_up(self, lease: Any) -> bool:
        """Begin with a lease; False: there is nothing left to begin with."""

    def records(self, lease: Any, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a lease that was taken up."""

    def values(self, lease: Any, first: int, end: int) -> tuple[bytes, ...]:
        """Their values alone."""

    def parts(self, lease: Any) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""

    def encoding_of(self, lease: Any, topic: str) -> str | None:
        """How the values of a lease are written; None where nobody has said."""

    def check_durable(self, lease: Any, place: int) -> None:
        """Raise unless an ack can be made durable, now and here."""

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

    def end(self) -> None:
        """No more leases; what was not settled goes back."""

    def leave(self) -> None:
        """The user left: no more leases, and what was not settled goes back at once."""

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

    @property
    def name(self) -> str:
        """The name that its members subscribe with."""

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    def statistics(self) -> GroupStatistics:
        """How far it is, and what each member holds."""

    def pause(self) -> None:
        """Grant nothing more; what is out may still be settled."""

    def resume(self) -> None:
        """Go on after a pause."""

    def reset(self, start: Start) -> None:
        """Go on from `start`, whatever was settled."""


GroupVerb: TypeAlias = Literal["statistics", "pause", "resume", "reset"]
"""What can be asked of a group."""


# -- Writing ---------------------------------------------------------------------------------------------


class Writer(AppendTarget, Protocol):
    """Publishes to one topic. Making it does no I/O; the topic is made, or agreed upon, by the first append.

    What it is given was checked (`core.publishing.append_of`). On the loop of the backend, but where it says otherwise.
    """

    loop_owner: Any  # `runtime.loop_owner.LoopOwner`: whose event loop it is used on
    options: TopicOptions

    async def learn_tombstones(self) -> None:
        """Find out whether the topic has tombstones, where only the backend knows."""

    def append_nowait(self, append: Append) -> None:
        """Append without waiting; `Full` where `append` would wait."""

    def take_over(self, append: Append) -> None:
        """Append what another thread published, as soon as there is room; a failure is logged."""

    async def append(self, append: Append) -> Position:
        """Append; where the first record is. On disk where the topic is durable."""

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """The same, and wait until every current subscriber asked beyond it; `Stalled` after `timeout` seconds."""

    async def declare(self) -> None:
        """Make the topic now, or check that it is there with these options and this type."""

    async def delete(self) -> None:
        """Delete the topic and its records."""

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """Take away the records before an offset or a time; the first offset that is left."""


class ProducerNumbers(Protocol):
    """The numbers of one producer: a record that is sent again with its number is stored once."""

    def next(self) -> int:
        """The number of its next record; all below are stored, or on their way. From any thread."""

    async def append(self, writer: Any, append: Append, sequence: int | None) -> Position:
        """Append with the number `sequence`, or the next; where it is, or where it was the first time."""


class StagePieces(Protocol):
    """What is written to a stage in one call, cut into appends of about `size` bytes at most."""

    at: int  # values before it are passed over: they are staged already
    size: int  # of the appends to come; may change on the way

    def __iter__(self) -> Iterator[Append]:
        """The values from `at` on."""


class StageWriter(Protocol):
    """Writes to one stage. Making it does no I/O."""

    def state(self) -> tuple[int, int]:
        """How many records and bytes are in it, durable. From any thread; may wait for an answer."""

    async def read_state(self) -> tuple[int, int]:
        """The same, without holding up the event loop."""

    def check_usable(self, doing: str) -> None:
        """Raise unless there can be stages."""

    async def write(self, pieces: StagePieces, ordinal: int | None) -> int:
        """Stage records of which the first is number `ordinal`, or the next; how many there are now, durable."""

    async def write_packed(self, data: bytes, batch: UnpackedBatch, ordinal: int | None) -> int:
        """Stage a checked batch in the bytes that it came in."""

    async def drop(self) -> None:
        """Give it up."""


class WaitingPublish(Protocol):
    """A packed publish that is not done when `publish` returns, and may be withdrawn."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is written, as far as is known here."""

    def withdraw(self) -> bool:
        """Take it back. True: `done` is not called any more. False: `done` is told what became of it.

        That is `PublishCancelled`, or where it is: it was too late.
        """


Done: TypeAlias = Callable[[Span | Exception], None]
"""Called once with the outcome of a packed publish."""


class PackedPublisher(Protocol):
    """Publishes packed batches that arrive over connections, in the bytes that they came in. Trusts nothing in them."""

    is_turn_over: bool  # whether readers should be let run before more is published; the caller resets it

    def for_client(self) -> PackedPublisher:
        """A publisher for one client of a listener: what it publishes keeps its order."""

    def release(self) -> None:
        """The client is gone."""

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> WaitingPublish | None:
        """Publish a batch; `done` is called once, with where it is or what was wrong, perhaps before this returns.

        The result, if there is one, withdraws it. `readers` are those of which the publisher itself is the only one
        that reads: waiting for them would be for ever.
        """

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[Writer, Append]:
        """A batch as part of a transaction: what to append, and to what."""

    def checked(self, topic: str, data: bytes, *, typed: bool) -> UnpackedBatch:
        """A batch, if its records may be published to the topic. `typed`: its writer knows the topic's type."""

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Make a topic, or check that it is there with these options and this type."""


class RequestRecord(Protocol):
    """What a reply answers: a record, or a delivery of one."""

    @property
    def topic(self) -> str:
        """The topic of the request."""

    @property
    def reply_to(self) -> str | None:
        """The topic that waits for a reply."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the request."""


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


class ReadableBackend(Protocol):
    """A backend, as subscriptions need it."""

    def reader(
        self,
        pattern: str | Sequence[str],
        options: SubscribeOptions,
        wake: Callable[[], None],
        resume: Position | int | None = None,
        until: int | None = None,
        *,
        far: bool = False,
    ) -> Reader:
        """A reader that does nothing before it is entered; wrong options raise here.

        Of several names and patterns it is one reader, in the order of sequences; a name without a topic joins when
        its topic is made. `resume` is where this very reader stood before: a position, or a sequence of a pattern;
        `until` an offset of its one topic that it ends before.
        `far`: it reads for a client of a listener, which says by `count` what it took up.
        """

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> Member:
        """A member of the group that `options` names; it does nothing before it is entered."""


class Backend(ReadableBackend, Protocol):
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

    @property
    def is_remote(self) -> bool:
        """Whether its topics are elsewhere, behind a connection that may be lost."""

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this loop."""

    @property
    def summary(self) -> str:
        """Where it is and in which state, in a few words: what a broker's repr says."""

    @property
    def fsync(self) -> str | None:
        """When what was published is on disk, as `JournalOptions` has it; None: never."""

    @property
    def connection(self) -> Any:
        """The `runtime.connection_state.ConnectionState` of a backend elsewhere; `NotSupported` in this process."""

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable and can be reached now: `Unreachable` while a backend elsewhere cannot."""

    async def open(self) -> Backend:
        """Be usable; the backend to use from now on, which is another one where opening decides who does the work."""

    def close(self) -> None:
        """End every reader, after what was published; refuse everything else. Closing twice is harmless."""

    async def aclose(self) -> None:
        """Close it, and return when everything that closing began is done."""

    async def flushed(self) -> None:
        """Return when what was said so far is durable, where anything is."""

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def fast_path(self) -> type:
        """A class with `publish` and `publish_nowait`: see `api.topic`."""

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> Writer:
        """A writer for a topic; options that a topic here cannot have raise."""

    def producer(self, id: int, *, named: bool) -> ProducerNumbers:
        """The numbers of a producer. `named`: others may publish under the same id."""

    def stage(self, writer: Any, key: StageKey) -> StageWriter:
        """A writer for a stage of the topic of `writer`."""

    async def commit(self, request: TransactionRequest) -> None:
        """Do all of it, durably, or raise: then nothing is done, or `OutcomeUnknown`.

        Sets `applied` and `has_begun`, and fills in the publications. Not applied, without an error: a marker says that
        it was done before.
        """

    def packed_publisher(self) -> PackedPublisher:
        """For the listeners of a server."""

    # -- looking, and steering ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options that a topic was given; None: there is none of that name."""

    async def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics that `patterns` cover begin and end, by name."""

    async def end_sequence(self) -> int:
        """The sequence behind the last visible record."""

    async def place(self, places: Mapping[str, tuple[str, Position]], hold: bool | None) -> None:
        """Store where names stand under which nobody reads."""

    async def forget(self, name: str) -> None:
        """Forget a named subscription: where it stands, and what it holds."""

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is none of that name."""

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""

    async def producer_next(self, producer: int) -> int | None:
        """The number that a producer has to use next; None: nothing is known of it."""

    async def stages(self) -> list[StageInfo]:
        """The stages that are open, by their key."""

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> GroupAdmin:
        """A group that has had a member: `UnknownGroup` otherwise. Its methods may block this thread."""

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """The same as a method of `group(name, pattern)`, without blocking the loop; `start` is for "reset"."""

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and all that it settled."""

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Publish dead letters again to where they came from, in order, each once; how many."""

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Have dead letters put back or discarded, each once: those at `offsets`, or all that are there; how many."""

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The topics that dead letters go to, by name."""

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` dead letters of `topic` that are not done with, from an offset on."""

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(
        self,
        topic: str,
        value: bytes | str,
        timeout: float,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
    ) -> Record[bytes]:
        """Publish, and wait for a reply."""

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """Answer a request, a record or a delivery; False when the requester no longer waits."""

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """What happened so far and what is held now, without handlers. From any thread, which may be blocked."""

    async def snapshot(self) -> Statistics:
        """The same as `statistics()`, without blocking the loop."""

    async def sample(self) -> BackendSample:
        """What a console shows, of one moment. With many topics others on the loop have their turn in between."""

    async def info(self) -> dict[str, Any]:
        """What it says of itself: version, journal, fsync; of a server also uptime, listeners, limits, connections."""

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start` on; below 0 it counts from the end."""
