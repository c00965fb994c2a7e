"""Typed topics: encoding, decoding and validation of values, and schema evolution.

Values are validated when they are published; the error names the field. A type may only gain fields that
have defaults.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from math import inf
from operator import ge, gt, le, lt
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast, get_args
from uuid import UUID

import msgspec

from runnel.core.by_reference import ByReference
from runnel.core.errors import InvalidOption, SchemaConflict, ValidationFailed
from runnel.core.record import Record

T = TypeVar("T")

_AT = re.compile(r" - at (?:`(?P<key>key)` in )?`(?P<path>[^`]+)`$")
_MISSING = re.compile(r"(?:missing required|contains unknown) field `(?P<field>[^`]+)`")


class Schema(NamedTuple):
    """A topic's type where the Python type itself is not at hand."""

    encoding: str
    schema: dict[str, Any]

    def check(self) -> None:
        """Raise InvalidOption unless it is a schema as msgspec writes them. It may come from any client."""
        if why := _malformed(self.encoding, self.schema):
            raise InvalidOption("schema", str(self.schema)[:100], why)


class Codec(Generic[T]):
    """Encodes and validates values of one type, as JSON or as msgpack."""

    def __init__(self, type_: Any, encoding: str = "json") -> None:
        self._check_encoding(encoding)
        self.type, self.encoding = type_, encoding
        self._other: Codec[T] | None = None  # of the other encoding, once it is needed
        try:
            self.schema: dict[str, Any] = msgspec.json.schema(type_)
            self._encode: Callable[[object], bytes]
            self._decode: Callable[[bytes], T]
            if encoding == "json":
                self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(type_).decode
            else:
                self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type_).decode
        except TypeError as error:
            why = f"msgspec cannot encode it: {str(error).splitlines()[-1]}; in memory, the type `object` passes it on"
            raise InvalidOption("type", type_, why) from None

    @staticmethod
    def _check_encoding(encoding: str) -> None:
        if encoding not in ("json", "msgpack"):
            raise InvalidOption("encoding", encoding, "expected 'json' or 'msgpack'")

    def __repr__(self) -> str:
        return f"<Codec {self.name} as {self.encoding}>"

    @property
    def name(self) -> str:
        """The type's name, for messages."""
        if get_args(self.type):  # `list[int]`, whose name is `list`
            return str(self.type).replace("typing.", "").replace("__main__.", "")
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

    def encode_all(self, topic: str, values: Sequence[object]) -> list[bytes]:
        """Each of `values` as bytes, or ValidationFailed: the same as `encode`, without a call for each."""
        try:
            data = list(map(self._encode, values))
            deque(map(self._decode, data), maxlen=0)
        except (TypeError, ValueError, OverflowError, RecursionError):  # so do the errors of msgspec
            return [self.encode(topic, value) for value in values]  # raises at the one that is wrong
        return data

    def decode(self, topic: str, data: bytes) -> T:
        """The value in `data`, a new object each time, or ValidationFailed."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if (found := self.referred(data)) is not None:
                return found
            raise ValidationFailed(topic, self.name, *_fault(error, data, is_json=self.encoding == "json")) from None
        except RecursionError:
            raise ValidationFailed(topic, self.name, "the value", "it is nested too deeply") from None

    def referred(self, data: bytes) -> T | None:
        """The object referenced by `data`, if it is of this type; a reference never decodes as a value."""
        if isinstance(data, ByReference) and isinstance(self.type, type) and isinstance(data.referent, self.type):
            return cast(T, data.referent)
        return None

    def check(self, topic: str, data: bytes) -> None:
        """Raise ValidationFailed, with the field that is wrong, unless `data` is a value of the type."""
        self.decode(topic, data)

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
            self._other = codec_of(self.type, encoding)
        return self._other

    def succeed(self, topic: str, earlier: Codec[Any] | Schema) -> None:
        """Raise SchemaConflict unless this type may follow `earlier` on `topic`."""
        check_schema_evolution(topic, self, earlier)


class ObjectCodec(Codec[Any]):
    """Passes Python objects by reference: nothing is encoded, and every subscriber gets the same object."""

    def __init__(self, encoding: str = "json") -> None:
        self._check_encoding(encoding)
        self.type, self.encoding, self._other = object, encoding, None
        self.schema = {"byReference": True}  # unlike the schema of any other type

    def encode(self, topic: str, value: object) -> bytes:
        """The stored reference to `value`, in a topic in memory."""
        return ByReference.of(value)

    def encode_all(self, topic: str, values: Sequence[object]) -> list[bytes]:
        """The same for each of `values`."""
        return list(map(ByReference.of, values))

    def decode(self, topic: str, data: bytes) -> Any:
        """The object that was published, or ValidationFailed for a record that holds none."""
        if not isinstance(data, ByReference):
            raise ValidationFailed(topic, "object", "the value", "it is bytes, not an object passed by reference")
        return data.referent

    def encoded_as(self, encoding: str | None) -> Codec[Any]:
        """Itself: there is no encoding."""
        return self


class Text(str):
    """The type that the annotation `str` of a handler means: see `TextCodec`."""

    __slots__ = ()


class TextCodec(Codec[str]):
    """Reads text: of a topic of `str` the string, of all other topics the encoded value."""

    def __init__(self, strings: Codec[str] | None = None) -> None:
        super().__init__(str)
        self._strings = strings  # reads the strings of a typed topic

    def decode(self, topic: str, data: bytes) -> str:
        """The text in `data`, or ValidationFailed."""
        try:
            if self._strings is not None:
                with suppress(ValidationFailed):
                    return self._strings.decode(topic, data)
            return data.decode()
        except UnicodeDecodeError as error:
            raise ValidationFailed(topic, self.name, "the value", f"it is not UTF-8: {error.reason}") from None

    def encoded_as(self, encoding: str | None) -> Codec[str]:
        """The codec of what a topic with this encoding holds; None: it has no type."""
        return self if encoding is None else _text_of(encoding)


@lru_cache
def _text_of(encoding: str) -> TextCodec:
    return TextCodec(codec_of(str, encoding))


@lru_cache(maxsize=1024)
def _known_codec(type_: Any, encoding: str) -> Codec[Any]:
    return _new_codec(type_, encoding)


def _new_codec(type_: Any, encoding: str) -> Codec[Any]:
    if type_ is object:
        return ObjectCodec(encoding)
    if type_ is Text:
        return TextCodec()
    from runnel.core.pydantic_types import PydanticCodec, is_pydantic

    return PydanticCodec(type_, encoding) if is_pydantic(type_) else Codec(type_, encoding)


def codec_of(type_: Any, encoding: str = "json") -> Codec[Any]:
    """The codec of a type, the same one each time: making one writes its schema, which takes about 50 us.

    A type of Pydantic, or one that contains such a type, is read and written by Pydantic, `object` by reference, and
    all others by msgspec: structs, dataclasses, TypedDict, NamedTuple, enums, unions, collections, plain values.
    """
    try:
        hash(type_)
    except TypeError:
        return _new_codec(type_, encoding)  # metadata in an annotation may be anything
    return _known_codec(type_, encoding)


def check_schema_evolution(
    topic: str, later: Codec[Any] | Schema, earlier: Codec[Any] | Schema | SchemaValidator
) -> None:
    """Raise SchemaConflict unless `later` may follow `earlier` on `topic`."""
    if later.encoding != earlier.encoding:
        raise SchemaConflict(topic, f"it is encoded as {earlier.encoding}, not {later.encoding}")
    if isinstance(later, Schema):
        later.check()
    if why := _malformed(earlier.encoding, earlier.schema):  # an earlier version took it from a client, and kept it
        raise SchemaConflict(topic, f"the schema it has is none ({why}); delete the topic, or publish without a type")
    if why := _not_grown(_parts(earlier.schema), _parts(later.schema)):
        raise SchemaConflict(topic, why)


def field_and_reason(message: str) -> tuple[str, str]:
    """The field, and its error, from a message of msgspec."""
    found = _AT.search(message)
    path = found["path"].removeprefix("$").removeprefix(".") if found else ""
    why = message[: found.start()] if found else message
    if found and found["key"]:
        why += ", as a key"
    if named := _MISSING.search(why):
        path = f"{path}.{named['field']}" if path else named["field"]
    return path or "the value", why


def _fault(error: Exception, data: bytes, *, is_json: bool) -> tuple[str, str]:
    """The field, and its error, from an error of msgspec about `data`."""
    if not is_json or isinstance(error, msgspec.ValidationError):
        return field_and_reason(str(error))
    # Of text such as `tea` msgspec says that it is truncated: it begins like `true`.
    why = "" if "truncated" in str(error) else f" ({str(error).removeprefix('JSON is malformed: ')})"
    hint = "" if data.lstrip()[:1] in (b"{", b"[", b'"') else """; text needs quotes: '"tea"'"""
    return "the value", f"this is not JSON{' or not all of it' if not why and not hint else why}{hint}"


_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def schema_name(schema: Any, depth: int = 3) -> str:
    """The type that a schema describes, for messages: its title, or what Python calls it. It may be a client's."""
    if not isinstance(schema, dict):
        return "Any"
    if schema.get("byReference"):
        return "object"
    if isinstance(name := schema.get("title") or schema.get("$ref"), str):
        return name.rpartition("/")[2][:100]
    kind, options = schema.get("type"), schema.get("anyOf")
    if depth and isinstance(options, list) and options:
        return " | ".join(schema_name(one, depth - 1) for one in options[:4]) + (" | ..." if len(options) > 4 else "")
    if kind == "object":
        is_map = depth and isinstance(schema.get("additionalProperties"), dict)
        return f"dict[str, {schema_name(schema['additionalProperties'], depth - 1)}]" if is_map else "dict"
    if kind == "array":
        is_list = depth and isinstance(schema.get("items"), dict)
        return f"list[{schema_name(schema['items'], depth - 1)}]" if is_list else "list"
    return _NAMES.get(str(kind), "its type")


