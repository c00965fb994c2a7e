"""Servers over one backend are restarted one after the other, and then the backend: clients lose and repeat nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import runnel
from runnel.api.broker import Broker
from runnel.server import Server, ServerOptions
from tests.patience import PATIENCE
from tests.ports import free_port

MORE = 30  # records that have to come through after each restart


class Restartable:
    """A server on a port that stays the same."""

    def __init__(self, where: Path | str) -> None:
        self._where, self.port = where, free_port()
        self._open = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"runnel://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Open the backend, and serve it."""
        broker = await self._open.enter_async_context(runnel.open(self._where))
        await self._open.enter_async_context(Server(broker, ServerOptions(port=self.port, json_port=None)))

    async def stop(self) -> None:
        """Stop it as SIGTERM does."""
        await self._open.aclose()


@asynccontextmanager
async def running(*servers: Restartable) -> AsyncIterator[None]:
    for one in servers:
        await one.start()
    try:
        yield
    finally:
        for one in reversed(servers):
            await one.stop()


async def test_clients_lose_and_repeat_nothing_while_every_server_is_restarted(tmp_path: Path) -> None:
    behind = Restartable(tmp_path / "data")
    fronts = [Restartable(behind.url), Restartable(behind.url)]
    async with asyncio.timeout(PATIENCE), running(behind, *fronts):
        addresses = ",".join([fronts[0].url, *(f"127.0.0.1:{one.port}" for one in fronts[1:])])
        async with runnel.open(addresses) as writer, runnel.open(addresses) as reader:
            published: list[int] = [0]
            seen: list[int] = []
            worked: set[int] = set()
            tasks = [
                asyncio.create_task(publish(writer, published)),
                asyncio.create_task(follow(reader, seen)),
                asyncio.create_task(work(reader, worked)),
            ]
            for one in (*fronts, behind):
                await more(seen, tasks)
                await one.stop()
                await one.start()
            await more(seen, tasks)
            last = published[0] - 1
            while len(seen) <= last or len(worked) <= last:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    assert seen == list(range(len(seen)))
    assert set(range(last + 1)) <= worked


async def publish(broker: Broker, published: list[int]) -> None:
    while True:
        await broker.publish("t", str(published[0]))
        published[0] += 1


async def follow(broker: Broker, seen: list[int]) -> None:
    async with broker.subscribe("t", start="earliest") as records:
        async for record in records:
            seen.append(int(record.value))  # noqa: PERF401 - others look at it meanwhile


async def work(broker: Broker, worked: set[int]) -> None:
    async with broker.subscribe("t", group="workers") as deliveries:
        async for delivery in deliveries:
            worked.add(int(delivery.value))
            await delivery.ack()


async def more(seen: list[int], tasks: list[asyncio.Task[None]]) -> None:
    """Wait until more came through than before; a task that ended raises its error."""
    wanted = len(seen) + MORE
    while len(seen) < wanted:
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)
