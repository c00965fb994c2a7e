"""The `Backend` port: where topics live, as the handles of `api` and the listeners of `server` see it.

`broker` implements it in this process, `client` over a connection to a server. Batches go in, batches come out. Only
methods that return an awaitable wait. A reader or member that has nothing to give calls `wake` when there may be
something, and is then called again. A `Topic` binds one writer and a subscription one reader, so that no call is
dispatched twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import IntEnum
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
    from runnel.core.presence import Present
    from runnel.core.replication import Replication
    from runnel.core.stages import StageInfo
    from runnel.core.statistics import (
        BackendSample,
        GroupStatistics,
        HandlerStatistics,
        PipelineStatistics,
        RelayStatistics,
        Statistics,
    )
    from runnel.core.topic_bounds import TopicBounds, TopicFloors
    from runnel.core.transaction import TransactionRequest


# -- Reading ---------------------------------------------------------------------------------------------


SLICE = 4096  # records taken at a time; readers side by side meet on multiples of it


class Taken(NamedTuple):
    """The result of `Reader.take`: the range missed before the records, and the records. Expired ones are left out."""

    slices: list[Slice]
    missed: MissedRange | None


class SharedStep:
    """Records that one reader took, shared with readers at the same position in the same event loop iteration."""

    __slots__ = ("count", "gap", "is_last", "position", "sent", "sequence", "shared", "slices")

    def __init__(self, gap: Gap | None, slices: list[Slice], position: int, sent: int, *, is_last: bool) -> None:
        self.gap, self.slices = gap, slices
        self.position, self.sent = position, sent  # of the cursor; after the last record
        self.is_last = is_last  # whether no more records were available
        self.count = sum(map(len, slices))
        self.sequence: int | None = None  # after the last record in `slices`
        if slices:
            last = slices[-1]
            stretch = last.stretches[-1]
            self.sequence = stretch.sequence + last.end - stretch.offset
        self.shared: dict[Hashable, Any] = {}  # the encoding made by a listener, for the other readers of the step

    def __repr__(self) -> str:
        return f"<SharedStep of {self.count} records up to {self.sent}>"


SharedSteps: TypeAlias = dict[Hashable, SharedStep]
"""The steps of one event loop iteration, by the position where they begin."""


class Reader(Protocol):
    """Reads the records of one subscription. A place is an offset or, of a pattern, a sequence.

    A record counts as processed when the place after it is confirmed, not when it is taken. So named positions,
    `block` and `publish_and_wait` mean the same in this process and over a network.
    """

    task: Any  # the asyncio task that reads, if known: a publish from it must not wait for this reader
    principal: str | None  # the login of the reader, if the server requires one
    on_presence: Callable[[], None] | None  # called when a client requests the presence of a topic that it reads
    ended: bool  # no new records are added; those already there can be taken
    error: RunnelError | None  # why it failed: then `take` gives nothing more
    is_quiet: bool  # whether single records need no `confirm` now: the backend asks `in_hand`
    due: int  # if they do: places before this need none either
    in_hand: Callable[[], int | None]  # the place of the record that the user is processing
    delivered: int  # records taken, without those that could not be decoded
    dropped_count: int
    expired: int

    @property
    def label(self) -> str:
        """Its name in errors and statistics: the given name, or the pattern and a number."""

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    @property
    def name(self) -> str | None:
        """The name under which its position is stored."""

    @property
    def is_pattern(self) -> bool:
        """Whether it reads by sequence."""

    @property
    def is_exact(self) -> bool:
        """Whether every record must be confirmed separately: its position is stored, or its policy counts records."""

    @property
    def is_eager(self) -> bool:
        """Whether records may be sent ahead of the user. Not with a policy or bounds, which have to act exactly."""

    @property
    def buffer(self) -> int:
        """How many records it may lag by."""

    @property
    def clock(self) -> Clock:
        """The clock of the backend."""

    def enter(self) -> Awaitable[None] | None:
        """Start reading. Returns an awaitable that is done when the start position is set; None: it is set."""

    def take(self, limit: int) -> Taken | None:
        """Take up to `limit` records. None: nothing now; call `park`, unless it has `ended`."""

    def park(self) -> None:
        """Wait for records: `wake` is called when there may be some. Called after `take` returned None."""

    def ahead(self) -> int:
        """The number of available records known to this process."""

    @property
    def lag(self) -> int:
        """Records published and not yet taken."""

    @property
    def position(self) -> int:
        """The place of the first unconfirmed record."""

    def confirm(self, place: int) -> None:
        """The user has processed every record before `place`."""

    def unreadable(self, count: int) -> None:
        """Count `count` of the records taken as dropped: they could not be decoded."""

    def encoding_of(self, topic: str) -> str | None:
        """The encoding of the values of `topic` in the last take; None if the topic has no type."""

    def end(self, error: RunnelError | None = None) -> None:
        """End it after the records that are there; with an error, at once."""

    def leave(self, place: int | None = None) -> None:
        """Stop reading; every record before `place` was processed."""

    async def left(self) -> None:
        """Return when the backend has processed `leave`."""

    # -- for listeners, which read on behalf of a client --------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""

    @property
    def epochs(self) -> Sequence[int] | None:
        """The epochs of the topics that it covers now; None: only a server behind it knows."""

    @property
    def changes(self) -> int:
        """Counts how often a topic that it reads was created or deleted."""

    @property
    def sent(self) -> int:
        """The place after the last record that was taken."""

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before it reached `until`, or the end that `finish` set."""

    def end_sequence(self) -> int | None:
        """The sequence after the last visible record, if all were taken up to it; None: not all, or not known."""

    def finish(self, *, whole: bool = True) -> None:
        """End it after the records published before this call; records published later are not read.

        Not `whole`: without those that would have to be fetched first, for a client that leaves.
        """

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """Do the same as `take`, and share the result with other readers at the same place in this loop iteration.

        Parks if there is nothing to take.
        """

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """Set the totals that the client reports: records taken, and of these the expired and the unreadable ones."""

    def count_all(self) -> None:
        """Count all records sent as taken, for a client that reports no totals."""

    def pass_all(self) -> None:
        """Count all records sent as taken and processed, for a client that reports nothing."""


