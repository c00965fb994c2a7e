"""A transaction on a server: publishes, acks and marks that happen together or not at all.

The block only collects and checks; its end sends everything in one call. If the connection drops during that call,
the outcome is unknown and `OutcomeUnknown` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from runnel.client import publishing
from runnel.client.delivery import RemoteDelivery, RemoteDeliveryBatch, RemoteLease
from runnel.client.publishing import PreparedPublish
from runnel.client.server_link import HEARING
from runnel.client.stage import RemoteStage
from runnel.client.topic import RemoteTopic
from runnel.core.errors import (
    AlreadySettled,
    BrokerClosed,
    ConnectionLost,
    InvalidOption,
    LeaseEnded,
    NoAnswer,
    NotSupported,
    OutcomeUnknown,
    StageEnded,
    TooLarge,
    TransactionEnded,
)
from runnel.core.markers import ANYTHING, Marker, MarkerValue, NoExpectation
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Publication, Seconds
from runnel.core.stages import StageKey, checked_stage_key, stage_name
from runnel.wire.msgpack_messages import SettleVerb

if TYPE_CHECKING:
    from runnel.client.broker import RemoteBroker
    from runnel.client.server_link import ServerLink


GIVEN_UP = "its transaction was given up"


class RemoteAckRange(NamedTuple):
    """Places [first, end) of a lease that are to be acked; of a batch, what is open of them."""

    lease: RemoteLease
    first: int
    end: int
    batch: bool


class RemoteTransactionAcks:
    """The deliveries of one transaction."""

    __slots__ = ("_claims", "_link", "_noted")

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._noted: list[RemoteAckRange] = []
        self._claims: list[tuple[RemoteLease, int, int]] = []

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, delivery: RemoteDelivery[Any] | RemoteDeliveryBatch[Any]) -> None:
        """Have a delivery, or a batch of them, acked at the end. Raises if that is too late already."""
        if isinstance(delivery, RemoteDelivery):
            lease, place = delivery._lease, delivery._place
            found, member = [RemoteAckRange(lease, place, place + 1, False)], lease.member
        elif isinstance(delivery, RemoteDeliveryBatch):
            found = [RemoteAckRange(part.lease, part.first, part.end, True) for part in delivery._parts]
            member = delivery._member
        else:
            raise InvalidOption("delivery", delivery, "expected what a group delivered: a Delivery or a DeliveryBatch")
        if member._link is not self._link:
            why = "it has a journal of its own, so the two cannot be written in one; publish first, then ack there"
            raise NotSupported("acking a delivery of another broker in a transaction", why)
        for noted in found:
            _check_ackable(noted)
        for noted in found:
            if not noted.batch:
                noted.lease.promised = {**(noted.lease.promised or {}), noted.first: False}
        self._noted += found

    # -- with a commit ------------------------------------------------------------------------------------------

    def claim(self) -> list[tuple[int, int, int, int]]:
        """The commit is about to be sent: (subscription, lease, first, end) of all that it acks, or why it cannot."""
        for noted in self._noted:
            _check_ackable(noted)
        for member in {noted.lease.member for noted in self._noted}:
            member.flush()  # what was said before comes before
        for lease, first, end, _ in self._noted:
            for low, high in lease.open_ranges(first, end):
                lease.settle(low, high)
                self._claims.append((lease, low, high))
        return [(lease.member.id, lease.number, first, end) for lease, first, end in self._claims]

    def settle(self) -> None:
        """The commit landed."""
        for lease, first, _, _ in self._noted:
            _unpromise(lease, first)
        for lease, _, _ in self._claims:
            lease.member.let_go(lease)

    def give_back(self, *, done: bool = False) -> None:
        """The commit did not happen: all is as it was. `done`: because another one had done the same before."""
        claims, self._claims = self._claims, []
        for lease, first, end in claims:
            lease.reopen(first, end)
        self.forget(done=done)

    def forget(self, *, done: bool = False) -> None:
        """Nothing is acked by it. Deliveries whose blocks were left go the way they would have gone.

        That is back to the group; or, `done` by another transaction as they are, out of it.
        """
        noted, self._noted = self._noted, []
        for lease, first, _, batch in noted:
            if not batch and _unpromise(lease, first) and lease.is_open(first) and not lease.ended:
                if done:
                    lease.member.settle(lease, SettleVerb.ACK, first, first + 1)
                else:
                    lease.member.settle(lease, SettleVerb.NACK, first, first + 1, None, GIVEN_UP)


def _check_ackable(noted: RemoteAckRange) -> None:
    lease, first, _, batch = noted
    if lease.ended:
        raise LeaseEnded(lease.member.group, first, lease.attempt)
    if not batch and not lease.is_open(first):
        raise AlreadySettled(lease.member.group, first)


def _unpromise(lease: RemoteLease, place: int) -> bool:
    """Nobody will ack `place` but whoever holds it; whether its block was left already."""
    return lease.promised is not None and lease.promised.pop(place, False)


# -- The transaction -------------------------------------------------------------------------------------


T = TypeVar("T")

STAGE = "split it into several, or stage what is large first"


class RequestedPublish(NamedTuple):
    """A publish, as it was asked for."""

    prepared: PreparedPublish
    publication: Publication


class RemoteTransaction:
    """Publishes to any topics, acks of deliveries and marks: all of it, or nothing. Made by `broker.transaction()`.

    >>> async with broker.transaction() as tx:
    ...     tx.publish("paid", order.id)
    ...     tx.ack(delivery)

    An exception in the block leaves nothing behind. When the block is left, everything is durable and is seen by
    every subscriber at once; or it raises, and nothing happened. If the connection is lost while the server commits
    it, `OutcomeUnknown` is raised: do it again with the same mark, and it is done once.
    """

    __slots__ = (
        "_broker",
        "_bytes",
        "_commits",
        "_marks",
        "_records",
        "_settling",
        "_state",
        "_topics",
        "_wanted",
        "applied",
    )

    def __init__(self, broker: RemoteBroker) -> None:
        self._broker = broker
        self._state = "new"
        self._wanted: list[RequestedPublish] = []
        self._settling = RemoteTransactionAcks(broker.link)
        self._marks: dict[str, Marker] = {}
        self._commits: dict[StageKey, Publication] = {}
        self._topics: dict[str, RemoteTopic[Any]] = {}  # handles on topics that were given by name
        self._records = self._bytes = 0
        self.applied = False
        """Whether it was committed. False after the block: a mark said that it had been done before."""

    def __repr__(self) -> str:
        noted = f"{len(self._wanted)} publishes, {len(self._settling)} acks, {len(self._marks)} marks"
        return f"<Transaction of {noted}, {'applied' if self.applied else self._state}>"

    # -- what is wanted -----------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str | RemoteTopic[T],
        value: T | bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Publication:
        """Publish one record at the end of the block; its `position` is known then. Options as in `broker.publish`.

        With `expected_offset`, the record must get this offset; else `OffsetConflict` is raised at the end of the
        block, and nothing happens.
        """
        handle = self._handle(topic)
        found = publishing.prepare_one(
            handle, value, key, headers, delay, expires, priority, message_id, expected_offset
        )
        return self._want(found)

    def publish_many(
        self,
        topic: str | RemoteTopic[T],
        values: Sequence[T | bytes | str],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        expected_offset: int | None = None,
    ) -> Publication:
        """Publish many records side by side at the end of the block; their `span` is known then."""
        handle = self._handle(topic)
        found = publishing.prepare_many(handle, values, keys, headers, delay, expires, priority, expected_offset)
        return self._want(found)

    def commit(self, *stages: RemoteStage[Any] | tuple[str, int, int, int]) -> list[Publication]:
        """Make what was staged visible at the end of the block; of each stage, where that is.

        A stage is given as its handle or, where somebody else staged it, as (writer, batch, part, attempt). Its
        records come behind those that the transaction itself publishes to the topic. `StageEnded` is raised at the
        end of the block for one that was committed, dropped or superseded before, and nothing happens.
        """
        self._check_open()
        if not self._broker.link.welcome.durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
        found: list[Publication] = []
        for stage in stages:
            key = stage.key if isinstance(stage, RemoteStage) else checked_stage_key(stage)
            if key in self._commits:
                raise StageEnded(stage_name(key), "this transaction commits it already")
            found.append(Publication(stage.topic if isinstance(stage, RemoteStage) else stage_name(key), 0))
            self._commits[key] = found[-1]
        return found

    def ack(self, delivery: RemoteDelivery[Any] | RemoteDeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block. Until then it can still be nacked.

        Raises if its lease has ended or it was settled, now or at the end of the block.
        """
        self._check_open()
        self._settling.note(delivery)

    def mark(
        self, name: str, value: MarkerValue | None, expected: MarkerValue | NoExpectation | None = ANYTHING
    ) -> None:
        """Have the mark `name` moved forward to `value` (an int, a str or bytes), or forgotten (None).

        If it is there already, or further, the transaction was done before: nothing of it happens, and `applied` is
        False. With `expected`, the mark must be that (None: must not be there) unless it is `value` already; else
        `MarkConflict` is raised at the end of the block, and nothing happens.
        """
        self._check_open()
        mark = Marker(name, value, expected)
        if name in self._marks:
            raise InvalidOption("mark", name, "a transaction moves each mark once")
        self._marks[name] = mark

    def _handle(self, topic: str | RemoteTopic[Any]) -> RemoteTopic[Any]:
        self._check_open()
        if not isinstance(topic, str):
            if not isinstance(topic, RemoteTopic) or topic._link is not self._broker.link:
                why = "it has a journal of its own, so the two cannot be written in one"
                raise NotSupported(f"publishing to {topic.name!r} of another broker in a transaction", why)
            return topic
        if (known := self._topics.get(topic)) is None:
            known = self._topics[topic] = self._broker.topic(check_name(topic))
        return known

    def _want(self, found: PreparedPublish) -> Publication:
        records, size = self._records + found.records, self._bytes + found.size
        if records > MAX_ENTRY_RECORDS:
            raise TooLarge("a transaction", records, "max_entry_records", MAX_ENTRY_RECORDS, STAGE)
        if size > MAX_ENTRY_BYTES:
            raise TooLarge("a transaction", size, "max_entry_bytes", MAX_ENTRY_BYTES, STAGE)
        self._records, self._bytes = records, size
        publication = Publication(found.topic, found.records)
        self._wanted.append(RequestedPublish(found, publication))
        return publication

    def _check_open(self) -> None:
        if self._state == "new":
            raise NotSupported("a transaction outside of its block", "use `async with broker.transaction() as tx`")
        if self._state != "open":
            raise TransactionEnded

    # -- its life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> RemoteTransaction:
        if self._state != "new":
            raise TransactionEnded
        if self._broker.link.loop_owner.is_here():
            self._broker.link.loop_owner.check_usable("a transaction")
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._commit() if error is None else self._give_up()
        self._state = "over"
        if self._broker.link.loop_owner.is_here():
            await end
        else:
            await self._broker.link.loop_owner.visit(end)

    async def _give_up(self) -> None:
        self._settling.forget()

    async def _commit(self) -> None:
        if not (self._wanted or self._marks or self._settling or self._commits):
            return
        self._broker.link.loop_owner.check_usable("committing a transaction")
        try:
            acks = self._settling.claim()
            said = await self._broker.link.call("transact", self._asked(acks), again=False)
        except (ConnectionLost, NoAnswer, BrokerClosed) as error:
            self._settling.give_back()
            if isinstance(error, BrokerClosed) and error.doing != HEARING:
                raise  # the server's own: it did nothing
            raise OutcomeUnknown(str(error), committing=True) from error
        except BaseException:
            self._settling.give_back()
            raise
        self.applied = said["applied"]
        if not self.applied:
            self._settling.give_back(done=True)
            return
        self._settling.settle()
        every = [*(wanted.publication for wanted in self._wanted), *self._commits.values()]
        for publication, span in zip(every, said["spans"], strict=True):
            _set_position(publication, span)

    def _asked(self, acks: list[tuple[int, int, int, int]]) -> dict[str, Any]:
        return {
            "publishes": [[one.prepared.topic, one.prepared.pack(), one.prepared.about] for one in self._wanted],
            "acks": acks,
            "marks": [
                [one.name, one.value]
                if isinstance(one.expected, NoExpectation)
                else [one.name, one.value, one.expected]
                for one in self._marks.values()
            ],
            "commits": list(self._commits),
        }


def _set_position(publication: Publication, span: list[Any] | None) -> None:
    """Say where a publish is. Of a stage only now is known for which topic it was, and how large."""
    if span is None:
        return
    epoch, first, last, *topic = span
    publication.holds(topic[0] if topic else publication.topic, last - first + 1)
    publication.put(Position(epoch, first))
