"""Whether a plain value fits a schema: for those who know a topic's schema, and not the type that it was made from.

It refuses what the type itself would surely refuse: a field that is missing, or of another kind. What it does not
understand it lets pass, so that nothing good is refused: patterns, formats and the like are for the type to check.
Below: nothing. Above: broker.intake.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

DEEPEST = 200  # levels that are looked at

Fault = tuple[str, str]
"""(the field, what is wrong with it)."""


def title_of(schema: dict[str, Any]) -> str:
    """What the type is called."""
    return str(_resolved(schema, schema).get("title", "its type"))


def misfit(schema: dict[str, Any], value: Any) -> Fault | None:
    """Why `value`, as JSON or msgpack gave it, does not fit; None: it does, as far as can be told."""
    return _misfit(schema, schema, value, "", 0)


def _resolved(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        schema = whole.get("$defs", {}).get(reference.rpartition("/")[2], {})
    return schema


def _misfit(whole: dict[str, Any], schema: Any, value: Any, path: str, depth: int) -> Fault | None:
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    schema = _resolved(whole, schema)
    if (said := _said_kind(schema, value)) is not None:
        return _misfit(whole, {"$ref": said}, value, path, depth + 1)
    if "anyOf" in schema:
        return _none_of(whole, schema["anyOf"], value, path, depth)
    if "enum" in schema and not _is_in(value, schema["enum"]):
        return path or "the value", f"it is not one of {schema['enum']}"
    if "const" in schema and not _is_in(value, [schema["const"]]):
        return path or "the value", f"it is not {schema['const']!r}"
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _KINDS and not _KINDS[kind](value):
        return path or "the value", f"expected {kind}, got {_kind_of(value)}"
    if isinstance(value, dict):
        return _object_misfit(whole, schema, value, path, depth)
    if isinstance(value, list):
        return _array_misfit(whole, schema, value, path, depth)
    return None


def _said_kind(schema: dict[str, Any], value: Any) -> str | None:
    """Which of several kinds a value says that it is, where they are told apart by a field."""
    told_apart = schema.get("discriminator")
    if not isinstance(told_apart, dict) or not isinstance(value, dict):
        return None
    said = value.get(told_apart.get("propertyName"))
    found = told_apart.get("mapping", {}).get(said) if isinstance(said, str) else None
    return found if isinstance(found, str) else None


def _none_of(whole: dict[str, Any], options: list[Any], value: Any, path: str, depth: int) -> Fault | None:
    """The fault that lies deepest: of the option that fits best."""
    faults = [_misfit(whole, option, value, path, depth + 1) for option in options]
    if not faults or any(fault is None for fault in faults):
        return None
    return max((fault for fault in faults if fault is not None), key=lambda fault: fault[0].count("."))


def _object_misfit(
    whole: dict[str, Any], schema: dict[str, Any], value: dict[Any, Any], path: str, depth: int
) -> Fault | None:
    fields: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return _below(path, name), f"Object missing required field `{name}`"
    others = schema.get("additionalProperties")
    for name, one in value.items():
        if name in fields:
            fault = _misfit(whole, fields[name], one, _below(path, name), depth + 1)
        elif others is False:
            fault = _below(path, name), f"Object contains unknown field `{name}`"
        else:
            fault = _misfit(whole, others, one, f"{path}[...]", depth + 1)
        if fault is not None:
            return fault
    return None


def _array_misfit(
    whole: dict[str, Any], schema: dict[str, Any], value: list[Any], path: str, depth: int
) -> Fault | None:
    if len(value) < schema.get("minItems", 0):
        return path or "the value", f"expected {schema['minItems']} items or more, got {len(value)}"
    first: list[Any] = schema.get("prefixItems", [])
    for at, one in enumerate(value):
        kind = first[at] if at < len(first) else schema.get("items")
        if kind is False:
            return path or "the value", f"expected {len(first)} items, got {len(value)}"
        if (fault := _misfit(whole, kind, one, f"{path}[{at}]", depth + 1)) is not None:
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
