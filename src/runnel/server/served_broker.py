"""What all listeners of one server share: the broker, its limits, the open connections, the listeners' addresses."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.remote.publisher import RemotePublisher
from runnel.server.connections import Connections

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
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
        self.intake = RemotePublisher(broker)
        self.connections = Connections(options.max_connections)
        self.listeners: list[ListenerAddress] = []
        self.since = broker.clock.time()

    @property
    def journal(self) -> str:
        """What sequences and epochs of the broker are told from those of others by."""
        return self.broker.id

    @property
    def fsync(self) -> str | None:
        """When what was published is on disk; None: never."""
        folder = self.broker.backend.folder
        return None if folder is None else folder.options.fsync

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
