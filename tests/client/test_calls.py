"""Requests that get one answer."""

import asyncio

import pytest

from runnel.client.calls import ClientCalls
from runnel.core.errors import ConnectionLost, NoAnswer, RequestTimeout, UnknownTopic
from runnel.wire.errors import wire_error
from runnel.wire.frames import FROM_CLIENT, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import encode_message


class Line:
    """A link of which only what calls need is there."""

    def __init__(self) -> None:
        self.state, self.sent, self._last = "connected", bytearray(), 0
        self.connection = type("State", (), {"error": None})
        self.calls = ClientCalls(self)  # type: ignore[arg-type]

    def new_id(self) -> int:
        self._last += 1
        return self._last

    def send(self, frame: bytes) -> None:
        self.sent += frame

    def frames(self) -> list[tuple[int, int, bytes]]:
        decoder = FrameDecoder(kinds=FROM_CLIENT)
        decoder.feed(self.sent)
        self.sent.clear()
        return [(kind, id, payload) for kind, _, _, id, payload in decoder.frames()]

    def ask(self, payload: bytes, *, again: bool = True, timeout: float | None = None) -> "asyncio.Task[bytes]":
        return asyncio.create_task(self.calls.request("it", FrameKind.CALL, payload, again=again, timeout=timeout))


async def test_answers_find_those_who_asked_in_any_order() -> None:
    line = Line()
    one, two = line.ask(b"1"), line.ask(b"2")
    await asyncio.sleep(0)
    assert line.frames() == [(FrameKind.CALL, 1, b"1"), (FrameKind.CALL, 2, b"2")]
    assert line.calls.answered(FrameKind.REPLY, 2, b"two")
    assert line.calls.answered(FrameKind.ERROR, 1, encode_message(wire_error(UnknownTopic("a"))))
    assert not line.calls.answered(FrameKind.REPLY, 2, b"again")
    assert await two == b"two"
    with pytest.raises(UnknownTopic):
        await one
    assert not line.calls
    assert line.frames() == []  # what is answered is not cancelled


async def test_a_call_without_a_waiter_is_cancelled() -> None:
    line = Line()
    asking = line.ask(b"1")
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert [kind for kind, *_ in line.frames()] == [FrameKind.CALL, FrameKind.CANCEL]
    with pytest.raises(NoAnswer, match="it within"):
        await line.ask(b"2", timeout=0.001)
    assert not line.calls


async def test_a_timeout_of_the_server_is_the_servers() -> None:
    line = Line()
    asking = line.ask(b"1", timeout=5)
    await asyncio.sleep(0)
    line.calls.answered(FrameKind.ERROR, 1, encode_message(wire_error(RequestTimeout("a", 3.0))))
    with pytest.raises(RequestTimeout):
        await asking


async def test_without_a_connection_they_wait_for_one() -> None:
    line = Line()
    line.state = "reconnecting"
    asking, given_up = line.ask(b"1"), line.ask(b"2")
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    assert line.frames() == []
    line.state = "connected"
    line.calls.connected()
    assert line.frames() == [(FrameKind.CALL, 1, b"1")]
    line.calls.answered(FrameKind.REPLY, 1, b"")
    assert await asking == b""


async def test_a_lost_connection_fails_only_what_may_not_be_sent_again() -> None:
    line = Line()
    safe, unsafe = line.ask(b"1"), line.ask(b"2", again=False)
    await asyncio.sleep(0)
    line.frames()
    line.calls.lost(lambda: ConnectionLost("there", "cut"))
    with pytest.raises(ConnectionLost):
        await unsafe
    line.calls.connected()
    assert line.frames() == [(FrameKind.CALL, 3, b"1")]
    line.calls.end(lambda: ConnectionLost("there", "over"))
    with pytest.raises(ConnectionLost, match="over"):
        await safe
    assert len(line.calls) == 0
