"""A member of a consumer group on a server, and `RemoteGroup`, which pauses, resumes and resets a group.

Leaving the block returns unsettled records to the group at once; so does a lost connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from runnel.api.delivery_base import ACCEPTED
from runnel.api.subscription_base import SubscriptionBase, decoded
from runnel.client.delivery import (
    DurableAck,
    PendingSettlements,
    RemoteDelivery,
    RemoteDeliveryBatch,
    RemoteLease,
    RemoteLeaseRange,
)
from runnel.client.receive_buffer import record_count
from runnel.client.subscription_session import RemoteSession
from runnel.core.errors import BadBatch, BrokerClosed, LeaseEnded, NotSupported, RunnelError, ValidationFailed
from runnel.core.options import not_negative, positive
from runnel.core.pattern import is_pattern
from runnel.core.position import Start, check_start
from runnel.core.record import Record
from runnel.core.schema import Codec
from runnel.core.statistics import GroupStatistics
from runnel.wire.binary_messages import GrantPayload, read_grant
from runnel.wire.frames import MORE, FrameKind, frame
from runnel.wire.msgpack_messages import (
    Settlement,
    SettleVerb,
    Subscribe,
    SubscribeReply,
    read_lapsed,
    settle_payload,
    wire_start,
)

if TYPE_CHECKING:
    from runnel.client.broker import RemoteBroker
    from runnel.client.server_link import ServerLink


T = TypeVar("T")

PREFETCH = 64
PORTION = 128  # settlements in a frame
MAX_REASON = 10_000  # characters of why a record failed that are worth sending


_members: WeakKeyDictionary[ServerLink, WeakSet[RemoteGroupSubscription[Any]]] = WeakKeyDictionary()


def forget_leases(link: ServerLink, group: str, pattern: str) -> None:
    """The group was reset: what its members here hold is void."""
    for member in list(_members.get(link, ())):
        if (member.group, member._asked.pattern) == (group, pattern):
            member._forget()


class RemoteGroupSubscription(SubscriptionBase, Generic[T]):
    """One member of a group on a server.

    >>> async with broker.subscribe("orders", group="billing") as deliveries:
    ...     async for delivery in deliveries:
    ...         async with delivery:
    ...             await charge(delivery.value)
    """

    def __init__(
        self,
        link: ServerLink,
        asked: Subscribe,
        codec: Codec[T] | None,
        label: str,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self._link, self._asked, self._label, self._codec = link, asked, label, codec
        self.prefetch = PREFETCH if prefetch is None else positive("prefetch", prefetch)
        self.prefetch_bytes = None if prefetch_bytes is None else positive("prefetch_bytes", prefetch_bytes)
        self._session = RemoteSession(link, self)
        self._received: deque[RemoteLease] = deque()
        self._leases: dict[int, RemoteLease] = {}  # those with something to settle, by number
        self._coming: list[GrantPayload] = []  # of a lease that comes in several frames
        self._settlements = PendingSettlements()
        self._soon: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<GroupSubscription {self.label!r} {self._state}>"

    @property
    def label(self) -> str:
        """The member's name: the one it was given, or its group's and a number."""
        return self._label

    @property
    def group(self) -> str:
        """The group it is a member of."""
        return self._asked.group or ""

    async def __aenter__(self) -> RemoteGroupSubscription[T]:
        self._check_not_entered()
        await self._session.enter()
        self._entered = True
        self._link.blockers.add(self._session)  # publishers wait for what a group has not settled
        _members.setdefault(self._link, WeakSet()).add(self)
        return self

    async def __aexit__(self, *how: Any) -> None:
        await super().__aexit__(*how)
        await self._session.left()

    def __aiter__(self) -> AsyncIterator[RemoteDelivery[T]]:
        return self._iterate(self._deliveries, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(
        self, max_records: int | None = None, max_wait: float | None = None
    ) -> AsyncIterator[RemoteDeliveryBatch[T]]:
        """Read in batches, up to `max_records` (and never more than `prefetch`), to ack with one call.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = self.prefetch if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, min(limit, self.prefetch), max_wait)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _deliveries(self, *_: None) -> AsyncIterator[RemoteDelivery[T]]:
        codec, received = self._codec, self._received
        while True:
            if not received:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return
                await self._parked()
                continue
            lease = received.popleft()
            if not self._take_up(lease):
                continue
            self.task = asyncio.current_task()
            for place, record in enumerate(lease.records(lease.first, lease.end), lease.first):
                if lease.ended:
                    break  # it lapsed, or the connection was lost: somebody else's business now
                self._hand(lease, place, place + 1)
                if codec is None:
                    yield RemoteDelivery(lease, place, record)  # type: ignore[arg-type]
                elif (found := self._decoded(codec, lease, place, record)) is not None:
                    yield RemoteDelivery(lease, place, found)

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[RemoteDeliveryBatch[T]]:
        while True:
            if max_wait is not None:
                await self._gather(self._granted, limit, max_wait, self._link.clock)
            parts = self._take(limit)
            if parts:
                yield RemoteDeliveryBatch(self, parts)
            elif self._error is not None:
                raise self._error
            elif self._ended:
                return
            else:
                await self._parked()

    def _take(self, limit: int) -> list[RemoteLeaseRange]:
        parts: list[RemoteLeaseRange] = []
        self.task = asyncio.current_task()
        while self._received and limit > 0:
            lease = self._received[0]
            first, end = lease.handed, min(lease.end, lease.handed + limit)
            goes_on = self._take_up(lease)
            if end == lease.end or not goes_on:
                self._received.popleft()
            if not goes_on:
                continue
            self._hand(lease, first, end)
            limit -= end - first
            parts += (
                [RemoteLeaseRange(lease, first, end)] if self._codec is None else self._decoded_parts(lease, first, end)
            )
        return parts

    def _take_up(self, lease: RemoteLease) -> bool:
        """Begin with a lease; False: there is nothing left to begin with."""
        if lease.ended:
            return False
        try:
            slices = lease.open(verify=self._link.verify)
        except BadBatch as error:
            self._hand(lease, lease.first, lease.end)
            self.settle(lease, SettleVerb.NACK, lease.first, lease.end, None, f"it could not be read: {error.why}")
            return False
        if lease.end - lease.first == 1 and slices[0].metas:  # only such a one can have an end of its time
            now = self._link.clock.time() + self._link.skew()
            if any(meta.expires is not None and meta.expires <= now for meta in slices[0].metas.values()):
                self._hand(lease, lease.first, lease.end)  # the server finds the same, and counts it
                self._leases.pop(lease.number, None)
                return False
        return True

    def _hand(self, lease: RemoteLease, first: int, end: int) -> None:
        """The user gets the places [first, end): the server is told, so that their time begins."""
        lease.handed = end
        self._settlements.begin(lease, first, end)
        self._in_a_moment()

    def _decoded_parts(self, lease: RemoteLease, first: int, end: int) -> list[RemoteLeaseRange]:
        """Parts with decoded records, around those that cannot be decoded."""
        parts: list[RemoteLeaseRange] = []
        assert self._codec is not None
        for place, record in enumerate(lease.records(first, end), first):
            found = self._decoded(self._codec, lease, place, record)
            if found is not None:
                parts.append(RemoteLeaseRange(lease, place, place + 1, (found,)))
        return parts

    def _decoded(self, codec: Codec[T], lease: RemoteLease, place: int, record: Record[bytes]) -> Record[T] | None:
        """The record with a value of its own; what cannot be decoded is rejected with the reason."""
        try:
            return decoded(codec, lease.encoding, record)
        except ValidationFailed as error:
            reason = f"not a {codec.name}: at {error.field}: {error.why}"
            self.settle(lease, SettleVerb.REJECT, place, place + 1, None, reason)
            return None

    def _granted(self) -> int:
        """Records granted to this member that it has not taken."""
        return sum(lease.end - lease.handed for lease in self._received if not lease.ended)

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(
        self,
        lease: RemoteLease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
        *,
        durable: bool = False,
    ) -> Awaitable[None]:
        """Have the open places [first, end) settled."""
        lease.settle(first, end)
        self.let_go(lease)
        if durable:
            self.flush()  # so that what is answered is this one
        if reason is not None:
            reason = reason[:MAX_REASON].encode(errors="backslashreplace").decode()  # whatever it is, it has to travel
        self._settlements.say(lease, verb, first, end, number, reason)
        if durable:
            return self.sent_durably()
        self._in_a_moment()
        return ACCEPTED

    def let_go(self, lease: RemoteLease) -> None:
        """Forget a lease of which nothing is open: it cannot lapse any more."""
        if not len(lease):
            self._leases.pop(lease.number, None)

    def extend(self, lease: RemoteLease, place: int, seconds: float) -> Awaitable[None]:
        """Keep a lease longer."""
        self._settlements.say(lease, SettleVerb.EXTEND, place, place + 1, seconds)
        self._in_a_moment()
        return ACCEPTED

    def sent_durably(self) -> Awaitable[None]:
        """Send what was gathered; done when all of it is on disk."""
        return DurableAck(self._link, self._taken()).done

    def check_durable(self) -> None:
        """Raise where no ack can be made durable."""
        if not self._link.welcome.durable:
            raise NotSupported("a durable ack", f"group {self.group} on {self._asked.pattern} lives in memory only")

    def check_reached(self, lease: RemoteLease, place: int) -> None:
        """Raise if the server would not answer any more: before anything is settled here that it never hears of."""
        try:
            self._link.check_usable("a durable ack")
        except BrokerClosed:
            raise LeaseEnded(self.group, place, lease.attempt) from None  # as it is where the broker is in this process

    def check_here(self) -> None:
        """Raise on another thread than the loop's."""
        if not self._link.is_here():
            raise NotSupported("settling from another thread", "use runnel.blocking.attach, or settle on the loop")

    def _in_a_moment(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.flush)

    def _taken(self) -> list[Settlement]:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        return self._settlements.taken(self._session.id)

    def flush(self) -> None:
        """Send what was gathered: one frame for all that was said in this turn of the loop."""
        if (settled := self._taken()) and self._session.is_up:
            for at in range(0, len(settled), PORTION):
                self._link.send(frame(FrameKind.SETTLE, 0, settle_payload(settled[at : at + PORTION])))

    @property
    def id(self) -> int:
        """What the server knows it by, on the present connection."""
        return self._session.id

    def end(self, error: RunnelError | None = None) -> None:
        """No more deliveries; what was not settled goes back."""
        if not self._ended:
            self._ended, self._error = True, error
            self._link.blockers.discard(self._session)
            self.flush()
            self._session.leave(None)
            self._forget()
            self.wake()

    # -- what the server says -----------------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """The same each time: a group knows by itself how far it is."""
        return self._asked

    def stands(self, said: SubscribeReply) -> None:
        """It is a member, for the first time or again."""
        self._label = said.label

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """Records were granted to this member, or went back."""
        if kind == FrameKind.GRANT:
            grant = read_grant(extra, payload)
            self._coming.append(grant)
            if flags & MORE:
                return
            grants, self._coming = self._coming, []
            lease = RemoteLease(self, grants, grant.place + record_count(grant.batch))
            self._leases[lease.number] = lease
            self._received.append(lease)
            self.wake()
        elif kind == FrameKind.LAPSED:
            for number, *_ in read_lapsed(payload):
                if self._coming and self._coming[0].lease == number:
                    self._coming = []  # the rest of it does not come
                if (lapsed := self._leases.pop(number, None)) is not None:
                    lapsed.ended = True

    def broken(self) -> None:
        """The connection was lost: the server gave back what it had granted over it."""
        self._forget()

    def over(self, error: RunnelError | None) -> None:
        """No more deliveries; what was not settled went back."""
        if not self._ended:
            self._ended, self._error = True, error
            self._link.blockers.discard(self._session)
            self._forget()
            self.wake()

    def _forget(self) -> None:
        """What was granted is void."""
        for lease in self._leases.values():
            lease.ended = True
        self._leases.clear()
        self._received.clear()
        self._coming.clear()
        self._settlements.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None


