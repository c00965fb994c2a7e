"""From a publish to the server's answer: wait for room, send, wait, time out.

At most `max_pending_bytes` are unanswered; beyond that `publish` waits and `publish_nowait` raises `Full`. `outbox`
decides which frames are sent and resent; this module has the futures and the timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from secrets import randbits
from typing import TYPE_CHECKING

from runnel.client.outbox import UNSAID, Outbox, OutgoingBatch, Route, batch_cost
from runnel.core.columns import Columns
from runnel.core.errors import BrokerClosed, Full, NoAnswer, RunnelError
from runnel.core.position import Position
from runnel.core.publishing import PublishDetails
from runnel.runtime.tracing import Tracing
from runnel.wire.binary_messages import batch_weight, read_published
from runnel.wire.errors import read_error
from runnel.wire.msgpack_messages import encode_message

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


OUTBOX = "the outbox"

logger = logging.getLogger("runnel")


class RoomWaiter:
    """A publish that waits for room."""

    __slots__ = ("fail", "go", "size")

    def __init__(self, size: int, go: Callable[[], None], fail: Callable[[RunnelError], None]) -> None:
        self.size, self.go, self.fail = size, go, fail


class ClientPublisher:
    """Records that a client publishes, until they are answered."""

    def __init__(self, link: ServerLink) -> None:
        self.outbox = Outbox(link.options.max_pending_bytes, lambda: randbits(64) or 1)
        self.tracing = Tracing()
        self._link = link
        self._room: deque[RoomWaiter] = deque()  # publishes that wait for room
        self._timer: asyncio.TimerHandle | None = None  # looks for publishes that waited long enough

    def __repr__(self) -> str:
        return f"<ClientPublisher, {self.outbox!r}, {len(self._room)} waiting for room>"

    # -- in -----------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be on their way."""
        outbox = self.outbox
        return not self._room and (outbox.bytes + size <= outbox.limit or not outbox.bytes)

    def check_room(self, topic: str, size: int) -> None:
        """Raise `Full` unless `size` more bytes may be on their way."""
        if not self.has_room(size):
            raise Full(topic, OUTBOX, self.outbox.limit)

    async def room(self, topic: str, size: int) -> None:
        """Return when `size` more bytes may be on their way; first come, first served."""
        if self.has_room(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def keep() -> None:
            self.outbox.bytes += size  # until the publish runs, and takes them
            waiter.set_result(None)

        entry = self.when_room(size, keep, waiter.set_exception)
        timeout = self._link.options.timeout
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise NoAnswer(f"a publish to {topic!r} that waited for room", timeout or 0.0, self._link.state) from None
        finally:
            if entry is not None and entry in self._room:
                self._room.remove(entry)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.outbox.bytes -= size  # now it takes them, or has given up
            self._link.later(self.make_room)

    def when_room(self, size: int, go: Callable[[], None], fail: Callable[[RunnelError], None]) -> RoomWaiter | None:
        """Call `go` now if `size` more bytes may be on their way, else as soon as they may; `fail` if they never will.

        The result, if there is one, waits in line: see `no_room_wanted`.
        """
        if self.has_room(size):
            go()
            return None
        waiter = RoomWaiter(size, go, fail)
        self._room.append(waiter)
        return waiter

    def no_room_wanted(self, waiter: RoomWaiter) -> bool:
        """Leave the line; False: it had its turn."""
        if waiter not in self._room:
            return False
        self._room.remove(waiter)
        self.make_room()
        return True

    def make_room(self) -> None:
        """Let waiting publishers continue while there is room: at once, so that nothing overtakes them."""
        outbox = self.outbox
        while self._room and (outbox.bytes + self._room[0].size <= outbox.limit or not outbox.bytes):
            self._room.popleft().go()

    def gather(self, route: Route, value: bytes, columns: Columns | None) -> tuple[OutgoingBatch, int]:
        """Put one record, for which there is room, into the batch that gathers; that, and the record's index in it."""
        size = batch_cost((value,), columns)
        outgoing, is_new = self.outbox.gathering(route, size)
        index = outgoing.add(value, columns, size)
        self.outbox.bytes += size
        if is_new:
            self._link.soon()
            if self.outbox.is_full:
                self._link.at_once()
        return outgoing, index

    def add(
        self,
        route: Route,
        values: Sequence[bytes],
        columns: Columns | None,
        about: PublishDetails | None = None,
        patience: float | None = UNSAID,
    ) -> OutgoingBatch:
        """Send records in one frame of their own, with their options. A list is not copied."""
        size = batch_cost(values, columns)
        outgoing = OutgoingBatch(
            route,
            values if isinstance(values, list) else list(values),
            columns,
            size=size,
            whole=True,
            numbered=about is None or about.message_id is None,
            said=None if about is None else encode_message(about),
        )
        return self._added(outgoing, patience)

    def add_packed(
        self,
        route: Route,
        batch: bytes,
        count: int,
        about: PublishDetails | None,
        answered: Callable[[Position | RunnelError], None] | None = None,
        *,
        once: bool = False,
    ) -> OutgoingBatch:
        """Send a batch that a client packed and numbered. `answered` is called with its position or an error.

        It has no timeout.
        """
        said = None if about is None else encode_message(about)
        size = batch_weight(batch)  # as the server counts it
        outgoing = OutgoingBatch(route, [], size=size, whole=True, numbered=False, said=said, batch=batch)
        if about is not None and about.sent is not None:
            outgoing.sent_at = about.sent + self._link.skew()
        outgoing.count, outgoing.answered, outgoing.once = count, answered, once
        return self._added(outgoing, UNSAID)

    def withdraw(self, outgoing: OutgoingBatch) -> bool:
        """Cancel a batch. True: it was not sent. False: a request to cancel was sent, and `answered` is called."""
        is_back = self.outbox.take_back(outgoing)
        if is_back:
            self.make_room()
        elif outgoing.id:
            self._link.cancel(outgoing.id)
        return is_back

    def _added(self, outgoing: OutgoingBatch, patience: float | None) -> OutgoingBatch:
        outgoing.patience = patience
        self.outbox.add(outgoing)
        self._link.soon()
        if outgoing.size >= self.outbox.limit // 2:
            self._link.at_once()
        return outgoing

    # -- waiting ------------------------------------------------------------------------------------------------

    async def answer(self, outgoing: OutgoingBatch, index: int = 0) -> Position:
        """Where the record at `index` of a batch is, once the server has answered."""
        waiter = self.waiter(outgoing, index)
        try:
            return await waiter
        except asyncio.CancelledError:
            self.give_up(outgoing, waiter)
            raise

    def waiter(self, outgoing: OutgoingBatch, index: int) -> asyncio.Future[Position]:
        """A future of where the record at `index` of a batch is. If its task is cancelled, call `give_up`."""
        loop = self._link.loop
        waiter: asyncio.Future[Position] = loop.create_future()
        if not outgoing.waiters:
            outgoing.born = loop.time()  # records without a waiter may have been gathered long before
        outgoing.waiters.append([index, waiter])
        if self._timer is None:
            self._watch()
        return waiter

    def give_up(self, outgoing: OutgoingBatch, waiter: asyncio.Future[Position]) -> None:
        """The task that waited for a record was cancelled: send it no more, if that is still possible."""
        id = self.outbox.give_up(outgoing, waiter)
        if id:
            self._link.cancel(id)
        self.make_room()

    def _watch(self) -> None:
        timeout = self._link.options.timeout
        if timeout is not None:
            self._timer = self._link.loop.call_later(max(timeout / 16, 0.005), self._look)

    def _look(self) -> None:
        """Fail the publishes that have timed out. One timer for all: one for each would cost more than the publish."""
        self._timer = None
        self.outbox.seal()  # later publishes get a batch, and so a timeout, of their own
        now, default, is_awaited = self._link.now(), self._link.options.timeout, False
        for outgoing in self.outbox.unanswered():
            patience = default if outgoing.patience == UNSAID else outgoing.patience
            if patience is None or not outgoing.waiters:
                continue
            if now - outgoing.born < patience:
                is_awaited = True
                continue
            topic, state = outgoing.route.topic, self._link.state
            for _, waiter in list(outgoing.waiters):
                if not waiter.done():
                    waiter.set_exception(NoAnswer(f"a publish to {topic!r}", patience, state))
                    self.give_up(outgoing, waiter)
        if is_awaited:
            self._watch()

    # -- out and back -------------------------------------------------------------------------------------------

    def lost(self, error: Callable[[], RunnelError]) -> None:
        """The connection was lost: repeatable publishes wait for another, the rest has an unknown outcome."""
        for outgoing in self.outbox.lost():
            self._fail(outgoing, error())
        self.make_room()

    def take(self) -> list[bytes]:
        """The frames that may be sent now."""
        if not self.outbox.has_ready:
            return []
        pieces = self.outbox.take(self._link.new_id, self._link.server_time())
        if self.outbox.refusals:
            refusals, self.outbox.refusals = self.outbox.refusals, []
            for outgoing, error in refusals:
                self._fail(outgoing, error)
        return pieces

    def published(self, id: int, payload: bytes) -> None:
        """A PUBLISHED came."""
        epoch, first, _ = read_published(payload)
        outgoing = self.outbox.published(id, epoch, first)
        if outgoing is not None:
            if outgoing.answered is not None:
                outgoing.answered(Position(epoch, first))
            for index, waiter in outgoing.waiters:
                if not waiter.done():
                    waiter.set_result(Position(epoch, first + index))
            if self._room:
                self.make_room()

    def refused(self, id: int, payload: bytes) -> None:
        """An ERROR came for a publish, or for an id that is not in use any more."""
        error = read_error(payload)
        outgoing = self.outbox.refused(id, error)
        if outgoing is not None:
            self._fail(outgoing, error)
        self.make_room()

    def _fail(self, outgoing: OutgoingBatch, error: RunnelError) -> None:
        """Fail the waiting publishes; log records that no publish waits for."""
        if outgoing.answered is not None:
            outgoing.answered(error)
            return
        for _, waiter in outgoing.waiters:
            if not waiter.done():
                waiter.set_exception(_copy_error(error))
        unheard = (
            0
            if outgoing.whole and outgoing.waiters
            else max(outgoing.count, len(outgoing.values)) - len(outgoing.waiters)
        )
        if unheard > 0:
            self._link.connection.failed += unheard
            logger.error(
                "%d records published without waiting to %r were refused: %s", unheard, outgoing.route.topic, error
            )

    def end(self, error: Callable[[], RunnelError]) -> None:
        """Nothing will be sent any more: fail all that is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for outgoing in self.outbox.abandon():
            self._fail(outgoing, error())
        self.close()

    def close(self) -> None:
        """Accept no more publishes, and fail those that wait for room."""
        waiting, self._room = self._room, deque()
        for waiter in waiting:
            waiter.fail(BrokerClosed("publishing"))


def _copy_error(error: RunnelError) -> RunnelError:
    """The same error for another waiter: raised in two places, one would show the other's traceback."""
    twin = type(error).__new__(type(error))
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    return twin
