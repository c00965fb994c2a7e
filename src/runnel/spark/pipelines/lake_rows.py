"""The rows of a lake as a DataFrame: tasks read the files that the table's newest version names.

Spark itself reads Delta only with jars, and object storage only with more of them; this reads both with what the lake
needs anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from runnel.lake.storage import need
from runnel.lake.typed_table import quarantine_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from runnel.lake.maintenance import MaintainedTable

LAKE_COLUMNS = {
    "topic": "string not null",
    "epoch": "bigint not null",
    "offset": "bigint not null",
    "sequence": "bigint not null",
    "time": "timestamp not null",
    "key": "binary",
    "value": "binary not null",
    "headers": "array<struct<key:string not null,value:binary not null>>",
    "due": "double",
    "expires": "double",
    "priority": "int",
}
"""The columns of a record in a lake, as Spark writes their types: all that a record has."""

_KINDS = LAKE_COLUMNS | {"table": "string not null"}  # the last one is of the quarantine


def lake_rows(spark: SparkSession, lake: MaintainedTable, columns: Sequence[str] = tuple(LAKE_COLUMNS)) -> DataFrame:
    """The records of a lake: `lake_rows(spark, Lake("lake/")).where("topic = 'orders'")`.

    Of a typed table, or the quarantine, the columns that it has of a record, under the names that they have there.
    """
    schema = ", ".join(f"{name} {_KINDS[name]}" for name in columns)
    files = [(path,) for path in lake_files(lake)]
    if not files:
        return spark.createDataFrame([], schema)
    storage, prefix, names = lake.records, lake.prefix, list(columns)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa, pq = need("pyarrow"), need("pyarrow.parquet")
        wanted = pa.schema([quarantine_schema().field(name) for name in names])
        for batch in batches:
            for path in batch.column("path").to_pylist():
                with storage.open(path) as stream:
                    stored = [f"{prefix}{name}" for name in names]
                    for rows in pq.ParquetFile(stream).iter_batches(1 << 14, columns=stored):
                        # Files that another program rewrote may say other things about nulls.
                        arrays = [rows.column(f"{prefix}{field.name}").cast(field.type) for field in wanted]
                        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    tasks = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    return spark.createDataFrame(files, "path string").repartition(tasks).mapInArrow(read, schema)


def lake_files(lake: MaintainedTable) -> list[str]:
    """The files of the newest version, below the table's folder."""
    table: Any = need("deltalake").DeltaTable(lake.records.uri, storage_options=lake.records.options)
    found: list[str] = need("pyarrow").table(table.get_add_actions(flatten=True)).column("path").to_pylist()
    return found
