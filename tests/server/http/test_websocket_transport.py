"""A websocket as a transport: bytes become messages and messages bytes, as fast as each side takes them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.server.http.websocket import MAX_BINARY_MESSAGE, WebSocketTransport
from runnel.wire.frames import FROM_CLIENT, PREFACE, Frame, FrameDecoder, FrameKind, frame


class Session(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")


class Browser:
    """Receives messages while it reads."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        assert message.pop("type") == "websocket.send"
        (said,) = message.values()
        self.got.append(said)


class Line:
    """The connection below, at a listener of ours."""

    def __init__(self) -> None:
        self.transport = self
        self.writable = asyncio.Event()
        self.writable.set()
        self.bursts: list[list[bytes]] = []
        self.held = 0
        self.codes: list[int] = []

    def get_write_buffer_size(self) -> int:
        return self.held

    def send_many(self, messages: Iterable[bytes], *, text: bool) -> None:
        self.bursts.append([*messages])

    def cut(self, code: int) -> None:
        self.codes.append(code)


@asynccontextmanager
async def transport(
    browser: Browser, session: Session, *, text: bool = True, patience: float = 3600.0, line: Line | None = None
) -> AsyncIterator[WebSocketTransport]:
    made = WebSocketTransport(browser.send, patience, line, lambda: 1001, {"peername": ("here", 1)})
    made.protocol, made.text = session, text
    sending = asyncio.ensure_future(made.send_all())
    try:
        yield made
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def turns(until: Callable[[], object]) -> None:
    while not until():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)


async def test_each_line_is_a_text_message() -> None:
    browser, session = Browser(), Session()
    async with transport(browser, session) as made:
        made.write(b'{"a":1}\n{"b":"\xc3\xbc"}\n')
        made.write(b"{}\n")
        await turns(lambda: len(browser.got) == 3)
        assert browser.got == ['{"a":1}', '{"b":"ü"}', "{}"]
        assert made.get_write_buffer_size() == 0


