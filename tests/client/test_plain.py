"""A plain socket to a server: reached or not, in a few words."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from runnel.client.address import Address
from runnel.client.options import ClientOptions
from runnel.client.plain import dial, greeting, read_greeting, reason
from runnel.core.errors import BrokerClosed
from runnel.core.network_errors import ProtocolError, Unreachable
from runnel.wire.frame import FROM_CLIENT, PREFACE, FrameDecoder, Kind
from runnel.wire.messages import Hello, Welcome, decode, encode
from runnel.wire.trouble import trouble_of


def test_errors_are_said_in_a_few_words() -> None:
    assert reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")) == "connection refused"
    assert reason(ssl.SSLError(1, "[SSL] wrong version")) == "TLS failed: [SSL] wrong version"
    assert reason(OSError("odd")) == "odd"
    assert reason(RuntimeError()) == "RuntimeError"


def test_a_client_says_hello_with_its_name() -> None:
    decoder = FrameDecoder(kinds=FROM_CLIENT, preface=PREFACE)
    decoder.feed(greeting(ClientOptions(name="me")))
    ((kind, _, _, _, payload),) = decoder.frames()
    assert kind == Kind.HELLO
    assert decode(Hello, payload).client == "me"


def test_a_server_welcomes_refuses_or_is_no_server_of_ours() -> None:
    assert read_greeting(Kind.WELCOME, encode(Welcome(journal="j"))).journal == "j"
    with pytest.raises(BrokerClosed):
        read_greeting(Kind.ERROR, encode(trouble_of(BrokerClosed("greeting"))))
    with pytest.raises(ProtocolError, match="PONG instead of WELCOME"):
        read_greeting(Kind.PONG, b"")
    with pytest.raises(ProtocolError, match="version 9"):
        read_greeting(Kind.WELCOME, encode(Welcome(version=9)))


def test_a_socket_is_connected_by_address_or_path(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        with dial(address, ClientOptions()) as line:
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(Unreachable, match="connection refused"):
        dial(address, ClientOptions())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        dial(Address("", 0, str(tmp_path / "s")), ClientOptions()).close()
    with pytest.raises(Unreachable, match="no such file"):
        dial(Address("", 0, str(tmp_path / "none")), ClientOptions())


def test_a_server_that_does_not_speak_tls_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1], tls=True)
        with pytest.raises(Unreachable, match="no answer within"):
            dial(address, ClientOptions(connect_timeout=0.05))
