"""Four workers of one application share a folder, and are killed (-9) at random while orders come in.

`app.py` is the application; this starts it under uvicorn, posts orders, kills workers, the owner of the folder among
them, and then compares what was acknowledged with what is stored: nothing may be lost, twice there or out of order.
More of it: `python examples/workers --kills 20`.

Prints::

    killed ... workers, ... of them the owner of the folder
    an order was taken again after ... ms
    clean: ... publishes (... acknowledged, 0 failed, 0 unknown), ... deliveries to 1 subscriber
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

import runnel
from runnel.testing import History

WORKERS, CLIENTS = 4, 8
PATIENCE = 120.0


class Shop:
    """The application in its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    async def open(self) -> None:
        command = ["-m", "uvicorn", "app:app", "--app-dir", str(Path(__file__).parent), "--log-level", "critical"]
        self.master = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--workers", str(WORKERS), "--port", str(self.port)),
            env=os.environ | {"ORDERS_FOLDER": str(self.folder)},
        )

    def workers(self) -> list[int]:
        """The processes that uvicorn has started. Not its own: it starts others in their place."""
        children = Path(f"/proc/{self.master.pid}/task/{self.master.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def owner(self) -> int:
        """The process that owns the folder."""
        return int((self.folder / "LOCK").read_text().split()[0])

    async def close(self) -> None:
        self.master.send_signal(signal.SIGTERM)
        await self.master.wait()


async def order(
    shop: Shop, history: History, client: str, stop: asyncio.Event, answered: list[tuple[float, float]]
) -> None:
    """Post orders, one after the other; again what was not answered."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{shop.port}", timeout=PATIENCE) as http:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"{client}-{number}"
            while True:
                history.intend("orders", name, client)
                began = time.monotonic()
                with suppress(httpx.TransportError):
                    answer = await http.post(f"/orders/{name}")
                    answer.raise_for_status()
                    position = runnel.Position.parse(answer.json()["position"])
                    history.acknowledged("orders", name, position.epoch, position.offset)
                    answered.append((began, time.monotonic()))
                    break
                await asyncio.sleep(0.02)


async def ready(shop: Shop) -> None:
    """Return when all workers answer, and one of them owns the folder."""
    answering: set[int] = set()
    async with asyncio.timeout(PATIENCE):
        while not (workers := set(shop.workers())) <= answering or len(workers) < WORKERS:
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{shop.port}") as http:
                    answering.add((await http.get("/seen")).json()["worker"])
            await asyncio.sleep(0.01)


async def main(shop: Shop, kills: int) -> None:
    history, stop = History(), asyncio.Event()
    answered: list[tuple[float, float]] = []  # when a request began, and when it was answered
    deaths: list[float] = []  # when the owner was killed
    await shop.open()
    async with asyncio.TaskGroup() as clients:
        for n in range(CLIENTS):
            clients.create_task(order(shop, history, f"client{n}", stop, answered))
        for n in range(kills):
            await ready(shop)
            await asyncio.sleep(random.uniform(0.1, 0.5))
            owner = shop.owner()
            victim = owner if n % 2 == 0 else random.choice(shop.workers())
            if victim == owner:
                deaths.append(time.monotonic())
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        await ready(shop)
        stop.set()
    await shop.close()

    waits = [min(end for began, end in answered if began > death) - death for death in deaths]
    print(f"killed {kills} workers, {len(waits)} of them the owner of the folder")
    print(f"an order was taken again after {', '.join(f'{1000 * wait:.0f}' for wait in sorted(waits))} ms")

    async with runnel.open(shop.folder) as broker:
        end = broker.statistics().topics["orders"].end
        history.subscribed("reader", "orders", 0)
        async with broker.subscribe("orders", start="earliest", strict=True) as orders:
            async for record in orders:
                history.saw("reader", record)
                if record.offset == end - 1:
                    break
        history.ended("reader", "orders", end)
    verdict = history.check()
    print(verdict)
    verdict.raise_if_any()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill workers that share a folder.")
    parser.add_argument("--kills", type=int, default=4)
    asyncio.run(main(Shop(Path("data").absolute()), parser.parse_args().kills))
