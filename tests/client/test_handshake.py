"""The handshake over a plain socket: a server is reached or not, in a few words."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from runnel.client.address import ServerAddress
from runnel.client.handshake import connect_socket, failure_reason, hello_bytes, read_welcome
from runnel.client.options import ClientOptions
from runnel.core.errors import BrokerClosed, ProtocolError, Unreachable
from runnel.wire.errors import wire_error
from runnel.wire.frames import FROM_CLIENT, PREFACE, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import Hello, Welcome, decode_message, encode_message


def test_errors_are_said_in_a_few_words() -> None:
    assert failure_reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")) == "connection refused"
    assert failure_reason(ssl.SSLError(1, "[SSL] wrong version")) == "TLS failed: [SSL] wrong version"
    assert failure_reason(OSError("odd")) == "odd"
    assert failure_reason(RuntimeError()) == "RuntimeError"


def test_a_client_says_hello_with_its_name() -> None:
    decoder = FrameDecoder(kinds=FROM_CLIENT, preface=PREFACE)
    decoder.feed(hello_bytes(ClientOptions(name="me")))
    ((kind, _, _, _, payload),) = decoder.frames()
    assert kind == FrameKind.HELLO
    assert decode_message(Hello, payload).client == "me"


def test_a_server_welcomes_refuses_or_is_no_server_of_ours() -> None:
    assert read_welcome(FrameKind.WELCOME, encode_message(Welcome(journal="j"))).journal == "j"
    with pytest.raises(BrokerClosed):
        read_welcome(FrameKind.ERROR, encode_message(wire_error(BrokerClosed("greeting"))))
    with pytest.raises(ProtocolError, match="PONG instead of WELCOME"):
        read_welcome(FrameKind.PONG, b"")
    with pytest.raises(ProtocolError, match="version 9"):
        read_welcome(FrameKind.WELCOME, encode_message(Welcome(version=9)))


def test_a_socket_is_connected_by_address_or_path(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ServerAddress("127.0.0.1", server.getsockname()[1])
        with connect_socket(address, ClientOptions()) as line:
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(Unreachable, match="connection refused"):
        connect_socket(address, ClientOptions())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        connect_socket(ServerAddress("", 0, str(tmp_path / "s")), ClientOptions()).close()
    with pytest.raises(Unreachable, match="no such file"):
        connect_socket(ServerAddress("", 0, str(tmp_path / "none")), ClientOptions())


def test_a_server_that_does_not_speak_tls_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ServerAddress("127.0.0.1", server.getsockname()[1], tls=True)
        with pytest.raises(Unreachable, match="no answer within"):
            connect_socket(address, ClientOptions(connect_timeout=0.05))
