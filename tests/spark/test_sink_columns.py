"""Columns are checked by name and type, and what is wrong is said with the way out."""

from __future__ import annotations

import pytest

from runnel.core.errors import InvalidOption
from runnel.spark.schema import check_sink_columns

WHOLE = {"topic": "string", "key": "binary", "value": "string", "headers": "map<string,string>"}


def test_all_columns_may_be_there_and_only_a_value_and_a_topic_must() -> None:
    check_sink_columns(WHOLE, None)
    check_sink_columns(WHOLE, "t")
    check_sink_columns({"value": "binary"}, "t")
    check_sink_columns({"value": "binary", "topic": "string"}, None)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": "binary", "offset": "bigint"}, "no column 'offset'; it takes topic, key, value, headers"),
        ({"valu": "binary"}, "did you mean 'value'"),
        ({"Value": "binary"}, "did you mean 'value'"),
        ({"value": "int"}, "'value' is int, and has to be binary or string.*to_json"),
        ({"value": "string", "key": "bigint"}, "'key' is bigint"),
        ({"value": "string", "headers": "map<string,int>"}, "'headers' is map<string,int>"),
        ({"key": "string"}, r"no column 'value'.*to_json\(struct"),
    ],
)
def test_what_cannot_be_written_is_named(columns: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        check_sink_columns(columns, "t")


def test_rows_that_go_nowhere_are_refused() -> None:
    with pytest.raises(InvalidOption, match="option topic, or give each row a column 'topic'"):
        check_sink_columns({"value": "string"}, None)