# -- Administration of a group ---------------------------------------------------------------------------
# Each call blocks until the server has answered.


class RemoteGroup:
    """One group on one topic or pattern that somebody has joined: else `UnknownGroup`."""

    def __init__(self, broker: RemoteBroker, name: str, pattern: str) -> None:
        self._broker, self.name, self.pattern = broker, name, pattern
        self.label = f"{name} on {pattern}"
        self.statistics()  # raises where there is none

    def __repr__(self) -> str:
        return f"<Group {self.label!r}>"

    def statistics(self) -> GroupStatistics:
        """How far the group is, and what each member holds."""
        return msgspec.convert(self._ask("group"), GroupStatistics)

    def pause(self) -> None:
        """Grant nothing more; what is out may still be settled."""
        self._ask("group_pause")

    def resume(self) -> None:
        """Go on after a pause."""
        self._ask("group_resume")

    def reset(self, start: Start) -> None:
        """Go on from `start`, whatever was settled. What is out is void: settling it raises LeaseEnded."""
        check_start(start, self.pattern, is_pattern=is_pattern(self.pattern))
        self._ask("group_reset", start=wire_start(start))
        link = self._broker.link
        if link.loop_owner.is_here():  # members of this very broker know at once; others are told by the server
            forget_leases(link, self.name, self.pattern)

    def _ask(self, method: str, **args: Any) -> Any:
        return self._broker.link.ask(method, {"name": self.name, "pattern": self.pattern, **args})
