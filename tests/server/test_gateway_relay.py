"""One client's bytes, there and back: whatever they are, and until either side ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runnel.core.errors import RunnelError, Unreachable
from runnel.server import gateway as module
from runnel.server.connections import Connections
from runnel.server.gateway import ConnectionProxy
from runnel.server.options import ServerOptions
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, FrameDecoder, FrameKind
from tests.patience import PATIENCE
from tests.server.native_client import until


class Line:
    """A relay between two socket pairs; `client` and `engine` are the far ends of them."""

    def __init__(self, gate: asyncio.Event, error: RunnelError | None) -> None:
        self.connections = Connections(10)
        self._gate, self._error = gate, error
        self._pairs = [socket.socketpair() for _ in range(2)]
        for pair in self._pairs:
            for one in pair:
                one.setblocking(False)

    async def open(self, high_water: int) -> None:
        loop = asyncio.get_running_loop()
        self.relay = ConnectionProxy(ServerOptions(high_water=high_water), self.connections, self._dial)
        (near, client), (self._far, engine) = self._pairs
        await loop.connect_accepted_socket(lambda: self.relay.near, near)
        self.client = await asyncio.open_unix_connection(sock=client)
        self.engine = await asyncio.open_unix_connection(sock=engine)

    async def _dial(self, protocol: asyncio.Protocol) -> None:
        await self._gate.wait()
        if self._error is not None:
            raise self._error
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=self._far)

    async def close(self) -> None:
        for _, writer in (self.client, self.engine):
            writer.close()
        self.relay.abort()
        await self.connections.emptied()
        for pair in self._pairs:
            for one in pair:
                one.close()


@asynccontextmanager
async def relaying(
    *, open: bool = True, error: RunnelError | None = None, high_water: int = 1 << 20
) -> AsyncIterator[tuple[Line, asyncio.Event]]:
    gate = asyncio.Event()
    if open:
        gate.set()
    line = Line(gate, error)
    await line.open(high_water)
    try:
        yield line, gate
    finally:
        await line.close()


async def test_bytes_arrive_as_they_are_in_both_directions() -> None:
    async with relaying() as (line, _):
        line.client[1].write(b"\x00anything")
        assert await line.engine[0].readexactly(9) == b"\x00anything"
        line.engine[1].write(b"\xffback")
        assert await line.client[0].readexactly(5) == b"\xffback"
        assert "connected" in repr(line.relay)


async def test_what_is_said_before_the_engine_is_there_is_kept_but_not_much_of_it() -> None:
    async with relaying(open=False) as (line, gate):
        value = b"x" * 3_000_000
        line.client[1].write(value)
        await until(lambda: line.relay._early)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(line.relay._early) <= 256 << 10
        gate.set()
        assert await line.engine[0].readexactly(len(value)) == value


async def test_an_end_is_passed_on_after_what_was_said_and_the_other_side_may_still_answer() -> None:
    async with relaying() as (line, _):
        line.client[1].write(b"last words")
        line.client[1].write_eof()
        assert await line.engine[0].read() == b"last words"
        line.engine[1].write(b"answer")
        line.engine[1].write_eof()
        assert await line.client[0].read() == b"answer"
        await line.connections.emptied()


async def test_a_side_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.05)
    async with relaying() as (line, _):
        line.client[1].write_eof()
        await line.connections.emptied()  # though the engine says nothing
        assert await line.engine[0].read() == b""


async def test_an_engine_that_is_gone_takes_its_client_with_it() -> None:
    async with relaying() as (line, _):
        line.engine[1].write(b"x" * 100_000)
        await line.engine[1].drain()
        line.engine[1].close()
        assert len(await line.client[0].read()) == 100_000
        line.client[1].close()
        await line.connections.emptied()


@pytest.mark.parametrize("hung", ["client", "engine"])
async def test_an_end_is_noticed_on_a_side_that_nobody_reads_from(monkeypatch: pytest.MonkeyPatch, hung: str) -> None:
    monkeypatch.setattr(module, "HANGUP_CHECK", 0.01)
    monkeypatch.setattr(module, "LINGER", 0.05)
    async with relaying(high_water=1024) as (line, _):
        says, silent = (line.client, line.engine) if hung == "client" else (line.engine, line.client)
        silent[1].transport.pause_reading()  # type: ignore[attr-defined]
        side = line.relay.near if hung == "client" else line.relay.far
        says[1].write(b"x" * 3_000_000)
        await until(lambda: side._held)
        says[1].transport.abort()
        async with asyncio.timeout(PATIENCE):
            await line.connections.emptied()


async def test_a_client_that_leaves_before_the_engine_is_there_ends_the_dialling() -> None:
    async with relaying(open=False) as (line, _):
        line.client[1].close()
        await line.connections.emptied()
        assert line.relay._dialing is not None
        await asyncio.wait([line.relay._dialing])
        assert line.relay._dialing.cancelled()


async def test_an_engine_that_cannot_be_reached_is_told_even_to_one_who_keeps_talking() -> None:
    async with relaying(open=False, error=Unreachable("there", "because")) as (line, gate):
        line.client[1].write(b"x" * 1_000_000)
        gate.set()
        decoder = FrameDecoder(kinds=FROM_SERVER)
        decoder.feed(await line.client[0].read())
        ((kind, _, _, id, payload),) = decoder.frames()
        assert (kind, id, str(read_error(payload))) == (FrameKind.ERROR, 0, str(Unreachable("there", "because")))


async def test_a_fault_of_ours_ends_the_connection() -> None:
    async with relaying(open=False) as (line, gate):
        line._far.close()
        gate.set()
        await line.connections.emptied()


async def test_it_stops_when_the_engine_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_PERIOD", 0.1)
    async with relaying() as (line, _):
        line.client[1].write(b"asked")
        assert await line.engine[0].readexactly(5) == b"asked"
        line.connections.drain("stop", None)
        line.client[1].write(b"too late")
        line.engine[1].write(b"answered")
        assert await line.client[0].read() == b"answered"
        assert await line.engine[0].read() == b""
        line.client[1].close()
        await line.connections.emptied()


async def test_it_can_be_looked_at() -> None:
    async with relaying() as (line, _):
        (found,) = line.connections.describe()
        assert (found["door"], found["peer"], found["unsent_bytes"]) == ("relay", "of the Unix socket", 0)
