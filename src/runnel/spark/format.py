"""The data source `runnel`: the class that Spark finds for `format("runnel")`.

It checks options and schema on the driver, when the query is made, and chooses a reader or a writer. Readers and
writers are imported when they are needed.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from runnel.arrow.layout import ColumnLayout
from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark.options import SinkOptions, SourceOptions, options_of_new_table
from runnel.spark.schema import (
    BROKERS_COLUMNS,
    as_table,
    check_sink_columns,
    check_source_schema,
    options_of_table,
    resolve_layout,
    spark_columns,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

SUPPORTED = ("4.2", "4.3")
"""The versions of pyspark that this was tested with."""

if not pyspark.__version__.startswith(tuple(f"{one}." for one in SUPPORTED)):
    raise NotSupported(
        f"pyspark {pyspark.__version__}", f"runnel works with {' and '.join(SUPPORTED)}: pip install 'runnel-mq[spark]'"
    )


class RunnelSource(DataSource):
    """Topics as tables that grow. Options: docs/reference/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The data source behind `format`."""
        return "runnel"

    def __repr__(self) -> str:
        return "<RunnelSource>"  # options may be secret

    @cached_property
    def _layout(self) -> ColumnLayout:
        """Looked up once, by `schema` when the query is made: Spark then passes on the object in that state."""
        return resolve_layout(SourceOptions.parse(self.options))

    def schema(self) -> StructType:
        """The columns of a record. Those of a table keep the options that it is created with."""
        created = options_of_new_table(self.options)
        if created is None:
            return spark_columns(self._layout)
        self.options = created
        return as_table(spark_columns(self._layout), created)

    def _source(self, schema: StructType) -> tuple[SourceOptions, ColumnLayout]:
        """The options and the columns of a read with this schema."""
        self.options = {**self._table(schema), **self.options}
        check_source_schema(schema, spark_columns(self._layout))
        return SourceOptions.parse(self.options), self._layout

    def _table(self, schema: StructType) -> dict[str, str]:
        """The options of the table that is read or inserted into; nothing, if it is none.

        Rows that were read from a table have its columns, too. When they are written elsewhere, the options say where.
        """
        names_place = {"path", "url"} & {name.lower() for name in self.options}
        return {} if names_place else options_of_table(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from runnel.spark.source import BatchReader

        options, layout = self._source(schema)
        return BatchReader(options, schema, layout)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from runnel.spark.source import StreamReader

        options, layout = self._source(schema)
        return StreamReader(options, schema, layout)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from runnel.spark.sink import BatchWriter

        return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write."""
        from runnel.spark.sink import StreamWriter

        options = self._sink(schema, overwrite)
        if options.mark is not None:
            raise InvalidOption("mark", options.mark, "a stream has a mark of its own: its query and its batch")
        return StreamWriter(options)

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if table := self._table(schema):
            options = SinkOptions.of_table({**table, **self.options})
        else:
            options = SinkOptions.parse(self.options)
        if overwrite:
            why = "a topic is a log, and nothing in it is written over; use mode('append'), outputMode('append')"
            raise NotSupported("overwriting a topic", why)
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        if options.table:
            columns = {name: kind for name, kind in columns.items() if name not in BROKERS_COLUMNS}
        check_sink_columns(columns, options.topic)
        return options
