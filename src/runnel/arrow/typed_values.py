"""Typed values as Arrow columns: from a topic's JSON schema to a decoder and column types.

msgspec decodes into types that are made from the schema at the begin of the query: fields added since are not
seen, missing ones get their default. Fields of unspecified type are shown as JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from runnel.core.errors import InvalidOption, ValidationFailed
from runnel.core.schema import Schema, field_and_reason

Values = Sequence[Any]


class ColumnKind:
    """A plain value, which Arrow takes unchanged. A missing one is None, whatever the kind."""

    def __init__(self, python: Any, arrow: pa.DataType) -> None:
        self.python, self.arrow = python, arrow

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.arrow}>"

    def column(self, values: Values) -> pa.Array:
        """The values as Arrow has them. Raises `pa.ArrowInvalid` where one does not fit."""
        return pa.array(values, self.arrow)


LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
AWARE = Annotated[datetime, msgspec.Meta(tz=True)]

INTEGER = ColumnKind(LONG, pa.int64())
NUMBER = ColumnKind(float, pa.float64())
BOOLEAN = ColumnKind(bool, pa.bool_())
TEXT = ColumnKind(str, pa.string())
BYTES = ColumnKind(bytes, pa.binary())
DATE = ColumnKind(date, pa.date32())
TIMESTAMP = ColumnKind(AWARE, pa.timestamp("us", "UTC"))


def decimal_kind(precision: int, scale: int) -> ColumnKind:
    """Decimals of so many digits, `scale` of them behind the point. One that has more is refused, never rounded."""
    return ColumnKind(Decimal, pa.decimal128(precision, scale))


class JsonKind(ColumnKind):
    """Anything else: it is shown as JSON text."""

    def __init__(self) -> None:
        super().__init__(Any, pa.string())

    def column(self, values: Values) -> pa.Array:
        """Each value written as JSON."""
        return pa.array([None if value is None else _to_json(value).decode() for value in values], self.arrow)


_to_json = msgspec.json.Encoder().encode


class CompositeKind(ColumnKind):
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


class StructKind(CompositeKind):
    """Named fields. In Python a Struct that msgspec makes; `names` are what Arrow and the values call them."""

    def __init__(self, struct: type[msgspec.Struct], kinds: dict[str, ColumnKind]) -> None:
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


class ListKind(CompositeKind):
    """A list of one kind."""

    def __init__(self, item: ColumnKind) -> None:
        self.item = item
        super().__init__(list[item.python], pa.list_(item.arrow))  # type: ignore[name-defined]  # made at run time

    def whole(self, values: Values) -> pa.Array:
        """All items in one column, and where each list ends."""
        return pa.ListArray.from_arrays(
            list_offsets(values), self.item.column(list(chain.from_iterable(values))), self.arrow
        )


class MapKind(CompositeKind):
    """Values of one kind by text."""

    def __init__(self, item: ColumnKind) -> None:
        self.item = item
        super().__init__(dict[str, item.python], pa.map_(pa.string(), item.arrow))  # type: ignore[name-defined]

    def whole(self, values: Values) -> pa.Array:
        """All keys and all items, and where each map ends."""
        keys = pa.array(list(chain.from_iterable(values)), pa.string())
        items = self.item.column(list(chain.from_iterable(value.values() for value in values)))
        return pa.MapArray.from_arrays(list_offsets(values), keys, items, self.arrow)


class UnionKind(CompositeKind):
    """One of several, distinguished by a tag: `kind` is the tag, and of the arms one is there."""

    def __init__(self, arms: dict[str, StructKind]) -> None:
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


def list_offsets(values: Values) -> pa.Array:
    """Where each of several lists begins when they are laid one behind the other, and where the last ends."""
    return pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())


# -- From a JSON schema to column kinds ------------------------------------------------------------------
# A union of plain values, `Any` and a type that contains itself become JSON text.


MOST_DIGITS = 38

_PLAIN_KINDS: dict[str, ColumnKind] = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN}
_TEXT_KINDS: dict[str, ColumnKind] = {"date": DATE, "date-time": TIMESTAMP}
_NOTHING = {"type": "null"}


class Digits(NamedTuple):
    """Of a decimal: how many digits it has, and how many of them behind the point."""

    precision: int
    scale: int


def kind_of(schema: dict[str, Any], digits: Digits | None = None) -> ColumnKind:
    """The kind of values that `schema` describes. Decimals that do not say their digits have `digits`."""
    return _SchemaWalk(schema, digits).kind(schema, "")


class _SchemaWalk:
    """One walk through a schema."""

    def __init__(self, whole: dict[str, Any], digits: Digits | None) -> None:
        self._defs: dict[str, Any] = whole.get("$defs", {})
        self._digits = digits
        self._inside: list[str] = []  # the definitions that we are in

    def kind(self, schema: dict[str, Any], path: str) -> ColumnKind:
        """The kind of one node. `path` is the field that it is in, for errors."""
        if "$ref" in schema:
            return self._referred(schema["$ref"], path)
        if "discriminator" in schema:
            return self._arms(schema["discriminator"], path)
        if "anyOf" in schema:
            return self._any_of([one for one in schema["anyOf"] if one != _NOTHING], path)
        if "enum" in schema:
            return _choice([one for one in schema["enum"] if one is not None])
        what = schema.get("type")
        if what == "string":
            return self._text(schema, path)
        if what == "array":
            return self._array(schema, path)
        if what == "object":
            return self._object(schema, path)
        return _PLAIN_KINDS.get(str(what)) or JsonKind()

    def _referred(self, reference: str, path: str) -> ColumnKind:
        name = reference.rpartition("/")[2]
        if name in self._inside or name not in self._defs:
            return JsonKind()  # a type that holds itself has no end
        self._inside.append(name)
        try:
            return self.kind(self._defs[name], path)
        finally:
            self._inside.pop()

    def _any_of(self, options: list[dict[str, Any]], path: str) -> ColumnKind:
        if len(options) == 1:
            return self.kind(options[0], path)
        if {one.get("type") for one in options} == {"integer", "number"}:
            return NUMBER
        return JsonKind()

    def _text(self, schema: dict[str, Any], path: str) -> ColumnKind:
        if schema.get("contentEncoding") == "base64":
            return BYTES
        if schema.get("format") != "decimal":
            return _TEXT_KINDS.get(schema.get("format", ""), TEXT)
        digits = self._digits
        if "precision" in schema:
            digits = Digits(schema["precision"], schema.get("scale", 0))
        if digits is None:
            raise InvalidOption(
                "decimalType",
                None,
                f"field {path!r} is a Decimal, and nothing says how many digits it has; give decimalType='18,4', or "
                'say it with the type: Annotated[Decimal, Meta(extra_json_schema={"precision": 18, "scale": 4})]',
            )
        if not 0 < digits.precision <= MOST_DIGITS or not 0 <= digits.scale <= digits.precision:
            shown = f"{digits.precision},{digits.scale}"
            raise InvalidOption("decimalType", shown, f"field {path!r}: a decimal has 1 to {MOST_DIGITS} digits")
        return decimal_kind(*digits)

    def _array(self, schema: dict[str, Any], path: str) -> ColumnKind:
        if "prefixItems" not in schema:
            items = schema.get("items")
            return ListKind(self.kind(items if isinstance(items, dict) else {}, f"{path}[]"))
        items = {f"_{at}": one for at, one in enumerate(schema["prefixItems"], 1)}
        required = list(items)[: schema.get("minItems", len(items))]
        return self._fields(items, required, path, array_like=True)

    def _object(self, schema: dict[str, Any], path: str) -> ColumnKind:
        if "properties" in schema:
            return self._fields(schema["properties"], schema.get("required", []), path)
        others = schema.get("additionalProperties")
        return MapKind(self.kind(others if isinstance(others, dict) else {}, f"{path}[]"))

    def _fields(
        self, properties: dict[str, Any], required: list[str], path: str, tag: tuple[str, str] | None = None, **how: Any
    ) -> StructKind:
        """A Struct of its own for these fields: `f0`, `f1`, and so on, for not all names can be had in Python."""
        found = {name: self.kind(one, f"{path}.{name}" if path else name) for name, one in properties.items()}
        fields: list[Any] = []
        for at, (name, kind) in enumerate(found.items()):
            node, python = properties[name], kind.python
            if _may_be_null(node) or (name not in required and "default" not in node):
                python = Optional[python]  # noqa: UP045  # not all of them know `|`
            fields.append((f"f{at}", python) if name in required else (f"f{at}", python, _default(node, python)))
        if tag is not None:
            how |= {"tag_field": tag[0], "tag": tag[1]}
        struct = msgspec.defstruct(
            "Fields", fields, kw_only=True, rename={f"f{at}": name for at, name in enumerate(found)}, gc=False, **how
        )
        return StructKind(struct, found)

    def _arms(self, told: dict[str, Any], path: str) -> ColumnKind:
        field, arms = told["propertyName"], dict[str, StructKind]()
        for tag, reference in told["mapping"].items():
            name = reference.rpartition("/")[2]
            schema = self._defs.get(name, {})
            if name in self._inside or "properties" not in schema:
                return JsonKind()
            self._inside.append(name)
            properties = {one: node for one, node in schema["properties"].items() if one != field}
            arms[tag] = self._fields(
                properties, schema.get("required", []), f"{path}.{tag}" if path else tag, (field, tag)
            )
            self._inside.pop()
        return UnionKind(arms)


def _may_be_null(schema: dict[str, Any]) -> bool:
    return _NOTHING in schema.get("anyOf", ()) or None in schema.get("enum", ())


def _default(schema: dict[str, Any], python: Any) -> Any:
    """The value of a field that a record leaves out; a new one each time, for it may be a list."""
    said = schema.get("default")
    return msgspec.field(default_factory=lambda: None if said is None else msgspec.convert(said, python))


def _choice(allowed: list[Any]) -> ColumnKind:
    """One of some values: text or numbers, if they all are."""
    if allowed and all(isinstance(one, str) for one in allowed):
        return ColumnKind(Literal[tuple(allowed)], TEXT.arrow)
    if allowed and all(isinstance(one, int) and not isinstance(one, bool) for one in allowed):
        return ColumnKind(Literal[tuple(allowed)], INTEGER.arrow)
    return JsonKind()


# -- Decoding values into columns ------------------------------------------------------------------------


EncodedValues = Sequence[bytes | None]


class TypedDecoder:
    """How the values of a topic become columns. It travels to executors as its schema; types are made there anew.

    `bad`: the column that has, of a record that cannot be decoded, its value as it came, and all others null
    (PERMISSIVE). None: such a record is an error (FAILFAST).
    """

    def __init__(self, schema: Schema, *, bad: str | None, digits: Digits | None = None) -> None:
        self.schema, self.bad, self.digits = schema, bad, digits

    def __repr__(self) -> str:
        mode = "PERMISSIVE" if self.bad else "FAILFAST"
        return f"<TypedDecoder {', '.join(field.name for field in self.fields)}, {mode}>"

    def __getstate__(self) -> tuple[Schema, str | None, Digits | None]:
        return self.schema, self.bad, self.digits

    def __setstate__(self, state: tuple[Schema, str | None, Digits | None]) -> None:
        self.schema, self.bad, self.digits = state

    @cached_property
    def _kind(self) -> ColumnKind:
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
        shown = list(kind.arrow) if isinstance(kind, StructKind | UnionKind) else [pa.field("value", kind.arrow)]
        return shown if self.bad is None else [*shown, pa.field(self.bad, pa.binary())]

    def columns(self, values: EncodedValues, where: Callable[[int], tuple[str, int]]) -> list[pa.Array]:
        """The columns of `values`, of which None is a tombstone. `where(at)` says the topic and offset of one."""
        bad: dict[int, bytes] = {}
        found = self._columns(values, 0, where, bad)
        if self.bad is not None:
            found.append(
                pa.array([bad.get(at) for at in range(len(values))] if bad else [None] * len(values), pa.binary())
            )
        return found

    def _columns(
        self, values: EncodedValues, first: int, where: Callable[[int], tuple[str, int]], bad: dict[int, bytes]
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

    def _decoded(self, values: EncodedValues) -> list[pa.Array]:
        kind = self._kind
        if None in values:
            rows = [None if value is None else self._decode(value) for value in values]
        else:
            rows = list(map(self._decode, values))  # type: ignore[arg-type]  # none of them is None
        if not isinstance(kind, StructKind | UnionKind):
            return [kind.column(rows)]
        if None in values:
            column = kind.column(rows)
            return [pc.struct_field(column, [at]) for at in range(column.type.num_fields)]
        return kind.columns(rows)


def _undecodable(topic: str, offset: int, error: Exception) -> ValidationFailed:
    field, why = field_and_reason(str(error)) if isinstance(error, msgspec.DecodeError) else ("the value", str(error))
    way_out = "; mode='PERMISSIVE' shows such records in a column of their own"
    return ValidationFailed(topic, "its type", field, f"{why} (offset {offset}){way_out}")
