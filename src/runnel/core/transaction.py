"""The requests of a transaction: publishes, acks, markers and stages, collected and checked before the commit.

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
    """A publish of a transaction."""

    writer: Writer
    append: Append
    publication: Publication


class TransactionRequest:
    """All requests of one transaction, in order."""

    __slots__ = ("_bytes", "_records", "acks", "applied", "has_begun", "markers", "publishes", "stages")

    def __init__(self) -> None:
        self.publishes: list[PlannedPublish] = []
        self.acks: list[AckRange] = []
        self.markers: dict[str, Marker] = {}
        self.stages: dict[StageKey, Publication] = {}
        self.applied = False  # set by the backend: it was committed
        self.has_begun = False  # set by the backend: the commit has begun, and cannot be cancelled
        self._records = self._bytes = 0

    def __repr__(self) -> str:
        return f"{len(self.publishes)} publishes, {len(self.acks)} acks, {len(self.markers)} marks"

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.publishes or self.acks or self.markers or self.stages)

    # -- collecting ---------------------------------------------------------------------------------------------

    def publish(self, writer: Writer, append: Append) -> Publication:
        """Add a publish; `TooLarge` if the transaction gets too large."""
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
        """Add the acks of a delivery or a batch. Raises if it is too late already."""
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
        """Add a stage, of `topic` if that is known. Whether it exists is checked at the commit."""
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
        """It was committed: mark its deliveries as acked."""
        self.applied = True
        for ack in self.acks:
            _unpromise(ack)

    def forget(self, *, done: bool = False) -> None:
        """It was not committed: release its deliveries. Those whose blocks were left are nacked.

        With `done` they are acked: an earlier transaction with the same marker has processed them.
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
    """Release a delivery from the transaction; return whether its block was left already."""
    return ack.lease.promised is not None and ack.lease.promised.pop(ack.first, False)
