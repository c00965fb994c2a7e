"""`PresenceWatch` and `TableWatch` without asyncio: a plain `for`, or `receive` with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from runnel.blocking.portal import Portal
from runnel.core.clock import Clock
from runnel.core.errors import SubscriptionEnded
from runnel.core.presence import PresenceEvent, Present
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.api.presence import Presence as AsyncPresence

E = TypeVar("E")


class Watch(Generic[E]):
    """Changes of a table, or of the subscribers of a topic. Use it with `with`, and iterate inside."""

    def __init__(self, watch: Any, label: str, portal: Portal, clock: Clock) -> None:
        self._watch, self._label, self._portal, self._clock = watch, label, portal, clock

    def __repr__(self) -> str:
        return f"<Blocking {type(self._watch).__name__} of {self._label!r}>"

    def __enter__(self) -> Self:
        self._portal.run(self._watch.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._watch.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[E]:
        return self

    def __next__(self) -> E:
        try:
            return self.receive()
        except SubscriptionEnded:
            raise StopIteration from None

    def receive(self, timeout: float | None = None) -> E:
        """The next change. After `timeout` seconds without one, TimeoutError; at the end, SubscriptionEnded."""
        found: E | None = self._portal.run(self._next(timeout))
        if found is None:
            raise SubscriptionEnded(self._label)
        return found

    async def _next(self, timeout: float | None) -> E | None:
        coming: asyncio.Future[E | None] = asyncio.ensure_future(anext(self._watch, None))
        try:
            if not await wait_all([coming], timeout, self._clock):
                raise TimeoutError(f"nothing for {self._label!r} within {timeout:g} s")
            return coming.result()
        finally:
            coming.cancel()  # both kinds of watch can be called again, and lose nothing


class Presence:
    """Who is subscribed to a topic, from `broker.presence(topic)`: iterate over it for the members now.

    >>> for member in broker.presence("room.tea"):
    ...     print(member.name, member.presence)
    >>> with broker.presence("room.tea").watch() as events:
    ...     print(events.receive(timeout=5).event)
    """

    def __init__(self, presence: AsyncPresence, portal: Portal, clock: Clock) -> None:
        self._presence, self._portal, self._clock = presence, portal, clock

    def __repr__(self) -> str:
        return f"<Blocking {self._presence!r}>"

    def __iter__(self) -> Iterator[Present]:
        async def now() -> list[Present]:
            return await self._presence

        return iter(self._portal.run(now()))

    def watch(self) -> Watch[PresenceEvent]:
        """Follow who comes and goes: first a join for every member that is there. Use it with `with`."""
        return Watch(self._presence.watch(), self._presence.topic, self._portal, self._clock)
