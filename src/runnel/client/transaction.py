"""A transaction on a server: publishes, acks and marks that happen together or not at all.

What is asked for in the block is noted and checked here; at its end all of it travels in one call.
Below: entry, settling, link. Above: broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from runnel.client import entry
from runnel.client.delivery import RemoteDelivery, RemoteDeliveryBatch
from runnel.client.entry import Entry
from runnel.client.link import HEARING
from runnel.client.settling import Settling
from runnel.client.stage import RemoteStage
from runnel.client.topic import RemoteTopic
from runnel.core.errors import BrokerClosed, InvalidOption, NotSupported, TooLarge
from runnel.core.journal_errors import OutcomeUnknown
from runnel.core.mark import ANYTHING, Mark, MarkValue, Unasked
from runnel.core.network_errors import ConnectionLost, NoAnswer
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.publication import Publication
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Seconds
from runnel.core.stage import StageKey, checked_key, name_of
from runnel.core.transaction_errors import StageEnded, TransactionEnded

if TYPE_CHECKING:
    from runnel.client.broker import RemoteBroker

T = TypeVar("T")

STAGE = "split it into several, or stage what is large first"


class Wanted(NamedTuple):
    """A publish, as it was asked for."""

    entry: Entry
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
        self._wanted: list[Wanted] = []
        self._settling = Settling(broker._link)
        self._marks: dict[str, Mark] = {}
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
        found = entry.one(handle, value, key, headers, delay, expires, priority, message_id, expected_offset)
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
        found = entry.many(handle, values, keys, headers, delay, expires, priority, expected_offset)
        return self._want(found)

    def commit(self, *stages: RemoteStage[Any] | tuple[str, int, int, int]) -> list[Publication]:
        """Make what was staged visible at the end of the block; of each stage, where that is.

        A stage is given as its handle or, where somebody else staged it, as (writer, batch, part, attempt). Its
        records come behind those that the transaction itself publishes to the topic. `StageEnded` is raised at the
        end of the block for one that was committed, dropped or superseded before, and nothing happens.
        """
        self._check_open()
        if not self._broker._link.welcome.durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
        found: list[Publication] = []
        for stage in stages:
            key = stage.key if isinstance(stage, RemoteStage) else checked_key(stage)
            if key in self._commits:
                raise StageEnded(name_of(key), "this transaction commits it already")
            found.append(Publication(stage.topic if isinstance(stage, RemoteStage) else name_of(key), 0))
            self._commits[key] = found[-1]
        return found

    def ack(self, delivery: RemoteDelivery[Any] | RemoteDeliveryBatch[Any]) -> None:
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

    def _handle(self, topic: str | RemoteTopic[Any]) -> RemoteTopic[Any]:
        self._check_open()
        if not isinstance(topic, str):
            if not isinstance(topic, RemoteTopic) or topic._link is not self._broker._link:
                why = "it has a journal of its own, so the two cannot be written in one"
                raise NotSupported(f"publishing to {topic.name!r} of another broker in a transaction", why)
            return topic
        if (known := self._topics.get(topic)) is None:
            known = self._topics[topic] = self._broker.topic(check_name(topic))
        return known

    def _want(self, found: Entry) -> Publication:
        records, size = self._records + found.records, self._bytes + found.size
        if records > MAX_ENTRY_RECORDS:
            raise TooLarge("a transaction", records, "max_entry_records", MAX_ENTRY_RECORDS, STAGE)
        if size > MAX_ENTRY_BYTES:
            raise TooLarge("a transaction", size, "max_entry_bytes", MAX_ENTRY_BYTES, STAGE)
        self._records, self._bytes = records, size
        publication = Publication(found.topic, found.records)
        self._wanted.append(Wanted(found, publication))
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
        if self._broker._link.home.is_here():
            self._broker._link.home.check_usable("a transaction")
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._commit() if error is None else self._give_up()
        self._state = "over"
        if self._broker._link.home.is_here():
            await end
        else:
            await self._broker._link.home.visit(end)

    async def _give_up(self) -> None:
        self._settling.forget()

    async def _commit(self) -> None:
        if not (self._wanted or self._marks or self._settling or self._commits):
            return
        self._broker._link.home.check_usable("committing a transaction")
        try:
            acks = self._settling.claim()
            said = await self._broker._link.call("transact", self._asked(acks), again=False)
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
            _place(publication, span)

    def _asked(self, acks: list[tuple[int, int, int, int]]) -> dict[str, Any]:
        return {
            "publishes": [[one.entry.topic, one.entry.pack(), one.entry.about] for one in self._wanted],
            "acks": acks,
            "marks": [
                [one.name, one.value] if isinstance(one.expected, Unasked) else [one.name, one.value, one.expected]
                for one in self._marks.values()
            ],
            "commits": list(self._commits),
        }


def _place(publication: Publication, span: list[Any] | None) -> None:
    """Say where a publish is. Of a stage only now is known for which topic it was, and how large."""
    if span is None:
        return
    epoch, first, last, *topic = span
    publication.holds(topic[0] if topic else publication.topic, last - first + 1)
    publication.put(Position(epoch, first))
