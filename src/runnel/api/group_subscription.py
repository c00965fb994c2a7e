"""A member of a consumer group: `broker.subscribe(pattern, group=...)`.

Leaving the block returns unsettled records to the group at once; so does a lost connection to a server.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from threading import Lock
from typing import Any, Generic, TypeVar

from runnel.api.delivery import Delivery, DeliveryBatch, LeasedRange
from runnel.api.snapshot_subscription import SnapshotSubscription
from runnel.api.subscription import Subscription, SubscriptionBase, decoded
from runnel.core.backend import Lease, Member, ReadableBackend, SettleVerb
from runnel.core.errors import ValidationFailed
from runnel.core.options import SubscribeOptions, not_negative, positive
from runnel.core.pattern import check_pattern
from runnel.core.record import Record
from runnel.core.schema import Codec, codec_of

T = TypeVar("T")

log = logging.getLogger("runnel")


class GroupSubscription(SubscriptionBase, Generic[T]):
    """One member of a group.

    >>> async with broker.subscribe("orders", group="billing") as deliveries:
    ...     async for delivery in deliveries:
    ...         async with delivery:
    ...             await charge(delivery.value)
    """

    def __init__(
        self, backend: ReadableBackend, pattern: str, options: SubscribeOptions, codec: Codec[T] | None
    ) -> None:
        super().__init__()
        self._source: Member = backend.member(check_pattern(pattern), options, self.wake)
        self._codec = codec
        self._guard = Lock()
        self._leased: tuple[Lease, Iterator[tuple[int, Record[bytes]]]] | None = None  # records handed out now

    def __repr__(self) -> str:
        return f"<GroupSubscription {self.label!r} {self._state}>"

    @property
    def group(self) -> str:
        """The group it is a member of."""
        return self._source.group

    @property
    def prefetch(self) -> int:
        """How many records it may hold."""
        return self._source.prefetch

    @property
    def prefetch_bytes(self) -> int | None:
        """How many bytes of values it may hold."""
        return self._source.prefetch_bytes

    def __aiter__(self) -> AsyncIterator[Delivery[T]]:
        return self._iterate(self._deliveries, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> AsyncIterator[DeliveryBatch[T]]:
        """Read in batches, up to `max_records` (and never more than `prefetch`), to ack with one call.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = self.prefetch if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, min(limit, self.prefetch), max_wait)

    def next_at_hand(self) -> Delivery[T] | None:
        """The next delivery of the lease in hand, if the event loop need not be checked; None: ask the iterator.

        For another thread that reads this subscription: it crosses to the event loop once for each lease. A value that
        has to be decoded, and may have to be rejected, is left to the event loop; so is a member of a server's group.
        """
        if self._leased is None or self._codec is not None or self._source.hand is not None:
            return None
        lease, places = self._leased
        with self._guard:  # the group may take back records that were not handed out
            for place, record in places:
                if lease.ended or place >= lease.end:
                    break
                lease.handed = place + 1
                return Delivery(self._source, lease, place, record)  # type: ignore[arg-type]
        return None

    # -- reading ------------------------------------------------------------------------------------------------

    async def _deliveries(self, *_: None) -> AsyncIterator[Delivery[T]]:
        member, codec, inbox, hand = self._source, self._codec, self._source.inbox, self._source.hand
        unasked = 0  # records until the task is looked up again: it is seldom another one
        try:
            self._begun()
            while True:
                if not inbox:
                    if self._is_over():
                        return
                    await self._parked()
                    continue
                lease = inbox[0]  # where it stays until all was handed out: this iteration may be closed or cancelled
                if lease.handed >= lease.end or not member.take_up(lease):
                    inbox.popleft()
                    continue
                if unasked <= 0:
                    member.task, unasked = asyncio.current_task(), self.prefetch
                unasked -= lease.end - lease.handed
                lease.guard = self._guard
                places = enumerate(member.records(lease, lease.handed, lease.end), lease.handed)
                self._leased = lease, places
                for place, record in places:
                    if lease.ended or place >= lease.end:
                        break  # it expired, the group was reset, or the rest was taken back: another member gets it
                    lease.handed = place + 1
                    if hand is not None:
                        hand(lease, place, place + 1)
                    if codec is None:
                        yield Delivery(member, lease, place, record)  # type: ignore[arg-type]
                    elif (typed := self._decoded(codec, lease, place, record)) is not None:
                        yield Delivery(member, lease, place, typed)
                if inbox and inbox[0] is lease:
                    inbox.popleft()
        except asyncio.CancelledError:
            self._cancelled()
            raise

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[DeliveryBatch[T]]:
        member = self._source
        try:
            self._begun()
            while True:
                if max_wait is not None:
                    await self._gather(self._granted, limit, max_wait, member.clock)
                if parts := self._take(limit):
                    yield DeliveryBatch(member, parts)
                elif self._is_over():
                    return
                else:
                    await self._parked()
        except asyncio.CancelledError:
            self._cancelled()
            raise

    def _is_over(self) -> bool:
        if self._source.error is not None:
            raise self._source.error
        return self._source.ended

    def _take(self, limit: int) -> list[LeasedRange]:
        parts: list[LeasedRange] = []
        member, inbox = self._source, self._source.inbox
        member.task = asyncio.current_task()
        while inbox and limit > 0:
            lease = inbox[0]
            first, end = lease.handed, min(lease.end, lease.handed + limit)
            goes_on = first < end and member.take_up(lease)  # else all that was left of it was taken back
            if end == lease.end or not goes_on:
                inbox.popleft()
            if not goes_on:
                continue
            lease.handed = end
            if member.hand is not None:
                member.hand(lease, first, end)
            limit -= end - first
            parts += [LeasedRange(lease, first, end)] if self._codec is None else self._decoded_parts(lease, first, end)
        return parts

    def _decoded_parts(self, lease: Lease, first: int, end: int) -> list[LeasedRange]:
        """Parts with decoded records, around those that cannot be decoded."""
        parts: list[LeasedRange] = []
        assert self._codec is not None
        for place, record in enumerate(self._source.records(lease, first, end), first):
            typed = self._decoded(self._codec, lease, place, record)
            if typed is not None:
                parts.append(LeasedRange(lease, place, place + 1, (typed,)))
        return parts

    def _decoded(self, codec: Codec[T], lease: Lease, place: int, record: Record[bytes]) -> Record[T] | None:
        """The record with its value decoded; an undecodable one is rejected with the reason."""
        member = self._source
        try:
            return decoded(codec, member.encoding_of(lease, record.topic), record)
        except ValidationFailed as error:
            reason = f"not a {codec.name}: at {error.field}: {error.why}"
            member.settle(lease, SettleVerb.REJECT, place, place + 1, None, reason)
            return None

    def _granted(self) -> int:
        """The number of records granted to this member and not yet taken."""
        return sum(lease.end - lease.handed for lease in self._source.inbox if not lease.ended)


