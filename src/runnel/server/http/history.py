"""`GET /topics`, `GET /topics/{topic}/records` and `…/presence`: the topics, their records, who is subscribed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.backend import HistoryPage
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_pattern, matches
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json, gap_as_json, record_as_json
from runnel.server.http.requests import integer_parameter, parameters, parse_start, single_parameter, topic_of_request
from runnel.wire.json_events import json_number, member_facts

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

DEFAULT_LIMIT = 100  # records, by default
MAX_LIMIT = 10_000
MAX_RESPONSE_BYTES = 8 << 20  # of values, keys and headers in one answer; but always one record
PAGES_AT_ONCE = 2  # built at the same time: each takes memory, and tens of milliseconds of the event loop
NDJSON = "application/x-ndjson"


class HistoryRoutes:
    """The routes."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)

    async def topics(self, request: Request) -> Response:
        """The topics, sorted by name; with `pattern`, those that it covers."""
        pattern = single_parameter(parameters(request.scope), "pattern")
        if pattern is not None:
            check_pattern(pattern)
        known = await serving_of(request.scope, self._serving).broker.topics()
        names = [name for name in known if pattern is None or matches(pattern, name)]
        return Response(encode_json({"topics": names}), media_type="application/json")

    async def presence(self, request: Request) -> Response:
        """Who is subscribed to a topic."""
        topic = topic_of_request(request)
        members = await serving_of(request.scope, self._serving).broker.presence(topic)
        found = {"topic": topic, "members": [member_facts(member) for member in members]}
        return Response(encode_json(found), media_type="application/json")

    async def records(self, request: Request) -> Response:
        """Records from a place on."""
        topic, asked = topic_of_request(request), parameters(request.scope)
        name = "start" if "start" in asked else "from"
        start = parse_start(name, single_parameter(asked, name))
        start = "earliest" if start is None else start
        limit = integer_parameter(asked, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        format = single_parameter(asked, "format") or ("ndjson" if request.headers.get("accept") == NDJSON else "json")
        if format not in ("json", "ndjson"):
            raise InvalidOption("format", format[:64], "expected json or ndjson")
        root = quote(request.scope.get("root_path", ""))
        backend = serving_of(request.scope, self._serving).backend
        async with self._pages:
            found = await backend.history(topic, start, limit, MAX_RESPONSE_BYTES)
            response = _response(topic, found, limit, root, format)
            await asyncio.sleep(0)  # whatever else there is to do comes before the next page
        return response


def _response(topic: str, found: HistoryPage, limit: int, root: str, format: str) -> Response:
    further = f"{root}/topics/{quote(topic, safe='')}/records?from={found.next}&limit={limit}"
    if format == "ndjson":
        headers = {"runnel-next": str(found.next), "runnel-end": str(found.end)}
        if found.next < found.end:
            headers["link"] = f'<{further}&format=ndjson>; rel="next"'
        if found.gap is not None:
            headers["runnel-gap"] = json.dumps(to_builtins(gap_as_json(found.gap)))  # ASCII, escaped
        lines = b"".join(encode_json(record_as_json(record)) + b"\n" for record in found.records)
        return Response(lines, 200, headers, NDJSON)
    return Response(encode_json(_document(topic, found, further)), 200, _link(found, further), "application/json")


def _document(topic: str, found: HistoryPage, further: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "epoch": json_number(found.epoch),
        "first": json_number(found.first),
        "end": json_number(found.end),
        "records": [record_as_json(record) for record in found.records],
        "next": json_number(found.next),
        **({"next_link": further} if found.next < found.end else {}),
        **({} if found.gap is None else {"gap": gap_as_json(found.gap)}),
    }


def _link(found: HistoryPage, further: str) -> dict[str, str]:
    return {"link": f'<{further}>; rel="next"'} if found.next < found.end else {}
