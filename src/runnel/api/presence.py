"""The `Presence` handle: who is subscribed to a topic, and who comes and goes.

Nothing is kept or sent unless a program asks. Watches of one topic share one look in a second at the backend; what a
watch has not read yet is one event for each member at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from runnel.core.errors import RunnelError, SubscriptionMisused
from runnel.core.presence import PresenceEvent, Present, presence_changes
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.core.backend import Backend

INTERVAL = 1.0  # seconds between two looks


class Presence:
    """Who is subscribed to a topic, from `broker.presence(topic)`.

    >>> for member in await broker.presence("room.tea"):
    ...     print(member.name, member.presence)
    >>> async with broker.presence("room.tea").watch() as events:
    ...     async for event in events:
    ...         print(event.event, event.member.presence)
    """

    def __init__(self, watches: PresenceWatches, topic: str) -> None:
        self.topic, self._watches = topic, watches

    def __repr__(self) -> str:
        return f"<Presence of {self.topic!r}>"

    def __await__(self) -> Generator[Any, None, list[Present]]:
        """The members now, those that came first at the beginning."""
        return self._watches.backend().present(self.topic).__await__()

    def watch(self) -> PresenceWatch:
        """Follow who comes and goes: first a join for every member that is there. Use it with `async with`."""
        return PresenceWatch(self._watches, self.topic)


class PresenceWatch:
    """Joins and leaves of one topic, in order. A member that comes and goes before it is read of is left out."""

    def __init__(self, watches: PresenceWatches, topic: str) -> None:
        self._watches, self.topic = watches, topic
        self._feed: _Feed | None = None
        self._events: dict[str, PresenceEvent] = {}  # by member: not read yet
        self._error: RunnelError | None = None
        self._came: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._feed = await self._watches.join(self, self.topic)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._feed is not None:
            self._feed.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PresenceEvent:
        if self._feed is None:
            raise SubscriptionMisused(self.topic, "enter it first: `async with broker.presence(...).watch() as ...`")
        while not self._events:
            if self._error is not None:
                raise self._error
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        return self._events.pop(next(iter(self._events)))

    def waiting(self) -> list[PresenceEvent]:
        """All events that are there now: right after entering, a join for every member."""
        found, self._events = list(self._events.values()), {}
        return found

    def tell(self, events: list[PresenceEvent]) -> None:
        """Called by the feed: this is new."""
        for event in events:
            if event.member.id in self._events and event.event == "leave":
                del self._events[event.member.id]  # its join was not read: it need not be known
            else:
                self._events[event.member.id] = event
        self._wake()

    def fail(self, error: RunnelError) -> None:
        """Called by the feed: nothing more comes."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._came is not None:
            resolve_waiter(self._came)


class PresenceWatches:
    """The feeds of a broker, one for each topic that is watched."""

    def __init__(self, backend: Callable[[], Backend]) -> None:
        self.backend = backend
        self._feeds: dict[str, _Feed] = {}

    def __repr__(self) -> str:
        return f"<PresenceWatches of {len(self._feeds)} topics>"

    async def join(self, watch: PresenceWatch, topic: str) -> _Feed:
        """The feed of a topic, with this watch among those that it reports to."""
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = _Feed(self.backend(), topic, partial(self._feeds.pop, topic, None))
        await feed.join(watch)
        return feed


class _Feed:
    """Polls one topic, and sends the changes to its watches."""

    def __init__(self, backend: Backend, topic: str, over: Callable[[], object]) -> None:
        self._backend, self._topic, self._over = backend, topic, over
        self._known: dict[str, Present] = {}
        self._watches: dict[PresenceWatch, None] = {}
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def join(self, watch: PresenceWatch) -> None:
        """Send a watch all present members, and all changes from now on."""
        self._watches[watch] = None
        try:
            async with self._looking:
                await self._look(but=watch)
                watch.tell(presence_changes({}, self._known.values()))
        except BaseException:
            self.leave(watch)
            raise
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, watch: PresenceWatch) -> None:
        """Remove this watch; stop looking after the last one."""
        self._watches.pop(watch, None)
        if not self._watches:
            self._over()
            if self._task is not None:
                self._task.cancel()

    async def _run(self) -> None:
        while True:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = self._backend.clock.call_later(INTERVAL, partial(resolve_waiter, over))
            try:
                await over
                async with self._looking:
                    await self._look()
            except RunnelError as error:
                self._over()
                for watch in self._watches:
                    watch.fail(error)
                return
            finally:
                timer.cancel()

    async def _look(self, but: PresenceWatch | None = None) -> None:
        now = await self._backend.present(self._topic)
        if events := presence_changes(self._known, now):
            self._known = {member.id: member for member in now}
            for watch in self._watches:
                if watch is not but:
                    watch.tell(events)
