"""Connecting a plain socket, and the HELLO/WELCOME handshake, which is the same with and without an event loop.

Imports no asyncio: Spark executors load this module.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from runnel.client.address import ServerAddress
from runnel.client.options import ClientOptions
from runnel.core.errors import ProtocolError, Unreachable, WrongListener
from runnel.core.replication import Generation
from runnel.wire.errors import read_error
from runnel.wire.frames import PREFACE, FrameKind, frame
from runnel.wire.msgpack_messages import OPERATOR, PROTOCOL_VERSION, Hello, Welcome, decode_message, encode_message

_TLS_ADVICE = {
    "WRONG_VERSION_NUMBER": " (this listener does not speak TLS: use runnel:// instead of runnels://)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": " (the server asks for a client certificate: give cert and key)",
}
_NATIVE = "connect to the native one (by default port 7788)"
# How other protocols begin, which listener that is, and what to do instead.
_GREETINGS = (
    (b'{"event"', "the JSON lines listener", _NATIVE),
    (b"HTTP/", "an HTTP listener", _NATIVE),
    (b"INFO {", "a NATS listener", "open a nats:// address, or connect to the native listener"),
)
MAX_FRAME = 2**31  # a server's limit is accepted up to here: it may be configured for large frames


def hello_bytes(
    options: ClientOptions, features: Sequence[str] = (), *, token: str = "", seen: Generation | None = None
) -> bytes:
    """The first bytes of a client. `features`: what it understands beyond version 1 of the protocol.

    `seen`: the highest generation of the journal that it knows.
    """
    understood = [*features, OPERATOR] if options.operator else [*features]
    hello = Hello(
        version=PROTOCOL_VERSION, client=options.name or "python", features=understood, token=token, seen=seen
    )
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


def other_protocol(address: str, first: bytes) -> WrongListener | None:
    """The error for a listener whose first bytes are of another protocol; None: they are of none that is known."""
    for greeting, here, instead in _GREETINGS:
        if first.startswith(greeting):
            with suppress(msgspec.MsgspecError):  # the JSON lines listener of a server knows where the others are
                said = msgspec.json.decode(first.partition(b"\n")[0], type=dict[str, str])
                if said.get("code") == WrongListener.code:
                    instead = said["message"].partition("; ")[2]
            return WrongListener(f"{here} at {address}", instead)
    return None


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


def closed_hint(address: ServerAddress, options: ClientOptions) -> str:
    """The probable reason of a server that closes a new connection: it cannot send one before TLS is agreed."""
    if address.path or options.ssl is not None:
        return ""
    if not address.tls:
        return " (if this listener speaks TLS, use runnels:// instead of runnel://)"
    return "" if options.cert else " (if it asks for client certificates, give cert and key)"


def failure_reason(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or str(error)
        return f"TLS failed: {reason}{_TLS_ADVICE.get(reason, '')}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()  # asyncio puts the address in its place
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
