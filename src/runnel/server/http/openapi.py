"""What the HTTP door takes and answers, as an OpenAPI document. A test holds it against the routes and their answers.

Below: nothing. Above: application.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

Json = dict[str, Any]


def _header(name: str, about: str, kind: str = "string") -> Json:
    return {"name": name, "in": "header", "description": about, "schema": {"type": kind}}


def _query(name: str, about: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "description": about, "schema": schema, "required": required}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(about: str, schema: Json | None = None, kind: str = "application/json") -> Json:
    return {"description": about, "content": {kind: {"schema": schema or {"type": "string"}}}}


def _object(required: str, **properties: Json) -> Json:
    return {"type": "object", "required": required.split(), "properties": properties}


_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer", "minimum": 0}
_TEXTS: Json = {"type": "array", "items": _TEXT}

TOPIC: Json = {
    "name": "topic",
    "in": "path",
    "required": True,
    "description": "Tokens joined by dots; other characters are percent-encoded.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
PROBLEM = {"4XX": {"$ref": "#/components/responses/Problem"}, "5XX": {"$ref": "#/components/responses/Problem"}}

SCHEMAS: Json = {
    "Position": _object("topic epoch offset", topic=_TEXT, epoch=_NUMBER, offset=_NUMBER),
    "Span": _object(
        "topic epoch first last count", topic=_TEXT, epoch=_NUMBER, first=_NUMBER, last=_NUMBER, count=_NUMBER
    ),
    "Record": _object(
        "topic offset epoch sequence time payload",
        topic=_TEXT,
        offset=_NUMBER,
        epoch=_NUMBER,
        sequence=_NUMBER,
        time={"type": "string", "format": "date-time"},
        payload=_TEXT,
        encoding={"type": "string", "enum": ["base64"]},
        key=_TEXT,
        key_encoding={"type": "string", "enum": ["base64"]},
        headers={"type": "object", "additionalProperties": _TEXT},
    ),
    "Gap": _object(
        "topic first end count reason",
        topic=_TEXT,
        first=_NUMBER,
        end=_NUMBER,
        count={"type": ["integer", "null"]},
        reason=_TEXT,
    ),
    "Records": _object(
        "topic epoch first end records next",
        topic=_TEXT,
        epoch=_NUMBER,
        first=_NUMBER,
        end=_NUMBER,
        records={"type": "array", "items": _reference("Record")},
        next=_NUMBER,
        next_link=_TEXT,
        gap=_reference("Gap"),
    ),
    "Topics": _object("topics", topics=_TEXTS),
    "Status": _object("status", status=_TEXT),
    "Problem": _object(
        "type title status code detail",
        type=_TEXT,
        title=_TEXT,
        status=_NUMBER,
        code=_TEXT,
        detail=_TEXT,
        stored=_reference("Span"),
    ),
}

PUBLISH: Json = {
    "operationId": "publish",
    "summary": "Publish one record, or many",
    "description": (
        "Answered once it is durable. Any content type is one record, the body its value; application/x-ndjson is a "
        "record a line; CloudEvents come in binary, structured or batched mode."
    ),
    "parameters": [
        TOPIC,
        _header("Runnel-Key", "The key, percent-encoded"),
        _header("Idempotency-Key", "Of one record: sent again within two minutes it is not stored again"),
        _header("Runnel-Delay", "Seconds before a group hands it out", "number"),
        _header("Runnel-Expires", "Seconds after which nobody gets it", "number"),
        _header("Runnel-Priority", "0 to 9, in groups", "integer"),
        _header("Runnel-Expected-Offset", "The offset that it must get, or 409", "integer"),
    ],
    "requestBody": {
        "content": {
            "*/*": {"schema": {"type": "string", "format": "binary"}},
            "application/x-ndjson": {"schema": _TEXT},
            "application/cloudevents+json": {"schema": {"type": "object"}},
            "application/cloudevents-batch+json": {"schema": {"type": "array", "items": {"type": "object"}}},
        }
    },
    "responses": {
        "201": _answer("It is stored", {"oneOf": [_reference("Position"), _reference("Span")]}),
        **PROBLEM,
    },
}

RECORDS: Json = {
    "operationId": "records",
    "summary": "History of a topic",
    "parameters": [
        TOPIC,
        _query("from", "earliest, latest, an offset (below 0: from the end) or a time", _TEXT),
        _query("limit", "How many at most", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}),
        _query("format", "json, or a record a line", {"type": "string", "enum": ["json", "ndjson"]}),
    ],
    "responses": {
        "200": {
            "description": "Records in order; fewer than asked for where they are large",
            "content": {
                "application/json": {"schema": _reference("Records")},
                "application/x-ndjson": {"schema": _TEXT},
            },
        },
        **PROBLEM,
    },
}

EVENTS: Json = {
    "operationId": "events",
    "summary": "Live records, as server-sent events",
    "description": (
        "Events without a name are records; `gap` says what was missed, `ready` that the stream has begun, `end` why "
        "it is over."
    ),
    "parameters": [
        _query("topic", "A name or a pattern; more than one if you like", _TEXTS),
        _query("pattern", "The same", _TEXTS),
        _query("start", "latest, earliest, a time; of one topic also an offset, below 0 from the end", _TEXT),
        _query("key", "Only records with one of these keys", _TEXTS),
        _query("lastEventId", "The id to go on from, where the header cannot be sent", _TEXT),
        _header("Last-Event-ID", "The id to go on from"),
    ],
    "responses": {"200": _answer("The stream", kind="text/event-stream"), **PROBLEM},
}


def _get(operation: str, summary: str, ok: Json, *parameters: Json) -> Json:
    known = {"operationId": operation, "summary": summary, "responses": {"200": ok, **PROBLEM}}
    return {"get": known | ({"parameters": list(parameters)} if parameters else {})}


PATHS: Json = {
    "/topics": _get(
        "topics",
        "Names of topics",
        _answer("Sorted", _reference("Topics")),
        _query("pattern", "Those it covers", _TEXT),
    ),
    "/topics/{topic}": {"post": PUBLISH},
    "/topics/{topic}/records": {"get": RECORDS},
    "/events": {"get": EVENTS},
    "/metrics": _get("metrics", "Figures for Prometheus", _answer("Its text format", kind="text/plain")),
    "/healthz": _get("healthz", "Whether the process answers", _answer("It does", _reference("Status"))),
    "/readyz": _get("readyz", "Whether it takes records", _answer("It does", _reference("Status"))),
    "/openapi.json": _get("openapi", "This document", _answer("OpenAPI 3.1", {"type": "object"})),
}

SPECIFICATION: Json = {
    "openapi": "3.1.0",
    "info": {"title": "runnel", "version": version("runnel"), "summary": "Durable, real-time pub/sub"},
    "paths": PATHS,
    "components": {
        "schemas": SCHEMAS,
        "responses": {"Problem": _answer("What went wrong", _reference("Problem"), "application/problem+json")},
    },
}

DOCUMENT = msgspec.json.encode(SPECIFICATION)
