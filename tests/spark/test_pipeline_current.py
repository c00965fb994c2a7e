"""A Delta table that is equal to a relayed table of PostgreSQL, and an audit that says so when it is not."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import runnel
from runnel.spark.pipelines import Finding
from tests.spark.pipeline_rig import run_once
from tools.postgres import installations

if not find_spec("psycopg") or not installations():
    pytest.skip("PostgreSQL is not installed", allow_module_level=True)

import psycopg

from tests.postgres.conftest import NEWEST, Database, database, postgres
from tests.postgres.relaying import config, relaying, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["database", "postgres"]

CREATE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, shop text NOT NULL, price numeric(12,2), at timestamptz, note text, extra jsonb, ratio float8
)
"""
TABLE = {
    "table": "orders",
    "topic": "orders.{shop}",
    "key": "id",
    "publish": ["insert", "update", "delete", "truncate"],
    "snapshot": True,
}
LONG = "x" * 20_000  # so long that PostgreSQL does not send it again when another column changes


async def relay(folder: Path, dsn: str, number: int, *statements: str) -> None:
    """Have a relay publish what some statements change, for the so-manieth time."""
    async with runnel.open(folder / "data") as broker, relaying(broker, dsn, config(TABLE)):
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for statement in statements:
                await connection.execute(statement)
            await connection.execute("INSERT INTO orders (id, shop) VALUES (-1, 'end')")
            await connection.execute("DELETE FROM orders WHERE id = -1")
        await until(lambda: _passed(broker, 2 * number))


def _passed(broker: runnel.Broker, end: int) -> bool:
    """Whether the rows that were there before, and what marks the end of the statements, are published."""
    ends = {name: one.end for name, one in broker.statistics("orders.>").topics.items()}
    return ends.get("orders.before", 0) >= 50 and ends.get("orders.end", 0) == end


def current(spark: SparkSession, folder: Path, dsn: str) -> Finding:
    options: dict[str, Any] = {"table": "orders", "topic": ("orders.>",), "key": "id", "dsn": dsn, "events": "relay.s"}
    (found,) = run_once(spark, "current", folder, {"path": str(folder / "data")}, **options)
    return found


@pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
def test_a_delta_table_is_equal_to_the_relayed_one(spark: SparkSession, tmp_path: Path, database: Database) -> None:
    dsn, folder = database.dsn, tmp_path
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CREATE)
        connection.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
        connection.execute("ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
        connection.execute("INSERT INTO orders SELECT n, 'before', n / 7.0, now() FROM generate_series(1, 50) n")
        connection.execute("CREATE UNIQUE INDEX routed ON orders (id, shop)")
        connection.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX routed")
    asyncio.run(
        relay(
            folder,
            dsn,
            1,
            "INSERT INTO orders SELECT n, 'a', 1.1, now(), 'n', '[1.50]', 'NaN' FROM generate_series(51, 90) n",
            f"UPDATE orders SET note = '{LONG}' WHERE id = 60",
            "UPDATE orders SET price = 2.20 WHERE id = 60",  # its note is not sent again
            "UPDATE orders SET shop = 'b' WHERE id BETWEEN 70 AND 75",  # to another topic
            "UPDATE orders SET id = 1000 WHERE id = 76",  # another key
            "DELETE FROM orders WHERE id BETWEEN 80 AND 85",
        )
    )
    found = current(spark, folder, dsn)
    assert found.is_fine, found.text
    assert "84 rows" in found.summary
    asyncio.run(
        relay(
            folder,
            dsn,
            2,
            "UPDATE orders SET price = 3.30 WHERE id = 60",
            "ALTER TABLE orders ADD COLUMN size integer",
            "UPDATE orders SET size = 7 WHERE id < 10",
            "DELETE FROM orders WHERE id = 1000",
        )
    )
    found = current(spark, folder, dsn)
    assert found.is_fine, found.text
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE orders SET price = 4.40 WHERE id = 60")  # no relay runs: the lake does not have it
    found = current(spark, folder, dsn)
    assert not found.is_fine
    assert found.facts["keys"] == ["60"]
    asyncio.run(relay(folder, dsn, 3, "TRUNCATE orders", "INSERT INTO orders (id, shop) VALUES (1, 'new')"))
    found = current(spark, folder, dsn)
    assert found.is_fine, found.text
    assert "1 rows" in found.summary
