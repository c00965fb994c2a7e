"""`POST /topics/{topic}/request`: publish the body as a request, and answer with the reply, or with all that come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import InvalidOption, NotSupported, RequestFailed
from runnel.core.replies import MAX_REPLIES
from runnel.server.http.authentication import serving_of
from runnel.server.http.options import header_of
from runnel.server.http.publish import read_publish_headers
from runnel.server.http.record_json import encode_json, reply_as_json
from runnel.server.http.requests import (
    RequestBody,
    integer_parameter,
    parameters,
    seconds_parameter,
    single_parameter,
    topic_of_request,
)
from runnel.server.options import MAX_REQUEST_SECONDS
from runnel.wire.json_events import failure_facts

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

DEFAULT_TIMEOUT = 5.0  # seconds


class RequestRoute:
    """The route."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving

    async def request(self, request: Request) -> Response:
        """One reply; with `limit`, all that come within `timeout`, at most so many."""
        topic, asked = topic_of_request(request), parameters(request.scope)
        said = read_publish_headers(request.scope["headers"])
        if said.content_encoding not in ("", "identity"):
            raise NotSupported(f"Content-Encoding {said.content_encoding!r}", "send the body as it is")
        key = said.options.pop("key", None)
        for name, value in said.options.items():
            raise InvalidOption(header_of(name), value, "a request takes a key and headers only")
        timeout = seconds_parameter(asked, "timeout", DEFAULT_TIMEOUT, MAX_REQUEST_SECONDS)
        value = await RequestBody(request, self._serving.options, self._serving.memory).whole()
        broker = serving_of(request.scope, self._serving).broker
        if single_parameter(asked, "limit") is None:
            try:
                reply = await broker.request(topic, value, timeout=timeout, key=key, headers=said.headers)
            except RequestFailed as error:
                error.http_facts = {"error": error.error}  # type: ignore[attr-defined]
                raise
            return Response(encode_json(reply_as_json(reply)), media_type="application/json")
        limit = integer_parameter(asked, "limit", MAX_REPLIES, MAX_REPLIES)
        many = await broker.request_many(topic, value, timeout=timeout, limit=limit, key=key, headers=said.headers)
        found = {"replies": list(map(reply_as_json, many)), "failures": failure_facts(many)}
        return Response(encode_json(found), media_type="application/json")