@lru_cache(maxsize=1024)
def _warn_of_wildcards(pattern: str) -> None:
    """Warn once of `#` and `+` as tokens: they are wildcards of MQTT and AMQP, and names here."""
    if {"#", "+"} & set(re.split(r"[./]", pattern)):
        log.warning("subscribed to the one topic %r: wildcards are '*' (one token) and '>' (all that follow)", pattern)


# -- From the options of subscribe() to a subscription ---------------------------------------------------


def open_subscription(
    backend: ReadableBackend, pattern: str, *, codec: Codec[Any] | None = None, **keywords: Any
) -> Any:
    """The subscription that `Broker.subscribe` describes; `keywords` are the fields of `SubscribeOptions`.

    Its `start` may also be a `SnapshotStart`, which is looked up when the subscription is entered.
    """
    start: Any = keywords.get("start")
    if isinstance(pattern, str) and ("#" in pattern or "+" in pattern):
        _warn_of_wildcards(pattern)
    is_snapshot = hasattr(start, "seen")
    options = SubscribeOptions.of(keywords | {"start": "earliest"} if is_snapshot else keywords)
    if options.type is not None:
        codec = codec_of(options.type)
    if is_snapshot:
        return SnapshotSubscription(backend, pattern, options, codec, start)
    kind = Subscription if options.group is None else GroupSubscription
    return kind(backend, pattern, options, codec)
