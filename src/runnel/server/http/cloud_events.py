"""CloudEvents in JSON, structured and batched, as records: attributes become `ce-…` headers, data becomes the value.

A record is the same in every mode: in binary mode, the attributes are such headers already.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from runnel.core.errors import InvalidOption

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
REQUIRED = ("specversion", "id", "source", "type")
PARTITION_KEY = "partitionkey"

Json = Mapping[str, msgspec.Raw]


class CloudEvent(NamedTuple):
    """One event, as published."""

    value: bytes
    headers: dict[str, str]
    key: str | None


def structured(body: bytes) -> CloudEvent:
    """The event of a body in structured mode."""
    return _event(_decoded(body, dict[str, msgspec.Raw]))


def batched(body: bytes) -> list[CloudEvent]:
    """The events of a body in batched mode."""
    events = [_event(one) for one in _decoded(body, list[dict[str, msgspec.Raw]])]
    if not events:
        raise InvalidOption("body", "[]", "a batch has at least one event")
    return events


def check_binary(headers: Mapping[str, str]) -> str | None:
    """The key of an event in binary mode, if it has one; `InvalidOption` if an attribute is missing."""
    _check({name.removeprefix("ce-"): value for name, value in headers.items() if name.startswith("ce-")})
    return headers.get(f"ce-{PARTITION_KEY}")


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption("body", shown(body), f"no CloudEvents in JSON: {error}") from None


def _event(told: Json) -> CloudEvent:
    attributes: dict[str, str] = {}
    for name, raw in told.items():
        if name in ("data", "data_base64"):
            continue
        if not (name.isascii() and name.isalnum() and name == name.lower()):
            raise InvalidOption("body", name[:64], "attributes of CloudEvents are lower-case letters and digits")
        value = _decoded(bytes(raw), Any)
        if value is None:
            continue
        if isinstance(value, list | dict | float):
            raise InvalidOption(name, shown(bytes(raw)), "an attribute is text, a whole number, or true or false")
        if name in REQUIRED and not isinstance(value, str):
            raise InvalidOption(name, shown(bytes(raw)), "this attribute is text")
        attributes[name] = value if isinstance(value, str) else bytes(raw).decode()
    _check(attributes)
    headers = {f"ce-{name}": value for name, value in attributes.items() if name != "datacontenttype"}
    value_bytes = _data(told, attributes)
    if "datacontenttype" in attributes or value_bytes:
        headers["content-type"] = attributes.get("datacontenttype", "application/json")
    return CloudEvent(value_bytes, headers, attributes.get(PARTITION_KEY))


def _data(told: Json, attributes: Mapping[str, str]) -> bytes:
    if "data_base64" in told:
        try:
            return base64.b64decode(_decoded(bytes(told["data_base64"]), str), validate=True)
        except ValueError as error:  # of base64 too: binascii.Error, and non-ASCII text
            raise InvalidOption("data_base64", shown(bytes(told["data_base64"])), f"{error}") from None
    if "data" not in told:
        return b""
    raw = bytes(told["data"])
    kind = attributes.get("datacontenttype", "application/json").partition(";")[0].strip().lower()
    is_json = kind.endswith(("/json", "+json"))
    return raw if is_json or not raw.startswith(b'"') else _text(raw)


def _text(raw: bytes) -> bytes:
    found: str = _decoded(raw, str)
    return found.encode()


def _check(attributes: Mapping[str, str]) -> None:
    for name in REQUIRED:
        if not attributes.get(name):
            raise InvalidOption(f"ce-{name}", None, "a CloudEvent has specversion, id, source and type")
    if not attributes["specversion"].startswith("1."):
        raise InvalidOption("ce-specversion", attributes["specversion"], "version 1 is known here")


def shown(body: bytes) -> str:
    """As much of a body as an error message shows."""
    return body[:64].decode("utf-8", "replace") + ("…" if len(body) > 64 else "")
