"""The kind of a JSON schema, as a typed topic has it: what each of its fields becomes in a table.

A schema says less than the type that it was made from, and all that is needed here. What it leaves open (a union of
plain values, `Any`, a type that holds itself) is shown as JSON text.
Below: kinds. Above: typed.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional

import msgspec

from runnel.core.errors import InvalidOption
from runnel.spark import kinds
from runnel.spark.kinds import Arms, Fields, Json, Kind, Many, Mapped

MOST_DIGITS = 38

_PLAIN: dict[str, Kind] = {"integer": kinds.INTEGER, "number": kinds.NUMBER, "boolean": kinds.TRUTH}
_TEXTS: dict[str, Kind] = {"date": kinds.DAY, "date-time": kinds.MOMENT}
_NOTHING = {"type": "null"}


class Digits(NamedTuple):
    """Of a decimal: how many digits it has, and how many of them behind the point."""

    precision: int
    scale: int


def kind_of(schema: dict[str, Any], digits: Digits | None = None) -> Kind:
    """The kind of values that `schema` describes. Decimals that do not say their digits have `digits`."""
    return _Survey(schema, digits).kind(schema, "")


class _Survey:
    """One walk through a schema."""

    def __init__(self, whole: dict[str, Any], digits: Digits | None) -> None:
        self._defs: dict[str, Any] = whole.get("$defs", {})
        self._digits = digits
        self._inside: list[str] = []  # the definitions that we are in

    def kind(self, schema: dict[str, Any], path: str) -> Kind:
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
        return _PLAIN.get(str(what)) or Json()

    def _referred(self, reference: str, path: str) -> Kind:
        name = reference.rpartition("/")[2]
        if name in self._inside or name not in self._defs:
            return Json()  # a type that holds itself has no end
        self._inside.append(name)
        try:
            return self.kind(self._defs[name], path)
        finally:
            self._inside.pop()

    def _any_of(self, options: list[dict[str, Any]], path: str) -> Kind:
        if len(options) == 1:
            return self.kind(options[0], path)
        if {one.get("type") for one in options} == {"integer", "number"}:
            return kinds.NUMBER
        return Json()

    def _text(self, schema: dict[str, Any], path: str) -> Kind:
        if schema.get("contentEncoding") == "base64":
            return kinds.BYTES
        if schema.get("format") != "decimal":
            return _TEXTS.get(schema.get("format", ""), kinds.TEXT)
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
        return kinds.decimal(*digits)

    def _array(self, schema: dict[str, Any], path: str) -> Kind:
        if "prefixItems" not in schema:
            items = schema.get("items")
            return Many(self.kind(items if isinstance(items, dict) else {}, f"{path}[]"))
        items = {f"_{at}": one for at, one in enumerate(schema["prefixItems"], 1)}
        required = list(items)[: schema.get("minItems", len(items))]
        return self._fields(items, required, path, array_like=True)

    def _object(self, schema: dict[str, Any], path: str) -> Kind:
        if "properties" in schema:
            return self._fields(schema["properties"], schema.get("required", []), path)
        others = schema.get("additionalProperties")
        return Mapped(self.kind(others if isinstance(others, dict) else {}, f"{path}[]"))

    def _fields(
        self, properties: dict[str, Any], required: list[str], path: str, tag: tuple[str, str] | None = None, **how: Any
    ) -> Fields:
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
        return Fields(struct, found)

    def _arms(self, told: dict[str, Any], path: str) -> Kind:
        field, arms = told["propertyName"], dict[str, Fields]()
        for tag, reference in told["mapping"].items():
            name = reference.rpartition("/")[2]
            schema = self._defs.get(name, {})
            if name in self._inside or "properties" not in schema:
                return Json()
            self._inside.append(name)
            properties = {one: node for one, node in schema["properties"].items() if one != field}
            arms[tag] = self._fields(
                properties, schema.get("required", []), f"{path}.{tag}" if path else tag, (field, tag)
            )
            self._inside.pop()
        return Arms(arms)


def _may_be_null(schema: dict[str, Any]) -> bool:
    return _NOTHING in schema.get("anyOf", ()) or None in schema.get("enum", ())


def _default(schema: dict[str, Any], python: Any) -> Any:
    """What a field is that a record leaves out; a new one each time, for it may be a list."""
    said = schema.get("default")
    return msgspec.field(default_factory=lambda: None if said is None else msgspec.convert(said, python))


def _choice(allowed: list[Any]) -> Kind:
    """One of some values: text or numbers, if they all are."""
    if allowed and all(isinstance(one, str) for one in allowed):
        return Kind(Literal[tuple(allowed)], kinds.TEXT.arrow)
    if allowed and all(isinstance(one, int) and not isinstance(one, bool) for one in allowed):
        return Kind(Literal[tuple(allowed)], kinds.INTEGER.arrow)
    return Json()
