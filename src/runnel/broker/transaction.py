"""A transaction: publishes, acks and marks that happen together or not at all.

What is asked for in the block is only noted; it is checked against others, written and visible at its end.
Below: attempt, settling, marks. Above: broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.attempt import Attempt, Wanted
from runnel.broker.committing import Committing
from runnel.broker.settling import Settling
from runnel.broker.stage import Stage, staging_of
from runnel.broker.topic import Topic
from runnel.core.errors import InvalidOption, NotSupported, TooLarge
from runnel.core.mark import ANYTHING, Mark, Unasked
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_name
from runnel.core.publication import Publication
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Seconds, check_expected
from runnel.core.stage import checked_key, name_of
from runnel.core.transaction_errors import TransactionEnded

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.delivery import Delivery, DeliveryBatch
    from runnel.broker.gate import Entry
    from runnel.core.mark import MarkValue

T = TypeVar("T")

STAGE = "split it into several, or stage what is large first"

_PLAIN = TopicOptions()


class Transaction:
    """Publishes to any topics, acks of deliveries and marks: all of it, or nothing. Made by `broker.transaction()`.

    >>> async with broker.transaction() as tx:
    ...     tx.publish("paid", order.id)
    ...     tx.ack(delivery)

    An exception in the block leaves nothing behind. When the block is left, everything is durable and is seen by
    every subscriber at once; or it raises, and nothing happened. Cancelled while it waits for the disk, the outcome is
    unknown: all of it may still be stored, or nothing.
    """

    __slots__ = (
        "_attempt",
        "_bus",
        "_bytes",
        "_marks",
        "_records",
        "_settling",
        "_stages",
        "_state",
        "_topics",
        "_wanted",
    )

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._state = "new"
        self._wanted: list[Wanted] = []
        self._settling = Settling(bus)
        self._marks: dict[str, Mark] = {}
        self._stages = Committing()
        self._topics: dict[str, Topic[Any]] = {}  # handles on topics that were given by name
        self._records = self._bytes = 0
        self._attempt: Attempt | None = None

    def __repr__(self) -> str:
        noted = f"{len(self._wanted)} publishes, {len(self._settling)} acks, {len(self._marks)} marks"
        return f"<Transaction of {noted}, {'applied' if self.applied else self._state}>"

    @property
    def applied(self) -> bool:
        """Whether it was committed. False after the block: a mark said that it had been done before."""
        return self._attempt is not None and self._attempt.applied

    @property
    def _has_begun(self) -> bool:
        """Whether some of it may be written already: it cannot be taken back any more."""
        return self._attempt is not None and self._attempt.has_begun

    # -- what is wanted -----------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str | Topic[T],
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
        entry = self._bus.publisher.one(
            handle.name, handle._codec, value, key, headers, delay, expires, priority, message_id
        )
        return self._want(handle, entry, expected_offset)

    def publish_many(
        self,
        topic: str | Topic[T],
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
        entry = self._bus.publisher.many(handle.name, handle._codec, values, keys, headers, delay, expires, priority)
        entry.values = tuple(entry.values)  # the caller may go on changing its own
        return self._want(handle, entry, expected_offset)

    def commit(self, *stages: Stage[Any] | tuple[str, int, int, int]) -> list[Publication]:
        """Make what was staged visible at the end of the block; of each stage, where that is.

        A stage is given as its handle or, where somebody else staged it, as (writer, batch, part, attempt). Its
        records come behind those that the transaction itself publishes to the topic. `StageEnded` is raised at the
        end of the block for one that was committed, dropped or superseded before, and nothing happens.
        """
        self._check_open()
        staging = staging_of(self._bus)
        found: list[Publication] = []
        for stage in stages:
            key = stage.key if isinstance(stage, Stage) else checked_key(stage)
            found.append(Publication(stage.topic if isinstance(stage, Stage) else name_of(key), 0))
            self._stages.note(staging, key, found[-1])
        return found

    def ack(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block. Until then it can still be nacked.

        Raises if its lease has ended or it was settled, now or at the end of the block.
        """
        self._check_open()
        self._settling.note(delivery)

    def mark(self, name: str, value: MarkValue | None, expected: MarkValue | Unasked | None = ANYTHING) -> None:
        """Have the mark `name` moved forward to `value` (an int, a str or bytes), or forgotten (None).

        If it is there already, or further, the transaction was done before: nothing of it happens, and `applied` is
        False. With `expected`, the mark must be that (None: must not be there) unless it is `value` already; else
        `MarkConflict` is raised at the end of the block, and nothing happens.
        """
        self._check_open()
        mark = Mark(name, value, expected)
        if name in self._marks:
            raise InvalidOption("mark", name, "a transaction moves each mark once")
        self._marks[name] = mark

    def _handle(self, topic: str | Topic[Any]) -> Topic[Any]:
        self._check_open()
        if isinstance(topic, Topic):
            if topic._bus is not self._bus:
                why = "it has a journal of its own, so the two cannot be written in one"
                raise NotSupported(f"publishing to {topic.name!r} of another broker in a transaction", why)
            return topic
        if (known := self._topics.get(topic)) is None:
            known = self._topics[topic] = Topic(self._bus, check_name(topic), None, _PLAIN)
        return known

    def _want(self, topic: Topic[Any], entry: Entry, expected_offset: int | None) -> Publication:
        entry.expected_offset = check_expected(expected_offset)
        records, size = self._records + len(entry.values), self._bytes + entry.size + entry.extra
        if records > MAX_ENTRY_RECORDS:
            raise TooLarge("a transaction", records, "max_entry_records", MAX_ENTRY_RECORDS, STAGE)
        if size > MAX_ENTRY_BYTES:
            raise TooLarge("a transaction", size, "max_entry_bytes", MAX_ENTRY_BYTES, STAGE)
        self._records, self._bytes = records, size
        publication = Publication(topic.name, len(entry.values))
        self._wanted.append(Wanted(topic, entry, publication))
        return publication

    def _check_open(self) -> None:
        if self._state == "new":
            raise NotSupported("a transaction outside of its block", "use `async with broker.transaction() as tx`")
        if self._state != "open":
            raise TransactionEnded

    # -- its life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction:
        if self._state != "new":
            raise TransactionEnded
        if self._bus.home.is_here():
            self._bus.home.check_usable("a transaction")
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._commit() if error is None else self._give_up()
        self._state = "over"
        if self._bus.home.is_here():
            await end
        else:
            await self._bus.home.visit(end)

    async def _give_up(self) -> None:
        self._settling.forget()

    async def _commit(self) -> None:
        if not (self._wanted or self._marks or self._settling or self._stages):
            return
        attempt = self._attempt = Attempt(
            self._bus, self._wanted, self._settling, list(self._marks.values()), self._stages
        )
        try:
            await attempt.commit()
        except BaseException:
            if not attempt.has_begun:
                self._settling.forget()
            raise
        if not attempt.applied:
            self._settling.forget(done=True)
