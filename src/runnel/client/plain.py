"""A plain socket to a server: dialled and greeted, without an event loop.

For whoever has none, or cannot wait for it; and the greeting itself, which is the same with one.
Below: wire, address. Above: connection, side; spark.line.
"""

from __future__ import annotations

import os
import socket
import ssl

from runnel.client.address import Address
from runnel.client.options import ClientOptions
from runnel.core.network_errors import ProtocolError, Unreachable
from runnel.wire.frame import PREFACE, Kind, frame
from runnel.wire.messages import VERSION, Hello, Welcome, decode, encode
from runnel.wire.trouble import read_error

MAX_FRAME = 2**31  # a server is believed, up to here: it may be told to take and send large frames


def greeting(options: ClientOptions) -> bytes:
    """The first bytes of a client."""
    hello = Hello(version=VERSION, client=options.name or "python")
    return PREFACE + frame(Kind.HELLO, 0, encode(hello))


def read_greeting(kind: int, payload: bytes) -> Welcome:
    """The server's answer to it, or the error that it answered."""
    if kind == Kind.ERROR:
        raise read_error(payload)
    if kind != Kind.WELCOME:
        raise ProtocolError(f"the server greets with {Kind(kind).name} instead of WELCOME")
    welcome = decode(Welcome, payload)
    if welcome.version != VERSION:
        raise ProtocolError(f"the server speaks version {welcome.version}, and this client {VERSION}")
    return welcome


def dial(address: Address, options: ClientOptions) -> socket.socket:
    """A socket that is connected, and speaks TLS if it is to; or `Unreachable`. Nothing is said on it yet."""
    line: socket.socket | None = None
    try:
        if address.path:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.settimeout(options.connect_timeout)
            line.connect(address.path)
            return line
        line = socket.create_connection((address.host, address.port), options.connect_timeout)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            return options.ssl_context().wrap_socket(line, server_hostname=options.server_hostname or address.host)
    except OSError as error:
        if line is not None:
            line.close()
        is_late = isinstance(error, TimeoutError)
        why = f"no answer within {options.connect_timeout:g} s" if is_late else reason(error)
        raise Unreachable(str(address), why) from None
    return line


def reason(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', None) or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()  # asyncio puts the address in its place
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
