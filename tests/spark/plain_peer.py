"""A server that does what a test says, frame by frame, on plain sockets: for clients that have no event loop."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runnel.client.address import ServerAddress
from runnel.wire.frames import FROM_CLIENT, PREFACE, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import Welcome, encode_message, read_call
from tests.patience import PATIENCE


class PlainPeer:
    """Listens; each connection is accepted when the test says so."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE)
        self._callers: list[Caller] = []
        self.address = ServerAddress("127.0.0.1", self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """Close everything."""
        self.close()
        for caller in self._callers:
            caller.close()

    def accept(self, *, durable: bool = True, fsync: str = "commit") -> Caller:
        """The next connection, greeted."""
        line, _ = self._socket.accept()
        line.settimeout(PATIENCE)
        caller = Caller(line)
        self._callers.append(caller)
        assert caller.next()[0] == FrameKind.HELLO
        caller.send(FrameKind.WELCOME, 0, encode_message(Welcome(durable=durable, journal="j", fsync=fsync)))
        return caller


class Caller:
    """The server's side of one connection."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._decoder = FrameDecoder(kinds=FROM_CLIENT, preface=PREFACE)
        self._came: list[tuple[int, int, bytes]] = []

    def next(self) -> tuple[int, int, bytes]:
        """The next frame that the client sends: kind, id and payload."""
        while not self._came:
            data = self._line.recv(65536)
            assert data, "the client hung up"
            self._decoder.feed(data)
            self._came += [(kind, id, payload) for kind, _, _, id, payload in self._decoder.frames()]
        return self._came.pop(0)

    def call(self) -> tuple[int, str, dict[str, Any]]:
        """The next call: its id, method and arguments."""
        kind, id, payload = self.next()
        assert kind == FrameKind.CALL
        return id, *read_call(payload)

    def send(self, kind: int, id: int, payload: bytes = b"") -> None:
        self._line.sendall(frame(kind, id, payload))

    def reply(self, id: int, result: object) -> None:
        """Answer a call."""
        self.send(FrameKind.REPLY, id, encode_message(result))

    def close(self) -> None:
        self._line.close()


@contextmanager
def a_plain_peer() -> Iterator[PlainPeer]:
    peer = PlainPeer()
    try:
        yield peer
    finally:
        peer.hang_up()
