"""A broker as a network service: its listeners, and a sub-package for each protocol they speak.

    async with runnel.open("data/") as broker, Server(broker, ServerOptions(port=0)) as server:
        print(server.listeners)

The broker may be one of another server: `runnel.open("runnel://10.0.0.7:7788")`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.server.options import ServerOptions, TlsOptions
    from runnel.server.server import Server

__all__ = ["Server", "ServerOptions", "TlsOptions"]

# Loaded when first used: reading a configuration needs only the options, owning a folder only a socket.
_HOMES = {
    "Server": "runnel.server.server",
    **dict.fromkeys(("ServerOptions", "TlsOptions"), "runnel.server.options"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
