"""Typed topics: encoding, decoding and validation of values, and schema evolution.

Values are validated when they are published; the error names the field. A type may only gain fields that
have defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from runnel.core.errors import InvalidOption, SchemaConflict, ValidationFailed
from runnel.core.record import Record

T = TypeVar("T")

_AT = re.compile(r" - at `(?P<path>[^`]+)`$")
_MISSING = re.compile(r"(?:missing required|contains unknown) field `(?P<field>[^`]+)`")


class Schema(NamedTuple):
    """What is known of a topic's type where the type itself is not at hand."""

    encoding: str
    schema: dict[str, Any]


class Codec(Generic[T]):
    """Encodes and validates values of one type, as JSON or as msgpack."""

    def __init__(self, type_: Any, encoding: str = "json") -> None:
        if encoding not in ("json", "msgpack"):
            raise InvalidOption("encoding", encoding, "expected 'json' or 'msgpack'")
        self.type, self.encoding = type_, encoding
        self._other: Codec[T] | None = None  # of the other encoding, once somebody needs it
        try:
            self.schema: dict[str, Any] = msgspec.json.schema(type_)
            self._encode: Callable[[object], bytes]
            self._decode: Callable[[bytes], T]
            if encoding == "json":
                self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(type_).decode
            else:
                self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type_).decode
        except TypeError as error:
            raise InvalidOption("type", type_, f"msgspec cannot encode it: {error}") from None

    def __repr__(self) -> str:
        return f"<Codec {self.name} as {self.encoding}>"

    @property
    def name(self) -> str:
        """The type's name, for messages."""
        return getattr(self.type, "__name__", str(self.type))

    def encode(self, topic: str, value: object) -> bytes:
        """`value` as bytes, or ValidationFailed with the field that is wrong."""
        try:
            data = self._encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValidationFailed(topic, self.name, "the value", str(error)) from None
        except RecursionError:
            raise ValidationFailed(topic, self.name, "the value", "it is nested too deeply") from None
        # Encoding checks nothing: a Struct built with a str where an int belongs encodes well.
        self.decode(topic, data)
        return data

    def decode(self, topic: str, data: bytes) -> T:
        """The value in `data`, a new object each time, or ValidationFailed."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValidationFailed(topic, self.name, *field_and_reason(str(error))) from None
        except RecursionError:
            raise ValidationFailed(topic, self.name, "the value", "it is nested too deeply") from None

    def value_of(self, record: Record[bytes]) -> T | None:
        """The value of a record, or ValidationFailed; None for a tombstone: a key, and no value."""
        if not record.value and record.key is not None:
            return None
        return self.decode(record.topic, record.value)

    def encoded_as(self, encoding: str | None) -> Codec[T]:
        """The codec of the same type for another encoding; None: this one."""
        if encoding is None or encoding == self.encoding:
            return self
        if self._other is None:
            self._other = Codec(self.type, encoding)
        return self._other

    def succeed(self, topic: str, earlier: Codec[Any] | Schema) -> None:
        """Raise SchemaConflict unless this type may follow `earlier` on `topic`."""
        check_schema_evolution(topic, self, earlier)


def check_schema_evolution(topic: str, later: Codec[Any] | Schema, earlier: Codec[Any] | Schema) -> None:
    """Raise SchemaConflict unless `later` may follow `earlier` on `topic`."""
    if later.encoding != earlier.encoding:
        raise SchemaConflict(topic, f"it is encoded as {earlier.encoding}, not {later.encoding}")
    if why := _not_grown(_parts(earlier.schema), _parts(later.schema)):
        raise SchemaConflict(topic, why)


def field_and_reason(message: str) -> tuple[str, str]:
    """The field, and what is wrong with it, from a message of msgspec."""
    found = _AT.search(message)
    path = found["path"].removeprefix("$").removeprefix(".") if found else ""
    why = message[: found.start()] if found else message
    if named := _MISSING.search(why):
        path = f"{path}.{named['field']}" if path else named["field"]
    return path or "the value", why


def _parts(schema: dict[str, Any]) -> dict[str, Any]:
    """The top of a schema and its named definitions, by name; '' is the top, whatever it is called."""
    named = dict(schema.get("$defs", {}))
    top = {k: v for k, v in schema.items() if k != "$defs"}
    if "$ref" in top:
        name = top["$ref"].rpartition("/")[2]
        top = named[name]
        if f'"#/$defs/{name}"' not in msgspec.json.encode(list(named.values())).decode():
            del named[name]  # nothing but the top refers to it
    return {"": top, **named}


def _not_grown(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Why `new` is not `old` plus optional fields; None when it is."""
    for name, was in old.items():
        label, now = name or was.get("title", "the value"), new.get(name)
        if now is None:
            return f"{label} is gone"
        if "properties" not in was or "properties" not in now:
            if _shape(was) != _shape(now):
                return f"{label} changed"
            continue
        for field, kind in was["properties"].items():
            if _shape(now["properties"].get(field)) != _shape(kind):
                return f"field {field!r} of {label} {'changed' if field in now['properties'] else 'is gone'}"
        if added := [field for field in now.get("required", []) if field not in was.get("required", [])]:
            return f"field {added[0]!r} of {label} has no default"
    return None


