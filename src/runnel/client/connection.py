"""One connection to one server: connect, handshake, pings, and the reason it ended.

A connection is never reused after an error: `reconnect` makes the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from runnel.client.address import ServerAddress
from runnel.client.handshake import MAX_FRAME, closed_hint, failure_reason, hello_bytes, other_protocol, read_welcome
from runnel.client.options import ClientOptions
from runnel.core.errors import ConnectionLost, RunnelError, Superseded, Unreachable
from runnel.core.replication import Generation
from runnel.runtime.loop_owner import detach_sockets
from runnel.runtime.writing import write_all
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import RECALLS, SHARED_DELIVER, Welcome

Receive = Callable[[int, int, int, int, bytes], None]

_GIVEN_UP = ConnectionLost("the server", "the client is closed")


class ClientConnection(asyncio.BufferedProtocol):
    """A connection. `receive` gets every frame after the greeting; `over` is done when it has ended, with why."""

    def __init__(
        self,
        address: ServerAddress,
        options: ClientOptions,
        receive: Receive,
        token: str = "",
        seen: Generation | None = None,
    ) -> None:
        self.address, self._token, self._seen = address, token, seen
        self.welcome = Welcome()
        self.is_writable = True
        self.on_writable: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[RunnelError | None] = self._loop.create_future()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self._options, self._receive = options, receive
        self._decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
        self._transport: asyncio.Transport | None = None
        self._error: RunnelError | None = None
        self._heard, self._asked = True, False
        self._watch: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connection to {self.address}, {'over' if self.over.done() else 'open'}>"

    @property
    def why(self) -> str:
        """Why it is over."""
        error = self.over.result() if self.over.done() and not self.over.cancelled() else self._error
        return getattr(error, "why", None) or str(error)

    # -- what asyncio calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands: greet."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._transport = transport
        transport.write(hello_bytes(self._options, [RECALLS, SHARED_DELIVER], token=self._token, seen=self._seen))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._heard = True
        try:
            only = self._decoder.received(nbytes)
            for kind, flags, extra, id, payload in self._decoder.frames(views=True) if only is None else (only,):
                if id == 0 or not self.greeted.done():
                    self._about_itself(kind, payload)
                else:
                    self._receive(kind, flags, extra, id, payload)
                if self._error is not None:
                    break
        except RunnelError as error:
            greeted = self.greeted.done()
            self.fail((None if greeted else other_protocol(str(self.address), self._decoder.unread())) or error)

    def eof_received(self) -> bool:
        """The server will send nothing more."""
        return False

    def pause_writing(self) -> None:
        """The server reads too slowly."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_writable = True
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._watch is not None:
            self._watch.cancel()
        error = self._error or ConnectionLost(str(self.address), failure_reason(exc) if exc else "the server closed it")
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # retrieved: the connecting task gets it, or was cancelled
        if not self.over.done():
            self.over.set_result(error)

    # -- the connection itself ----------------------------------------------------------------------------------

    def _about_itself(self, kind: int, payload: bytes) -> None:
        if not self.greeted.done():
            self.welcome = read_welcome(kind, payload)
            check_generation(self.welcome, self._seen)
            self._decoder.max_frame = max(self.welcome.max_frame, 1 << 20) if self.welcome.max_frame else MAX_FRAME
            self.greeted.set_result(None)
            self._watch = self._loop.call_later(self._options.ping, self._look)
        elif kind == FrameKind.PING:
            self.write([frame(FrameKind.PONG, 0, payload)])
        elif kind == FrameKind.ERROR:
            self.fail(read_error(payload))
        elif kind != FrameKind.PONG:
            self._receive(kind, 0, 0, 0, payload)

    def _look(self) -> None:
        """Whether anything was heard since the last look; if not, ask; if not even then, it is dead."""
        if self._heard:
            self._asked = False
        elif self._asked:
            self.fail(ConnectionLost(str(self.address), f"nothing was heard for {2 * self._options.ping:g} s"))
            return
        else:
            self._asked = True
            self.write([frame(FrameKind.PING, 0)])
        self._heard = False
        self._watch = self._loop.call_later(self._options.ping, self._look)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Hand over the bytes to send."""
        if self._transport is not None and not self._transport.is_closing():
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            else:
                write_all(self._transport, pieces)

    def close(self) -> None:
        """End it, after the written bytes."""
        if self._transport is not None:
            self._transport.close()

    def abandon(self) -> None:
        """In the child of a fork: it is the parent's, and ends with the parent."""
        if self._transport is not None and (sock := self._transport.get_extra_info("socket")) is not None:
            detach_sockets([sock.fileno()])

    def fail(self, error: RunnelError) -> None:
        """End it at once, because of `error`."""
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()


def check_generation(welcome: Welcome, seen: Generation | None) -> None:
    """Raise Superseded if a server is the old primary of a journal whose promoted one was seen."""
    found = welcome.generation
    if seen is None or isinstance(found, msgspec.UnsetType):
        return
    if found.origin == seen.origin and found.number < seen.number:
        raise Superseded(found.number, seen.number)


async def connect(
    address: ServerAddress, options: ClientOptions, receive: Receive, seen: Generation | None = None
) -> ClientConnection:
    """A connection that is greeted, or `Unreachable`, or the error that the server greeted with."""
    loop = asyncio.get_running_loop()
    connection: ClientConnection | None = None

    def make() -> ClientConnection:
        assert connection is not None
        return connection

    try:
        async with asyncio.timeout(options.connect_timeout):
            connection = ClientConnection(address, options, receive, await options.fetch_token(), seen)
            if address.path:
                await loop.create_unix_connection(make, address.path)
            else:
                await loop.create_connection(make, address.host, address.port, **_tls_arguments(address, options))
            await connection.greeted
    except TimeoutError:
        if connection is not None:
            connection.fail(_GIVEN_UP)
        raise Unreachable(str(address), f"no answer within {options.connect_timeout:g} s") from None
    except ConnectionLost as error:
        raise Unreachable(
            str(address), f"it was closed before the server greeted: {error.why}{closed_hint(address, options)}"
        ) from None
    except OSError as error:
        raise Unreachable(str(address), failure_reason(error)) from None
    except BaseException:
        if connection is not None:
            connection.fail(_GIVEN_UP)
        raise
    return connection


def _tls_arguments(address: ServerAddress, options: ClientOptions) -> dict[str, Any]:
    if not address.tls:
        return {}
    return {
        "ssl": options.ssl_context(),
        "server_hostname": options.server_hostname or address.host,
        "ssl_handshake_timeout": options.connect_timeout,
    }
