"""Connecting a plain socket, and the HELLO/WELCOME handshake, which is the same with and without an event loop.

Imports no asyncio: Spark executors load this module.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence

from runnel.client.address import ServerAddress
from runnel.client.options import ClientOptions
from runnel.core.errors import ProtocolError, Unreachable
from runnel.wire.errors import read_error
from runnel.wire.frames import PREFACE, FrameKind, frame
from runnel.wire.msgpack_messages import PROTOCOL_VERSION, Hello, Welcome, decode_message, encode_message

MAX_FRAME = 2**31  # a server's limit is accepted up to here: it may be configured for large frames


def hello_bytes(options: ClientOptions, features: Sequence[str] = (), *, token: str = "") -> bytes:
    """The first bytes of a client. `features`: what it understands beyond version 1 of the protocol."""
    hello = Hello(version=PROTOCOL_VERSION, client=options.name or "python", features=[*features], token=token)
    return PREFACE + frame(FrameKind.HELLO, 0, encode_message(hello))


def read_welcome(kind: int, payload: bytes) -> Welcome:
    """The server's answer to it, or the error that it answered."""
    if kind == FrameKind.ERROR:
        raise read_error(payload)
    if kind != FrameKind.WELCOME:
        raise ProtocolError(f"the server greets with {FrameKind(kind).name} instead of WELCOME")
    welcome = decode_message(Welcome, payload)
    if welcome.version != PROTOCOL_VERSION:
        raise ProtocolError(f"the server speaks version {welcome.version}, and this client {PROTOCOL_VERSION}")
    return welcome


def connect_socket(address: ServerAddress, options: ClientOptions) -> socket.socket:
    """A socket that is connected, and speaks TLS if it is to; or `Unreachable`. Nothing is said on it yet."""
    sock: socket.socket | None = None
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(options.connect_timeout)
            sock.connect(address.path)
            return sock
        sock = socket.create_connection((address.host, address.port), options.connect_timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            return options.ssl_context().wrap_socket(sock, server_hostname=options.server_hostname or address.host)
    except OSError as error:
        if sock is not None:
            sock.close()
        is_late = isinstance(error, TimeoutError)
        why = f"no answer within {options.connect_timeout:g} s" if is_late else failure_reason(error)
        raise Unreachable(str(address), why) from None
    return sock


def failure_reason(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', None) or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()  # asyncio puts the address in its place
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
