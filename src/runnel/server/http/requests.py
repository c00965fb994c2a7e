"""Reading requests: topic names, query parameters, bodies. Invalid bytes are refused, never replaced."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import Request

from runnel.core.errors import InvalidName, InvalidOption, LimitExceeded, TooLarge
from runnel.core.pattern import check_name
from runnel.core.position import Start
from runnel.server.connections import address_of

if TYPE_CHECKING:
    from runnel.server.memory_budget import MemoryBudget
    from runnel.server.options import ServerOptions

MAX_PARAMETERS = 2_000


def topic_of_request(request: Request) -> str:
    """The topic in the path of a request, percent-decoded."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        unquote_to_bytes(raw).decode()  # servers replace invalid UTF-8 by U+FFFD: that would be another name
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


def seconds_parameter(values: Mapping[str, list[str]], name: str, default: float, most: float) -> float:
    """A number of seconds above 0, up to `most`."""
    text = single_parameter(values, name)
    if text is None:
        return default
    number = re.fullmatch(r"\d{1,9}(\.\d{1,32})?(e[+-]?\d{1,3})?", text, re.ASCII | re.IGNORECASE)  # as JSON has it
    if number is None or not 0 < float(text) <= most:
        raise InvalidOption(name, text[:64], f"expected seconds above 0, up to {most:g}")
    return float(text)


# -- Bodies ----------------------------------------------------------------------------------------------
# Read piece by piece, within a size limit and a deadline. Received bytes count against the server's memory budget.


SMALL_BODY = 4 << 10  # bytes up to which a body that is not whole is not counted


class RequestBody:
    """Reads the body of one request: as a whole, or line by line.

    Whatever has to be there at once (the whole body, or a list of lines) must arrive within `frame_timeout`.
    """

    def __init__(self, request: Request, options: ServerOptions, memory: MemoryBudget, most: int | None = None) -> None:
        self.peer_address = address_of(request.scope.get("client"))
        self._request, self._timeout = request, options.frame_timeout
        self._limit = options.max_body if most is None else min(most, options.max_body)
        self._memory = memory
        self._chunks: list[bytes] = []
        self._size = 0
        self._waiting: asyncio.Timeout | None = None
        self._error: LimitExceeded | None = None

    async def whole(self) -> bytes:
        """The whole body; `TooLarge` beyond `max_body` bytes, before they are sent if Content-Length shows it."""
        said = next((value for name, value in self._request.scope["headers"] if name == b"content-length"), b"")
        if said.isdigit() and int(said) > self._limit:
            raise self._too_large(int(said))
        due = asyncio.get_running_loop().time() + self._timeout
        try:
            while await self._read(due):
                if self._size > self._limit:
                    break
            if self._size > self._limit:
                raise self._too_large(self._size)
            return self._take()
        finally:
            self._memory.hold(self, 0)

    async def lines(self, limit: int) -> AsyncIterator[list[bytes]]:
        """The lines, in lists of at most `limit` bytes. Empty lines are left out."""
        loop, more = asyncio.get_running_loop(), True
        try:
            while more:
                due = loop.time() + self._timeout
                while self._size <= limit and more:
                    more = await self._read(due)
                while self._size > limit:
                    data = self._take()
                    cut = data.rfind(b"\n", 0, limit + 1) + 1
                    if not cut:
                        raise TooLarge("a line of the body", len(data), "max_body", limit)
                    self._chunks, self._size = [data[cut:]], len(data) - cut
                    if found := _split_lines(data[:cut]):
                        yield found
            if found := _split_lines(self._take()):
                yield found
        finally:
            self._memory.hold(self, 0)

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this body: the request is refused."""
        self._error = error
        self._chunks.clear()
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _read(self, due: float) -> bool:
        """Read the next bytes, which must come before `due`; whether there are more."""
        try:
            async with asyncio.timeout_at(due) as self._waiting:
                message = await self._request.receive()
        except TimeoutError:
            if self._error is not None:
                raise self._error from None
            raise HTTPException(408, f"the body was not complete within frame_timeout={self._timeout:g} s") from None
        finally:
            self._waiting = None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the body ended before it was complete")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        self._chunks.append(chunk)
        self._size += len(chunk)
        if more and self._size > SMALL_BODY:
            self._memory.hold(self, self._size)
        if self._error is not None:
            raise self._error
        return bool(more)

    def _take(self) -> bytes:
        """The received bytes that were not taken yet."""
        chunks, self._chunks, self._size = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge("the body of a request", size, "max_body", self._limit)


def _split_lines(data: bytes) -> list[bytes]:
    found = data.replace(b"\r\n", b"\n").split(b"\n") if b"\r" in data else data.split(b"\n")
    return [line for line in found if line]
