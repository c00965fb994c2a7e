"""What a request names in its address: a topic, the parameters behind it. Bad bytes are refused, not replaced.

Below: core. Above: every route.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette._utils import get_route_path
from starlette.requests import Request

from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.pattern import check_name
from runnel.core.start import Start

MAX_PARAMETERS = 2_000


def topic_of(request: Request) -> str:
    """The topic that the path names, which may be there percent-encoded."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        unquote_to_bytes(raw).decode()  # servers put U+FFFD for what is no UTF-8: that would be another name
    except UnicodeDecodeError:
        raise InvalidName(request.path_params["topic"], "it is not UTF-8") from None
    return check_name(request.path_params["topic"])


def topic_in(scope: Mapping[str, Any], prefix: str) -> str:
    """The same, where no route has looked: all of the path behind `prefix`."""
    raw = scope.get("raw_path") or scope["path"].encode()
    topic = get_route_path(dict(scope)).removeprefix(prefix)
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidName(topic, "it is not UTF-8") from None
    return check_name(topic)


def parameters(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    """The parameters of a request, each with all its values."""
    try:
        text = scope["query_string"].decode("ascii")
        found = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise InvalidOption(_undecodable(scope["query_string"]), "…", "it is not UTF-8, percent-encoded") from None
    except ValueError:
        raise InvalidOption("query", "…", f"there are more than {MAX_PARAMETERS:,} parameters") from None
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    return values


def _undecodable(query: bytes) -> str:
    """The name of the first parameter that is no text."""
    for one in query.split(b"&"):
        try:
            unquote_to_bytes(one).decode()
        except UnicodeDecodeError:
            return one.partition(b"=")[0].decode("ascii", "replace")[:64]
    return "query"


def single(values: Mapping[str, list[str]], name: str) -> str | None:
    """The value of a parameter that can be there once."""
    given = values.get(name)
    if given is None:
        return None
    if len(given) > 1:
        raise InvalidOption(name, given[1], "it is there twice")
    return given[0]


def start_of(option: str, text: str | None) -> Start:
    """A place to start: `earliest`, `latest`, an offset (below 0: from the end), or a time with its zone."""
    if text is None or text in ("earliest", "latest"):
        return text
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 18:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time
    except ValueError:
        pass
    why = "expected earliest, latest, an offset, or a time with its zone, such as 2026-11-15T12:00:00Z ('+' is %2B)"
    raise InvalidOption(option, text[:64], why)


def whole(values: Mapping[str, list[str]], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = single(values, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= most):
        raise InvalidOption(name, text[:64], f"expected a whole number from 1 to {most:,}")
    return int(text)
