"""What all doors of a server share.

Below: connections, options, broker. Above: every door.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.broker.intake import Intake
from runnel.server.connections import Connections

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.server.options import ServerOptions


class Door(NamedTuple):
    """A way in: what is spoken there, and its address."""

    name: str
    url: str
    host: str
    port: int  # 0: it has none, being a file


class Serving:
    """A broker being served: its limits, who is connected, and where."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self.broker, self.options = broker, options
        self.version = version("runnel")
        self.intake = Intake(broker)
        self.connections = Connections(options.max_connections)
        self.doors: list[Door] = []
        self.since = broker.clock.time()

    @property
    def journal(self) -> str:
        """What sequences and epochs of the broker are told from those of others by."""
        return self.broker.id

    @property
    def fsync(self) -> str | None:
        """When what was published is on disk; None: never."""
        folder = self.broker._folder
        return None if folder is None else folder.options.fsync

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know first."""
        return {
            "version": self.version,
            "uptime": self.broker.clock.time() - self.since,
            "doors": [{"name": door.name, "url": door.url} for door in self.doors],
            "journal": self.journal,
            "fsync": self.fsync,
            "limits": self.options.limits(),
            "connections": len(self.connections),
        }