def _malformed(encoding: str, schema: dict[str, Any]) -> str | None:
    """Why this is no schema that can be compared with another; None: it is one."""
    if encoding not in ("json", "msgpack"):
        return f"expected the encoding 'json' or 'msgpack', not {encoding!r}"
    try:
        msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return f"it is not JSON: {error}"
    named = schema.get("$defs", {})
    if not isinstance(named, dict):
        return "its $defs are not an object"
    if "$ref" in schema and (not isinstance(schema["$ref"], str) or schema["$ref"].rpartition("/")[2] not in named):
        return "its $ref is not among its $defs"
    for part in (schema, *named.values()):
        if not isinstance(part, dict):
            return "a definition is not an object"
        fields, required = part.get("properties", {}), part.get("required", [])
        if not isinstance(fields, dict) or not all(isinstance(kind, dict) for kind in fields.values()):
            return "its properties are not an object of objects"
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            return "its required fields are not a list of names"
    return None


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
                return f"{label} changed{_difference(label, was, now)}"
            continue
        for field, kind in was["properties"].items():
            if field not in now["properties"]:
                return f"field {field!r} of {label} is gone"
            if _shape(now["properties"][field]) != _shape(kind):
                return f"field {field!r} of {label} changed{_difference(label, kind, now['properties'][field])}"
        if added := [field for field in now.get("required", []) if field not in was.get("required", [])]:
            return f"field {added[0]!r} of {label} has no default"
    return None


