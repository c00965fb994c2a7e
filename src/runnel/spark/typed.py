"""Typed values as columns: each field of a topic's type is one, and what cannot be decoded is told or raised.

Decoding is msgspec's, into types that were made of the topic's schema as it was when the query began: fields that
the type gained since are not seen, and what a record leaves out is its default.
Below: typed_schema, kinds. Above: columns, format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from runnel.core.codec import Schema, located
from runnel.core.errors import ValidationFailed
from runnel.spark.kinds import Arms, Fields, Kind
from runnel.spark.typed_schema import Digits, kind_of

Values = Sequence[bytes | None]


class Typed:
    """How the values of a topic become columns. It travels to executors as its schema; types are made there anew.

    `bad`: the column that has, of a record that cannot be decoded, its value as it came, and all others null
    (PERMISSIVE). None: such a record is an error (FAILFAST).
    """

    def __init__(self, schema: Schema, *, bad: str | None, digits: Digits | None = None) -> None:
        self.schema, self.bad, self.digits = schema, bad, digits

    def __repr__(self) -> str:
        return f"<Typed {', '.join(field.name for field in self.fields)}, {'PERMISSIVE' if self.bad else 'FAILFAST'}>"

    def __getstate__(self) -> tuple[Schema, str | None, Digits | None]:
        return self.schema, self.bad, self.digits

    def __setstate__(self, state: tuple[Schema, str | None, Digits | None]) -> None:
        self.schema, self.bad, self.digits = state

    @cached_property
    def _kind(self) -> Kind:
        return kind_of(self.schema.schema, self.digits)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        module: Any = msgspec.json if self.schema.encoding == "json" else msgspec.msgpack
        decode: Callable[[bytes], Any] = module.Decoder(self._kind.python).decode
        return decode

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that values become, and behind them the one for those that cannot be decoded."""
        kind = self._kind
        shown = list(kind.arrow) if isinstance(kind, Fields | Arms) else [pa.field("value", kind.arrow)]
        return shown if self.bad is None else [*shown, pa.field(self.bad, pa.binary())]

    def columns(self, values: Values, where: Callable[[int], tuple[str, int]]) -> list[pa.Array]:
        """The columns of `values`, of which None is a tombstone. `where(at)` says the topic and offset of one."""
        bad: dict[int, bytes] = {}
        found = self._columns(values, 0, where, bad)
        if self.bad is not None:
            found.append(
                pa.array([bad.get(at) for at in range(len(values))] if bad else [None] * len(values), pa.binary())
            )
        return found

    def _columns(
        self, values: Values, first: int, where: Callable[[int], tuple[str, int]], bad: dict[int, bytes]
    ) -> list[pa.Array]:
        """The columns, but for the last. One that is bad is found by halving: most of the time none is, or few are."""
        try:
            return self._decoded(values)
        except (msgspec.DecodeError, pa.ArrowInvalid, UnicodeDecodeError, OverflowError, RecursionError) as error:
            if len(values) == 1:
                topic, offset = where(first)
                if self.bad is None:
                    raise _undecodable(topic, offset, error) from None
                bad[first] = values[0] or b""
                return self._decoded([None])
        half = len(values) // 2
        parts = [
            self._columns(values[:half], first, where, bad),
            self._columns(values[half:], first + half, where, bad),
        ]
        return [pa.concat_arrays(both) for both in zip(*parts, strict=True)]

    def _decoded(self, values: Values) -> list[pa.Array]:
        kind = self._kind
        if None in values:
            rows = [None if value is None else self._decode(value) for value in values]
        else:
            rows = list(map(self._decode, values))  # type: ignore[arg-type]  # none of them is None
        if not isinstance(kind, Fields | Arms):
            return [kind.column(rows)]
        if None in values:
            column = kind.column(rows)
            return [pc.struct_field(column, [at]) for at in range(column.type.num_fields)]
        return kind.columns(rows)


def _undecodable(topic: str, offset: int, error: Exception) -> ValidationFailed:
    field, why = located(str(error)) if isinstance(error, msgspec.DecodeError) else ("the value", str(error))
    way_out = "; mode='PERMISSIVE' shows such records in a column of their own"
    return ValidationFailed(topic, "its type", field, f"{why} (offset {offset}){way_out}")
