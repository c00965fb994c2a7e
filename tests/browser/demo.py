"""A lively server to look at: several topics, groups whose workers fail, slow subscribers, and what is hostile.

    async with demo(tmp_path) as server:          # on disk; demo(None) in memory
        ...  # server.listeners[0].url is the console

For browser tests and for the pictures in the docs; `python -m tests.browser.demo [folder]` serves it until Ctrl+C.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import runnel
from runnel import Broker
from runnel.core.statistics import PipelineStatistics, RelayStatistics
from runnel.server.options import ServerOptions
from runnel.server.server import Server

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HOSTILE_TOPIC = "hostile.<img/src=x/onerror=alert(1)//"
TELEMETRY = 0.5  # seconds: the plots of analytics have something to show at once
SHOPS = ("berlin", "lyon", "oslo", "porto")


@asynccontextmanager
async def demo(
    folder: Path | None = None, *, seed: int = 7, topics: int = 0, hostile: bool = True, **options: Any
) -> AsyncIterator[Server]:
    """A server with traffic, in a folder or in memory; with so many more topics that are quiet."""
    given: dict[str, Any] = {"port": None, "json_port": None, "http_port": 0} | options
    async with runnel.open(folder, telemetry=TELEMETRY) as broker:
        async with Server(broker, ServerOptions(**given)) as server, AsyncExitStack() as stack:
            traffic = Traffic(broker, random.Random(seed), hostile)
            await traffic.prepare(topics)
            await traffic.subscribe(stack)
            tasks = [asyncio.ensure_future(one) for one in traffic.works()]
            try:
                yield server
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


class Traffic:
    """Who publishes and who reads."""

    def __init__(self, broker: Broker, chance: random.Random, hostile: bool = True) -> None:
        self._broker, self._chance, self._hostile = broker, chance, hostile
        self._orders = 1000

    async def prepare(self, quiet: int) -> None:
        """Topics that say what they keep, and what was published before anybody looked."""
        declare = self._broker.topic
        await declare("orders.placed", retention_age=7 * 86_400.0).declare()
        await declare("orders.paid", retention_age=30 * 86_400.0, retention_bytes=2_000_000_000).declare()
        await declare("sensors.temperature", retention_count=100_000).declare()
        if self._broker.is_durable:
            await declare("inventory.levels", compact=True).declare()
        await self._broker.publish("binary.blobs", bytes(range(256)), key=b"\xff\x00raw")
        await self._broker.publish("binary.blobs", b"\x89PNG\r\n\x1a\n" + bytes(40_000))
        if self._hostile:
            await self._broker.publish(HOSTILE_TOPIC, HOSTILE, key=HOSTILE, headers={"x-note": HOSTILE})
            await self._broker.publish("hostile.letters", HOSTILE, key=HOSTILE, headers={"x-note": HOSTILE})
        for number in range(quiet):
            await self._broker.publish(f"jobs.{number:05}.log", f"job {number} started")

    async def subscribe(self, stack: AsyncExitStack) -> None:
        """Readers that keep up, and one that sleeps while records are dropped before it."""
        broker = self._broker
        asleep = broker.subscribe("sensors.>", name="dashboard-frozen", policy="drop_oldest", buffer=500)
        await stack.enter_async_context(asleep)
        self._readers: list[tuple[Any, float]] = []
        for name, pattern, pause in (
            ("ledger", "orders.*", 0.0),
            ("search-index", ">", 0.0),
            ("audit", "orders.paid", 0.0),
            ("slow-exporter", "sensors.temperature", 0.05),
        ):
            policy: dict[str, Any] = {"policy": "drop_oldest", "buffer": 200} if pause else {}
            reader = await stack.enter_async_context(broker.subscribe(pattern, name=name, start="latest", **policy))
            self._readers.append((reader, pause))

    def works(self, *, reports: bool = True) -> list[Awaitable[None]]:
        """All that goes on; with `reports`, also of a relay and a pipeline that are not there."""
        works: list[Awaitable[None]] = [self._place_orders(), self._measure(), self._log()]
        works += [self._relay(), self._pipeline()] if reports else []
        works += [self._bury_hostile()] if self._hostile else []
        works += [self._read(reader, pause) for reader, pause in self._readers]
        works += [self._work("billing", f"biller-{number}", self._bill) for number in range(3)]
        works += [self._work("mailers", f"mailer-{number}", self._mail) for number in range(2)]
        return works

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _relay(self) -> None:
        """What a relay reports of itself; it publishes nothing here."""
        error = HOSTILE if self._hostile else "the connection to PostgreSQL was lost"
        rows = 0
        while True:
            rows += self._chance.randrange(50)
            report = RelayStatistics(
                slot="shop",
                state="streaming",
                lag_bytes=self._chance.randrange(9000),
                lag_seconds=0.002,
                rows=rows,
                rows_per_second=25.0,
                wal_status="reserved",
                retained_bytes=4 << 20,
                safe_wal_bytes=16 << 30,
                last_error=f"the slot is lost? {error}",
            )
            await self._broker.backend.report_relay(report)
            await asyncio.sleep(1.0)

    async def _pipeline(self) -> None:
        """What a pipeline reports of itself while Spark starts."""
        while True:
            await self._broker.backend.report_pipeline(PipelineStatistics(name="analytics", state="starting"))
            await asyncio.sleep(1.0)

    async def _place_orders(self) -> None:
        while True:
            self._orders += 1
            shop = self._chance.choice(SHOPS)
            cents = self._chance.randrange(500, 90_000)
            order = {"id": self._orders, "shop": shop, "cents": cents, "items": ["pen", "ink"]}
            headers = {"shop": shop, "content-type": "application/json"}
            await self._broker.publish("orders.placed", json.dumps(order), key=str(self._orders), headers=headers)
            if self._broker.is_durable:
                level = json.dumps({"shop": shop, "pens": self._chance.randrange(400)})
                await self._broker.publish("inventory.levels", level, key=shop)
            await asyncio.sleep(self._chance.expovariate(30))

    async def _measure(self) -> None:
        topic = self._broker.topic("sensors.temperature")
        wave = 0
        while True:
            wave += 1
            count = 20 + int(180 * (0.5 + 0.5 * random.Random(wave // 5).random()))
            celsius = [round(self._chance.gauss(21, 2), 2) for _ in range(count)]
            values = [json.dumps({"sensor": number % 24, "celsius": one}) for number, one in enumerate(celsius)]
            await topic.publish_many(values, keys=[f"s{number % 24}" for number in range(count)])
            await asyncio.sleep(0.2)

    async def _log(self) -> None:
        levels = ("info", "info", "info", "warning", "error")
        while True:
            level = self._chance.choice(levels)
            await self._broker.publish(f"logs.{level}", f"{level}: request took {self._chance.randrange(2, 900)} ms")
            await asyncio.sleep(self._chance.expovariate(8))

    # -- reading ------------------------------------------------------------------------------------------------

    async def _read(self, records: Any, pause: float) -> None:
        async for _ in records:
            if pause:
                await asyncio.sleep(pause)

    async def _work(self, group: str, name: str, work: Callable[[Any], Awaitable[None]]) -> None:
        options: dict[str, Any] = {"max_deliver": 3, "backoff": (0.2, 0.5), "prefetch": 32}
        async with self._broker.subscribe("orders.placed", group=group, name=name, **options) as deliveries:
            async for delivery in deliveries:
                try:
                    async with delivery:
                        await work(delivery)
                except (ValueError, ConnectionError):
                    pass  # it comes again, or is a dead letter

    async def _bill(self, delivery: Any) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.06))
        order = json.loads(delivery.value)
        if order["id"] % 41 == 0:
            raise ValueError(f"the card of order {order['id']} was declined by the bank")
        if self._chance.random() < 0.02:
            raise ConnectionError("the payment provider did not answer in time")
        await self._broker.publish("orders.paid", json.dumps({"id": order["id"], "cents": order["cents"]}))

    async def _mail(self, delivery: Any) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.04))
        if json.loads(delivery.value)["id"] % 97 == 0:
            raise ValueError("no address on file for this customer")

    async def _bury_hostile(self) -> None:
        async with self._broker.subscribe("hostile.letters", group="hostile") as deliveries:
            async for delivery in deliveries:
                await delivery.reject(HOSTILE)


async def main(folder: Path | None) -> None:
    """Serve it until it is interrupted."""
    async with demo(folder, http_port=7780) as server:
        print(server.listeners[0].url, flush=True)  # noqa: T201 - for whoever started it
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        pass
