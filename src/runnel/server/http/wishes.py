"""What a publish asks for by headers: key, headers, id, times. Checked here, whatever bytes come.

Values of `Runnel-Key`, `Runnel-Header-…` and `ce-…` are percent-encoded, as CloudEvents has it, so that a browser can
send any text; decoded they are checked like those of any publish, so that `%0D%0A` forges no line elsewhere.
Below: core. Above: publishing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from runnel.core.errors import InvalidOption
from runnel.core.trace import HEADER, is_traceparent

MINE = "runnel-header-"
CLOUD = "ce-"
LONGEST_ID = 256
_SECONDS = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?")
_WHOLE = re.compile(r"[0-9]{1,18}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_SINGLE = {
    "runnel-key": "key",
    "runnel-delay": "delay",
    "runnel-expires": "expires",
    "runnel-priority": "priority",
    "runnel-expected-offset": "expected_offset",
    "idempotency-key": "message_id",
    "content-type": "content_type",
    "content-encoding": "content_encoding",
}

# What nearly every request has, and says nothing here.
_OTHERS = frozenset(
    b"host content-length user-agent accept accept-encoding accept-language connection origin referer".split()
)


class Wishes(NamedTuple):
    """What was asked for, by the name that `publish` has for it; headers of the record; what the body is."""

    options: dict[str, Any]
    headers: dict[str, str]
    content_type: str
    content_encoding: str


def wishes(raw: Iterable[tuple[bytes, bytes]]) -> Wishes:
    """Of the headers of a request, which are bytes."""
    said: dict[str, str] = {}
    headers: dict[str, str] = {}
    trace: str | None = None
    for name_bytes, value in raw:
        if name_bytes in _OTHERS:
            continue
        name = name_bytes.decode("latin-1").lower()
        if name in _SINGLE:
            _once(said, _SINGLE[name], name, _text(name, value))
        elif name.startswith(MINE):
            _once(headers, name.removeprefix(MINE), name, decoded(name, value))
        elif name.startswith(CLOUD):
            _once(headers, name, name, decoded(name, value))
        elif name == HEADER:
            trace = value.decode("latin-1")
    if trace is not None and HEADER not in headers and is_traceparent(trace):
        headers[HEADER] = trace  # one that is malformed is ignored, as W3C has it
    content_type, encoding = said.pop("content_type", ""), said.pop("content_encoding", "")
    return Wishes(dict(_options(said)), headers, content_type, encoding)


def _options(said: dict[str, str]) -> Iterable[tuple[str, Any]]:
    for option, text in said.items():
        if option == "key":
            yield option, unquote_to_bytes(text)
        elif option == "message_id":
            text = text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else text
            if not 0 < len(text) <= LONGEST_ID:
                raise InvalidOption("Idempotency-Key", text[:64], f"expected 1 to {LONGEST_ID} characters")
            yield option, text
        elif option in ("delay", "expires"):
            if not _SECONDS.fullmatch(text):
                raise InvalidOption(f"Runnel-{option.title()}", text, "expected seconds, such as 1.5")
            yield option, float(text)
        else:
            if not _WHOLE.fullmatch(text):
                name = "Runnel-Priority" if option == "priority" else "Runnel-Expected-Offset"
                raise InvalidOption(name, text, "expected a whole number")
            yield option, int(text)


def decoded(name: str, value: bytes) -> str:
    """A percent-encoded text."""
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidOption(name, value.decode("latin-1"), "it is not UTF-8, percent-encoded or not") from None


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidOption(name, value.decode("latin-1"), "it is not UTF-8") from None
    if found := _CONTROL.search(text):
        raise InvalidOption(name, text, f"it holds {found.group()!r}")
    return text


def _once(into: dict[str, str], key: str, name: str, value: str) -> None:
    if key in into:
        raise InvalidOption(name, value, "the header is there twice")
    into[key] = value
