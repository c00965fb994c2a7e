"""Blocks of pages that start Spark run in the session of the tests."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.docs.blocks import Block as PythonBlock
from tests.docs.pages import marked_for
from tests.patience import PATIENCE
from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = marked_for(__file__)


class Order(msgspec.Struct):
    """A value of the typed topic."""

    customer: str
    amount: Decimal


async def published(served: Served) -> None:
    """What the pages read: topics, one of them typed, and telemetry of a subscriber."""
    broker = served.broker
    async with broker.subscribe("orders.eu") as records:
        await broker.topic("orders.eu").publish_many([b"tea", b"ink"])
        await anext(records)
        async with broker.subscribe("$runnel.telemetry.subscribers", start="earliest") as rows:
            await anext(rows)
    await broker.topic("orders", Order).publish(Order("ada", Decimal("2.5")))


def parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"customer": ["ada"], "amount": ["2.5"]}), str(folder / "orders.parquet"))


def run(source: str, names: dict[str, Any], served: Served) -> None:
    """Run a block after the others of its page; a query in it is stopped when it has processed records."""
    code = compile(source, "a block", "exec")
    if "awaitTermination" not in source:
        exec(code, names)
        return
    failed: list[Exception] = []

    def follow() -> None:
        try:
            exec(code, names)
        except Exception as error:
            failed.append(error)

    thread = Thread(target=follow)
    thread.start()
    end = time.monotonic() + PATIENCE
    while thread.is_alive():
        served.publish_many("orders.eu", [b"more"])
        for query in names["spark"].streams.active if "spark" in names else ():
            if any(one["numInputRows"] for one in query.recentProgress):
                query.stop()
        assert time.monotonic() < end
        thread.join(0.2)
    assert failed == []


@pytest.mark.parametrize("page", [name for name in PAGES if any(isinstance(one, PythonBlock) for one in PAGES[name])])
def test_the_blocks_of_a_page_run(page: str, spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with Served(tmp_path / "data", telemetry=0.1) as served, Served(tmp_path / "archive") as archive:
        served.run(published(served))
        here = {
            **{f"runnel://{host}:7788": served.url for host in ("127.0.0.1", "broker")},
            "runnel://archive:7788": archive.url,
            **{f'"{name}': f'"{tmp_path / name}' for name in ("data", "lake", "checkpoints", "orders.parquet")},
        }
        try:
            for block in PAGES[page]:
                if isinstance(block, PythonBlock):
                    source = block.source
                    for name, value in here.items():
                        source = source.replace(name, value)
                    run(source, names, served)
        finally:
            spark.sql("DROP TABLE IF EXISTS orders")
