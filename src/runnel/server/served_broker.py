"""The shared state of all listeners of one server: the broker, its limits, connections, the listeners' addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from runnel.api.broker import Broker
from runnel.api.presence import PresenceWatches
from runnel.core.errors import NotPrimary, RunnelError, StandbyMissing, Superseded, Unreachable, WrongListener
from runnel.security.principal import ConsoleRole
from runnel.server.access.guard import GuardedBackend
from runnel.server.connections import Connections
from runnel.server.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from runnel.core.backend import Backend, PackedPublisher
    from runnel.server.access.access import Access
    from runnel.server.access.control import AccessControl
    from runnel.server.options import ServerOptions


LISTENER_TITLES = {
    "native": "the native listener",
    "json": "the JSON lines listener",
    "http": "the HTTP listener",
    "nats": "the NATS listener",
}
_HTTP_VERBS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


class ListenerAddress(NamedTuple):
    """Where a listener can be reached: its protocol's name, URL, host and port."""

    name: str
    url: str
    host: str
    port: int  # 0: a Unix socket


class ListenerFigures(Protocol):
    """A listener that counts what passes through it."""

    def figures(self) -> dict[str, int]:
        """Connections, subscriptions, messages and bytes in and out, as `/varz` names them."""


class ServedBroker:
    """A broker that is being served: its limits, connections and listeners."""

    def __init__(
        self,
        broker: Broker,
        options: ServerOptions,
        auth: AccessControl | None = None,
        reload: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.broker, self.options = broker, options
        self.reload = reload  # reads the settings that can change while it serves again; None: there are none
        self.folder: Path | None = None  # of the broker, if it is known here: `runnel doctor` looks at its disk
        self.auth = auth  # None: authentication is off, and every peer may do everything
        self.access: Access | None = None  # the peer that it is served to: see `guarded`
        self.version = version("runnel-mq")
        self.connections = Connections(options.max_connections, options.peer_connections)
        self.memory = MemoryBudget(options.max_held_bytes)
        self.listeners: list[ListenerAddress] = []
        self.nats: ListenerFigures | None = None  # the NATS listener, if it is open
        self.certificate_end: float | None = None  # when the one that clients are shown ends; None: there is none
        self.since = broker.clock.time()
        self.watches = PresenceWatches(lambda: self.backend)  # one look at a topic serves all clients that watch it

    def adopt(self, options: ServerOptions) -> None:
        """Use the limits of `options` for connections and requests that come from now on. Present ones keep theirs."""
        self.options = options
        self.connections.limit, self.connections.per_address = options.max_connections, options.peer_connections
        self.memory.adopt(options.max_held_bytes)

    def guarded(self, access: Access) -> ServedBroker:
        """The same for one peer that has logged in: its broker allows what the peer may do, and nothing else."""
        found = copy(self)
        vars(found).pop("publisher", None)
        found.access = access
        found.broker = Broker(GuardedBackend(self.backend, access, lambda: self.publisher))
        return found

    @property
    def backend(self) -> Backend:
        """The backend of the broker."""
        backend: Backend = self.broker.backend
        return backend

    @cached_property
    def publisher(self) -> PackedPublisher:
        """The publisher of packed batches, one for all listeners."""
        return self.backend.packed_publisher()

    @property
    def journal(self) -> str:
        """The id of the broker, to which its sequences and epochs belong."""
        return self.broker.id

    @property
    def fsync(self) -> str | None:
        """The `fsync` option of the journal; None: there is no journal."""
        return self.backend.fsync

    def refusal(self) -> RunnelError | None:
        """Why no client can be served now; None: they can.

        The server behind this gateway cannot be reached, or this is a standby, or a primary that may not continue
        alone.
        """
        try:
            self.backend.check_ready("serving")
        except Unreachable as error:
            if self.auth is not None and self.access is None:  # who has not logged in learns no address
                return Unreachable("the backend of this server", "it cannot be reached now")
            return error
        except NotPrimary as error:
            return NotPrimary("another server") if self.auth is not None and self.access is None else error
        except (StandbyMissing, Superseded) as error:
            return error
        except RunnelError:
            return None  # requests of clients raise it
        return None

    def end_clients(self) -> None:
        """Close all connections without an error: clients send unanswered requests to the next server."""
        for peer in self.connections.clients():
            peer.abort()

    def wrong_listener(self, here: str, wanted: str) -> WrongListener:
        """The answer to a client of the listener `wanted` that connected to the listener `here`."""
        title, found = LISTENER_TITLES[wanted], next((one.url for one in self.listeners if one.name == wanted), None)
        if self.auth is not None:  # a peer that has not logged in learns no address
            instead = f"connect to {title}"
        else:
            instead = f"{title} is off on this server" if found is None else f"{title} is at {found}"
        return WrongListener(f"{LISTENER_TITLES[here]} of runnel", instead)

    def describe(self) -> dict[str, Any]:
        """The result of the call `info`. A peer that may not look at the server sees no more than its limits."""
        if self.access is not None and self.access.principal.console < ConsoleRole.VIEWER:
            return {"version": self.version, "limits": self.options.limits()}
        return {
            "version": self.version,
            "uptime": self.broker.clock.time() - self.since,
            "listeners": [{"name": listener.name, "url": listener.url} for listener in self.listeners],
            "journal": self.journal,
            "fsync": self.fsync,
            "limits": self.options.limits(),
            "connections": len(self.connections),
        }


def is_http(first: bytes) -> bool:
    """Whether the first four bytes of a connection, or as many as came, can be those of an HTTP request."""
    return any(verb.startswith(first[:4]) for verb in _HTTP_VERBS)


def http_refusal(error: RunnelError) -> bytes:
    """The answer to an HTTP request on a listener that does not speak HTTP."""
    text = f"{error}\n"
    head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()
