"""The proxy does to connections what it says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxy import Proxy, Weather


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(data)


_ends: list[asyncio.StreamWriter] = []  # of this test, to be closed


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with Proxy(server.sockets[0].getsockname()[1], random.Random(1)) as made:
        yield made
        for writer in _ends:
            writer.transport.abort()
        _ends.clear()
    server.close()
    await asyncio.sleep(0.01)  # for the sockets to be closed


async def _dial(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    _ends.append(writer)
    return reader, writer


async def _connected(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await _dial(proxy)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    return reader, writer


async def test_what_goes_in_comes_out(proxy: Proxy) -> None:
    reader, writer = await _connected(proxy)
    sent = random.Random(2).randbytes(1 << 20)
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent


async def test_a_cut_is_the_end_and_a_reset_an_error(proxy: Proxy) -> None:
    reader, _ = await _connected(proxy)
    proxy.cut(1.1, reset=False)
    assert await reader.read() == b""
    reader, _ = await _connected(proxy)
    proxy.cut(1.1, reset=True)
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_a_torn_connection_carries_a_few_bytes_more(proxy: Proxy) -> None:
    reader, writer = await _connected(proxy)
    proxy.tear(1.1)
    writer.write(b"x" * 10_000)
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_what_is_frozen_goes_on_when_it_thaws(proxy: Proxy) -> None:
    reader, writer = await _connected(proxy)
    lines = proxy.freeze(1.1, (0, 1))
    writer.write(b"later")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.05)
    proxy.thaw(lines)
    assert await reader.readexactly(5) == b"later"


async def test_the_end_of_a_half_open_connection_reaches_no_receiver(proxy: Proxy) -> None:
    reader, writer = await _connected(proxy)
    proxy.freeze(1.1, (0, 1))
    writer.write_eof()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(), 0.05)
    assert len(proxy.lines) == 1


async def test_who_is_refused_gets_in_later(proxy: Proxy) -> None:
    await proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.listen()
    await _connected(proxy)


async def test_who_is_swallowed_hears_nothing(proxy: Proxy) -> None:
    proxy.black_hole = True
    reader, writer = await _dial(proxy)
    writer.write(b"hello")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.05)


async def test_a_throttled_connection_takes_its_time(proxy: Proxy) -> None:
    reader, writer = await _connected(proxy)
    proxy.rate = 10_000
    began = asyncio.get_running_loop().time()
    writer.write(bytes(1_000))
    await reader.readexactly(1_000)
    assert asyncio.get_running_loop().time() - began > 0.08


async def test_bad_weather_brings_every_trouble_and_goes_away(proxy: Proxy) -> None:
    weather = Weather(proxy, random.Random(3), calm=0.001)
    weather.troubles = {name: lambda: asyncio.sleep(0) for name in weather.troubles}
    bad = asyncio.create_task(weather.run())
    while len(proxy.seen) < len(weather.troubles):  # noqa: ASYNC110  # there is nothing else to wait for
        await asyncio.sleep(0.001)
    bad.cancel()
    proxy.delay, proxy.rate, proxy.black_hole = 1.0, 1, True
    weather.clear()
    await _connected(proxy)
