"""A server in a thread of its own, with something of everything in it: topics, keys, groups, letters that died."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import runnel
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.patience import PATIENCE


@contextmanager
def live_server() -> Iterator[str]:
    """The address of its HTTP door."""
    urls: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        try:
            options = ServerOptions(port=None, json_port=None, http_port=0)
            async with runnel.open() as broker, Server(broker, options) as server:
                await _fill(broker)
                urls.append(server.listeners[0].url)
                ready.set()
                await asyncio.to_thread(over.wait)
                await server.close(0)
        finally:
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="live server")
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        (url,) = urls
        yield url
    finally:
        over.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def _fill(broker: runnel.Broker) -> None:
    for topic in ("orders", "jobs.1", "0"):
        for number in range(3):
            await broker.publish(topic, b"\xff" * number, key=str(number), headers={"shop": "eu"})
    async with broker.subscribe("orders", group="billing", start="earliest") as deliveries:
        async for delivery in deliveries:
            await delivery.reject("no such shop")
            break
