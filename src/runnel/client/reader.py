"""The remote `Reader`: records received ahead of the user, and the credit and positions reported to the server.

Records that were received survive a lost connection, and the next connection continues after them: each record is
delivered once. See `core.backend.Reader`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from runnel.client.receive_buffer import ReceiveBuffer, SharedBatch, unpack_frame
from runnel.client.subscription_session import RemoteSession
from runnel.core.backend import SLICE, SharedStep, SharedSteps, Taken
from runnel.core.batch import without_expired
from runnel.core.clock import Clock
from runnel.core.errors import BadBatch, BrokerClosed, RunnelError, TopicDeleted
from runnel.core.options import Policy, PolicyKind, SubscribeOptions
from runnel.core.position import Position
from runnel.core.record import Gap
from runnel.wire.binary_messages import DeliverPayload, credit_frame, read_deliver
from runnel.wire.frames import DROPPED, FrameKind
from runnel.wire.msgpack_messages import AtSequence, Subscribe, SubscribeReply, read_gap, wire_start

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

log = logging.getLogger("runnel")

BUFFER = 1024  # the default of the server
CHUNK = 4  # a fourth of the credit is returned at a time, unless there is something else to send
MOST = 2**32 - 1  # bytes of credit that one frame can return

_EXACT = (PolicyKind.BLOCK, PolicyKind.DROP_NEWEST)  # unconfirmed records count against their bounds


class RemoteReader(RemoteSession):
    """One subscription on a server. `far`: it reads for a client of a gateway."""

    def __init__(
        self,
        link: ServerLink,
        asked: Subscribe,
        options: SubscribeOptions,
        label: str,
        wake: Callable[[], None],
        *,
        far: bool = False,
    ) -> None:
        super().__init__(link)
        policy = options.policy or Policy()
        self.label, self.wake = label, wake
        self.buffer = options.buffer or BUFFER
        self.is_exact = asked.name is not None or policy.kind in _EXACT
        self.is_eager = True  # until the server says otherwise
        self.ended = False
        self.error: RunnelError | None = None
        self.is_quiet, self.due = False, 0  # every place is reported
        self.in_hand: Callable[[], int | None]
        self.delivered = self.dropped_count = self.expired = 0
        self._asked, self._on_drop = asked, options.on_drop
        self._blocks = policy.kind is PolicyKind.BLOCK
        self._received = ReceiveBuffer(asked.credit, verify=link.verify, packed=far)
        self._encoding: str | None = None  # of the last take
        self._epoch: int | None = None
        self._origin: str | None = None  # of the server, which may come back with another one
        self._place = self._sent = 0  # the confirmed place, and the place up to which records were taken
        self._begun = self._left = False
        self._moved = self._asking = self._asks_now = False  # to be reported: a new place; that it waits for records
        self._limit = SLICE  # of the last take
        self._unreadable = 0
        self._taken: int | None = None  # far: the total that the reader there took, if reported
        self._expired_there = 0  # far: the part of it that expired there
        self._is_to_finish = False
        self._finishing: asyncio.Task[None] | None = None  # asks the server for the end
        self._is_complete = False  # the server has sent all there was
        self._before = (0, 0)  # expired and unreadable over earlier connections
        self._counted = (0, 0, 0)  # the last reported counts: see `ReaderCounts`
        self._is_to_flush = False  # at the end of this turn of the loop

    def __repr__(self) -> str:
        return f"<RemoteReader {self.label!r}, {self._received!r}, confirmed up to {self._place}>"

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self._asked.pattern

    @property
    def name(self) -> str | None:
        """The name under which its position is stored."""
        return self._asked.name

    @property
    def is_pattern(self) -> bool:
        """Whether it reads by sequence."""
        return self._received.is_pattern

    @property
    def clock(self) -> Clock:
        """The clock of this client."""
        return self._link.clock

    # -- coming and going ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Subscribe; return when the subscription stands."""
        if self.ended:
            raise BrokerClosed("subscribing")  # it was left before this began
        await self.subscribe()
        if self._blocks:
            self._link.blockers.add(self)

    def end(self, error: RunnelError | None = None) -> None:
        """End it after the records received. The server gets the confirmed position."""
        if not self.ended:
            self._asks_now = False
            self.flush()
            self.ended, self.error = True, error
            self.unsubscribe(self.position)
            self._release()

    def leave(self, place: int | None = None) -> None:
        """Stop reading; every record before `place` was processed."""
        if place is not None:
            self.confirm(place)
        self._left = True
        self.end()

    def finish(self, *, whole: bool = True) -> None:
        """End after the records published up to now: the server knows the end."""
        self._is_to_finish = True  # also where it does not stand yet
        if self.is_up and not self.ended and self._finishing is None:
            self._finishing = self._link.loop.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            await self._link.call("finish", {"subscription": self.id}, again=False)
        except RunnelError:
            self.end()  # the server cannot determine the end: stop after the records received

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended before it reached `until`, or the end that `finish` set."""
        return self.ended and self._asked.until is not None and not self.is_pattern and not self._is_complete

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """Take up to `limit` records, and the range missed before them. None: nothing now, or it has ended."""
        if self.error is not None or self._left:
            return None
        self._limit = limit
        received = self._received
        taken = received.take(limit, as_it_came=limit == SLICE)
        if taken is None:
            return None
        if received.returned * CHUNK >= received.credit:
            self._in_a_moment()
        slices, missed, self._encoding, end = taken
        if slices:
            if self._place >= self._sent:  # all is confirmed: offsets before the first of these are holes
                self._place = slices[0].sequence if received.is_pattern else slices[0].start
            for part in slices:
                if part.columns is not None:
                    slices, expired = without_expired(slices, self._link.server_time())
                    self.expired += expired
                    break
        if end > self._sent:
            self._sent = end
        for part in slices:
            self.delivered += len(part)
        if missed is not None:
            self.dropped_count += missed.count
        return Taken(slices, missed)

    def take_step(self, steps: SharedSteps, limit: int) -> SharedStep | None:
        """Do the same as `take`. Nothing is shared: each reader has its own records."""
        taken = self.take(limit)
        if taken is None:
            if not self.ended:
                self.park()
            return None
        slices, missed = taken
        gap = None
        if missed is not None:
            gap = Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)
        return SharedStep(gap, slices, self._sent, self._sent, is_last=not self._received.records)

    def park(self) -> None:
        """Wait for records. Without read-ahead, ask the server for some."""
        if not self.is_eager and not self._asking:
            self._asking = self._asks_now = True
            self._in_a_moment()

    def ahead(self) -> int:
        """How many records were received; unlimited if the buffer is full, since no more would come."""
        received = self._received
        return MOST if received.is_full else received.records or len(received)

    @property
    def lag(self) -> int:
        """Records published and not yet taken. A round trip that blocks the event loop."""
        if self.is_up:
            self.flush()
            for one in self._link.ask("statistics", {})["subscriptions"]:
                if one["label"] == self.label:
                    return int(one["lag"]) + self._received.kept
        return self._received.records

    def encoding_of(self, topic: str) -> str | None:
        """The encoding of the values of the last take."""
        return self._encoding

    # -- where it is --------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset (of a pattern, the sequence) of the first unconfirmed record."""
        return self._place

    @property
    def sent(self) -> int:
        """The place after the last record that was taken."""
        return self._sent

    def confirm(self, place: int) -> None:
        """The user has processed every record before `place`."""
        if place >= self._place:
            self._place = place
            self._moved = True
            if not self._is_to_flush:
                self._in_a_moment()

    @property
    def epoch(self) -> int | None:
        """The epoch of its topic, unless it reads a pattern."""
        return self._epoch

    @property
    def epochs(self) -> None:
        """The server alone knows which topics it covers."""

    @property
    def changes(self) -> int:
        """Always 0: the server does not report topics that come or go."""
        return 0

    def end_sequence(self) -> int | None:
        """Not known in a client."""
        return None

    # -- counters -----------------------------------------------------------------------------------------------

    def unreadable(self, count: int) -> None:
        """Count `count` of the records taken as dropped: they could not be decoded."""
        self._unreadable += count
        self.delivered -= count
        self.dropped_count += count

    def count(self, taken: int, expired: int, unreadable: int) -> None:
        """Set the totals that the client reports: records taken, and of these the expired and the unreadable ones."""
        self._taken, self._unreadable = taken, unreadable
        self.expired += expired - self._expired_there  # besides those that expired before they were sent on
        self._expired_there = expired
        self._in_a_moment()

    def count_all(self) -> None:
        """Count all records sent as taken, for a client that reports no totals."""

    def pass_all(self) -> None:
        """Count all records sent as taken and processed, for a client that reports nothing."""
        self.confirm(self._sent)

    # -- requests to the server ---------------------------------------------------------------------------------

    def _in_a_moment(self) -> None:
        if not self._is_to_flush:
            self._is_to_flush = True
            self._link.flush_soon(self)

    def flush(self) -> None:
        """Send a CREDIT frame: credit, position, and whether the user waits. At most once per event loop iteration."""
        self._is_to_flush = False
        if not self.is_up or self.ended:
            return
        received = self._received
        given = min(received.returned, MOST)
        counted = self._counts()
        if self._moved or self._asks_now or given or counted != self._counted:
            place = self._place if self._moved else None
            counts = max(1, self._limit - received.records), *counted
            self._link.send(credit_frame(self.id, given, place, ask=self._asks_now, counts=counts), ahead=True)
            self._moved = self._asks_now = False
            self._counted = counted
            received.returned -= given

    def _counts(self) -> tuple[int, int, int]:
        """Records taken, expired and unreadable, of those received over the current connection."""
        taken, (expired, unreadable) = self._received.taken, self._before
        if self._taken is not None:  # the client of the gateway has not taken all that was sent to it
            taken = max(0, taken - max(0, self.delivered - self._taken))
        return taken, self.expired - expired, self._unreadable - unreadable

    # -- what the server says -----------------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """The request to subscribe; after a lost connection, to continue.

        A name must not get ahead of its user, so it is read again from there: records received before are left out.
        Raises where it cannot continue: in another journal, sequences belong to other records.
        """
        if not self._begun:
            return self._asked
        if self.is_pattern and self._link.origin != self._origin:
            raise TopicDeleted(self.pattern, 0)
        place = self._received.next if self.name is None else self._place
        start = AtSequence(place) if self.is_pattern else Position(self._epoch or 0, place)
        return msgspec.structs.replace(self._asked, start=wire_start(start), resume=True)

    def stands(self, said: SubscribeReply) -> None:
        """The server has confirmed the subscription, for the first time or again."""
        self.label, self.is_eager = said.label, said.eager
        if not self._begun:
            self._begun, self._epoch = True, said.epoch
            self._place = self._sent = said.position
            self._origin = self._link.origin
            self._received.begin(said.position, is_pattern=said.is_pattern)
            if self._is_to_finish:
                self.finish()
        elif said.epoch != self._epoch and (self._received.next or self._link.origin != self._origin):
            self.unsubscribe(None)
            self.over(TopicDeleted(self.pattern, self._epoch or 0))
        else:
            self._epoch = said.epoch  # a topic without records is deleted with its last reader, and created again
            self._in_a_moment()  # what could not be sent without a connection
            self.wake()  # a waiting user asks again

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """A frame of this subscription: records, most of the time."""
        if kind == FrameKind.DELIVER and not flags & DROPPED:
            self.deliver(read_deliver(extra, payload), len(payload))
        else:
            self._is_complete |= kind == FrameKind.END and self._gone is None
            super().frame(kind, flags, extra, payload)

    def deliver(self, where: DeliverPayload, size: int, shared: SharedBatch | None = None) -> None:
        """Records came, in a frame with a payload of `size` bytes; `shared` with other subscriptions."""
        if self._gone is None and not self._is_over:  # else it was under way when the subscription was left
            self._received.add(where, size, shared)
            self._asking = False
            self.wake()

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """Records were missed, or dropped by a policy."""
        if kind == FrameKind.DELIVER:
            self._dropped(extra, payload)
        elif kind == FrameKind.GAP:
            gap, unshown = read_gap(payload)
            self._received.miss(gap)
            if unshown:
                log.warning(
                    "%d records that subscriber %r dropped were not shown to its on_drop: the connection was too slow",
                    unshown,
                    self.label,
                )
            self._asking = False
            self.wake()

    def _dropped(self, extra: int, payload: bytes) -> None:
        """Show the records that a policy dropped to the user's `on_drop`."""
        if self._on_drop is None:
            return
        try:
            part, _ = unpack_frame(read_deliver(extra, payload), verify=self._link.verify)
        except BadBatch as error:
            log.warning("dropped records of subscriber %r could not be read: %s", self.label, error)
            return
        for record in part.records:
            try:
                self._on_drop(record)
            except Exception:
                log.exception("a callback of subscriber %r failed", self.label)

    def broken(self) -> None:
        """The connection was lost. Received records stay; a request for records is repeated."""
        self._asking = False
        self._received.resume()
        self._before, self._counted = (self.expired, self._unreadable), (0, 0, 0)
        if self._finishing is not None and self._asked.until is None:
            self.end()  # the end cannot be determined on another connection

    def over(self, error: RunnelError | None) -> None:
        """No more records arrive. Received ones are still read, unless it ends with an error."""
        if not self.ended:
            self.ended, self.error = True, error
            if error is not None:
                self._received.clear()
            self._release()

    def _release(self) -> None:
        self._link.blockers.discard(self)
        self.wake()
