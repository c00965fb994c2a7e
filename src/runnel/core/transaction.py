"""What a transaction is to do: publishes, acks, markers and stages, collected and checked before any of it is done.

A backend commits a request as a whole. It then says what became of it: `settle` or `forget`, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from runnel.core.backend import AckRange, SettleVerb
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, StageEnded, TooLarge
from runnel.core.markers import Marker
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Append, Publication
from runnel.core.stages import StageKey, stage_name

if TYPE_CHECKING:
    from runnel.core.backend import Writer

ADVICE = "split it into several, or stage what is large first"
GIVEN_UP = "its transaction was given up"


class PlannedPublish(NamedTuple):
    """A publish, as it was asked for."""

    writer: Writer
    append: Append
    publication: Publication


class TransactionRequest:
    """Everything that one transaction does, in the order in which it was asked for."""

    __slots__ = ("_bytes", "_records", "acks", "applied", "has_begun", "markers", "publishes", "stages")

    def __init__(self) -> None:
        self.publishes: list[PlannedPublish] = []
        self.acks: list[AckRange] = []
        self.markers: dict[str, Marker] = {}
        self.stages: dict[StageKey, Publication] = {}
        self.applied = False  # set by the backend: it was committed
        self.has_begun = False  # set by the backend: some of it may be written, it cannot be taken back
        self._records = self._bytes = 0

    def __repr__(self) -> str:
        return f"{len(self.publishes)} publishes, {len(self.acks)} acks, {len(self.markers)} marks"

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.publishes or self.acks or self.markers or self.stages)

    # -- collecting ---------------------------------------------------------------------------------------------

    def publish(self, writer: Writer, append: Append) -> Publication:
        """Publish something, if the transaction does not get too large by it."""
        records, size = self._records + len(append.values), self._bytes + append.size + append.extra
        if records > MAX_ENTRY_RECORDS:
            raise TooLarge("a transaction", records, "max_entry_records", MAX_ENTRY_RECORDS, ADVICE)
        if size > MAX_ENTRY_BYTES:
            raise TooLarge("a transaction", size, "max_entry_bytes", MAX_ENTRY_BYTES, ADVICE)
        self._records, self._bytes = records, size
        publication = Publication(writer.topic, len(append.values))
        self.publishes.append(PlannedPublish(writer, append, publication))
        return publication

    def ack(self, acks: Sequence[AckRange]) -> None:
        """Ack a delivery, or a batch of them. Raises if that is too late already."""
        for ack in acks:
            _check_open(ack)
        for ack in acks:
            if not ack.batch:
                if ack.lease.promised is None:
                    ack.lease.promised = {}
                ack.lease.promised[ack.first] = False
        self.acks += acks

    def mark(self, marker: Marker) -> None:
        """Move a marker."""
        if marker.name in self.markers:
            raise InvalidOption("mark", marker.name, "a transaction moves each mark once")
        self.markers[marker.name] = marker

    def commit(self, key: StageKey, topic: str | None = None) -> Publication:
        """Commit a stage, of `topic` if that is known. Whether it is there is looked at when the transaction is."""
        if key in self.stages:
            raise StageEnded(stage_name(key), "this transaction commits it already")
        publication = self.stages[key] = Publication(topic or stage_name(key), 0)
        return publication

    # -- what becomes of it -------------------------------------------------------------------------------------

    def check_acks(self) -> None:
        """Raise unless all of it can be acked now."""
        for ack in self.acks:
            _check_open(ack)

    def settle(self) -> None:
        """It was committed: its deliveries are acked."""
        self.applied = True
        for ack in self.acks:
            _unpromise(ack)

    def forget(self, *, done: bool = False) -> None:
        """Nothing is acked by it. Deliveries whose blocks were left go the way they would have gone.

        That is back to the group; or, `done` by another transaction as they are, out of it.
        """
        acks, self.acks = self.acks, []
        for ack in acks:
            member, lease, first, _, batch = ack
            if not batch and _unpromise(ack) and lease.is_open(first) and not lease.ended:
                if done:
                    member.settle(lease, SettleVerb.ACK, first, first + 1)
                else:
                    member.settle(lease, SettleVerb.NACK, first, first + 1, None, GIVEN_UP)


def _check_open(ack: AckRange) -> None:
    member, lease, first, _, batch = ack
    if lease.ended:
        raise LeaseEnded(member.group, first, lease.attempt)
    if not batch and not lease.is_open(first):
        raise AlreadySettled(member.group, first)


def _unpromise(ack: AckRange) -> bool:
    """Only the holder of a delivery acks it from now on; whether its block was left already."""
    return ack.lease.promised is not None and ack.lease.promised.pop(ack.first, False)
