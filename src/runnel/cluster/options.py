"""Addresses of a cluster, `nats://user:password@a:4222,b:4222,c:4222`, and the options of its backend.

Options are keywords of `runnel.open`, or stand in the address behind a `?`; a keyword wins. A password, or a token in
place of the user, is %-decoded. Several servers are tried in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from runnel.core.errors import BadAddress, InvalidOption
from runnel.core.options import positive, unknown_option
from runnel.runtime.connection_options import (
    SECRETS,
    check_together,
    checked,
    context,
    seconds,
    text,
    tls_context,
    yes_or_no,
)
from runnel.wire.nats_auth import Nkey, read_creds

PORT = 4222
SCHEMES = ("nats", "tls")


class NatsAddress(NamedTuple):
    """One server of a cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"nats://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class NatsUrl(NamedTuple):
    """The contents of an address: servers in the order in which they are tried, and options."""

    servers: tuple[NatsAddress, ...]
    options: dict[str, Any]


def parse_url(url: str) -> NatsUrl:
    """The servers and options of an address, or `BadAddress` with the error."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise BadAddress(_hidden(url), "the address of a cluster begins with nats:// or tls://")
    rest, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadAddress(_hidden(url), "options are written as ?name=value&name=value") from None
    options: dict[str, Any] = {name: _read(name, text) for name, text in pairs}
    if scheme == "tls":
        options.setdefault("tls", True)
    servers: list[NatsAddress] = []
    for one in rest.removesuffix("/").split(","):
        one = one.strip().removeprefix("nats://").removeprefix("tls://")
        user, at, host = one.rpartition("@")
        if at:
            name, colon, password = user.partition(":")
            said = {"user": unquote(name), "password": unquote(password)} if colon else {"token": unquote(name)}
            if any(options.get(key, value) != value for key, value in said.items()):
                raise BadAddress(_hidden(url), "two servers with different users; give one user for all of them")
            options.update(said)
        servers.append(parse_server(host, _hidden(url)))
    return NatsUrl(tuple(servers), options)


def parse_server(text: str, url: str) -> NatsAddress:
    """The server `host:port`, or `BadAddress`."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        number = rest.removeprefix(":")
    else:
        host, _, number = text.partition(":")
    number = number or str(PORT)
    if not host or any(character.isspace() or character in "/@" for character in host):
        raise BadAddress(url, "a host is missing")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise BadAddress(url, f"{number!r} is not a port: 1 to 65535 (an IPv6 address stands in brackets)")
    return NatsAddress(host, int(number))


def _hidden(url: str) -> str:
    """The address without its password, for errors."""
    scheme, separator, rest = url.partition("://")
    hosts = ",".join(one.rpartition("@")[2] for one in rest.partition("?")[0].split(","))
    return f"{scheme}{separator}{hosts}"


# -- options ---------------------------------------------------------------------------------------------


def _window(option: str, value: Any) -> float:
    if seconds(option, value) > MAX_TIMEOUT:
        raise InvalidOption(option, value, f"at most {MAX_TIMEOUT:g}: duplicates are known for two minutes")
    return float(value)


def _stream(option: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.replace("_", "").replace("-", "").isalnum():
        raise InvalidOption(option, value, "the name of a stream is letters, digits, '-' and '_'")
    return value


def _replicas(option: str, value: Any) -> int | None:
    if value is not None and value not in (1, 3, 5):
        raise InvalidOption(option, value, "expected 1, 3 or 5")
    return value  # type: ignore[no-any-return]


MAX_TIMEOUT = 100.0

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "stream": _stream,
    "replicas": _replicas,
    "timeout": _window,
    "connect_timeout": seconds,
    "wait": seconds,
    "close_timeout": seconds,
    "max_pending_bytes": positive,
    "credit": positive,
    "backoff_min": seconds,
    "backoff_max": seconds,
    "ping": seconds,
    "name": text,
    "user": text,
    "password": text,
    "token": text,
    "nkey": text,
    "creds": text,
    "tls": yes_or_no,
    "handshake_first": yes_or_no,
    "ssl": context,
    "ca": text,
    "cert": text,
    "key": text,
    "server_hostname": text,
    "verify": yes_or_no,
    "monitor": text,
}


