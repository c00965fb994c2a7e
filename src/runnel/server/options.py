"""The options of a server: where it listens, and how much clients may use.

Every limit has a default. Exceeding one raises `LimitExceeded`, which names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption
from runnel.wire.frames import MAX_FRAME

MIB = 1 << 20
LARGEST_PORT = 65_535
MAX_REQUEST_SECONDS = 300.0  # that a client of JSON lines or HTTP may have the server wait for replies


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server's certificate and key, and whose clients it lets in.

    - `cert`: the certificate of the server, and what it was signed by (PEM).
    - `key`: its private key (PEM).
    - `client_ca`: clients must show a certificate that this authority signed (mTLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and its limits. Sizes are in bytes, times in seconds.

    - `host`: the name or address to listen on.
    - `port`: the native listener. 0 takes any that is free: see `Server.listeners`. None: not opened.
    - `json_port`: the listener for JSON lines; None: not opened. `unix`: a socket file for the native listener.
    - `http_port`: the listener for browsers and HTTP; None: not opened. It needs `runnel-mq[server]`.
    - `nats_port`: the listener for clients of NATS; None: not opened.
    - `http_cors`: origins whose pages may use the HTTP listener, such as "https://a.example, https://b.example";
      * is any.
    - `http_hosts`: names that the HTTP listener answers to, beside addresses and localhost: "app.example,
      *.b.example"; * is any. Where it speaks TLS or is public, it answers to all unless some are named.
    - `ssl`: speak TLS at every TCP listener.
    - `auth`: a TOML file with roles and rules: peers have to log in at every listener. Tokens are beside it.
    - `insecure_public`: listen on addresses that other machines can reach, without authentication.
    - `max_connections`: clients at all listeners together. A few more are let in at the Unix socket, and to ask for
      health and metrics over HTTP.
    - `max_peer_connections`: clients of one address (IPv6: one /64 network); those of this machine are not limited by
      it. None: half of `max_connections`.
    - `max_frame`: the largest frame of the native listener. `max_line`: the longest line of JSON.
    - `max_payload`: the largest message of a NATS client, with its headers.
    - `max_subscriptions`: subscriptions open at once on one connection. One on a pattern takes about 100 bytes
      of memory for every topic that it covers.
    - `max_calls`: calls open at once on one connection.
    - `max_pending_bytes`: what one connection published and was not answered yet; beyond it, it is not read from. And
      what a NATS client may leave unread of messages on live subjects, before it is disconnected.
    - `max_held_bytes`: what all connections together may hold of messages that are not whole and of bytes that
      clients have not read; beyond it, connections that hold much are closed. None: a quarter of the memory of the
      machine or container.
    - `high_water`: what may wait to be sent on one connection; the rest waits in the log, not in memory.
    - `hello_timeout`: within it a client must have said hello: the first frame, line, message or request.
    - `frame_timeout`: within it a message that has begun must be whole: a native frame, a line of JSON, a WebSocket
      message, the body of an HTTP request.
    - `ping`: after so long a silence a client is pinged. `ping_timeout`: after so much more it is gone.
    - `idle_timeout`: after so long a silence a JSON connection without subscriptions is closed; None: never.
    - `accept_rate`: new connections a second; the others wait their turn.
    - `credit`: bytes that a subscription is sent ahead, if it does not say.
    - `max_body`: the largest body of an HTTP request; lines are taken in pieces of it.
    - `max_streams`: event streams open at once, of all connections.
    - `send_timeout`: after so long without reading anything of a response, an event stream or a WebSocket, an HTTP
      client is cut off; and a NATS client that reads nothing.
    """

    host: str = "127.0.0.1"
    port: int | None = 7788
    json_port: int | None = 7789
    http_port: int | None = None
    nats_port: int | None = None
    http_cors: str | None = None
    http_hosts: str | None = None
    unix: Path | None = None
    ssl: TlsOptions | None = None
    auth: Path | None = None
    insecure_public: bool = False
    max_connections: int = 10_000
    max_peer_connections: int | None = None
    max_frame: int = MAX_FRAME
    max_line: int = MIB
    max_payload: int = MIB
    max_subscriptions: int = 1_000
    max_calls: int = 1_000
    max_pending_bytes: int = 64 * MIB
    max_held_bytes: int | None = None
    high_water: int = MIB
    hello_timeout: float = 5.0
    frame_timeout: float = 60.0
    ping: float = 15.0
    ping_timeout: float = 15.0
    idle_timeout: float | None = 3600.0
    accept_rate: float = 1_000.0
    credit: int = MIB
    max_body: int = 16 * MIB
    max_streams: int = 10_000
    send_timeout: float = 15.0

    def __post_init__(self) -> None:
        for option in ("port", "json_port", "http_port", "nats_port"):
            port = getattr(self, option)
            if port is not None and (not _is_whole(port) or not 0 <= port <= LARGEST_PORT):
                raise InvalidOption(option, port, f"a port is a whole number from 0 (any) to {LARGEST_PORT}")
        for option in (*_SIZES, *_DERIVED):
            size = getattr(self, option)
            if option in _DERIVED and size is None:
                continue
            if not _is_whole(size) or size < 1:
                raise InvalidOption(option, size, "expected a whole number above 0")
        for option in _TIMES:
            value = getattr(self, option)
            if option == "idle_timeout" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidOption(option, value, "expected a number above 0")
        if not self.host or not isinstance(self.host, str):
            raise InvalidOption("host", self.host, "expected the name or address to listen on, such as '127.0.0.1'")
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidOption("http_cors", origin, "an origin is such as https://example.com:8443, or * for any")
        for host in self.hosts or ():
            if host != "*" and not _NAME.fullmatch(host):
                raise InvalidOption("http_hosts", host, "a name is such as app.example, *.app.example, or * for any")

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The names of `http_hosts`, one by one; None: not set."""
        return None if self.http_hosts is None else tuple(self.http_hosts.replace(",", " ").split())

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `http_cors`, one by one."""
        return tuple((self.http_cors or "").replace(",", " ").split())

    @property
    def peer_connections(self) -> int:
        """`max_peer_connections`, or what it is if it is not given."""
        return (self.max_connections + 1) // 2 if self.max_peer_connections is None else self.max_peer_connections

    def with_limits_of(self, other: ServerOptions) -> ServerOptions:
        """These options with the limits of `other`: all that a reload changes."""
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in RELOADED})

    def limits(self) -> dict[str, Any]:
        """The limits alone, by name; without those that may depend on the machine or on others."""
        return {option: getattr(self, option) for option in (*_SIZES, *_TIMES)}


_SIZES = (
    "max_connections",
    "max_frame",
    "max_line",
    "max_payload",
    "max_subscriptions",
    "max_calls",
    "max_pending_bytes",
    "high_water",
    "credit",
    "max_body",
    "max_streams",
)
_DERIVED = ("max_held_bytes", "max_peer_connections")  # None: a share of something else
_TIMES = ("hello_timeout", "frame_timeout", "ping", "ping_timeout", "idle_timeout", "accept_rate", "send_timeout")
RELOADED = (*_SIZES, *_DERIVED, *_TIMES)  # what a reload changes
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
_NAME = re.compile(r"(?:\*\.)?[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
