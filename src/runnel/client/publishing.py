"""From a publish to its answer, on the loop: what a turn gathers, who waits, and for how long.

Below: outbox, parcel. Above: topic, link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from secrets import randbits
from typing import TYPE_CHECKING

from runnel.client.outbox import Outbox
from runnel.client.parcel import OVERHEAD, UNSAID, Parcel, Route, cost, weight
from runnel.core.errors import BrokerClosed, Full, RunnelError
from runnel.core.network_errors import NoAnswer
from runnel.core.position import Position
from runnel.core.record import Meta
from runnel.surface.tracing import Tracing
from runnel.wire.layouts import read_published
from runnel.wire.messages import About, encode
from runnel.wire.trouble import read_error

if TYPE_CHECKING:
    from runnel.client.link import Link

OUTBOX = "the outbox"

logger = logging.getLogger("runnel")


class Publishing:
    """What a client publishes, on its way."""

    def __init__(self, link: Link) -> None:
        self.outbox = Outbox(link.options.max_pending_bytes, lambda: randbits(64) or 1)
        self.tracing = Tracing()
        self._link = link
        self._room: deque[tuple[asyncio.Future[None], int]] = (
            deque()
        )  # publishes that wait for room, and what they need
        self._timer: asyncio.TimerHandle | None = None  # looks for publishes that waited long enough

    def __repr__(self) -> str:
        return f"<Publishing, {self.outbox!r}, {len(self._room)} waiting for room>"

    # -- in -----------------------------------------------------------------------------------------------------

    def check_room(self, topic: str, size: int) -> None:
        """Raise `Full` unless `size` more bytes may be on their way."""
        outbox = self.outbox
        if self._room or (outbox.bytes + size > outbox.limit and outbox.bytes):
            raise Full(topic, OUTBOX, outbox.limit)

    async def room(self, topic: str, size: int) -> None:
        """Return when `size` more bytes may be on their way; those who came first go first."""
        outbox = self.outbox
        if not self._room and (outbox.bytes + size <= outbox.limit or not outbox.bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append((waiter, size))
        timeout = self._link.options.timeout
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise NoAnswer(f"a publish to {topic!r} that waited for room", timeout or 0.0, self._link.state) from None
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                outbox.bytes -= size  # kept for it; now it takes them, or has given up
            else:
                self._room = deque(pair for pair in self._room if pair[0] is not waiter)
            self._link.later(self.make_room)

    def make_room(self) -> None:
        """Let those go on who waited for room, as far as there is."""
        outbox = self.outbox
        while self._room:
            waiter, size = self._room[0]
            if outbox.bytes + size > outbox.limit and outbox.bytes:
                return
            self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                outbox.bytes += size  # kept for it until it runs

    def gather(self, route: Route, value: bytes, meta: Meta | None) -> tuple[Parcel, int]:
        """Put one record, for which there is room, into the parcel that gathers; that, and the record's index in it."""
        size = cost(value, meta)
        parcel, is_new = self.outbox.gathering(route, size)
        index = parcel.add(value, meta, size)
        self.outbox.bytes += size
        if is_new:
            parcel.born = self._link.now()
            self._link.soon()
            if self.outbox.is_full:
                self._link.at_once()
        return parcel, index

    def add(
        self,
        route: Route,
        values: Sequence[bytes],
        metas: Sequence[Meta | None] | None,
        about: About | None = None,
        patience: float | None = UNSAID,
    ) -> Parcel:
        """Have records sent in one frame of their own, with what is said about them. A list is not copied."""
        size = weight(values, metas)
        parcel = Parcel(
            route,
            values if isinstance(values, list) else list(values),
            metas if isinstance(metas, list) or metas is None else list(metas),
            size=size,
            whole=True,
            numbered=about is None or about.message_id is None,
            said=None if about is None else encode(about),
        )
        return self._added(parcel, patience)

    def add_packed(self, route: Route, batch: bytes, count: int, about: About | None) -> Parcel:
        """Have a batch sent that somebody else packed and numbered."""
        said = None if about is None else encode(about)
        size = len(batch) + OVERHEAD
        parcel = Parcel(route, [], size=size, whole=True, numbered=False, said=said, batch=batch)
        parcel.count = count
        return self._added(parcel, UNSAID)

    def _added(self, parcel: Parcel, patience: float | None) -> Parcel:
        parcel.born, parcel.patience = self._link.now(), patience
        self.outbox.add(parcel)
        self._link.soon()
        if parcel.size >= self.outbox.limit // 2:
            self._link.at_once()
        return parcel

    # -- waiting ------------------------------------------------------------------------------------------------

    async def answer(self, parcel: Parcel, index: int = 0) -> Position:
        """Where the record at `index` of a parcel is, once the server has answered."""
        waiter: asyncio.Future[Position] = self._link.loop.create_future()
        if not parcel.waiters:
            parcel.born = self._link.now()  # it may have gathered for long what nobody waits for
        parcel.waiters.append([index, waiter])
        if self._timer is None:
            self._watch()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._give_up(parcel, waiter)
            raise

    def _give_up(self, parcel: Parcel, waiter: asyncio.Future[Position]) -> None:
        id = self.outbox.give_up(parcel, waiter)
        if id:
            self._link.cancel(id)
        self.make_room()

    def _watch(self) -> None:
        timeout = self._link.options.timeout
        if timeout is not None:
            self._timer = self._link.loop.call_later(max(timeout / 16, 0.005), self._look)

    def _look(self) -> None:
        """Tell those who waited long enough. One timer for all: one for each would cost more than the publish."""
        self._timer = None
        self.outbox.seal()  # whoever publishes now waits as long as the others, and not for what is left of their time
        now, default, is_awaited = self._link.now(), self._link.options.timeout, False
        for parcel in self.outbox.parcels():
            patience = default if parcel.patience == UNSAID else parcel.patience
            if patience is None or not parcel.waiters:
                continue
            if now - parcel.born < patience:
                is_awaited = True
                continue
            topic, state = parcel.route.topic, self._link.state
            for _, waiter in list(parcel.waiters):
                if not waiter.done():
                    waiter.set_exception(NoAnswer(f"a publish to {topic!r}", patience, state))
                    self._give_up(parcel, waiter)
        if is_awaited:
            self._watch()

    # -- out and back -------------------------------------------------------------------------------------------

    def take(self) -> list[bytes]:
        """What may be sent now."""
        pieces = self.outbox.take(self._link.new_id)
        if self.outbox.refusals:
            refusals, self.outbox.refusals = self.outbox.refusals, []
            for parcel, error in refusals:
                self._fail(parcel, error)
        return pieces

    def published(self, id: int, payload: bytes) -> None:
        """A PUBLISHED came."""
        epoch, first, _ = read_published(payload)
        parcel = self.outbox.published(id, epoch, first)
        if parcel is not None:
            for index, waiter in parcel.waiters:
                if not waiter.done():
                    waiter.set_result(Position(epoch, first + index))
            if self._room:
                self.make_room()

    def refused(self, id: int, payload: bytes) -> None:
        """An ERROR came that is for a publish, or for nobody."""
        error = read_error(payload)
        parcel = self.outbox.refused(id, error)
        if parcel is not None:
            self._fail(parcel, error)
        self.make_room()

    def _fail(self, parcel: Parcel, error: RunnelError) -> None:
        """Tell those who wait; log what nobody waits for."""
        for _, waiter in parcel.waiters:
            if not waiter.done():
                waiter.set_exception(_twin(error))
        unheard = 0 if parcel.whole and parcel.waiters else max(parcel.count, len(parcel.values)) - len(parcel.waiters)
        if unheard > 0:
            self._link.connection.failed += unheard
            logger.error(
                "%d records published without waiting to %r were refused: %s", unheard, parcel.route.topic, error
            )

    def end(self, error: Callable[[], RunnelError]) -> None:
        """Nothing will be sent any more: fail all that is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for parcel in self.outbox.abandon():
            self._fail(parcel, error())
        self.close()

    def close(self) -> None:
        """Nothing more is taken in: those who wait for room need not."""
        waiting, self._room = self._room, deque()
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(BrokerClosed("publishing"))


def _twin(error: RunnelError) -> RunnelError:
    """The same error for another one who waits: raised in two places, one would show the other's traceback."""
    twin = type(error).__new__(type(error))
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    return twin
