"""The format `runnel`, as Spark finds it: `spark.read.format("runnel")`, and the other three.

Nothing happens here but choosing: options are checked when the query is made, on the driver.
Below: batch_reader, stream_reader; the writers. Above: pyspark_runnel, by which Spark finds it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark.layout import Layout, layout_of
from runnel.spark.options import SinkOptions, SourceOptions
from runnel.spark.schema import check_schema
from runnel.spark.sink_columns import check_columns

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
        f"pyspark {pyspark.__version__}", f"runnel works with {' and '.join(SUPPORTED)}: pip install 'runnel[spark]'"
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
    def _layout(self) -> Layout:
        """Looked up once, by `schema` when the query is made: Spark hands this object on as it is then."""
        return layout_of(self._source)

    def schema(self) -> StructType:
        """The columns of a record."""
        return self._layout.spark()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from runnel.spark.batch_reader import BatchReader

        check_schema(schema, self._layout.spark())
        return BatchReader(self._source, schema, self._layout)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from runnel.spark.stream_reader import StreamReader

        check_schema(schema, self._layout.spark())
        return StreamReader(self._source, schema, self._layout)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from runnel.spark.batch_writer import RunnelWriter

        return RunnelWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write."""
        from runnel.spark.stream_writer import RunnelStreamWriter

        options = self._sink(schema, overwrite)
        if options.mark is not None:
            raise InvalidOption("mark", options.mark, "a stream has a mark of its own: its query and its batch")
        return RunnelStreamWriter(options)

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        if overwrite:
            why = "a topic is a log, and nothing in it is written over; use mode('append'), outputMode('append')"
            raise NotSupported("overwriting a topic", why)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options.topic)
        return options
