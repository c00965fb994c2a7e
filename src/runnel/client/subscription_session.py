"""One subscription on the connection: subscribe, resubscribe after a reconnect, unsubscribe.

`server_link` passes it the frames with its id. The base class handles SUBSCRIBED, ERROR and END; a reader, a group
member and a range reader are sessions that know what to do with records.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runnel.core.errors import BrokerClosed, InvalidOption, NameInUse, NoAnswer, RunnelError
from runnel.runtime.waiting import resolve_waiter
from runnel.wire.binary_messages import unsubscribe_frame
from runnel.wire.errors import read_error
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import Subscribe, SubscribeReply, decode_message, encode_message

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

PAUSE = 0.1  # seconds before the next request for a name that our own lost connection may still hold; doubles
PATIENCE = 4  # of the server's ping intervals, until which a lost connection is noticed


class RemoteSession(ABC):
    """One subscription on a link."""

    def __init__(self, link: ServerLink) -> None:
        self.id = 0  # set by the link, for each connection
        self.principal: str | None = None  # the server behind this one has its own logins
        self.on_presence: Callable[[], None] | None = None  # and looks after its own connections
        self.task: Any = None  # the asyncio task that reads, once it is known
        self.is_up = False  # whether it stands on the present connection
        self._link = link
        self._opened: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None  # while leaving: done when the server knows
        self._is_asked = self._has_begun = self._is_over = False  # on the present connection; ever; for good
        self._timer: asyncio.TimerHandle | None = None
        self._pause, self._late = PAUSE, 0.0

    @abstractmethod
    def asks(self) -> Subscribe:
        """The request to subscribe: at first, or again after a connection was lost. Raises if it cannot continue."""

    @abstractmethod
    def stands(self, said: SubscribeReply) -> None:
        """It stands, for the first time or again."""

    @abstractmethod
    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """A frame with records, or about records."""

    @abstractmethod
    def flush(self) -> None:
        """Send the collected frames at the end of this loop iteration."""

    @abstractmethod
    def broken(self) -> None:
        """The connection was lost; there may be another."""

    @abstractmethod
    def over(self, error: RunnelError | None) -> None:
        """Nothing comes any more: the end (None), or this is why."""

    # -- coming and going ---------------------------------------------------------------------------------------

    async def subscribe(self) -> None:
        """Subscribe; return when the subscription stands. Raises why it does not."""
        link = self._link
        link.check_usable("subscribing")
        self._opened = asyncio.get_running_loop().create_future()
        self._is_over, self._gone = False, None
        timeout = link.options.timeout
        link.attach(self)
        try:
            async with asyncio.timeout(timeout):
                await self._opened
        except BaseException as error:
            self._opened.cancel()
            self.unsubscribe(None)
            self._end(None)
            if isinstance(error, TimeoutError) and not isinstance(error, RunnelError):
                raise NoAnswer("subscribing", timeout or 0.0, link.state) from None
            raise

    def unsubscribe(self, place: int | None) -> None:
        """Reading has ended; `place`: all before it was processed. Send first what counts before."""
        if self._is_over or self._gone is not None:
            return
        if self._is_asked:
            self._link.send(unsubscribe_frame(self.id, place if self.is_up else None))
            self._gone = asyncio.get_running_loop().create_future()
        else:
            self._end(None)

    async def left(self) -> None:
        """Return when the server has ended the subscription, or there is no connection."""
        if self._gone is not None and not self._gone.done():
            await self._gone

    # -- as an owner on the link --------------------------------------------------------------------------------

    @property
    def is_left(self) -> bool:
        """Whether it was left, and the server has not answered that yet."""
        return self._gone is not None

    def connected(self) -> None:
        """There is a connection: ask."""
        try:
            asked = self.asks()
        except RunnelError as error:
            self._end(error)
            return
        self._is_asked = True
        self._link.send(frame(FrameKind.SUBSCRIBE, self.id, encode_message(asked)))

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """A frame of this subscription."""
        if kind == FrameKind.END:
            self._end(None)
        elif kind == FrameKind.ERROR:
            self._refused(read_error(payload))
        elif self._gone is not None or self._is_over:
            pass  # it was under way when the subscription was left
        elif kind == FrameKind.SUBSCRIBED:
            self.is_up, self._pause, self._late = True, PAUSE, 0.0
            self.stands(decode_message(SubscribeReply, payload))
            self._has_begun = True
            if self._opened is not None:
                resolve_waiter(self._opened)
        else:
            self.arrived(kind, flags, extra, payload)

    def lost(self) -> None:
        """The connection is lost. A session that was leaving has left."""
        self.is_up = self._is_asked = False
        if self._gone is not None:
            self._end(None)
        elif not self._is_over:
            self._stop_waiting()
            self.broken()

    def closed(self, error: RunnelError | None) -> None:
        """There will be no connection any more."""
        self._end(error)

    # -- inside -------------------------------------------------------------------------------------------------

    def _refused(self, error: RunnelError) -> None:
        """The server does not want it, or not any more."""
        if self._has_begun and not self.is_up and self._gone is None and _is_taken(error):
            # Most likely by this very subscription, on a connection that the server does not know to be lost.
            loop = asyncio.get_running_loop()
            now = loop.time()
            self._late = self._late or now + PATIENCE * self._link.welcome.ping
            if now < self._late:
                self._timer = loop.call_later(self._pause, self._ask_again)
                self._pause *= 2
                return
        self._end(error)

    def _ask_again(self) -> None:
        self._timer = None
        if not self._is_over and not self.is_up:
            self._link.detach(self)
            try:
                self._link.attach(self)  # with an id of its own
            except BrokerClosed:  # meanwhile, here: that is an end like any other
                self._end(None)
            except RunnelError as error:
                self._end(error)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: RunnelError | None) -> None:
        if self._is_over:
            return
        self._is_over, self.is_up, self._is_asked = True, False, False
        self._stop_waiting()
        self._link.detach(self)
        if self._opened is not None:
            resolve_waiter(self._opened, error or BrokerClosed("subscribing"))
        if self._gone is not None:
            resolve_waiter(self._gone)
        elif self._has_begun:
            self.over(error)


def _is_taken(error: RunnelError) -> bool:
    """Whether another subscription has the name."""
    return isinstance(error, NameInUse) or (isinstance(error, InvalidOption) and error.option == "member")
