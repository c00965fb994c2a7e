"""A pipeline: a name, options, and `build`, which returns streams and checks for the runner.

`build` connects plain functions (DataFrame to DataFrame) to a source and a sink. It chooses neither checkpoint nor
trigger, and starts nothing: the runner does, so that a pipeline runs the same here and by `spark-submit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from runnel.core.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a pipeline: `--name` on the command line, `context.options["name"]` in `build`.

    `kind` says how the command line reads it: "text", "whole" (a number), "seconds" (`15s`, `1h`), or "flag", which has
    no value. `repeats`: it may be given several times, and the value is a tuple.
    """

    name: str
    help: str
    default: Any = None
    kind: Literal["text", "whole", "seconds", "flag"] = "text"
    metavar: str = "TEXT"
    repeats: bool = False


@dataclass(frozen=True)
class Stream:
    """A streaming query of a pipeline: where it writes is in `writer`; the runner adds name, checkpoint and trigger.

    `counts`: whether its records count as those of the pipeline. Of several queries on the same topics one should.
    """

    name: str
    writer: DataStreamWriter
    counts: bool = True


OBSERVED = "runnel"
"""The name under which a query says how many records it has processed, if its rows are not records."""


def counted(rows: DataFrame, column: str) -> DataFrame:
    """The same rows, of which `column` says how many records each represents: so the runner counts them."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.observe(OBSERVED, F.coalesce(F.sum(column), F.lit(0)).alias("records"))


@dataclass(frozen=True)
class Finding:
    """The result of a check: whether all is well, a line for the log, a report for people, and facts for programs."""

    is_fine: bool
    summary: str
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """Work that is done once, or again after so many seconds: an audit, or the maintenance of a table.

    `alert` is called with a finding that is not fine. A pipeline with streams does it beside them, and in a run with
    `once` when they have ended.
    """

    name: str
    work: Callable[[], Finding]
    every: float | None = None
    alert: Callable[[Finding], None] | None = None


@dataclass(frozen=True)
class Context:
    """The arguments of `build`: a session, the broker, the lake, and the values of the pipeline's options.

    - `broker`: the options of `format("runnel")` that say where the topics are: `url` or `path`, and how to connect.
    - `lake`: the folder or address of the lake, and `storage_options` for object storage.
    - `once`: whether the run ends when what is there now is processed.
    - `options`: by name, as the command line or the caller gave them, else their defaults.
    """

    spark: SparkSession
    name: str
    broker: Mapping[str, str]
    lake: str
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    once: bool = False

    def source(self, topic: str, *, columns: Mapping[str, str] | None = None, **options: object) -> DataFrame:
        """The records of topics as a streaming DataFrame, from the first one: `context.source("orders.>")`.

        `columns`: only these, by name with their types, `due`, `expires` and `priority` among them if you want them.
        `options` are those of the format: `valueFormat="typed"`, `maxRecordsPerTrigger=100_000`, …. Records that the
        journal of a folder has dropped come from the lake of the pipeline; with `lake=None` they do not. A server reads
        its own source of history.
        """
        return self._read(self.spark.readStream, topic, columns, options)

    def records(self, topic: str, *, columns: Mapping[str, str] | None = None, **options: object) -> DataFrame:
        """The records that topics hold now, as a DataFrame."""
        return self._read(self.spark.read, topic, columns, options)

    def _read(
        self, reader: Any, topic: str, columns: Mapping[str, str] | None, options: Mapping[str, object]
    ) -> DataFrame:
        if columns is not None:
            reader = reader.schema(", ".join(f"{name} {kind}" for name, kind in columns.items()))
        chosen = {"startingOffsets": "earliest", **self._history(topic), **options, **self.broker, "topic": topic}
        said = {name: str(one) for name, one in chosen.items() if one is not None}
        found: DataFrame = reader.format("runnel").options(**said).load()
        return found

    def _history(self, topic: str) -> dict[str, object]:
        """The options that name the lake, where topics are read from a folder. Internal ones are in no lake."""
        if "path" not in self.broker or topic.startswith("$"):
            return {}
        storage = msgspec.json.encode(self.storage_options).decode() if self.storage_options else None
        return {"lake": self.lake, "lakeStorage": storage}

    def to_topic(self, rows: DataFrame, topic: str | None = None) -> DataStreamWriter:
        """A writer of rows with columns `value`, `key`, `headers` and (without `topic`) `topic`, each row once."""
        writer = rows.writeStream.format("runnel").outputMode("append").options(**self.broker)
        return writer if topic is None else writer.option("topic", topic)

    def to_table(self, rows: DataFrame, table: str, *, mode: str = "append") -> DataStreamWriter:
        """A writer of rows to the Delta table `table` of the lake, each micro-batch once.

        `mode`: "append", or "overwrite" for an aggregation whose every result replaces the table.
        """
        from runnel.spark.pipelines.delta_sink import DeltaSink

        sink = DeltaSink(self.table(table), self.storage_options, mode)
        return rows.writeStream.outputMode("complete" if mode == "overwrite" else "append").foreachBatch(sink)

    def table(self, name: str) -> str:
        """Where a table of the lake is: a folder beside `records`."""
        return f"{self.lake.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that `runnel pipeline` and `run_pipeline` know how to run.

        PIPELINE = Pipeline("words", "count the words of orders", build)

    `build` is called once, with a session that works, and returns what runs. `description` is shown by `--help`.
    `settings`: settings of the Spark session that the pipeline needs.
    """

    name: str
    summary: str
    build: Callable[[Context], Sequence[Stream | Check]]
    options: tuple[Option, ...] = ()
    description: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every option: what was given, else its default. Unknown names raise `InvalidOption`."""
        known = {one.name: one for one in self.options}
        for name, value in given.items():
            if name not in known:
                there = ", ".join(known) or "none"
                raise InvalidOption(name, value, f"pipeline {self.name!r} has no such option; there are: {there}")
        return {name: given.get(name, one.default) for name, one in known.items()}
