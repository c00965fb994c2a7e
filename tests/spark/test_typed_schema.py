"""What each field of a type becomes in a table."""

from __future__ import annotations

import enum
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest

from runnel.arrow.typed_values import Digits, kind_of
from runnel.core.errors import InvalidOption


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(msgspec.Struct):
    x: int
    y: float = 1.5


class Pair(msgspec.Struct, array_like=True):
    x: int
    y: str = "d"


class Dot(msgspec.Struct, tag="dot"):
    x: int


class Line(msgspec.Struct, tag="line"):
    to: Point


class Tree(msgspec.Struct):
    children: list[Tree] = []


Aware = Annotated[datetime, msgspec.Meta(tz=True)]
Money = Annotated[Decimal, msgspec.Meta(extra_json_schema={"precision": 18, "scale": 4})]
POINT = pa.struct([("x", pa.int64()), ("y", pa.float64())])
SHAPE = pa.struct(
    [("kind", pa.string()), ("dot", pa.struct([("x", pa.int64())])), ("line", pa.struct([("to", POINT)]))]
)


@pytest.mark.parametrize(
    ("type_", "arrow"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (int | float, pa.float64()),
        (bool, pa.bool_()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (Side, pa.string()),
        (Level, pa.int64()),
        (Literal["a", None], pa.string()),
        (Literal["a", 1], pa.string()),
        (uuid.UUID, pa.string()),
        (date, pa.date32()),
        (Aware, pa.timestamp("us", "UTC")),
        (datetime, pa.string()),
        (time, pa.string()),
        (timedelta, pa.string()),
        (Money, pa.decimal128(18, 4)),
        (list[int], pa.list_(pa.int64())),
        (set[str], pa.list_(pa.string())),
        (dict[str, float], pa.map_(pa.string(), pa.float64())),
        (dict[str, Any], pa.map_(pa.string(), pa.string())),
        (tuple[int, str], pa.struct([("_1", pa.int64()), ("_2", pa.string())])),
        (tuple[int, ...], pa.list_(pa.int64())),
        (Pair, pa.struct([("_1", pa.int64()), ("_2", pa.string())])),
        (Point, POINT),
        (Point | None, POINT),
        (list[Point | None], pa.list_(POINT)),
        (Dot | Line, SHAPE),
        (Dot | Line | None, SHAPE),
        (Dot | None, pa.struct([("type", pa.string()), ("x", pa.int64())])),
        (int | str, pa.string()),
        (Any, pa.string()),
        (Tree, pa.struct([("children", pa.list_(pa.string()))])),
    ],
    ids=str,
)
def test_a_type_has_its_place_in_a_table(type_: Any, arrow: pa.DataType) -> None:
    assert kind_of(msgspec.json.schema(type_)).arrow == arrow


class Bill(msgspec.Struct):
    sums: list[Decimal]


def test_a_decimal_must_say_how_many_digits_it_has() -> None:
    schema = msgspec.json.schema(Bill)
    with pytest.raises(InvalidOption, match=r"field 'sums\[\]' is a Decimal.*decimalType='18,4'"):
        kind_of(schema)
    assert kind_of(schema, Digits(10, 2)).arrow == pa.struct([("sums", pa.list_(pa.decimal128(10, 2)))])


@pytest.mark.parametrize("digits", [Digits(39, 2), Digits(0, 0), Digits(4, 5)])
def test_digits_that_no_table_has_are_refused(digits: Digits) -> None:
    with pytest.raises(InvalidOption, match="1 to 38 digits"):
        kind_of(msgspec.json.schema(Bill), digits)
