"""Reading requests: topic names, query parameters, bodies. Invalid bytes are refused, never replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import Request

from runnel.core.errors import InvalidName, InvalidOption, TooLarge
from runnel.core.pattern import check_name
from runnel.core.position import Start

MAX_PARAMETERS = 2_000


def topic_of_request(request: Request) -> str:
    """The topic in the path of a request, percent-decoded."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        unquote_to_bytes(raw).decode()  # servers put U+FFFD for what is no UTF-8: that would be another name
    except UnicodeDecodeError:
        raise InvalidName(request.path_params["topic"], "it is not UTF-8") from None
    return check_name(request.path_params["topic"])


def topic_of_scope(scope: Mapping[str, Any], prefix: str) -> str:
    """The same for a request that skipped the route table: the path behind `prefix`."""
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


def single_parameter(values: Mapping[str, list[str]], name: str) -> str | None:
    """The value of a parameter that may occur once."""
    given = values.get(name)
    if given is None:
        return None
    if len(given) > 1:
        raise InvalidOption(name, given[1], "it is there twice")
    return given[0]


def parse_start(option: str, text: str | None) -> Start:
    """Where to start: `earliest`, `latest`, an offset (below 0: from the end), or a time with its zone."""
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


def integer_parameter(values: Mapping[str, list[str]], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = single_parameter(values, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= most):
        raise InvalidOption(name, text[:64], f"expected a whole number from 1 to {most:,}")
    return int(text)


# -- Bodies ----------------------------------------------------------------------------------------------
# Read piece by piece, within a size limit and a deadline.


BODY_TIMEOUT = 30.0  # seconds until the next bytes of a body must have come


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; `TooLarge` beyond `limit` bytes, before they are sent if Content-Length tells."""
    said = next((value for name, value in request.scope["headers"] if name == b"content-length"), b"")
    if said.isdigit() and int(said) > limit:
        raise TooLarge("the body of a request", int(said), "max_body", limit)
    chunk, more = await _next_chunk(request)
    if not more and len(chunk) <= limit:
        return chunk  # it came in one piece, as most do
    gathered, size = [chunk], len(chunk)
    while more and size <= limit:
        chunk, more = await _next_chunk(request)
        size += len(chunk)
        gathered.append(chunk)
    if size > limit:
        raise TooLarge("the body of a request", size, "max_body", limit)
    return b"".join(gathered)


async def read_lines(request: Request, limit: int) -> AsyncIterator[list[bytes]]:
    """The lines of a body, in lists of at most `limit` bytes. Empty lines are left out."""
    gathered: list[bytes] = []
    size = 0
    async for chunk in read_chunks(request):
        gathered.append(chunk)
        size += len(chunk)
        while size > limit:
            data = b"".join(gathered)
            cut = data.rfind(b"\n", 0, limit + 1) + 1
            if not cut:
                raise TooLarge("a line of the body", size, "max_body", limit)
            if found := _split_lines(data[:cut]):
                yield found
            gathered, size = [data[cut:]], len(data) - cut
    if found := _split_lines(b"".join(gathered)):
        yield found


async def read_chunks(request: Request) -> AsyncIterator[bytes]:
    """The bytes of a body as they arrive. A client that stops in the middle is not waited for."""
    more = True
    while more:
        chunk, more = await _next_chunk(request)
        if chunk:
            yield chunk


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    """The next bytes, and whether there are more."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            message = await request.receive()
    except TimeoutError:
        raise HTTPException(408, f"nothing more of the body came within {BODY_TIMEOUT:g} s") from None
    if message["type"] == "http.disconnect":
        raise HTTPException(400, "the body ended before it was complete")
    return message.get("body", b""), message.get("more_body", False)


def _split_lines(data: bytes) -> list[bytes]:
    found = data.replace(b"\r\n", b"\n").split(b"\n") if b"\r" in data else data.split(b"\n")
    return [line for line in found if line]
