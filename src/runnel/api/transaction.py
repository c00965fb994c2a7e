"""The `Transaction` handle: publishes, acks, markers and stages that happen together or not at all.

The block only collects and checks requests. At its end the backend commits all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from runnel.api.delivery import Delivery, DeliveryBatch
from runnel.api.stage import MixedStage, Stage
from runnel.api.topic import Topic
from runnel.core.backend import AckRange
from runnel.core.errors import InvalidOption, NotSupported, TransactionEnded
from runnel.core.markers import ANYTHING, Marker, MarkerValue, NoExpectation
from runnel.core.options import NO_TOPIC_OPTIONS, PublishKeywords, PublishManyKeywords, PublishOptions, spell_out
from runnel.core.pattern import check_name
from runnel.core.publishing import Publication, append_of, append_of_many
from runnel.core.stages import MANY_TOPICS, checked_stage_key
from runnel.core.transaction import TransactionRequest

if TYPE_CHECKING:
    from runnel.core.backend import Backend, Writer

T = TypeVar("T")


class Transaction:
    """Publishes, acks and marks that are committed together or not at all. From `broker.transaction()`.

    >>> async with broker.transaction() as tx:
    ...     tx.publish("paid", order.id)
    ...     tx.ack(delivery)

    After an exception in the block nothing is committed. When the block ends, everything is durable and becomes
    visible to every subscriber at once; or it raises, and nothing was committed. If it is cancelled while it waits for
    the disk, all of it or nothing is stored. If the connection to a server is lost during the commit, `OutcomeUnknown`
    is raised: repeat the transaction with the same mark, and it is committed once.
    """

    __slots__ = ("_backend", "_request", "_state", "_writers")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._state = "new"
        self._request = TransactionRequest()
        self._writers: dict[str, Writer] = {}  # by topic name

    def __repr__(self) -> str:
        return f"<Transaction of {self._request!r}, {'applied' if self.applied else self._state}>"

    @property
    def applied(self) -> bool:
        """Whether it was committed. False after the block: according to a mark, it was committed before."""
        return self._request.applied

    @property
    def has_begun(self) -> bool:
        """Whether the commit has begun: it cannot be cancelled any more."""
        return self._request.has_begun

    # -- requests -----------------------------------------------------------------------------------------------

    @spell_out(PublishKeywords, PublishOptions)
    def publish(
        self, topic: str | Topic[T], value: T | bytes | str | None, **options: Unpack[PublishKeywords]
    ) -> Publication:
        """Publish one record at the end of the block; its `position` is known then. Options as in `broker.publish`.

        With `expected_offset`, the record must get this offset; else `OffsetConflict` is raised at the end of the
        block, and nothing happens.
        """
        writer = self._writer(topic)
        return self._request.publish(writer, append_of(writer, value, **options))

    @spell_out(PublishManyKeywords, PublishOptions)
    def publish_many(
        self, topic: str | Topic[T], values: Sequence[T | bytes | str], **options: Unpack[PublishManyKeywords]
    ) -> Publication:
        """Publish many records side by side at the end of the block; their `span` is known then."""
        writer = self._writer(topic)
        append = append_of_many(writer, values, **options)
        append.values = tuple(append.values)  # the caller may change its list later
        return self._request.publish(writer, append)

    def commit(self, *stages: Stage[Any] | MixedStage | tuple[str, int, int, int]) -> list[Publication]:
        """Make stages visible at the end of the block; return a publication for each, with its positions.

        A stage is given as its handle or, where another process staged it, as (writer, batch, part, attempt). Its
        records come after those that the transaction itself publishes to the topic. If a stage was committed, dropped
        or superseded before, the end of the block raises `StageEnded`, and nothing is committed. Of a stage of many
        topics, the publication says where the records of its first topic are.
        """
        self._check_open()
        if not self._backend.is_durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
        return [self._commit(stage) for stage in stages]

    def _commit(self, stage: Stage[Any] | MixedStage | tuple[str, int, int, int]) -> Publication:
        if isinstance(stage, MixedStage):
            if stage.pending:
                why = f"{stage.pending} records of it were collected and not staged; `await stage.write()` first"
                raise NotSupported(f"committing {stage!r}", why)
            return self._request.commit(stage.key, MANY_TOPICS)
        if isinstance(stage, Stage):
            return self._request.commit(stage.key, stage.topic)
        return self._request.commit(checked_stage_key(stage))

    def ack(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block. Until then it can still be nacked.

        Raises if its lease has ended or it was settled, now or at the end of the block.
        """
        self._check_open()
        self._request.ack(ack_ranges(self._backend, delivery))

    def mark(
        self, name: str, value: MarkerValue | None, expected: MarkerValue | NoExpectation | None = ANYTHING
    ) -> None:
        """Move the mark `name` forward to `value` (an int, a str or bytes), or delete it (None).

        If the mark is at `value` already, or further, the transaction was committed before: nothing is committed, and
        `applied` is False. With `expected`, the mark must have that value (None: must not exist) unless it is `value`
        already; else the end of the block raises `MarkConflict`, and nothing is committed.
        """
        self._check_open()
        self._request.mark(Marker(name, value, expected))

    def _writer(self, topic: str | Topic[Any]) -> Writer:
        self._check_open()
        if isinstance(topic, str):
            if (writer := self._writers.get(topic)) is None:
                writer = self._writers[topic] = self._backend.writer(check_name(topic), None, NO_TOPIC_OPTIONS)
            return writer
        if not isinstance(topic, Topic) or topic._backend is not self._backend:
            why = "it has a journal of its own, so the two cannot be written in one"
            raise NotSupported(f"publishing to {topic.name!r} of another broker in a transaction", why)
        return topic._writer

    def _check_open(self) -> None:
        if self._state == "new":
            raise NotSupported("a transaction outside of its block", "use `async with broker.transaction() as tx`")
        if self._state != "open":
            raise TransactionEnded

    # -- its life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction:
        if self._state != "new":
            raise TransactionEnded
        if self._backend.loop_owner.is_here():
            self._backend.loop_owner.check_usable("a transaction")
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._backend.commit(self._request) if error is None and self._request else self._give_up()
        self._state = "over"
        if self._backend.loop_owner.is_here():
            await end
        else:
            await self._backend.loop_owner.visit(end)

    async def _give_up(self) -> None:
        self._request.forget()


# -- Deliveries as ranges of acks ------------------------------------------------------------------------


def ack_ranges(backend: object, delivery: Delivery[Any] | DeliveryBatch[Any]) -> list[AckRange]:
    """The places that acking a delivery, or a batch of them, settles; they must be of a group of `backend`."""
    if not isinstance(delivery, Delivery | DeliveryBatch):
        raise InvalidOption("delivery", delivery, "expected what a group delivered: a Delivery or a DeliveryBatch")
    member = delivery._member
    if member.backend is not backend:
        why = "it has a journal of its own, so the two cannot be written in one; publish first, then ack there"
        raise NotSupported("acking a delivery of another broker in a transaction", why)
    if isinstance(delivery, Delivery):
        return [AckRange(member, delivery._lease, delivery._place, delivery._place + 1, False)]
    return [AckRange(member, lease, first, end, True) for lease, first, end, _ in delivery._parts]
