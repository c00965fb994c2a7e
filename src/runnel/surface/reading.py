"""What every subscription does alike, whatever it hands out: it is read one way, woken, and ended.

Below: waiting. Above: record_reading; the group subscriptions of broker and client.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from types import AsyncGeneratorType, TracebackType
from typing import Any

from runnel.core.clock import Clock
from runnel.core.errors import RunnelError, SubscriptionMisused
from runnel.surface.waiting import tell


class Reading(ABC):
    """A block that is entered, iterated over, and left."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None  # the one that reads
        self._entered = self._ended = self._left = False
        self._error: RunnelError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._iterator: AsyncGeneratorType[Any, Any] | None = None

    @property
    @abstractmethod
    def label(self) -> str:
        """How errors and statistics call it."""

    @abstractmethod
    def end(self, error: RunnelError | None = None) -> None:
        """No more items."""

    @property
    def _state(self) -> str:
        return "ended" if self._ended else "open" if self._entered else "not entered"

    def _check_not_entered(self) -> None:
        if self._entered:
            raise SubscriptionMisused(self.label, "it was entered before; subscribe again for another one")

    def _check_entered(self) -> None:
        if not self._entered:
            raise SubscriptionMisused(self.label, "enter it first: `async with broker.subscribe(...) as ...`")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self.end()
        if self._iterator is not None and not self._iterator.ag_running:
            await self._iterator.aclose()

    def _iterate(self, make: Callable[..., Any], *how: Any) -> AsyncIterator[Any]:
        """The generator that `make` makes. There is one: what is in hand after a `break` stays where it was."""
        self._check_entered()
        if self._error is not None:
            raise self._error
        # A read that was cancelled has finished its generator, with nothing in hand: the next one makes another.
        if self._iterator is None or self._iterator.ag_frame is None:
            self._iterator = make(*how)
            self._how = (make.__name__, how)
        elif self._how != (make.__name__, how):
            raise SubscriptionMisused(self.label, "it is being read already; read it one way, or subscribe twice")
        return self._iterator

    def _parked(self) -> asyncio.Future[None]:
        """Done when there may be something to read, or at the end. Whoever awaits it looks again."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def wake(self) -> None:
        """Look again: there is something to read, or it is over."""
        if self._waiter is not None:
            tell(self._waiter)

    async def _gather(self, ahead: Callable[[], int], limit: int, max_wait: float, clock: Clock) -> None:
        """Wait until something is `ahead`, then for `limit` of it or `max_wait` seconds."""
        while not ahead() and not self._ended:
            await self._parked()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.wake()

        timer = clock.call_later(max_wait, expire)
        try:
            while ahead() < limit and not expired and not self._ended:
                await self._parked()
        finally:
            timer.cancel()
