"""The data source `runnel`: the class that Spark finds for `format("runnel")`.

It checks options and schema on the driver, when the query is made, and chooses a reader or a writer. Readers and
writers are imported when they are needed.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark.options import SinkOptions, SourceOptions
from runnel.spark.schema import ColumnLayout, check_sink_columns, check_source_schema, resolve_layout

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
        """What stands behind `format`."""
        return "runnel"

    def __repr__(self) -> str:
        return "<RunnelSource>"  # options may be secret

    @cached_property
    def _source(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    @cached_property
    def _layout(self) -> ColumnLayout:
        """Looked up once, by `schema` when the query is made: Spark hands this object on as it is then."""
        return resolve_layout(self._source)

    def schema(self) -> StructType:
        """The columns of a record."""
        return self._layout.spark()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from runnel.spark.source import BatchReader

        check_source_schema(schema, self._layout.spark())
        return BatchReader(self._source, schema, self._layout)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from runnel.spark.source import StreamReader

        check_source_schema(schema, self._layout.spark())
        return StreamReader(self._source, schema, self._layout)

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
        options = SinkOptions.parse(self.options)
        if overwrite:
            why = "a topic is a log, and nothing in it is written over; use mode('append'), outputMode('append')"
            raise NotSupported("overwriting a topic", why)
        check_sink_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options.topic)
        return options
