"""What all listeners of one server share: the broker, its limits, the open connections, the listeners' addresses."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.core.errors import RunnelError, Unreachable
from runnel.server.connections import Connections

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.core.backend import Backend, PackedPublisher
    from runnel.server.options import ServerOptions


class ListenerAddress(NamedTuple):
    """Where a listener can be reached: its protocol's name, URL, host and port."""

    name: str
    url: str
    host: str
    port: int  # 0: it has none, being a file


class ServedBroker:
    """A broker that is being served: its limits, connections and listeners."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self.broker, self.options = broker, options
        self.version = version("runnel-mq")
        self.connections = Connections(options.max_connections)
        self.listeners: list[ListenerAddress] = []
        self.since = broker.clock.time()

    @property
    def backend(self) -> Backend:
        """Where its topics live."""
        backend: Backend = self.broker.backend
        return backend

    @cached_property
    def publisher(self) -> PackedPublisher:
        """What packed batches are published with; one for all listeners."""
        return self.backend.packed_publisher()

    @property
    def journal(self) -> str:
        """What sequences and epochs of the broker are told from those of others by."""
        return self.broker.id

    @property
    def fsync(self) -> str | None:
        """When what was published is on disk; None: never."""
        return self.backend.fsync

    def refusal(self) -> RunnelError | None:
        """Why no client can be served now: the server that has the topics cannot be reached; None: they can be."""
        try:
            self.backend.check_ready("serving")
        except Unreachable as error:
            return error
        except RunnelError:
            return None  # what a client asks for says so
        return None

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know first."""
        return {
            "version": self.version,
            "uptime": self.broker.clock.time() - self.since,
            "doors": [{"name": listener.name, "url": listener.url} for listener in self.listeners],
            "journal": self.journal,
            "fsync": self.fsync,
            "limits": self.options.limits(),
            "connections": len(self.connections),
        }
