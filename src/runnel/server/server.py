"""A server's life: its doors are opened, clients come and go, and it says goodbye before it stops.

Below: entrance, native, lines_door, http. Above: cli, place.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from runnel.broker.broker import Broker
from runnel.core.errors import NotSupported
from runnel.server import http
from runnel.server.connection import Connection
from runnel.server.entrance import DEADLINE, RETRY, Entrance
from runnel.server.native import native_door
from runnel.server.options import ServerOptions
from runnel.server.serving import Door, Serving
from runnel.server.unix_socket import UnixSocket
from runnel.surface.inherited import let_go

if TYPE_CHECKING:
    from runnel.server.http.door import HttpDoor
    from runnel.server.lines_door import LinesDoor


class Server:
    """A broker with doors. It serves while its block lasts; the broker is the caller's, before and after.

    >>> async with runnel.open("data/") as broker, Server(broker, ServerOptions(port=0)) as server:
    ...     print(server.doors[0].url)

    The broker is one of this process. Before a server elsewhere goes a `Gateway`.
    """

    def __init__(self, broker: Broker, options: ServerOptions | None = None) -> None:
        if not isinstance(broker, Broker):
            why = "it lives elsewhere; put a Gateway before that server: Gateway(url), or `runnel serve --engine URL`"
            raise NotSupported(f"serving {broker!r}", why)
        self.broker = broker
        self.options = options or ServerOptions()
        self._serving: Serving | None = None
        self._entrance: Entrance | None = None
        self._http: HttpDoor | None = None

    def __repr__(self) -> str:
        doors = ", ".join(door.url for door in self.doors) or "no doors"
        return f"<Server {doors}, {self.connections} connections>"

    @property
    def doors(self) -> list[Door]:
        """Where it can be reached: the real port where port 0 was asked for."""
        return [] if self._serving is None else self._serving.doors

    @property
    def serving(self) -> Serving | None:
        """What its doors share, once it is open."""
        return self._serving

    @property
    def connections(self) -> int:
        """How many clients are connected, at all doors."""
        return 0 if self._serving is None else len(self._serving.connections)

    async def __aenter__(self) -> Server:
        if self._serving is not None:
            raise NotSupported("starting a server twice", "make another one")
        if self.options.http_port is not None:
            http.check("the HTTP door")
        self._serving = serving = Serving(self.broker, self.options)

        def lines() -> LinesDoor:
            from runnel.server.lines_door import LinesDoor

            return LinesDoor(self.broker, self.options, serving.connections)

        if self.options.http_port is not None:
            from runnel.server.http.door import HttpDoor

            self._http = HttpDoor(serving)
        self._entrance = Entrance(self.options, serving.connections, native_door(serving), lines, self._http)
        serving.doors = self._entrance.doors
        await self._entrance.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(DEADLINE if error is None else 0.0)

    def adopt(self, file: UnixSocket) -> None:
        """Let clients in at a socket that listens already, too. It is the server's from now on, and ends with it."""
        assert self._entrance is not None, "a server that is open adopts sockets"
        self._entrance.adopt(file)

    def abandon(self) -> None:
        """In the child of a fork: have no part in the parent's sockets, so that they end with the parent."""
        peers = () if self._serving is None else self._serving.connections
        transports = [one.transport for one in peers if isinstance(one, Connection)]
        if self._http is not None:
            transports += [one.transport for one in self._http.state.connections]
        accepted = [one.get_extra_info("socket") for one in transports]
        listening = [] if self._entrance is None else self._entrance.sockets
        let_go(one.fileno() for one in (*accepted, *listening))

    async def close(self, deadline: float = DEADLINE, retry: float = RETRY) -> None:
        """Accept nobody any more, say goodbye, answer what is under way, close. A second call closes at once.

        What is not done after `deadline` seconds is cut off. Clients are asked to come back after `retry` seconds.
        """
        if self._entrance is not None:
            await self._entrance.close(deadline, "the server stops", retry)
        if self._http is not None:
            await self._http.ended()

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and come back."""
        if self._entrance is not None:
            self._entrance.abort()