# -- Groups ----------------------------------------------------------------------------------------------


class SettleVerb(IntEnum):
    """Settlement verbs of a member."""

    BEGIN = 0  # the user received them: the time of the lease starts
    ACK = 1
    NACK = 2  # `number`: seconds until redelivery
    REJECT = 3  # `reason`
    EXTEND = 4  # `number`: seconds
    RETURN = 5  # the user has not received them and will not: they go back to the group as they were


class Lease(Protocol):
    """Places [first, end), granted to one member until it settles them or the lease ends."""

    first: int
    end: int
    attempt: int
    handed: int  # the first place that the user has not received
    ended: bool  # it cannot be settled any more
    promised: dict[int, bool] | None  # places that a transaction acks; True: only the transaction settles them
    on_end: Callable[[], None] | None  # called when it ends with unsettled places
    guard: AbstractContextManager[Any] | None  # held while a place is handed out by a thread beside the event loop
    on_recall: Callable[[int], None] | None  # asks the member for its unseen places from this one on

    def __len__(self) -> int:
        """The number of unsettled places."""

    def is_open(self, place: int) -> bool:
        """Whether `place` is unsettled."""

    def open_ranges(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        """The unsettled places in [first, end), as ranges."""


class Member(Protocol):
    """One member of a group: takes leases and settles them. Unsettled records return to the group when it leaves."""

    task: Any  # the asyncio task that reads, if known
    principal: str | None  # the login of the member, if the server requires one
    on_presence: Callable[[], None] | None  # called when a client requests the presence of a topic that it reads
    ended: bool
    error: RunnelError | None
    inbox: deque[Any]  # granted leases that the user has not started; `wake` is called when one is added

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
        """Identifies the broker: one transaction acks deliveries of one broker only."""

    @property
    def ack(self) -> Callable[[Any, int], None]:
        """The shortest way to ack one place of a lease."""

    @property
    def hand(self) -> Callable[[Any, int, int], None] | None:
        """Called when the user receives places [first, end) of a lease: their time starts. None: not needed."""

    def enter(self) -> Awaitable[None] | None:
        """Join the group. Returns an awaitable that is done when it has joined; None: it has."""

    @property
    def take_up(self) -> Callable[[Any], bool]:
        """Start a lease; False: it has no unsettled places left."""

    def records(self, lease: Any, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a started lease."""

    def values(self, lease: Any, first: int, end: int) -> tuple[bytes, ...]:
        """Only the values of these records."""

    def parts(self, lease: Any) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""

    def encoding_of(self, lease: Any, topic: str) -> str | None:
        """The encoding of the values of `topic` in a lease; None if the topic has no type."""

    def check_durable(self, lease: Any, place: int) -> None:
        """Raise unless an ack of this place can be made durable."""

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
        """Settle the places [first, end). With `durable`, returns an awaitable that is done when that is on disk.

        Raises `LeaseEnded` or `AlreadySettled` if it is too late. `number` is a delay, or the seconds of an extension.
        """

    def flushed(self) -> Awaitable[None]:
        """Done when everything settled so far is on disk."""

    def end(self, error: RunnelError | None = None) -> None:
        """Accept no more leases, because of `error` if there is one; unsettled records return to the group."""

    def leave(self) -> None:
        """The user left: accept no more leases; unsettled records return to the group at once."""

    async def left(self) -> None:
        """Return when the backend has processed `leave`."""

    @property
    def blocks(self) -> object | None:
        """The group, if this is its only member, so that a publish of its task would wait for itself; else None."""


class AckRange(NamedTuple):
    """Places [first, end) of a lease that a transaction acks; of a batch, the unsettled ones of them."""

    member: Any
    lease: Any
    first: int
    end: int
    batch: bool


class GroupAdmin(Protocol):
    """Administration of one group."""

    @property
    def name(self) -> str:
        """The name that its members subscribe with."""

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    def statistics(self) -> GroupStatistics:
        """The progress of the group, and what each member holds."""

    def pause(self) -> None:
        """Grant no more leases; granted ones can still be settled."""

    def resume(self) -> None:
        """Continue after a pause."""

    def reset(self, start: Start) -> None:
        """Continue from `start`, regardless of settlements."""


GroupVerb: TypeAlias = Literal["statistics", "pause", "resume", "reset"]
"""The operations of `ask_group`."""


# -- Writing ---------------------------------------------------------------------------------------------


class Writer(AppendTarget, Protocol):
    """Publishes to one topic. Creating it does no I/O; the first append creates the topic or checks its options.

    Its arguments were checked by `core.publishing.append_of`. Called on the event loop of the backend.
    """

    loop_owner: Any  # `runtime.loop_owner.LoopOwner`: the event loop that it belongs to
    options: TopicOptions

    async def learn_tombstones(self) -> None:
        """Ask the backend whether the topic has tombstones, if that is not known here."""

    def append_nowait(self, append: Append) -> None:
        """Append without waiting; raise `Full` where `append` would wait."""

    def appends(self, values: list[bytes]) -> Iterable[Append]:
        """The appends for plain values of another thread, in order: one append if the topic allows it."""

    def take_over(self, append: Append) -> None:
        """Append a publish of another thread as soon as there is room; a failure is logged."""

    async def append(self, append: Append) -> Position:
        """Append, and return the position of the first record. If the topic is durable, it is on disk."""

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """Append, and wait until every current subscriber has processed it; `Stalled` after `timeout` seconds."""

    async def declare(self) -> None:
        """Create the topic, or check that it exists with these options and this type."""

    async def delete(self) -> None:
        """Delete the topic and its records."""

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """Remove the records before an offset or a time; return the first offset that is left."""


class ProducerNumbers(Protocol):
    """The sequence numbers of one producer: a record that is sent again with its number is stored once."""

    def next(self) -> int:
        """The number of its next record; lower numbers are stored or being stored. From any thread."""

    async def append(self, writer: Any, append: Append, sequence: int | None) -> Position:
        """Append with the number `sequence`, or the next one; return the position, of a duplicate the first one."""


class StagePieces(Protocol):
    """The records of one write to a stage, cut into appends of about `size` bytes at most."""

    at: int  # index of the first value to stage: those before it are staged already
    size: int  # of the next appends; may change between two of them

    def __iter__(self) -> Iterator[Append]:
        """The values from `at` on."""


class StageRun(NamedTuple):
    """Records of one topic that follow each other in a stage of many topics."""

    writer: Any
    append: Append


class StageRuns(Protocol):
    """The records of one write to a stage of many topics, in order, cut into pieces of about `size` bytes at most."""

    at: int  # index of the first record to stage: those before it are staged already
    size: int  # of the next pieces; may change between two of them

    def __iter__(self) -> Iterator[list[StageRun]]:
        """The records from `at` on."""


class AnyStageWriter(Protocol):
    """Writes to one stage. Creating it does no I/O."""

    def state(self) -> tuple[int, int]:
        """The number of durable records and bytes in it. From any thread, which may block."""

    async def read_state(self) -> tuple[int, int]:
        """The same as `state`, without blocking the event loop."""

    def check_usable(self, doing: str) -> None:
        """Raise unless the backend supports stages and is open."""

    async def drop(self) -> None:
        """Discard the stage."""


class MixedStageWriter(AnyStageWriter, Protocol):
    """Writes to one stage of many topics."""

    async def write(self, pieces: StageRuns, ordinal: int | None) -> int:
        """Stage records; the first has the number `ordinal`, or the next. Return the number of durable records."""


class StageWriter(AnyStageWriter, Protocol):
    """Writes to one stage of one topic."""

    async def write(self, pieces: StagePieces, ordinal: int | None) -> int:
        """Stage records; the first has the number `ordinal`, or the next. Return the number of durable records."""

    async def write_packed(self, data: bytes, batch: UnpackedBatch, ordinal: int | None, *, typed: bool) -> int:
        """Stage a checked batch, in the bytes in which it arrived. `typed`: its writer knows the type of the topic."""


class WaitingPublish(Protocol):
    """A packed publish that is not finished when `publish` returns. It can be withdrawn."""

    @property
    def is_waiting(self) -> bool:
        """Whether no write has begun, as far as this process knows."""

    def withdraw(self) -> bool:
        """Cancel it. True: `done` will not be called. False: `done` is called with the outcome.

        The outcome is then `PublishCancelled` or, if it was too late, the positions of the records.
        """


Done: TypeAlias = Callable[[Span | Exception], None]
"""A callback for the outcome of a packed publish, called once."""


class PackedPublisher(Protocol):
    """Publishes packed batches of clients, in the bytes in which they arrived, after checking all of them."""

    is_turn_over: bool  # whether readers should run before more is published; the caller resets it

    def for_client(self) -> PackedPublisher:
        """A publisher for one client of a listener: what it publishes keeps its order."""

    def release(self) -> None:
        """Release it: the client disconnected."""

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> WaitingPublish | None:
        """Publish a batch; `done` is called once, with its positions or the error, perhaps before this returns.

        The result, if any, can withdraw it. `readers` are the readers of the publishing task itself: a publish that
        waited for one of them would never end.
        """

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[Writer, Append]:
        """A batch as part of a transaction: the writer, and what it appends."""

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Create a topic, or check that it exists with these options and this type."""


class OutgoingRequest(NamedTuple):
    """A record that asks for a reply, and for how many seconds the requester waits for it."""

    topic: str
    value: bytes | str
    timeout: float
    key: bytes | str | None = None
    headers: Mapping[str, str] | None = None


class RequestRecord(Protocol):
    """The request that a reply answers: a record, or a delivery."""

    @property
    def topic(self) -> str:
        """The topic of the request."""

    @property
    def reply_to(self) -> str | None:
        """The topic to which the reply is published."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the request."""


# -- Pages of history ------------------------------------------------------------------------------------


class HistoryPage(NamedTuple):
    """Records of one topic. `next` is where the next page starts; the topic holds offsets [first, end)."""

    records: list[Record[bytes]]
    gap: Gap | None
    epoch: int
    first: int
    end: int
    next: int


class DeadLetterPage(NamedTuple):
    """Open dead letters of one topic. `next` is where the next page starts; below `end` there may be more."""

    letters: list[Record[bytes]]
    epoch: int
    first: int
    end: int
    next: int
    open: int  # about how many open letters the topic has


class DeadLetterTopic(NamedTuple):
    """A dead-letter topic, and the groups that use it."""

    name: str
    groups: list[str]
    open: int
    first: int
    end: int
    epoch: int


class TopicUse(NamedTuple):
    """Facts of a topic that a listener needs for each request; for a name without a topic, only whether it is read."""

    exists: bool  # it was declared or published to
    durable: bool
    read: bool  # a subscription or a member of a group reads it now
    size: int = 0  # bytes of its values that this process holds


ReplyRoute: TypeAlias = Callable[[str, bytes, Mapping[str, str]], bool]
"""Deliver a reply, addressed by the name behind the prefix of the route. False: the requester disconnected."""


# -- The backend -----------------------------------------------------------------------------------------


class ReadableBackend(Protocol):
    """The part of a backend that subscriptions use."""

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
        """Create a reader. It does nothing before `enter`; invalid options raise here.

        With several names and patterns it is one reader, in sequence order; a name without a topic joins when the
        topic is created. `resume` is the place of the same reader on an earlier connection: a position or, of a
        pattern, a sequence. The reader of one topic ends before the offset `until`.
        `far`: it reads for a client of a listener, which reports by `count` what it took.
        """

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> Member:
        """Create a member of the group `options.group`. It does nothing before `enter`."""


class Backend(ReadableBackend, Protocol):
    """Where topics live: memory, a folder or a server. Handles and listeners use nothing else of it."""

    clock: Clock
    loop_owner: Any  # `runtime.loop_owner.LoopOwner`: the event loop that it belongs to

    @property
    def id(self) -> str:
        """Identifies the broker to which its sequences and epochs belong."""

    @property
    def origin(self) -> str:
        """The id that places stored elsewhere refer to: `id`, or that of the first primary if one was replaced.

        A promoted standby has another `id`, and continues the epochs, offsets and sequences of its primary.
        """

    @property
    def is_durable(self) -> bool:
        """Whether its topics are durable unless they are declared otherwise."""

    @property
    def is_remote(self) -> bool:
        """Whether its topics are on a server, behind a connection that can be lost."""

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open, in this process and on this event loop."""

    @property
    def summary(self) -> str:
        """Location and state in a few words, for the repr of a broker."""

    @property
    def fsync(self) -> str | None:
        """The `fsync` option of the journal; None: there is no journal."""

    @property
    def connection(self) -> Any:
        """The `runtime.connection_state.ConnectionState` of a remote backend; `NotSupported` of a local one."""

    @property
    def replication(self) -> Replication | None:
        """Its part in a warm standby; None: it has no journal of its own in this process."""

    def check_ready(self, doing: str) -> None:
        """Raise unless it is usable and connected: `Unreachable` while a server cannot be reached.

        A standby raises `NotPrimary`, a primary that may not acknowledge anything `StandbyMissing` or `Superseded`.
        """

    async def open(self) -> Backend:
        """Open it; return the backend to use, which may be another one: a client of the owner of a shared folder."""

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""

    async def aclose(self) -> None:
        """Close it, and return when closing is complete."""

    async def flushed(self) -> None:
        """Return when all earlier changes are durable, if the backend has a disk."""

    async def synced(self) -> None:
        """Return when all earlier changes are synced to disk, whatever `fsync` is; at once if there is no disk."""

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def fast_path(self) -> type:
        """A class with `publish` and `publish_nowait`, from which handles on topics are derived: see `api.topic`."""

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> Writer:
        """Create the writer of a topic; options that this backend does not support raise."""

    def producer(self, id: int, *, named: bool) -> ProducerNumbers:
        """The numbers of a producer. `named`: other processes may use the same id."""

    def stage(self, writer: Any, key: StageKey) -> StageWriter:
        """Create the writer of a stage of the topic of `writer`."""

    def mixed_stage(self, key: StageKey) -> MixedStageWriter:
        """Create the writer of a stage of many topics."""

    async def commit(self, request: TransactionRequest) -> None:
        """Commit all of it durably, or raise: then nothing was committed, unless the error is `OutcomeUnknown`.

        Sets `applied` and `has_begun`, and the positions of the publications. Not applied without an error means that,
        according to a marker, it was committed before.
        """

    def packed_publisher(self) -> PackedPublisher:
        """Create the publisher for the listeners of a server."""

    # -- catalog and positions ----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change options of a topic, None takes one back to its default; return those that hold now.

        They win over options that publishers name. Durable, if the topic is, when it returns.
        """

    def has_topic(self, topic: str) -> bool | None:
        """Whether there is such a topic; None: only a server behind it knows."""

    def topic_use(self, topic: str) -> TopicUse | None:
        """Whether there is such a topic, and whether it is read now; None: only a server behind it knows."""

    def reclaim(self, topic: str) -> bool:
        """Delete a topic in memory that no reader has subscribed to by its name. False: it stays."""

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """The options with which a topic was declared; None: there is no such topic."""

    async def bounds(
        self,
        patterns: Sequence[str],
        time: datetime | None = None,
        sequence: int | None = None,
        *,
        history: bool = True,
    ) -> list[TopicBounds]:
        """The first and end offsets of the topics that match `patterns`, sorted by name.

        Without `history`, no source of history is queried: the first offset is that of the journal, and `removed` says
        which ranges left it, where the backend knows.
        """

    async def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """Store durably that the sources of history of these topics have all records before these positions.

        Of all topics, or of none. `NotArchived` if a source has less than that.
        """

    async def floors(self, patterns: Sequence[str]) -> list[TopicFloors]:
        """How far the topics that match have left the journal, sorted by name."""

    async def end_sequence(self) -> int:
        """The sequence after the last visible record."""

    async def place(self, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
        """Store the positions of named subscriptions that are not open."""

    async def forget(self, name: str) -> None:
        """Forget a named subscription: its position, and what it holds back from retention."""

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark; None: there is no such mark."""

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """All marks whose names begin with `prefix`, sorted by name."""

    async def producer_next(self, producer: int) -> int | None:
        """The next number of a producer; None: the producer is unknown."""

    async def stages(self) -> list[StageInfo]:
        """The open stages, sorted by key."""

    # -- groups, dead letters -----------------------------------------------------------------------------------

    def group(self, name: str, pattern: str) -> GroupAdmin:
        """A group that was joined at least once, else `UnknownGroup`. Its methods may block this thread."""

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """Call a method of `group(name, pattern)` without blocking the loop; `start` is for "reset"."""

    async def forget_group(self, name: str, pattern: str) -> None:
        """Forget a group that has no members, and its progress."""

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """Publish dead letters to their original topics again, in order, each once; return how many."""

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """Replay or discard dead letters, each once: those at `offsets`, or all; return how many."""

    async def cancel(self, topic: str, message_id: str) -> None:
        """Hand a delayed record to no group any more. Durable, if the topic is, when it returns."""

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The dead-letter topics, sorted by name."""

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """At most `limit` open dead letters of `topic`, from the offset `start`."""

    async def present(self, topic: str) -> list[Present]:
        """The subscriptions that read `topic`, those that came first at the beginning, `MAX_PRESENT` at most."""

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(self, asked: OutgoingRequest) -> Record[bytes]:
        """Publish a request, and wait for the reply."""

    async def request_many(self, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
        """Publish a request, and gather replies until its `timeout`, or until there are `limit`."""

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """Reply to a request, which is a record or a delivery; False if the requester no longer waits."""

    def route_replies(self, prefix: str, route: ReplyRoute | None) -> bool:
        """Give `route` the replies to inboxes that begin with `prefix`; None: not any more. False: it cannot."""

    # -- figures, history ---------------------------------------------------------------------------------------

    def statistics(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """Counters and current state; of handlers, those that clients reported. From any thread, which may block.

        `topics` has those that match `pattern`, and at most `limit` of them.
        """

    async def snapshot(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """The same as `statistics()`, without blocking the loop."""

    async def sample(self) -> BackendSample:
        """The figures of the console. With many topics it yields to the event loop in between."""

    async def report_relay(self, report: RelayStatistics) -> None:
        """Take what a relay or an archive of PostgreSQL reports: `statistics()` shows it. Nothing is stored."""

    async def report_pipeline(self, report: PipelineStatistics) -> None:
        """Take what a pipeline reports of itself: `statistics()` shows it. Nothing is stored."""

    async def report_handlers(self, client: str, handlers: Sequence[HandlerStatistics]) -> None:
        """Take what the handlers of a client did since it started: `statistics()` adds it up. Nothing is stored."""

    async def info(self) -> dict[str, Any]:
        """Version, journal and fsync; of a server also uptime, listeners, limits and connections."""

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """At most `limit` records of `topic` from `start`; a negative `start` counts from the end."""
