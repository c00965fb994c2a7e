"""Server URLs: `runnel://host:port`, `runnels://` with TLS, `runnel+unix:///path`, options after a `?`.

A URL may list several hosts, separated by commas (`runnel://a:7788,b:7788`): the client tries them in turn.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from runnel.core.errors import BadAddress

PORT = 7788
SCHEMES = ("runnel", "runnels", "runnel+unix")


class ServerAddress(NamedTuple):
    """One server: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""
    tls: bool = False

    def __str__(self) -> str:
        if self.path:
            return f"runnel+unix://{quote(self.path)}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'runnels' if self.tls else 'runnel'}://{host}:{self.port}"


class ServerUrl(NamedTuple):
    """The contents of a url: servers, in the order in which they are tried, and options, still as text."""

    addresses: tuple[ServerAddress, ...]
    options: dict[str, str]


def parse_url(url: str) -> ServerUrl:
    """The servers and options of a url, or `BadAddress` with the error."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise BadAddress(url, f"{scheme!r} is none of the ways to reach one" if separator else "it has no '://'")
    rest, _, query = rest.partition("?")
    options = _options(url, query)
    if scheme == "runnel+unix":
        if not rest.startswith("/"):
            raise BadAddress(url, "the path of a socket begins with '/'")
        return ServerUrl((ServerAddress("", 0, unquote(rest)),), options)
    hosts = rest.removesuffix("/")
    if "/" in hosts:
        raise BadAddress(url, "a server has a host and a port, and no path")
    if "@" in hosts:
        raise BadAddress(url, "a server asks for no name or password")
    return ServerUrl(tuple(_server(url, one, tls=scheme == "runnels") for one in hosts.split(",")), options)


def _server(url: str, text: str, *, tls: bool) -> ServerAddress:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadAddress(url, "an IPv6 address stands in brackets, such as [::1]:7788")
        number = rest[1:] if rest else str(PORT)
    else:
        host, colon, number = text.partition(":")
        if not colon:
            number = str(PORT)
        if ":" in number:
            raise BadAddress(url, "an IPv6 address stands in brackets, such as [::1]:7788")
    if not host or any(character.isspace() for character in host):
        raise BadAddress(url, "a host is missing")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise BadAddress(url, f"{number!r} is not a port: 1 to 65535")
    return ServerAddress(host, int(number), tls=tls)


def _options(url: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadAddress(url, "options are written as ?name=value&name=value") from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise BadAddress(url, "an option is given twice")
    return options
