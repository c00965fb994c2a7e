"""Base class of deliveries: one record of a group, held until it is acked, nacked or rejected, or its lease ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from runnel.core.position import Position
from runnel.core.record import Record

T = TypeVar("T")


class _Accepted:
    """An await that is over at once: what it stands for has happened when it is made."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # makes this a generator


ACCEPTED: Awaitable[None] = _Accepted()


class DeliveryBase(ABC, Generic[T]):
    """One record, held until it is acked, nacked or rejected, or the lease ends.

    >>> async with delivery:  # acks; nacks if the block raises
    ...     await charge(delivery.value)
    """

    __slots__ = ("record",)

    record: Record[T]

    # -- settling -----------------------------------------------------------------------------------------------

    @abstractmethod
    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """The work is done."""

    @abstractmethod
    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """The work failed: try again after `delay` seconds, or after the group's backoff."""

    @abstractmethod
    def reject(self, reason: str) -> Awaitable[None]:
        """The work can never succeed: to the dead-letter topic, with the reason."""

    @abstractmethod
    def extend(self, seconds: float) -> Awaitable[None]:
        """The work takes longer: keep the lease for so many seconds from now."""

    @property
    @abstractmethod
    def lapsed(self) -> bool:
        """Whether its lease ended: the record went back to the group, and settling this delivery raises."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Whether it was acked, nacked or rejected, or its lease ended."""

    @abstractmethod
    def _is_promised(self) -> bool:
        """The block is left without an error: whether a transaction takes it from here, to ack it or give it back."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Whether nobody settled it, be its lease over or not."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # Where the lease has ended this raises: the work may be done twice.
            if not self._is_promised() and self._is_open():
                self.ack()
        elif not self.settled:
            # Cancelled: not the record's fault, so it goes back at once.
            delay = None if isinstance(error, Exception) else 0.0
            self.nack(delay, f"{type(error).__name__}: {error}")

    # -- the record ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def attempt(self) -> int:
        """1 the first time, and one more each time it is handed out again."""

    @property
    @abstractmethod
    def group(self) -> str:
        """The group that it was delivered in."""

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.record.topic

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return self.record.offset

    @property
    def sequence(self) -> int:
        """The sequence of the record in its broker."""
        return self.record.sequence

    @property
    def epoch(self) -> int:
        """The epoch of the record's topic."""
        return self.record.epoch

    @property
    def position(self) -> Position:
        """The record's place in its topic."""
        return self.record.position

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        return self.record.key

    @property
    def value(self) -> T:
        """The value of the record."""
        return self.record.value

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the record."""
        return self.record.headers

    @property
    def time(self) -> datetime:
        """When the record was published."""
        return self.record.time

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the record."""
        return self.record.traceparent

    @property
    def reply_to(self) -> str | None:
        """The topic that waits for a reply, when the record is a request."""
        return self.record.reply_to