def _difference(label: str, was: dict[str, Any], now: Any) -> str:
    """What distinguishes two schemas: their names, or the keywords that differ."""
    before, after = schema_name(was), schema_name(now)
    if before != after or not isinstance(now, dict):
        return f" to {after}" if before == label else f" from {before} to {after}"
    words = sorted(word for word in was.keys() | now.keys() if word not in _REMARKS and was.get(word) != now.get(word))
    return f" ({before}: {', '.join(words)})" if words else ""


_REMARKS = ("default", "title", "description", "examples", "deprecated", "readOnly", "$comment")


def _shape(kind: Any) -> Any:
    """The allowed values, without the name, the default and the description."""
    if isinstance(kind, list):
        return [_shape(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    return {
        name: {field: _shape(one) for field, one in value.items()}
        if name == "properties" and isinstance(value, dict)  # there the names are those of fields
        else _shape(value)
        for name, value in kind.items()
        if name not in _REMARKS
    }


# -- A type of which only the schema is known ------------------------------------------------------------


Mismatch = tuple[str, str]
"""(the field, its error)."""

Check = Callable[[Any], Mismatch | None]
"""Why a value, as JSON or msgpack gave it, does not fit; None: it does."""


class SchemaValidator:
    """Checks values of a topic whose schema is known but whose Python type is not.

    Knows all that msgspec and Pydantic write into a schema, except patterns: the schema may come from a client, and a
    regular expression of a client could occupy a server for hours. Unconstrained values and unknown keywords pass.
    """

    def __init__(self, encoding: str, schema: dict[str, Any]) -> None:
        self.encoding, self.schema = encoding, schema
        self._is_json = encoding == "json"
        self._decode = msgspec.json.decode if self._is_json else msgspec.msgpack.decode
        self._named: dict[str, Check] = {}  # the checks of definitions, once one was needed
        self._check: Check | None = None

    def __repr__(self) -> str:
        return f"<SchemaValidator of {self.name} as {self.encoding}>"

    @property
    def name(self) -> str:
        """The type's name, for messages."""
        return schema_name(self._resolved(self.schema))

    def check(self, topic: str, data: bytes) -> None:
        """Raise ValidationFailed, with the field that is wrong, unless `data` fits the schema."""
        try:
            wrong = self.mismatch(self._decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            wrong = _fault(error, data, is_json=self._is_json)
        except RecursionError:
            wrong = "the value", "it is nested too deeply"
        if wrong is not None:
            raise ValidationFailed(topic, self.name, *wrong)

    def mismatch(self, value: Any) -> Mismatch | None:
        """The field of `value` that does not fit, and why; None: all fit."""
        if self._check is None:
            self._check = self._check_of(self.schema)
        found = self._check(value)
        return found and (found[0].removeprefix(".") or "the value", found[1])

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """`schema`, or the definition that it refers to."""
        passed = set()
        while isinstance(name := schema.get("$ref"), str):
            if name in passed:
                return {}  # it refers to itself, and says nothing
            passed.add(name)
            schema = _part(_part(self.schema, "$defs", {}), name.rpartition("/")[2], {})
        return schema

    def _check_of(self, schema: Any) -> Check:
        """The check of one part of the schema. The fields that it names begin with a dot or a bracket."""
        if not isinstance(schema, dict):
            return _anything
        if isinstance(name := schema.get("$ref"), str):
            return lambda value: self._definition(name)(value)  # looked up late: a type may contain itself
        options = _part(schema, "anyOf", []) or _part(schema, "oneOf", [])
        if isinstance(schema.get("discriminator"), dict):
            return self._tagged(schema["discriminator"], self._union(options))
        if "anyOf" in schema or "oneOf" in schema:
            return self._union(options)
        if "const" in schema:
            return _one_of([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _one_of(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return _text(schema, is_json=self._is_json)
        return _number(schema, kind) if kind in ("integer", "number") else _PLAIN.get(str(kind), _anything)

    def _definition(self, name: str) -> Check:
        check = self._named.get(name)
        if check is None:
            check = self._named[name] = self._check_of(self._resolved({"$ref": name}))
        return check

    def _union(self, options: list[Any]) -> Check:
        checks = [self._check_of(option) for option in options]

        def check(value: Any) -> Mismatch | None:
            faults = []
            for one in checks:
                if (fault := one(value)) is None:
                    return None
                faults.append(fault)
            # The fault that lies deepest is that of the option that fits best.
            return max(faults, key=lambda fault: fault[0].count("."), default=None)

        return check

    def _tagged(self, discriminator: dict[str, Any], otherwise: Check) -> Check:
        """Of several kinds of objects, which say in a field what they are."""
        field, mapping = str(discriminator.get("propertyName")), _part(discriminator, "mapping", {})
        kinds = {tag: self._check_of({"$ref": name}) for tag, name in mapping.items()}

        def check(value: Any) -> Mismatch | None:
            said = value.get(field) if isinstance(value, dict) else None
            return (kinds.get(said, otherwise) if isinstance(said, str) else otherwise)(value)

        return check

    def _object(self, schema: dict[str, Any]) -> Check:
        fields = {name: self._check_of(one) for name, one in _part(schema, "properties", {}).items()}
        required = [name for name in _part(schema, "required", []) if isinstance(name, str)]
        is_closed = schema.get("additionalProperties") is False
        names, other = schema.get("propertyNames"), self._check_of(schema.get("additionalProperties"))
        name_check = self._check_of({"type": "string", **names}) if isinstance(names, dict) else _anything
        length = _length_check(schema, "Properties", "fields")
        is_open = name_check is _anything and other is _anything and not is_closed

        def check(value: Any) -> Mismatch | None:
            if not isinstance(value, dict):
                return _expected("object", value)
            for name in required:
                if name not in value:
                    return f".{name}", f"Object missing required field `{name}`"
            if length is not None and (fault := length(value)) is not None:
                return fault
            for name, one in value.items():
                field = fields.get(name)
                if field is not None:
                    if (fault := field(one)) is not None:
                        return f".{name}{fault[0]}", fault[1]
                elif is_open:
                    continue
                elif is_closed:
                    return f".{name}", f"Object contains unknown field `{name}`"
                elif (fault := name_check(name) or other(one)) is not None:
                    return f"[...]{fault[0]}", fault[1]
            return None

        return check

    def _array(self, schema: dict[str, Any]) -> Check:
        first = [self._check_of(one) for one in _part(schema, "prefixItems", [])]
        others = self._check_of(schema.get("items"))
        length = _length_check(schema, "Items", "items")

        def check(value: Any) -> Mismatch | None:
            if not isinstance(value, list):
                return _expected("array", value)
            if length is not None and (fault := length(value)) is not None:
                return fault
            for at, one in enumerate(value):
                if (fault := (first[at] if at < len(first) else others)(one)) is not None:
                    return f"[{at}]{fault[0]}", fault[1]
            return None

        return check


def _part(schema: dict[str, Any], keyword: str, default: Any) -> Any:
    """The entry of `schema`, if it has the type of `default`: a client may have written anything."""
    found = schema.get(keyword)
    return found if isinstance(found, type(default)) else default


def _bound(schema: dict[str, Any], keyword: str, default: Any) -> Any:
    """A number that `schema` says."""
    found = schema.get(keyword)
    return found if found.__class__ in (int, float) else default


def _anything(value: Any) -> Mismatch | None:
    return None


def _expected(kind: str, value: Any) -> Mismatch:
    return "", f"expected {kind}, got {_kind_of(value)}"


def _kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    known = {int: "integer", float: "number", dict: "object", list: "array", str: "string"}
    return known.get(type(value), type(value).__name__)


def _length_check(schema: dict[str, Any], of: str, what: str) -> Check | None:
    """The check of the bounds that are called min and max `of`; None: there are none."""
    least, most = _bound(schema, f"min{of}", 0), _bound(schema, f"max{of}", inf)
    if not least and most == inf:
        return None

    def check(value: Any) -> Mismatch | None:
        if least <= len(value) <= most:
            return None
        bound = f"{least} {what} or more" if len(value) < least else f"{most} {what} at most"
        return "", f"expected {bound}, got {len(value)}"

    return check


def _one_of(allowed: list[Any]) -> Check:
    def check(value: Any) -> Mismatch | None:
        if any(one == value and isinstance(one, bool) == isinstance(value, bool) for one in allowed):
            return None
        return "", f"it is not one of {allowed}"

    return check


def _number(schema: dict[str, Any], kind: str) -> Check:
    kinds = (int,) if kind == "integer" else (int, float)
    said = [(fits, _bound(schema, keyword, None), words) for keyword, fits, words in _BOUNDS]
    bounds = [(fits, bound, words) for fits, bound, words in said if bound is not None]

    def check(value: Any) -> Mismatch | None:
        if value.__class__ not in kinds:
            return _expected(kind, value)
        for fits, bound, words in bounds:
            if not fits(value, bound):
                return "", f"expected {words} {bound}, got {value}"
        return None

    return check


def _text(schema: dict[str, Any], *, is_json: bool) -> Check:
    form, is_base64 = schema.get("format"), schema.get("contentEncoding") == "base64"
    length = _length_check(schema, "Length", "characters")
    written = bytes if is_base64 else _FORMATS.get(str(form))
    # msgpack has bytes and times of its own. A schema does not say which strings without a format are times.
    others: tuple[type, ...] = ()
    if not is_json:
        others = (bytes,) if is_base64 or form == "uuid" else (datetime,) if form in (None, "date-time") else ()
    if form == "decimal":
        others = (int, float)

    def check(value: Any) -> Mismatch | None:
        if value.__class__ is not str:
            return None if value.__class__ in others else _expected("string", value)
        if length is not None and (fault := length(value)) is not None:
            return fault
        if written is not None:
            try:
                msgspec.convert(value, written)
            except msgspec.ValidationError as error:
                return "", str(error)
        return None

    return check


_PLAIN: dict[str, Check] = {
    "null": lambda value: None if value is None else _expected("null", value),
    "boolean": lambda value: None if isinstance(value, bool) else _expected("boolean", value),
}

_BOUNDS: list[tuple[str, Callable[[Any, Any], bool], str]] = [
    ("minimum", ge, "at least"),
    ("maximum", le, "at most"),
    ("exclusiveMinimum", gt, "more than"),
    ("exclusiveMaximum", lt, "less than"),
    ("multipleOf", lambda value, of: of == 0 or value % of == 0, "a multiple of"),
]

_FORMATS: dict[str, Any] = {
    "date-time": Annotated[datetime, msgspec.Meta(tz=True)],
    "date": date,
    "time": Annotated[time, msgspec.Meta(tz=True)],
    "partial-time": Annotated[time, msgspec.Meta(tz=False)],
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
