"""`runnel pipeline new`: the files of a pipeline of one's own, and a test that passes."""

from __future__ import annotations

from keyword import iskeyword
from pathlib import Path

from runnel.core.errors import InvalidOption
from runnel.spark.pipelines.registry import BUILT_IN, FOLDER

PIPELINE = '''"""The pipeline `{name}`: how many records of each key a topic got, minute by minute.

    runnel pipeline run {name} --once --set topic=orders
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.spark.pipelines import Context, Option, Pipeline, Stream


def count_keys(records: DataFrame) -> DataFrame:
    """Rows in, rows out: it knows neither where records come from nor where counts go, so a test needs no broker."""
    by_minute = F.window("time", "1 minute").alias("minute")
    counted = records.withWatermark("time", "10 seconds").groupBy(by_minute, F.col("key").cast("string").alias("key"))
    return counted.agg(F.count("*").alias("records")).select(F.col("minute.start").alias("minute"), "key", "records")


def build(context: Context) -> Sequence[Stream]:
    """Topic, function, table. Checkpoint, trigger, progress, metrics and stop are the runner's."""
    counts = count_keys(context.source(context.options["topic"]))
    return [Stream("{name}", context.to_table(counts, "{name}"))]


PIPELINE = Pipeline(
    "{name}",
    "count records by key and minute, in the table {name} of the lake",
    build,
    (Option("topic", "a topic or a pattern", "orders"),),
)
'''

TEST = '''"""The pipeline `{name}` is plain functions, so its test is rows in and rows out."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import runnel.spark

sys.path.insert(0, str(Path(__file__).parent))
from {name} import count_keys


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small session of this process's own."""
    settings = {{"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 1, "spark.sql.session.timeZone": "UTC"}}
    session = runnel.spark.session("test", "local[1]", **settings)
    yield session
    session.stop()


def test_records_are_counted_by_key_and_minute(spark: SparkSession) -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    rows = [(noon + timedelta(seconds=second), key) for second, key in [(1, b"a"), (2, b"a"), (3, b"b"), (61, b"a")]]
    found = count_keys(spark.createDataFrame(rows, "time timestamp, key binary")).orderBy("minute", "key").collect()
    assert [(row.key, row.records) for row in found] == [("a", 2), ("b", 1), ("a", 1)]
'''


def scaffold(name: str, folder: Path) -> list[Path]:
    """Write the files of a new pipeline below `folder`; nothing is overwritten."""
    if not name.isidentifier() or iskeyword(name) or name.startswith(("_", "test_")):
        raise InvalidOption("name", name, "expected letters, digits and _, without test_ at the beginning")
    if name in BUILT_IN:
        raise InvalidOption("name", name, "a pipeline of runnel is called so; choose another name")
    made = {f"{name}.py": PIPELINE, f"test_{name}.py": TEST}
    files = [folder / FOLDER / file for file in made]
    for file in files:
        if file.exists():
            raise InvalidOption("name", name, f"{str(file)!r} is there already, and is not overwritten")
    for file, text in zip(files, made.values(), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(name=name))
    return files
