"""Typed topics: values to bytes and back, checked on the way in, with the field named.

Below: errors. Above: broker.topic, which encodes, and broker.subscription, which decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
            raise ValidationFailed(topic, self.name, *located(str(error))) from None
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
        check_succession(topic, self, earlier)


def check_succession(topic: str, later: Codec[Any] | Schema, earlier: Codec[Any] | Schema) -> None:
    """Raise SchemaConflict unless `later` may follow `earlier` on `topic`."""
    if later.encoding != earlier.encoding:
        raise SchemaConflict(topic, f"it is encoded as {earlier.encoding}, not {later.encoding}")
    if why := _not_grown(_parts(earlier.schema), _parts(later.schema)):
        raise SchemaConflict(topic, why)


def located(message: str) -> tuple[str, str]:
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
