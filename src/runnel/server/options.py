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

    - `cert`: the certificate of the server, with its chain (PEM).
    - `key`: its private key (PEM).
    - `client_ca`: clients must show a certificate that this authority signed (mTLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and its limits. Sizes are in bytes, times in seconds.

    - `host`: the name or address to listen on.
    - `port`: the native listener. 0 takes any free port: see `Server.listeners`. None: not opened.
    - `json_port`: the listener for JSON lines; None: not opened. `unix`: a socket file for the native listener.
    - `http_port`: the listener for browsers and HTTP; None: not opened. It needs `runnel-mq[server]`.
    - `nats_port`: the listener for clients of NATS; None: not opened.
    - `http_cors`: origins whose pages may use the HTTP listener, such as "https://a.example, https://b.example";
      * is any.
    - `http_hosts`: host names that the HTTP listener accepts, besides addresses and localhost: "app.example,
      *.b.example"; * is any. With TLS, or on a public address, it accepts all unless some are named.
    - `ssl`: use TLS at every TCP listener.
    - `auth`: a TOML file with roles and rules; clients must log in at every listener. Tokens are stored beside it.
    - `insecure_public`: listen on addresses that other machines can reach, without authentication.
    - `max_connections`: open connections of all listeners together. A few more are accepted at the Unix socket, and
      for health checks and metrics over HTTP.
    - `max_peer_connections`: connections of one address (IPv6: one /64 network), except addresses of this machine.
      None: half of `max_connections`.
    - `max_frame`: the largest frame of the native listener. `max_line`: the longest line of JSON.
    - `max_payload`: the largest message of a NATS client, with its headers.
    - `max_subscriptions`: open subscriptions of one connection. One on a pattern takes about 100 bytes of memory for
      every topic that it covers.
    - `max_calls`: open calls of one connection.
    - `max_pending_bytes`: unanswered publishes of one connection; beyond it the server stops reading from the
      connection. Also unread messages on live subjects of a NATS client, before it is disconnected.
    - `max_held_bytes`: incomplete messages and unread output of all connections together; beyond it the server closes
      connections that hold much. None: a quarter of the memory of the machine or container.
    - `high_water`: output of one connection that waits to be sent; further records wait in the log, not in memory.
    - `hello_timeout`: time for the first complete frame, line, message or request of a client.
    - `frame_timeout`: time for a message to arrive completely: a native frame, a line of JSON, a WebSocket message,
      the body of an HTTP request.
    - `ping`: silence after which a client is pinged. `ping_timeout`: further silence after which its connection ends.
    - `idle_timeout`: silence after which a JSON connection without subscriptions is closed; None: never.
    - `accept_rate`: new connections accepted in a second; the others wait.
    - `credit`: bytes sent ahead to a subscription that does not set it.
    - `max_body`: the largest body of an HTTP request; longer ones of many lines are stored in parts of this size.
    - `max_streams`: open event streams of all connections together.
    - `send_timeout`: time after which an HTTP or NATS client that reads nothing is disconnected.
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
