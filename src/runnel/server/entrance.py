"""The way in: the sockets of all doors, opened together and closed together, and how those who are in are seen out.

Below: listener, unix_socket, tls, connections. Above: server, gateway.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from urllib.parse import quote

from runnel.server.connections import Connections
from runnel.server.listener import AcceptRate, Listener, bind_tcp, bind_unix
from runnel.server.options import ServerOptions
from runnel.server.serving import Door
from runnel.server.tls import server_context
from runnel.server.unix_socket import UnixSocket

DEADLINE = 10.0  # seconds that what is under way has to be answered, if nobody says
RETRY = 1.0  # seconds after which clients come back

log = logging.getLogger("runnel")

Factory = Callable[[], asyncio.BaseProtocol]  # what makes the protocol of each new connection


class Entrance:
    """The doors of one server: `native` at a TCP port and the Unix socket, `lines` and `http` at ports of their own."""

    def __init__(
        self,
        options: ServerOptions,
        connections: Connections,
        native: Factory,
        lines: Factory,
        http: Factory | None = None,
    ) -> None:
        self.doors: list[Door] = []
        self._options, self._connections = options, connections
        self._native, self._lines, self._http = native, lines, http
        self._rate = AcceptRate(options.accept_rate)
        self._listeners: list[Listener] = []
        self._files: list[UnixSocket] = []

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return [one for listener in self._listeners for one in listener.sockets]

    async def open(self) -> None:
        """Open every door that the options ask for, or none of them."""
        options = self._options
        context = None if options.ssl is None else server_context(options.ssl)
        try:
            if options.port is not None:
                scheme = "runnel" if context is None else "runnels"
                await self._open_tcp("native", scheme, options.port, self._native, context)
            if options.unix is not None:
                self.adopt(bind_unix(options.unix.absolute()))
            if options.json_port is not None:
                scheme = "tcp" if context is None else "tls"
                await self._open_tcp("json", scheme, options.json_port, self._lines, context)
            if options.http_port is not None and self._http is not None:
                scheme = "http" if context is None else "https"
                await self._open_tcp("http", scheme, options.http_port, self._http, context)
        except BaseException:
            self.stop()
            raise

    async def _open_tcp(
        self, name: str, scheme: str, port: int, factory: Factory, context: ssl.SSLContext | None
    ) -> None:
        options = self._options
        sockets = await bind_tcp(options.host, port, insecure_public=options.insecure_public)
        self._listeners.append(
            Listener(sockets, factory, self._rate, context=context, handshake_timeout=options.hello_timeout)
        )
        real = sockets[0].getsockname()[1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        self.doors.append(Door(name, f"{scheme}://{shown}:{real}", options.host, real))

    def adopt(self, file: UnixSocket) -> None:
        """Let clients in at a socket that listens already, too. It ends with the other doors."""
        self._files.append(file)
        self._listeners.append(Listener([file.socket], self._native, self._rate))
        self.doors.append(Door("unix", f"runnel+unix://{quote(str(file.path))}", str(file.path), 0))

    def stop(self) -> None:
        """Accept nobody any more. Those who are in stay."""
        for listener in self._listeners:
            listener.close()
        for file in self._files:
            file.close()
        self._listeners, self._files = [], []

    async def close(self, deadline: float, reason: str, retry: float | None) -> None:
        """Accept nobody any more, and see everybody out, within `deadline` seconds. A second call does it at once."""
        self.stop()
        connections = self._connections
        if connections.draining:
            connections.abort()
        else:
            connections.drain(reason, retry)
            try:
                async with asyncio.timeout(deadline):
                    await connections.emptied()
            except TimeoutError:
                if deadline > 0:
                    log.warning("%d connections are cut off: the server's deadline has come", len(connections))
                connections.abort()
        await connections.emptied()

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and come back."""
        self.stop()
        self._connections.draining = True
        self._connections.abort()
