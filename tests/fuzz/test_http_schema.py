"""The server is as its OpenAPI document says: whatever schemathesis makes of that, it is answered as told there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from requests.adapters import HTTPAdapter

from runnel.core.pattern import MAX_NAME_BYTES
from runnel.server.http.openapi import SPECIFICATION
from tests.fuzz.live import live_server
from tests.nightly import examples

MANY = ("application/x-ndjson", "application/cloudevents-batch+json")
EXAMPLES = 10  # of each operation, beside those at the bounds of every parameter


class FirstEvents(HTTPAdapter):
    """Event streams never end: of such an answer only what comes first is read."""

    def send(self, request: requests.PreparedRequest, *rest: Any, **more: Any) -> requests.Response:
        response = super().send(request, *rest, **{**more, "stream": True})
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response._content = next(response.iter_content(None))
            response.close()
        return response


@schemathesis.serializer("application/x-ndjson")
def one_line(context: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as url:
        yield url


Case = schemathesis.Case[Any]


def sensible(case: Case) -> Case:
    """The case as it stands; one that ought to be right, with what no schema can say: rules between parameters."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    query, headers = case.query, case.headers
    if len(case.path_parameters.get("topic", "").encode()) > MAX_NAME_BYTES:  # a schema counts characters
        case.path_parameters["topic"] = "orders"
    if case.path == "/events":
        query.pop("lastEventId", None)  # it is opaque: only a server makes one
        headers.pop("Last-Event-ID", None)
        for name in ("topic", "pattern"):
            query[name] = [one for one in query.get(name, ()) if len(one.encode()) <= MAX_NAME_BYTES]
        if query.get("start", "").lstrip("-").isdecimal() or not query["topic"]:  # offsets count in a single topic
            query["topic"], query["pattern"] = ["orders"], []
    if case.path == "/topics/{topic}/records":
        for name in ("start", "from"):
            if str(query.get(name, "")).lstrip("-").isdecimal():  # which offsets there are, only the server knows
                query[name] = "earliest"
    if case.path == "/topics/{topic}" and case.media_type in MANY:
        headers.pop("Idempotency-Key", None)
    if case.path == "/console/updates":
        query.pop("sort", None)  # what there is differs from view to view
        query.pop("topic", None)
        if query.get("view") == "topic":
            query["topic"] = "orders"
    if isinstance(case.body, dict) and case.path.startswith("/dead-letters"):
        case.path_parameters["topic"] = "dead-letters.billing"  # of another it is refused
        offsets: Any = case.body.get("offsets")
        if offsets:
            case.body["offsets"] = [int(one) for one in offsets]  # to a schema 7.0 is an integer
        case.body.pop("epoch", None)  # of the topic that is there, only the server knows it
    return case


# A server takes no notice of headers and parameters that it does not know, as HTTP has it.
CONFIG = schemathesis.Config.from_dict({"generation": {"allow-extra-parameters": False}})
# Without the headers of a websocket, which no document can ask for, it is refused.
# And no document says which action has which fields.
ACCEPTANCE = schemathesis.checks.positive_data_acceptance
# And nobody answers requests here: that is a 503, looked at below.
REQUEST = "/topics/{topic}/request"
EXCLUDED: dict[str, list[Any]] = {
    "/ws": [ACCEPTANCE],
    "/console/actions": [ACCEPTANCE],
    REQUEST: [schemathesis.checks.not_a_server_error],
}
schema = schemathesis.openapi.from_dict(SPECIFICATION, config=CONFIG)


def one_operation(method: str, path: str) -> Callable[..., None]:
    """The test of one operation. In one test for all of them they would share a name, and only one of them run."""

    @examples(EXAMPLES, 3 * EXAMPLES)
    def test(case: Case, url: str) -> None:
        with requests.Session() as session:
            session.mount("http://", FirstEvents())
            excluded = EXCLUDED.get(path, [])
            answer = sensible(case).call_and_validate(base_url=url, session=session, excluded_checks=excluded)
            if answer.status_code >= 500:
                assert (path, answer.status_code, answer.json()["code"]) == (REQUEST, 503, "no_responders")

    made: Callable[..., None] = schema.include(method=method.upper(), path=path).parametrize()(test)
    return made


for path, ways in SPECIFICATION["paths"].items():
    for method, operation in ways.items():
        globals()[f"test_the_answers_of_{operation['operationId']}"] = one_operation(method, path)
