"""Pydantic models as the type of a topic. Pydantic is imported only where a type of its own is used.

What is published is what Pydantic reads back: a value is written, read strictly, and written again if only a lax
reading accepts it. So a model made without validation does not put text where the schema says a number.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption, ValidationFailed
from runnel.core.schema import Codec

# Formats that Pydantic reads more freely than others do: a time without a zone, a duration in other words.
_LOOSE_FORMATS = ("date-time", "time", "duration")


def is_pydantic(type_: Any, _seen: frozenset[int] = frozenset()) -> bool:
    """Whether a type is of Pydantic, or contains one that is. Asks nothing of a process without Pydantic."""
    if "pydantic" not in sys.modules or id(type_) in _seen:
        return False
    if hasattr(type_, "__pydantic_core_schema__") or hasattr(type_, "__get_pydantic_core_schema__"):
        return True
    seen = _seen | {id(type_)}
    if any(is_pydantic(part, seen) for part in typing.get_args(type_)):
        return True
    if not hasattr(type_, "__dataclass_fields__") and not hasattr(type_, "__total__"):
        return False
    try:
        hints = typing.get_type_hints(type_)
    except (NameError, TypeError):
        return False
    return any(is_pydantic(part, seen) for part in hints.values())


def as_json_value(value: object) -> object:
    """A model as values that msgspec encodes: its `enc_hook`."""
    dump: Callable[..., object] | None = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"objects of type {type(value).__name__} are not supported")
    return dump(mode="json", by_alias=True)


class PydanticCodec(Codec[Any]):
    """Encodes and validates values with Pydantic."""

    def __init__(self, type_: Any, encoding: str = "json") -> None:
        import pydantic

        self._check_encoding(encoding)
        self.type, self.encoding, self._other = type_, encoding, None
        try:
            adapter: Any = pydantic.TypeAdapter(type_)
            self.schema = _plain(adapter.json_schema(mode="validation"))
            written = adapter.json_schema(mode="serialization")
        except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
            raise InvalidOption("type", type_, f"Pydantic cannot describe it: {str(error).splitlines()[0]}") from None
        if _is_secret(written):
            raise InvalidOption("type", type_, "a secret is written as asterisks; give the field a serializer")
        self._dump: Callable[[object], bytes]
        self._read: Callable[..., Any]
        how = {"by_alias": True, "warnings": False}
        how["round_trip"] = True  # leave out computed fields, which validation may refuse
        if encoding == "json":
            self._dump, self._read = partial(adapter.dump_json, **how), adapter.validate_json
        else:
            dump, read = partial(adapter.dump_python, mode="json", **how), adapter.validate_json
            self._dump = lambda value: msgspec.msgpack.encode(dump(value))
            # As JSON: a strict model takes a date from text there, and not from a Python string.
            self._read = lambda data, **how: read(msgspec.json.encode(msgspec.msgpack.decode(data)), **how)

    def encode(self, topic: str, value: object) -> bytes:
        """`value` as bytes, or ValidationFailed with the field that is wrong."""
        try:
            data = self._dump(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:  # so is pydantic's own
            raise ValidationFailed(topic, self.name, "the value", str(error)) from None
        try:
            self._read(data, strict=True)
        except (ValueError, TypeError, RecursionError):
            data = self._dump(self.decode(topic, data))
        return data

    def encode_all(self, topic: str, values: Sequence[object]) -> list[bytes]:
        """Each of `values` as bytes, or ValidationFailed."""
        return [self.encode(topic, value) for value in values]

    def decode(self, topic: str, data: bytes) -> Any:
        """The value in `data`, a new object each time, or ValidationFailed."""
        try:
            return self._read(data)
        except RecursionError:
            raise ValidationFailed(topic, self.name, "the value", "it is nested too deeply") from None
        except (ValueError, TypeError, msgspec.DecodeError) as error:
            if (found := self.referred(data)) is not None:
                return found
            raise ValidationFailed(topic, self.name, *_field_and_reason(error)) from None


def _field_and_reason(error: Exception) -> tuple[str, str]:
    """The field, and its error, from an error of Pydantic."""
    errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if errors is None:
        return "the value", str(error)
    first = errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return path.removeprefix(".") or "the value", first["msg"]


def _plain(schema: Any) -> Any:
    """A schema of Pydantic that says no more than every reader of it checks in the same way."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _plain(one) for name, one in schema.items() if not (name == "format" and one in _LOOSE_FORMATS)}


def _is_secret(schema: Any) -> bool:
    """Whether a field is written as asterisks."""
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(_is_secret, schema.values()))
    return isinstance(schema, list) and any(map(_is_secret, schema))
