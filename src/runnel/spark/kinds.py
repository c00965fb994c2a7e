"""What a typed value can hold. A kind has three sides: a Python type to decode into, an Arrow type, and a way across.

Values are decoded by msgspec and gathered into Arrow column by column; no line of Python runs for a single record,
but where a value may be one of several things.
Below: nothing. Above: typed_schema, which finds the kind of a schema; typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Union

import msgspec
import pyarrow as pa

Values = Sequence[Any]


class Kind:
    """A plain value, which Arrow takes as it is. Nothing is None, whatever the kind."""

    def __init__(self, python: Any, arrow: pa.DataType) -> None:
        self.python, self.arrow = python, arrow

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.arrow}>"

    def column(self, values: Values) -> pa.Array:
        """The values as Arrow has them. Raises `pa.ArrowInvalid` where one does not fit."""
        return pa.array(values, self.arrow)


LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
AWARE = Annotated[datetime, msgspec.Meta(tz=True)]

INTEGER = Kind(LONG, pa.int64())
NUMBER = Kind(float, pa.float64())
TRUTH = Kind(bool, pa.bool_())
TEXT = Kind(str, pa.string())
BYTES = Kind(bytes, pa.binary())
DAY = Kind(date, pa.date32())
MOMENT = Kind(AWARE, pa.timestamp("us", "UTC"))


def decimal(precision: int, scale: int) -> Kind:
    """Decimals of so many digits, `scale` of them behind the point. One that has more is refused, never rounded."""
    return Kind(Decimal, pa.decimal128(precision, scale))


class Json(Kind):
    """Anything else: it is shown as JSON text."""

    def __init__(self) -> None:
        super().__init__(Any, pa.string())

    def column(self, values: Values) -> pa.Array:
        """Each value written as JSON."""
        return pa.array([None if value is None else _write(value).decode() for value in values], self.arrow)


_write = msgspec.json.Encoder().encode


class Composite(Kind):
    """A kind that is put together of others; where a value is None, all of it is null."""

    def column(self, values: Values) -> pa.Array:
        """The values as Arrow has them."""
        there = [value for value in values if value is not None]
        if len(there) == len(values):
            return self.whole(values)
        places = accumulate((value is not None for value in values), initial=0)
        chosen = [None if value is None else at for value, at in zip(values, places, strict=False)]
        return self.whole(there).take(pa.array(chosen, pa.int64()))

    def whole(self, values: Values) -> pa.Array:
        """The same, of values none of which is None."""
        raise AssertionError("each composite has its own")


class Fields(Composite):
    """Named fields. In Python a Struct that msgspec makes; `names` are what Arrow and the values call them."""

    def __init__(self, struct: type[msgspec.Struct], kinds: dict[str, Kind]) -> None:
        self.kinds = kinds
        self._getters = [attrgetter(f"f{at}") for at in range(len(kinds))]
        super().__init__(struct, pa.struct([pa.field(name, kind.arrow) for name, kind in kinds.items()]))

    def columns(self, values: Values) -> list[pa.Array]:
        """One column for each field, of values none of which is None."""
        found = zip(self._getters, self.kinds.values(), strict=True)
        return [kind.column(list(map(getter, values))) for getter, kind in found]

    def whole(self, values: Values) -> pa.Array:
        """Its columns, as one."""
        if not self.kinds:
            return pa.array([{}] * len(values), self.arrow)
        return pa.StructArray.from_arrays(self.columns(values), fields=list(self.arrow))


class Many(Composite):
    """A list of one kind."""

    def __init__(self, item: Kind) -> None:
        self.item = item
        super().__init__(list[item.python], pa.list_(item.arrow))  # type: ignore[name-defined]  # made at run time

    def whole(self, values: Values) -> pa.Array:
        """All items in one column, and where each list ends."""
        return pa.ListArray.from_arrays(ends(values), self.item.column(list(chain.from_iterable(values))), self.arrow)


class Mapped(Composite):
    """Values of one kind by text."""

    def __init__(self, item: Kind) -> None:
        self.item = item
        super().__init__(dict[str, item.python], pa.map_(pa.string(), item.arrow))  # type: ignore[name-defined]

    def whole(self, values: Values) -> pa.Array:
        """All keys and all items, and where each map ends."""
        keys = pa.array(list(chain.from_iterable(values)), pa.string())
        items = self.item.column(list(chain.from_iterable(value.values() for value in values)))
        return pa.MapArray.from_arrays(ends(values), keys, items, self.arrow)


class Arms(Composite):
    """One of several, told apart by a tag: `kind` is the tag, and of the arms one is there."""

    def __init__(self, arms: dict[str, Fields]) -> None:
        self.arms = arms
        self._tags = {arm.python: tag for tag, arm in arms.items()}
        shown = [pa.field("kind", pa.string()), *(pa.field(tag, arm.arrow) for tag, arm in arms.items())]
        super().__init__(Union[tuple(arm.python for arm in arms.values())], pa.struct(shown))  # noqa: UP007

    def columns(self, values: Values) -> list[pa.Array]:
        """The tags, and a column for each arm."""
        kinds = list(map(type, values))
        found = [pa.array(list(map(self._tags.__getitem__, kinds)), pa.string())]
        for arm in self.arms.values():
            mine = [value if kind is arm.python else None for value, kind in zip(values, kinds, strict=True)]
            found.append(arm.column(mine))
        return found

    def whole(self, values: Values) -> pa.Array:
        """Its columns, as one."""
        return pa.StructArray.from_arrays(self.columns(values), fields=list(self.arrow))


def ends(values: Values) -> pa.Array:
    """Where each of several lists begins when they are laid one behind the other, and where the last ends."""
    return pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())
