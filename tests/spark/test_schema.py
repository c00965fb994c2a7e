"""The columns of a record: Spark's types and Arrow's are the same to the letter, and a query may have fewer."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from runnel.core.errors import InvalidOption
from runnel.spark.schema import SOURCE_COLUMNS, check_source_schema, spark_schema
from tests.spark.test_columns import SCHEMA


def test_columns_have_the_declared_spark_types() -> None:
    assert to_arrow_schema(spark_schema(), timezone="UTC").equals(SCHEMA)
    assert spark_schema().fieldNames() == list(SOURCE_COLUMNS)


def test_a_query_may_have_fewer_columns() -> None:
    fields = spark_schema().fields
    check_source_schema(StructType([fields[6], fields[2]]))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (StructType([StructField("price", LongType())]), "price.*no such column; it has topic, epoch"),
        (StructType([StructField("offset", StringType())]), "it is bigint, not string"),
        (StructType([]), "name a column"),
    ],
)
def test_what_a_record_has_not_cannot_be_had(schema: StructType, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        check_source_schema(schema)
