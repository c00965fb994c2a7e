"""Subscriptions to a topic or pattern of a server, and `open_subscription`, which checks the options of `subscribe()`.

Records that were received survive a lost connection, and the next connection continues after them: each record is
delivered once. `open_subscription` also opens group members (see `group`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from runnel.api.subscription_base import RecordSubscriptionBase
from runnel.client.group import RemoteGroupSubscription
from runnel.client.receive_buffer import ReceiveBuffer, ReceivedRecords, unpack_frame
from runnel.client.subscription_session import RemoteSession
from runnel.core.batch import Batch, Slice
from runnel.core.errors import BadBatch, NotSupported, RecordsMissed, RunnelError, TopicDeleted
from runnel.core.options import Policy, PolicyKind, SubscribeOptions, not_negative, positive
from runnel.core.pattern import check_pattern
from runnel.core.position import Position
from runnel.core.record import Gap, Record
from runnel.core.schema import Codec
from runnel.wire.binary_messages import ReaderCounts, credit_frame, read_deliver
from runnel.wire.frames import DROPPED, FrameKind
from runnel.wire.msgpack_messages import AtSequence, Subscribe, SubscribeReply, read_gap, wire_policy, wire_start

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


T = TypeVar("T")

log = logging.getLogger("runnel")

SLICE = 4096  # records taken at a time
TURN = 128  # records after which a reader that never has to wait lets others on the loop run
CHUNK = 4  # a fourth of the credit is given back at a time, if there is nothing else to say
MOST = 2**32 - 1  # bytes of credit that one frame can give back

_EXACT = (PolicyKind.BLOCK, PolicyKind.DROP_NEWEST)  # what is in hand counts against their bounds


class RemoteSubscription(RecordSubscriptionBase[T], Generic[T]):
    """Records of one topic or pattern of a server, read one by one or in batches.

    >>> async with broker.subscribe("orders") as orders:
    ...     async for record in orders:
    ...         print(record.offset, record.value)
    """

    def __init__(
        self,
        link: ServerLink,
        asked: Subscribe,
        codec: Codec[T] | None,
        label: str,
        *,
        policy: Policy,
        buffer: int,
        on_gap: Callable[[Gap], object] | None = None,
        on_drop: Callable[[Record[bytes]], object] | None = None,
    ) -> None:
        super().__init__(codec)
        self._link, self._asked, self._label = link, asked, label
        self._policy, self._buffer = policy, buffer
        self._on_gap, self._on_drop = on_gap, on_drop
        self._session = RemoteSession(link, self)
        self._received = ReceiveBuffer(asked.credit, verify=link.verify, typed=codec is not None)
        self._each = asked.name is not None or policy.kind in _EXACT  # whether each record that is done with is told
        self._eager = True
        self._epoch: int | None = None
        self._journal: str | None = None  # of the server, which may come back with another one
        self._current: Record[T] | None = None  # handed to the user, who has not asked for the next
        self._holding: Slice | None = None  # the same, of a batch
        self._place = 0  # what the user has asked beyond, when nothing is in hand
        self._begun = False
        self._moved = self._asking = self._asks_now = False  # to be told: its place; that it waits
        self._limit = SLICE  # records that are wanted at once
        self._unreadable = self._expired_before = self._unreadable_before = 0  # before: over earlier connections
        self._counted = (0, 0, 0)  # what was told last: see `Counts`
        self._soon: asyncio.Handle | None = None

    def __repr__(self) -> str:
        counts = f"delivered {self.delivered:,}, dropped {self.dropped_count:,}"
        return f"<Subscription {self.label!r} {self._state}, {counts}>"

    # -- what a user sees ---------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The name it was given, or its pattern and a number: how errors and statistics call it."""
        return self._label

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self._asked.pattern

    @property
    def name(self) -> str | None:
        """The name that keeps its position, if it was given one."""
        return self._asked.name

    @property
    def lag(self) -> int:
        """Records published for it that it has not taken up: reading takes them up a few thousand at a time.

        The server is asked, and the loop waits for its answer.
        """
        self._check_entered()
        if self._session.is_up:
            self.flush()
            for one in self._link.ask("statistics", {})["subscriptions"]:
                if one["label"] == self.label:
                    return int(one["lag"]) + self._received.kept
        return self._received.records

    async def __aenter__(self) -> RemoteSubscription[T]:
        self._check_not_entered()
        await self._session.enter()
        self._entered = True
        if self._policy.kind is PolicyKind.BLOCK:
            self._link.blockers.add(self._session)
        return self

    async def __aexit__(self, *how: Any) -> None:
        await super().__aexit__(*how)
        await self._session.left()

    def __aiter__(self) -> AsyncIterator[Record[T]]:
        return self._iterate(self._records, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> AsyncIterator[Batch[T]]:
        """Read in batches: what is there, up to `max_records`.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = SLICE if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, limit, max_wait)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _records(self, *_: None) -> AsyncIterator[Record[T]]:
        while True:
            taken = self._take(SLICE)
            if taken is None:
                if self._ended:
                    return
                await self._parked()
                continue
            self._holding = taken.slices[0] if taken.slices else None  # a gap may be raised: this was not read
            records = self._told(self._open(taken))
            self._holding = None
            if self._each:
                self.task = asyncio.current_task()
                for record in records:
                    self._current = record
                    yield record
                    self._move()
            else:
                for record in records:
                    self._current = record
                    yield record
            self._advanced(taken)
            if len(records) >= TURN:
                await asyncio.sleep(0)  # a long history must not keep others from the loop

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[Batch[T]]:
        self._limit = limit
        while True:
            if max_wait is not None:
                # To wait for more than the buffer holds would be to wait for drops.
                await self._gather(self._ahead, min(limit, self._buffer), max_wait, self._link.clock)
            taken = self._take(limit)
            if taken is None:
                if self._ended:
                    return
                await self._parked()
                continue
            self._holding = taken.slices[0] if taken.slices else None
            batch = self._open(taken)
            if not len(batch):
                batch.gap = self._gap()
            if len(batch) or batch.gap is not None:
                if self._each:
                    self.task = asyncio.current_task()
                yield batch
            self._advanced(taken)
            if len(batch) >= TURN:
                await asyncio.sleep(0)

    def _ahead(self) -> int:
        """How many records are here; as many as anybody can want when no more would come."""
        received = self._received
        return MOST if received.is_full else received.records or len(received)

    def _take(self, limit: int) -> ReceivedRecords | None:
        if self._error is not None:
            raise self._error
        if self._left:
            return None
        taken = self._received.take(limit, as_it_came=limit == SLICE)
        if taken is not None and self._received.returned * CHUNK >= self._received.credit:
            self._in_a_moment()
        return taken

    def _advanced(self, taken: ReceivedRecords) -> None:
        """The user asked beyond all that was taken."""
        self._current = self._holding = None
        self._place = max(self._place, taken.end)
        self._move()

    def _parked(self) -> asyncio.Future[None]:
        if not self._eager and not self._asking:
            self._asking = self._asks_now = True
            self._in_a_moment()
        return super()._parked()

    # -- what was read ------------------------------------------------------------------------------------------

    def _open(self, taken: ReceivedRecords) -> Batch[T]:
        """What was taken, decoded, without the expired, with the gap before it."""
        slices = taken.slices
        batch: Batch[Any] = Batch(slices)
        count = len(batch)
        nothing_special = taken.missed is None and self._missed is None and self._codec is None
        if nothing_special and len(slices) == 1 and not slices[0].metas:
            self.delivered += count
            return batch
        if any(part.metas for part in slices) and (gone := self._expired(slices)):
            batch = Batch(records=tuple(record for record in batch.records if record.position not in gone))
            self.expired += count - len(batch)
        self._miss(taken.missed, len(batch))
        if self._codec is not None:
            missed = self.dropped_count
            batch = self._decoded(self._codec, batch.records, lambda _: taken.encoding)
            self._unreadable += self.dropped_count - missed
        elif len(batch):
            batch.gap = self._gap()
        self.delivered += len(batch)
        return batch

    def _expired(self, slices: list[Slice]) -> set[Position]:
        """The positions of the records whose time ran out after they were sent."""
        now = self._link.clock.time() + self._link.skew()
        return {
            Position(part.epoch, offset)
            for part in slices
            for offset, meta in part.metas.items()
            if meta.expires is not None and meta.expires <= now
        }

    @property
    def _is_strict(self) -> bool:
        return self._asked.strict

    def _say(self, gap: Gap) -> None:
        if self._on_gap is not None:
            self._call(self._on_gap, gap)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function; what it raises is its own affair, never the reader's."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)

    # -- what the server is told --------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset (or sequence, of a pattern) of the first record that the user has not asked beyond."""
        if self._current is not None:
            return self._current.sequence if self.is_pattern else self._current.offset
        if self._holding is not None:
            return self._holding.sequence if self.is_pattern else self._holding.start
        return self._place

    @property
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""
        return self._received.is_pattern

    def _move(self) -> None:
        self._moved = True
        if self._soon is None:
            self._in_a_moment()

    def _in_a_moment(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Give credit back, and say where the user is and whether it waits: at most once in a turn of the loop."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        received = self._received
        given = min(received.returned, MOST)
        if not self._session.is_up or self._ended:
            return
        counted = received.taken, self.expired - self._expired_before, self._unreadable - self._unreadable_before
        if self._moved or self._asks_now or given or counted != self._counted:
            place = self.position if self._moved else None
            counts = ReaderCounts(max(1, self._limit - received.records), *counted)
            frame = credit_frame(self._session.id, given, place, ask=self._asks_now, counts=counts)
            self._link.send(frame, ahead=True)
            self._moved = self._asks_now = False
            self._counted = counted
            received.returned -= given

    def end(self, error: RunnelError | None = None) -> None:
        """No more records than are here. The server is told where the user is."""
        if not self._ended:
            self._asks_now = False
            self.flush()
            self._ended, self._error = True, error
            self._session.leave(self.position)
            self._release()

    # -- what the server says -----------------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """What to ask for: after a connection was lost, to go on.

        A name must not get ahead of its user, so it is read again from there: what is here already is left out.
        Raises where there is nothing to go on with: of another journal, sequences are those of other records.
        """
        if not self._begun:
            return self._asked
        if self.is_pattern and self._link.welcome.journal != self._journal:
            raise TopicDeleted(self.pattern, 0)
        place = self._received.next if self.name is None else self.position
        start = AtSequence(place) if self.is_pattern else Position(self._epoch or 0, place)
        return msgspec.structs.replace(self._asked, start=wire_start(start), resume=True)

    def stands(self, said: SubscribeReply) -> None:
        """It stands, for the first time or again."""
        self._label, self._eager = said.label, said.eager
        if not self._begun:
            self._begun, self._place, self._epoch = True, said.position, said.epoch
            self._journal = self._link.welcome.journal
            self._received.begin(said.position, is_pattern=said.is_pattern)
        elif said.epoch != self._epoch and (self._received.next or self._link.welcome.journal != self._journal):
            self._session.leave(None)
            self.over(TopicDeleted(self.pattern, self._epoch or 0))
        else:
            self._epoch = said.epoch  # a topic without records goes with its readers, and is made again for them
            self._in_a_moment()  # what could not be said meanwhile
            self.wake()  # and whoever waits asks again

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """Records, or that some were missed."""
        if kind == FrameKind.DELIVER:
            if flags & DROPPED:
                self._dropped(extra, payload)
                return
            self._received.deliver(extra, payload)
        elif kind == FrameKind.GAP:
            self._received.miss(read_gap(payload))
        else:
            return
        self._asking = False
        if self._waiter is not None:
            self.wake()

    def _dropped(self, extra: int, payload: bytes) -> None:
        """Records that a policy dropped, for whoever wants to see them."""
        if self._on_drop is None:
            return
        try:
            part, _ = unpack_frame(read_deliver(extra, payload), verify=self._link.verify)
        except BadBatch as error:
            log.warning("dropped records of subscriber %r could not be read: %s", self.label, error)
            return
        for record in part.records:
            self._call(self._on_drop, record)

    def broken(self) -> None:
        """The connection was lost. What is here stays; what was asked for is asked for again."""
        self._asking = False
        self._received.resume()
        self._expired_before, self._unreadable_before, self._counted = self.expired, self._unreadable, (0, 0, 0)

    def over(self, error: RunnelError | None) -> None:
        """Nothing comes any more. What is here is still read, unless it ends with an error."""
        if not self._ended:
            self._ended, self._error = True, error
            if error is not None:
                self._received.clear()
                if isinstance(error, RecordsMissed):
                    self._say(error.gap)
            self._release()

    def _release(self) -> None:
        self._link.blockers.discard(self._session)
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self.wake()


# -- From the options of subscribe() to a subscription ---------------------------------------------------
# Options that are wrong in any case raise at once, as with a local broker; the rest raise when the server answers.


V = TypeVar("V")

BUFFER = 1024  # records that a subscriber may lag by where nothing was said, as the server has it

_numbers = count(1)


def open_subscription(link: ServerLink, pattern: str, *, codec: Codec[V] | None = None, **keywords: Any) -> Any:
    """The subscription that `Broker.subscribe` describes; `keywords` are the fields of `SubscribeOptions`.

    What the server would refuse is refused here, before it is asked.
    """
    options = SubscribeOptions.of(keywords)
    if options.type is not None:
        codec = Codec(options.type)
    check_pattern(pattern)
    asked = Subscribe(
        pattern=pattern,
        start=wire_start(options.start),
        policy=wire_policy(options.policy),
        drops=options.on_drop is not None,
        credit=link.options.credit,
        **options.shared(),
    )
    if options.group is not None:  # whether a group can begin at `start` is checked when it is joined, as in process
        label = options.name or f"{options.group}#{next(_numbers)}"
        return RemoteGroupSubscription(link, asked, codec, label, options.prefetch, options.prefetch_bytes)
    options.check_for((pattern,))
    if options.hold and not link.welcome.durable:
        raise NotSupported("hold=True", "this broker lives in memory only")
    return RemoteSubscription(
        link,
        asked,
        codec,
        options.name or f"{pattern}#{next(_numbers)}",
        policy=options.policy or Policy(),
        buffer=options.buffer or BUFFER,
        on_gap=options.on_gap,
        on_drop=options.on_drop,
    )