class ClusterOptions(msgspec.Struct, frozen=True):
    """How the backend of a cluster behaves. Times are in seconds.

    - `stream`: the name of the JetStream stream that holds all topics; `replicas`: of a stream that is made now (3 in a
      cluster, 1 on a single server).
    - `timeout`: how long a publish or a call is repeated until its outcome is known; then `OutcomeUnknown` or
      `NoAnswer`. At most 100: the cluster knows duplicates for 120 seconds.
    - `connect_timeout`: how long one server may take to accept a connection and greet; `wait`: for how long to retry at
      the beginning, when no server can be reached.
    - `close_timeout`: how long leaving the block waits for what was published to be answered.
    - `max_pending_bytes`: how much may be on its way; then `publish` waits and `publish_nowait` raises `Full`.
    - `credit`: how many bytes of records are read ahead for each subscription.
    - `backoff_min`, `backoff_max`: the pause before each round through the servers, doubled each time and random.
    - `ping`: after so much silence a server gets a ping; after twice that another one is tried.
    - `name`: what the server calls this client.
    - `user` and `password`, `token`, `nkey` (a seed, or the path of a file with one), `creds` (the path of a .creds
      file): who it is.
    - `tls=True`: TLS even if the server does not ask for it; `handshake_first`: before the server's greeting. `ca`,
      `cert` and `key` (the client's certificate), `server_hostname`, `verify=False`, or a whole `ssl` context.
    - `monitor`: the monitoring address of a server, such as `http://a:8222`: at the beginning it shows whether the
      cluster syncs every write to disk.
    """

    stream: str = "RUNNEL"
    replicas: int | None = None
    timeout: float = 30.0
    connect_timeout: float = 2.0
    wait: float = 10.0
    close_timeout: float = 5.0
    max_pending_bytes: int = 64 * 1024 * 1024
    credit: int = 4 * 1024 * 1024
    backoff_min: float = 0.05
    backoff_max: float = 2.0
    ping: float = 2.0
    name: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey: str | None = None
    creds: str | None = None
    tls: bool = False
    handshake_first: bool = False
    ssl: SSLContext | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_hostname: str | None = None
    verify: bool = True
    monitor: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], written: Mapping[str, Any] | None = None) -> ClusterOptions:
        """The options that were given, and those written in the address, which count less."""
        said = {**(written or {}), **given}
        for name, value in said.items():
            _known(name, value)
        options = cls(**checked(said, _CHECKS))
        check_together(options)
        if sum(way is not None for way in (options.user, options.token, options.nkey, options.creds)) > 1:
            raise InvalidOption("user", "...", "give one of user, token, nkey and creds")
        return options

    @property
    def wants_tls(self) -> bool:
        """Whether the connection is encrypted even if the server does not ask for it."""
        return self.tls or self.handshake_first or self.ssl is not None or self.ca is not None or self.cert is not None

    def ssl_context(self) -> SSLContext:
        """The TLS context, where there is TLS."""
        return tls_context(self)

    def credentials(self, nonce: str | None) -> dict[str, str]:
        """The credentials for CONNECT; `nonce` is the server's, to be signed."""
        if self.user is not None:
            return {"user": self.user, "pass": self.password or ""}
        if self.token is not None:
            return {"auth_token": self.token}
        if self.creds is not None:
            token, key = read_creds(_file("creds", self.creds))
            return {"jwt": token, "sig": key.signature(nonce or "")}
        if self.nkey is not None:
            key = Nkey(self.nkey if self.nkey.startswith("S") and len(self.nkey) == 58 else _file("nkey", self.nkey))
            return {"nkey": key.public, "sig": key.signature(nonce or "")}
        return {}


def _file(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(option, path, f"the file cannot be read: {error}") from None


def _known(name: str, value: object) -> None:
    if name not in _CHECKS:
        raise unknown_option("a cluster", name, "..." if name in SECRETS else value, tuple(_CHECKS))


def _read(name: str, said: str) -> Any:
    """An option from the text of an address."""
    _known(name, said)
    if name == "ssl":
        raise InvalidOption(name, said, "it cannot be written in an address")
    if _CHECKS[name] in (text, _stream):
        return said
    for word, value in (("true", True), ("false", False)):
        if said.lower() == word:
            return value
    try:
        return int(said) if said.isdigit() else float(said)
    except ValueError:
        raise InvalidOption(name, said, "expected a number, true or false") from None
