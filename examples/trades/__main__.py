"""A market, a broker, three Spark queries, and a page: ticks become candles and alerts, live and in a lake.

    python examples/trades             # two minutes of trading in a few seconds, and a check of what came of it
    python examples/trades --live      # goes on until Ctrl-C; the page is at http://127.0.0.1:8000

The pipeline is `pipeline.py`. This publishes ticks, starts it, tells how far it is, and ends by comparing the candles
in the lake, and those in the topic, with what plain Python makes of the same ticks (`plain.py`).

Prints::

    starting Spark, which takes a few seconds
    Spark ... is there after ... s, and three queries run
    ...
    2,402 ticks published, ... candle records, 99 rows in the lake, ... alerts, lag 0
    99 candles in the lake, the same that plain Python makes of the ticks
    100 candles in the topic, the same as well, and one that is still open
    1 tick came an hour late, and was left out
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

import runnel
from runnel.server import Server, ServerOptions

if TYPE_CHECKING:
    from examples.trades.market import Tick, ticks
    from examples.trades.plain import Candle, candles
    from examples.trades.stage import Stage
else:  # beside this file
    from market import Tick, ticks
    from plain import Candle, candles
    from stage import Stage

WIDTH = timedelta(seconds=5)  # as in pipeline.py
PACE = timedelta(milliseconds=50)  # between two ticks
TICKS, TOGETHER = 2_400, 100
OPENS = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def say(text: str) -> None:
    print(text, flush=True)


async def trade(broker: runnel.Broker, made: list[Tick]) -> None:
    """Two minutes of trading, in a few seconds. What comes late comes in time for its candle."""
    topic = broker.topic("trades.ticks", Tick)
    for number, (tick, late) in enumerate(islice(ticks(seed=1), TICKS)):
        tick.at = OPENS + number * PACE - min(late, timedelta(seconds=9))
        made.append(tick)
        if len(made) % TOGETHER == 0:
            await topic.publish_many(made[-TOGETHER:])
            await asyncio.sleep(0.2)


async def trade_live(broker: runnel.Broker) -> None:
    """Trading by the clock, without end. Now and then a tick comes too late for its candle."""
    topic = broker.topic("trades.ticks", Tick)
    for tick, late in ticks(seed=int(monotonic())):
        tick.at = datetime.now(UTC) - late
        await topic.publish(tick)
        await asyncio.sleep(PACE.total_seconds())


class Progress:
    """Tells every few seconds how far everything is."""

    def __init__(self, broker: runnel.Broker, spark: Stage) -> None:
        self._broker, self._spark = broker, spark

    async def line(self) -> str:
        rows = await asyncio.to_thread(self._spark.rows)
        ends = {one.topic: one.end for one in await self._broker.bounds("trades.>")}
        lag = max((one.lag or 0 for one in self._broker.statistics().cursors), default=0)
        return (
            f"{ends['trades.ticks']:,} ticks published, {ends.get('trades.candles', 0):,} candle records, "
            f"{rows:,} rows in the lake, {ends.get('trades.alerts', 0):,} alerts, lag {lag:,}"
        )

    async def tell(self) -> None:
        while True:
            await asyncio.sleep(2)
            say(await self.line())


async def in_topic(broker: runnel.Broker, last: int) -> dict[tuple[str, datetime], Candle]:
    """The candles in the topic, as they were written last."""
    found: dict[tuple[str, datetime], Candle] = {}
    async with broker.subscribe("trades.candles", start="earliest") as records:
        async for record in records:
            candle = msgspec.convert(msgspec.json.decode(record.value), dict[str, Any])
            told = Candle(**{**candle, "start": datetime.fromisoformat(candle["start"])})
            found[told.symbol, told.start] = told
            if record.offset == last:
                break
    return found


async def check(broker: runnel.Broker, spark: Stage, made: list[Tick]) -> None:
    """Compare what came of the ticks with what should have."""
    expected = candles(made, WIDTH)
    rows = await asyncio.to_thread(spark.candles)
    same = "the same that plain Python makes of the ticks" if rows == expected else "NOT those that plain Python makes"
    say(f"{len(rows)} candles in the lake, {same}")
    (bounds,) = await broker.bounds("trades.candles")
    topic = await in_topic(broker, bounds.end - 1)
    agrees = [topic.get((one.symbol, one.start)) for one in expected] == expected
    opened = "and one that is still open" if len(topic) == len(expected) + 1 else "and OTHERS"
    say(f"{len(topic)} candles in the topic, {'the same as well' if agrees else 'NOT the same'}, {opened}")
    say(f"{spark.dropped()} tick came an hour late, and was left out")


async def show(broker: runnel.Broker, spark: Stage, progress: Progress) -> None:
    """Two minutes of trading, and what came of them."""
    made: list[Tick] = []
    told = asyncio.create_task(progress.tell())
    try:
        await publish_all(broker, spark, made)
    finally:
        told.cancel()
    say(await progress.line())
    await check(broker, spark, made)


async def publish_all(broker: runnel.Broker, spark: Stage, made: list[Tick]) -> None:
    """The ticks, and then two that end the day; all through the pipeline when this returns."""
    await trade(broker, made)
    await asyncio.to_thread(spark.settle)
    # No candle is done as long as a tick may still come for it: one that is a minute younger says that none will.
    closes = OPENS + TICKS * PACE
    rest = [Tick("ACME", 120.0, 1, closes - timedelta(hours=1)), Tick("ACME", 120.0, 1, closes + timedelta(minutes=1))]
    await broker.topic("trades.ticks", Tick).publish_many(rest)
    await asyncio.to_thread(spark.settle)


async def show_live(broker: runnel.Broker, spark: Stage, progress: Progress) -> None:
    """Trading and progress, until Ctrl-C."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trade_live(broker))
            tasks.create_task(progress.tell())
    finally:
        say("ending: what was published goes through first")
        await asyncio.to_thread(spark.settle)