async def test_large_writes_are_cut_into_messages_that_clients_take() -> None:
    browser, session = Browser(), Session()
    data = bytes(range(256)) * (MAX_BINARY_MESSAGE // 100)
    async with transport(browser, session, text=False) as made:
        made.writelines([data, b"end"])
        await turns(lambda: not made.get_write_buffer_size())
        assert b"".join(browser.got) == data + b"end"
        assert max(map(len, browser.got)) == MAX_BINARY_MESSAGE


@pytest.mark.parametrize("own", [False, True])
async def test_a_session_is_paused_while_the_browser_does_not_read(own: bool) -> None:
    browser, session, line = Browser(), Session(), Line()
    async with transport(browser, session, line=line if own else None) as made:
        made.set_write_buffer_limits(high=100, low=20)
        browser.reads.clear()
        line.writable.clear()
        for number in range(11):
            made.write(b"%09d\n" % number)
        assert session.told == ["pause"]
        assert made.get_write_buffer_size() == 110
        browser.reads.set()
        line.writable.set()
        await turns(lambda: session.told == ["pause", "resume"])
        await turns(lambda: not made.get_write_buffer_size())
        got = [one.decode() for burst in line.bursts for one in burst] if own else browser.got
        assert got == [f"{number:09d}" for number in range(11)]
        assert len(line.bursts) == own  # with one write


async def test_at_our_own_listener_nothing_waits_that_need_not_and_nothing_overtakes() -> None:
    browser, session, line = Browser(), Session(), Line()
    async with transport(browser, session, line=line) as made:
        made.write(b"a\n")
        assert line.bursts == [[b"a"]]
        line.writable.clear()
        made.write(b"b\n")
        line.writable.set()
        made.write(b"c\n")  # b has not gone yet
        await turns(lambda: len(line.bursts) == 2)
        assert line.bursts == [[b"a"], [b"b", b"c"]]


@pytest.mark.parametrize("own", [False, True])
async def test_what_was_written_is_sent_before_it_is_closed_and_nothing_after(own: bool) -> None:
    browser, session, line = Browser(), Session(), Line()
    made = WebSocketTransport(browser.send, 3600.0, line if own else None, lambda: 1000, {})
    made.protocol, made.text = session, True
    line.writable.clear()
    made.write(b"a\nb\n")
    made.close()
    made.write(b"c\n")
    assert made.is_closing()
    line.writable.set()
    await made.send_all()
    assert browser.got == ([] if own else ["a", "b"])
    assert line.bursts == ([[b"a", b"b"]] if own else [])
    made.lost()
    assert session.told == ["lost"]


@pytest.mark.parametrize("own", [False, True])
async def test_a_browser_that_reads_nothing_is_dropped(own: bool, caplog: pytest.LogCaptureFixture) -> None:
    browser, session, line = Browser(), Session(), Line()
    browser.reads.clear()
    line.writable.clear()
    made = WebSocketTransport(browser.send, 0.05, line if own else None, lambda: 1001, {"peername": ("here", 1)})
    made.protocol, made.text = session, True
    sending = asyncio.ensure_future(made.send_all())
    made.write(b"a\n")
    with caplog.at_level("INFO", "runnel"), pytest.raises(asyncio.CancelledError):
        await sending
    assert made.aborted
    assert made.get_write_buffer_size() == 0
    assert line.codes == ([1001] if own else [])
    assert "read nothing for 0.05 s" in caplog.text
    made.abort()
    assert line.codes == ([1001] if own else [])


async def test_one_that_reads_a_little_is_not() -> None:
    class Slow(Line):
        def get_write_buffer_size(self) -> int:
            self.held -= 1  # a byte was read since it was last asked
            return self.held

    browser, session, line = Browser(), Session(), Slow()
    line.writable.clear()
    async with transport(browser, session, line=line, patience=0.01) as made:
        made.write(b"a\n")
        await turns(lambda: line.held < -20)
        assert not made.aborted


async def test_nothing_is_brought_to_a_session_that_does_not_read() -> None:
    browser, session = Browser(), Session()
    async with transport(browser, session) as made:
        made.pause_reading()
        assert not made.is_reading()
        feeding = asyncio.ensure_future(made.feed(b"line"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert session.told == []
        made.resume_reading()
        assert made.is_reading()
        await feeding
        assert session.told == [b"line"]
        made.pause_reading()
        feeding = asyncio.ensure_future(made.feed(b"late"))
        await asyncio.sleep(0)
        made.lost()
        await feeding
        assert session.told == [b"line", "lost"]


class Frames(asyncio.BufferedProtocol):
    """A session of the native kind: it may want a rest after any frame."""

    def __init__(self, rests: list[bool]) -> None:
        self.decoder = FrameDecoder(kinds=FROM_CLIENT, preface=PREFACE)
        self.got: list[Frame] = []
        self.rests = rests
        self.made: WebSocketTransport | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert self.made is not None
        assert self.made.is_reading()
        self.decoder.buffer_updated(nbytes)
        for one in self.decoder.frames():
            self.got.append(one)
            if self.rests and self.rests.pop():
                self.made.pause_reading()
                asyncio.get_running_loop().call_soon(self.made.resume_reading)


@given(
    payloads=st.lists(st.binary(max_size=64) | st.integers(5_000, 9_000).map(bytes), max_size=8),
    data=st.data(),
    rests=st.lists(st.booleans(), max_size=8),
)
def test_native_bytes_give_the_same_frames_however_messages_are_cut(
    payloads: list[bytes], data: st.DataObject, rests: list[bool]
) -> None:
    said = PREFACE + b"".join(frame(FrameKind.CALL, id, payload) for id, payload in enumerate(payloads, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=30)))
    pieces = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]

    async def fed() -> list[Frame]:
        session = Frames(rests)
        made = WebSocketTransport(Browser().send, 3600.0, None, lambda: 1000, {})
        session.made, made.protocol = made, session
        for piece in pieces:
            await made.feed(piece)
        return session.got

    got = asyncio.run(fed())
    assert [(kind, id, bytes(payload)) for kind, _, _, id, payload in got] == [
        (FrameKind.CALL, id, payload) for id, payload in enumerate(payloads, 1)
    ]


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_native_bytes_come_out_as_they_were_written(writes: list[bytes]) -> None:
    async def sent() -> list[Any]:
        browser, session = Browser(), Session()
        made = WebSocketTransport(browser.send, 3600.0, None, lambda: 1000, {})
        made.protocol = session
        for one in writes:
            made.write(one)
        made.close()
        await made.send_all()
        return browser.got

    assert b"".join(asyncio.run(sent())) == b"".join(writes)
