"""Server: opens the listeners of a broker, and shuts them down gracefully.

On close it accepts no new connections, tells clients goodbye, answers pending requests, then closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from runnel.core.errors import NotSupported
from runnel.runtime.loop_owner import detach_sockets
from runnel.server import http
from runnel.server.access.control import AccessControl
from runnel.server.access.files import AuthFiles
from runnel.server.connections import RECONNECT_AFTER
from runnel.server.listener import CLOSE_DEADLINE, ServerSockets, connections_allowed
from runnel.server.native.connection import NativeConnection
from runnel.server.native.session import native_listener
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ListenerAddress, ServedBroker
from runnel.server.unix_socket import UnixSocket

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.server.http.listener import HttpListener
    from runnel.server.json_lines.listener import JsonLinesListener
    from runnel.server.nats.listener import NatsListener

log = logging.getLogger("runnel")


class Server:
    """A broker with listeners. It serves while its block lasts; the broker is the caller's, before and after.

    >>> async with runnel.open("data/") as broker, Server(broker, ServerOptions(port=0)) as server:
    ...     print(server.listeners[0].url)

    The broker may be one of another server: then this one stores nothing, and any number of them can run side by side.
    While that server cannot be reached, clients are refused with `Unreachable`, and try again.

    `on_reload` is called when an administrator asks for a reload; by default `reload` is. `folder`:
    where the broker is, for `runnel doctor`.
    """

    def __init__(
        self,
        broker: Broker,
        options: ServerOptions | None = None,
        *,
        on_reload: Callable[[Server], Awaitable[None]] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.broker = broker
        self._on_reload, self._folder = on_reload, folder
        self._reloading = asyncio.Lock()
        self.options = options or ServerOptions()
        self._serving: ServedBroker | None = None
        self._sockets: ServerSockets | None = None
        self._http: HttpListener | None = None
        self._nats: NatsListener | None = None

    def __repr__(self) -> str:
        listeners = ", ".join(listener.url for listener in self.listeners) or "no listeners"
        return f"<Server {listeners}, {self.connections} connections>"

    @property
    def listeners(self) -> list[ListenerAddress]:
        """The address that it listens on: the real port where port 0 was configured."""
        return [] if self._serving is None else self._serving.listeners

    @property
    def serving(self) -> ServedBroker | None:
        """The shared state of its listeners, once it is open."""
        return self._serving

    @property
    def connections(self) -> int:
        """How many clients are connected, at all listeners."""
        return 0 if self._serving is None else len(self._serving.connections)

    async def __aenter__(self) -> Server:
        if self._serving is not None:
            raise NotSupported("starting a server twice", "make another one")
        if self.options.http_port is not None:
            http.check("the HTTP listener")
        auth = None if self.options.auth is None else AccessControl(AuthFiles(self.options.auth))
        self._serving = serving = ServedBroker(self.broker, self.options, auth, self._reload_asked)
        serving.folder = self._folder
        serving.connections.limit = connections_allowed(self.options.max_connections)

        def lines() -> JsonLinesListener:
            from runnel.server.json_lines.listener import JsonLinesListener

            return JsonLinesListener(serving)

        if self.options.http_port is not None:
            from runnel.server.http.listener import HttpListener

            self._http = HttpListener(serving)
        if self.options.nats_port is not None:
            from runnel.server.nats.listener import NatsListener

            self._nats = serving.nats = NatsListener(serving)
        self._sockets = ServerSockets(
            self.options,
            serving.connections,
            native_listener(serving),
            lines,
            self._http,
            self._nats,
            optional_certificates=auth is not None and auth.policy.certificates_are_optional,
        )
        serving.listeners = self._sockets.listeners
        if (replication := serving.backend.replication) is not None:
            replication.on_refusal(serving.end_clients)
        if auth is not None:
            await auth.start(serving.backend)  # before the first peer can connect
        try:
            await self._sockets.open()
        except BaseException:
            if auth is not None:
                await auth.stop()
            raise
        self._note_certificate(serving)
        if self._http is not None:
            self._http.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(CLOSE_DEADLINE if error is None else 0.0)

    def adopt(self, file: UnixSocket) -> None:
        """Let clients in at a socket that listens already, too. It is the server's from now on, and ends with it."""
        assert self._sockets is not None, "a server that is open adopts sockets"
        self._sockets.adopt(file)

    def abandon(self) -> None:
        """In the child of a fork: have no part in the parent's sockets, so that they end with the parent."""
        peers = () if self._serving is None else self._serving.connections
        transports = [one.transport for one in peers if isinstance(one, NativeConnection)]
        if self._http is not None:
            transports += [one.transport for one in self._http.state.connections]
        accepted = [one.get_extra_info("socket") for one in transports]
        listening = [] if self._sockets is None else self._sockets.sockets
        detach_sockets(one.fileno() for one in (*accepted, *listening))

    async def close(self, deadline: float = CLOSE_DEADLINE, retry: float = RECONNECT_AFTER) -> None:
        """Accept no more connections, say goodbye, answer calls in progress, close. A second call closes at once.

        Calls unfinished after `deadline` seconds are cut off. Clients get the request to reconnect after `retry`
        seconds.
        """
        if self._sockets is not None:
            await self._sockets.close(deadline, "the server stops", retry)
        if self._http is not None:
            await self._http.ended()
        if self._nats is not None:
            self._nats.close()
        if self._serving is not None and self._serving.auth is not None:
            await self._serving.auth.stop()

    async def reload(self, options: ServerOptions | None = None) -> None:
        """Read certificates, rules, tokens and keys again, and take the limits of `options`.

        No connection is dropped that the rules still allow. Present connections keep their certificate and limits. If
        a file is wrong, nothing changes and the error says why.
        """
        if self._serving is None or self._sockets is None:
            raise NotSupported("reload", "the server is not open")
        auth = self._serving.auth
        async with self._reloading:
            policy = None if auth is None else await auth.read()
            optional = policy is not None and policy.certificates_are_optional
            context = self._sockets.read_certificates(optional=optional)
            if auth is not None and policy is not None:
                auth.adopt(policy)
            self.options = self.options.with_limits_of(options or self.options)
            self._serving.adopt(self.options)
            self._serving.connections.limit = connections_allowed(self.options.max_connections)
            self._sockets.reload(self.options, context)
            self._note_certificate(self._serving)
            if self._http is not None:
                self._http.reload()
        log.info("certificates, limits, rules and tokens were read again")

    def _note_certificate(self, serving: ServedBroker) -> None:
        """Remember when the certificate ends that clients are shown from now on."""
        if self.options.ssl is not None:
            from runnel.observe.checkup import certificate_end

            with suppress(OSError, ValueError):  # OpenSSL reads more than we do
                serving.certificate_end = certificate_end(self.options.ssl.cert)

    async def _reload_asked(self) -> None:
        await (self.reload() if self._on_reload is None else self._on_reload(self))

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and come back."""
        if self._sockets is not None:
            self._sockets.abort()