@asynccontextmanager
async def page(broker: runnel.Broker, port: int) -> AsyncIterator[None]:
    """The page, which answers from now on: before Spark is there it says so."""
    if TYPE_CHECKING:
        from examples.trades.app import WebServer
    else:
        from app import WebServer
    web = WebServer(broker, port)
    serving = asyncio.create_task(web.serve())
    say(f"the page is at http://127.0.0.1:{port}; Ctrl-C ends it")
    try:
        yield
    finally:
        broker.close()  # with it event streams end, for which the web server would wait
        web.should_exit = True
        await serving


async def tell_page(broker: runnel.Broker, state: str) -> None:
    """Have the page say what Spark does."""
    await broker.publish("trades.pipeline", json.dumps({"state": state}).encode())


@contextmanager
def place(live: bool, folder: Path) -> Iterator[Path]:
    """Where everything is kept: a check leaves nothing behind."""
    with ExitStack() as held:
        yield folder if live else Path(held.enter_context(tempfile.TemporaryDirectory()))


async def main(live: bool, folder: Path, port: int, dsn: str | None = None) -> None:
    spark = Stage()
    async with (
        runnel.open(folder / "journal") as broker,
        Server(broker, ServerOptions(port=0, json_port=None)) as server,
        AsyncExitStack() as held,
    ):
        await broker.topic("trades.ticks", Tick, retention_age=3600.0).declare()
        for name in ("trades.candles", "trades.alerts"):
            await broker.topic(name, retention_age=3600.0).declare()
        await broker.topic("trades.pipeline", retention_count=1).declare()
        await tell_page(broker, "starting")
        if live:
            await held.enter_async_context(page(broker, port))
        say("starting Spark, which takes a few seconds")
        began = monotonic()
        try:
            version = await asyncio.to_thread(spark.start, server.listeners[0].url, folder, dsn)
            say(f"Spark {version} is there after {monotonic() - began:.0f} s, and three queries run")
            await tell_page(broker, "running")
            progress = Progress(broker, spark)
            await (show_live(broker, spark, progress) if live else show(broker, spark, progress))
        finally:
            await asyncio.to_thread(spark.stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ticks become candles and alerts, with Spark.")
    parser.add_argument("--live", action="store_true", help="go on until Ctrl-C, and show a page")
    parser.add_argument("--folder", type=Path, default=Path("trades-data"), help="of --live: where all is kept")
    parser.add_argument("--port", type=int, default=8000, help="of --live: of the page")
    parser.add_argument("--postgres", metavar="DSN", help="a database with the names: companies (symbol, name)")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt), place(given.live, given.folder) as chosen:
        asyncio.run(main(given.live, chosen, given.port, given.postgres))
