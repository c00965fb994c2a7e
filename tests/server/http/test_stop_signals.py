"""Streams of a mounted application end when its server is told to stop, whichever server that is."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import httpx
import pytest
from websockets.asyncio.client import connect

from runnel.server.http.stop_signals import SIGNALS, ended_by_signals
from tests.patience import PATIENCE
from tests.ports import free_port

APPLICATION = "tests.server.http.mounted_application:app"
SERVERS = {
    "uvicorn": ["uvicorn", "--log-level", "error", "--port"],
    "granian": ["granian", "--interface", "asgi", "--log-level", "error", "--port"],
}
QUICKLY = 5.0  # seconds: no server waits for a timeout of its own


@pytest.mark.parametrize("server", SERVERS)
async def test_a_server_stops_at_once_though_streams_are_open(server: str) -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *SERVERS[server], str(port), APPLICATION)
    url = f"http://127.0.0.1:{port}/bus"
    try:
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as client:
            await answers(client, f"{url}/healthz", process)
            async with (
                client.stream("GET", f"{url}/events?topic=t") as events,
                client.stream("GET", f"{url}/console/updates") as figures,
                connect(f"{url}/ws".replace("http", "ws"), proxy=None) as page,
                connect(f"{url}/ws".replace("http", "ws"), proxy=None) as silent,
            ):
                await page.send('{"command": "SUB", "topic": "t"}')
                assert json.loads(await page.recv())["event"] == "subscribed"
                streams = [events.aiter_bytes(), figures.aiter_bytes()]
                for stream in streams:
                    await anext(stream)
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(QUICKLY):
                    await process.wait()
                for stream in streams:  # to the end, without an error: they were ended, and not cut off
                    async for _ in stream:
                        pass
                for one in (page, silent):
                    await one.wait_closed()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answers(client: httpx.AsyncClient, url: str, process: asyncio.subprocess.Process) -> None:
    """Return when the server is up."""
    while True:
        assert process.returncode is None, "it ended; its error stream says why"
        try:
            await client.get(url)
            return
        except httpx.TransportError:
            await asyncio.sleep(0.02)


# -- handlers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """The signals that the handlers of a server were called for."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    yield seen
    for number, one in before.items():
        assert signal.getsignal(number) is handler  # as it was
        signal.signal(number, one)


async def test_every_stream_is_ended_and_the_server_gets_its_signal(noted: list[int]) -> None:
    loop = asyncio.get_running_loop()
    ended = [loop.create_future() for _ in range(2)]
    with ended_by_signals(once(ended[0])):
        with ended_by_signals(once(ended[1])):
            signal.raise_signal(signal.SIGTERM)
            assert noted == [signal.SIGTERM]
            await asyncio.gather(*ended)
        signal.raise_signal(signal.SIGINT)
        assert noted == [signal.SIGTERM, signal.SIGINT]


async def test_a_handler_that_came_later_is_left_alone(noted: list[int]) -> None:
    with ended_by_signals(lambda: None):
        ours = signal.getsignal(signal.SIGTERM)
        later: Callable[[int, FrameType | None], None] = lambda number, frame: None  # noqa: E731
        signal.signal(signal.SIGTERM, later)
    assert signal.getsignal(signal.SIGTERM) is later
    ended = asyncio.get_running_loop().create_future()
    with ended_by_signals(once(ended)):
        signal.raise_signal(signal.SIGTERM)
        await ended
    assert callable(ours)
    signal.signal(signal.SIGTERM, ours.passed_on_to)  # type: ignore[attr-defined]


async def test_a_signal_that_ends_the_process_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with ended_by_signals(lambda: None):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_on_another_thread_there_is_nothing_to_notice() -> None:
    async def streaming() -> None:
        with ended_by_signals(lambda: None):
            await asyncio.sleep(0)

    before = [signal.getsignal(number) for number in SIGNALS]
    await asyncio.to_thread(asyncio.run, streaming())
    assert [signal.getsignal(number) for number in SIGNALS] == before


def once(future: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_result(None)