def _shape(kind: dict[str, Any] | None) -> dict[str, Any] | None:
    """What may be held, whatever its name and default."""
    return kind and {name: value for name, value in kind.items() if name not in ("default", "title")}


# -- Checking plain values against a stored schema -------------------------------------------------------
# For processes that know a topic's schema and not its Python type. Refuses what the type would certainly
# refuse: a missing field, a field of another kind. Patterns, formats and unknown keywords pass.


MAX_DEPTH = 200  # levels that are looked at

Mismatch = tuple[str, str]
"""(the field, what is wrong with it)."""


def schema_title(schema: dict[str, Any]) -> str:
    """What the type is called."""
    return str(_resolved(schema, schema).get("title", "its type"))


def schema_mismatch(schema: dict[str, Any], value: Any) -> Mismatch | None:
    """Why `value`, as JSON or msgpack gave it, does not fit; None: it does, as far as can be told."""
    return _mismatch(schema, schema, value, "", 0)


def _resolved(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        schema = whole.get("$defs", {}).get(reference.rpartition("/")[2], {})
    return schema


def _mismatch(whole: dict[str, Any], schema: Any, value: Any, path: str, depth: int) -> Mismatch | None:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    schema = _resolved(whole, schema)
    if (said := _discriminated(schema, value)) is not None:
        return _mismatch(whole, {"$ref": said}, value, path, depth + 1)
    if "anyOf" in schema:
        return _union_mismatch(whole, schema["anyOf"], value, path, depth)
    if "enum" in schema and not _is_in(value, schema["enum"]):
        return path or "the value", f"it is not one of {schema['enum']}"
    if "const" in schema and not _is_in(value, [schema["const"]]):
        return path or "the value", f"it is not {schema['const']!r}"
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _KINDS and not _KINDS[kind](value):
        return path or "the value", f"expected {kind}, got {_kind_of(value)}"
    if isinstance(value, dict):
        return _object_mismatch(whole, schema, value, path, depth)
    if isinstance(value, list):
        return _array_mismatch(whole, schema, value, path, depth)
    return None


def _discriminated(schema: dict[str, Any], value: Any) -> str | None:
    """Which of several kinds a value says that it is, where they are told apart by a field."""
    told_apart = schema.get("discriminator")
    if not isinstance(told_apart, dict) or not isinstance(value, dict):
        return None
    said = value.get(told_apart.get("propertyName"))
    found = told_apart.get("mapping", {}).get(said) if isinstance(said, str) else None
    return found if isinstance(found, str) else None


def _union_mismatch(whole: dict[str, Any], options: list[Any], value: Any, path: str, depth: int) -> Mismatch | None:
    """The fault that lies deepest: of the option that fits best."""
    faults = [_mismatch(whole, option, value, path, depth + 1) for option in options]
    if not faults or any(fault is None for fault in faults):
        return None
    return max((fault for fault in faults if fault is not None), key=lambda fault: fault[0].count("."))


def _object_mismatch(
    whole: dict[str, Any], schema: dict[str, Any], value: dict[Any, Any], path: str, depth: int
) -> Mismatch | None:
    fields: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return _below(path, name), f"Object missing required field `{name}`"
    others = schema.get("additionalProperties")
    for name, one in value.items():
        if name in fields:
            fault = _mismatch(whole, fields[name], one, _below(path, name), depth + 1)
        elif others is False:
            fault = _below(path, name), f"Object contains unknown field `{name}`"
        else:
            fault = _mismatch(whole, others, one, f"{path}[...]", depth + 1)
        if fault is not None:
            return fault
    return None


def _array_mismatch(
    whole: dict[str, Any], schema: dict[str, Any], value: list[Any], path: str, depth: int
) -> Mismatch | None:
    if len(value) < schema.get("minItems", 0):
        return path or "the value", f"expected {schema['minItems']} items or more, got {len(value)}"
    first: list[Any] = schema.get("prefixItems", [])
    for at, one in enumerate(value):
        kind = first[at] if at < len(first) else schema.get("items")
        if kind is False:
            return path or "the value", f"expected {len(first)} items, got {len(value)}"
        if (fault := _mismatch(whole, kind, one, f"{path}[{at}]", depth + 1)) is not None:
            return fault
    return None


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _is_in(value: Any, allowed: list[Any]) -> bool:
    return any(one == value and isinstance(one, bool) == isinstance(value, bool) for one in allowed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str | bytes | datetime),  # msgpack has bytes and times of its own
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return {int: "integer", float: "number", dict: "object", list: "array"}.get(type(value), "string")
