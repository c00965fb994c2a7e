"""The OpenAPI document of the HTTP routes. A test checks it against the routes and their responses."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from runnel.core.options import Option, OptionKind
from runnel.observe.analytics import SPANS
from runnel.server.http.console.charts import KINDS
from runnel.server.http.console.charts import SPANS as SHORT_SPANS
from runnel.server.http.console.pages import VIEWS
from runnel.server.http.options import event_options, header_of, publish_headers, schema_of

Json = dict[str, Any]


def _header(name: str, about: str, schema: Json) -> Json:
    return {"name": name, "in": "header", "description": about, "schema": schema}


def _query(name: str, about: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "description": about, "schema": schema, "required": required}


def _about(option: Option) -> str:
    about = option.about.replace("`", "")
    kind = "percent-encoded" if option.kind is OptionKind.KEY else option.kind.value
    return f"{about[0].upper()}{about[1:]} ({kind})"


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(about: str, schema: Json | None = None, kind: str = "application/json") -> Json:
    return {"description": about, "content": {kind: {"schema": schema or {"type": "string"}}}}


def _object(required: str, **properties: Json) -> Json:
    return {"type": "object", "required": required.split(), "properties": properties}


_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer", "minimum": 0}
_EXACT: Json = {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]{16,19}$"}  # a string beyond 2^53
_EXACT_ASKED: Json = _EXACT | {"maximum": (1 << 63) - 1, "pattern": "^[0-9]{1,19}$"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_TIME: Json = {"type": "string", "format": "date-time"}

# As `core.pattern` has them. A name has 255 bytes at most, which a schema cannot say.
_TOKEN = r"[^.*>\s\u0000-\u0020\u007f-\u009f]"
_NAME: Json = {"type": "string", "pattern": rf"^(?!\$){_TOKEN}+(\.{_TOKEN}+)*$", "maxLength": 255}
_PATTERN: Json = {"type": "string", "pattern": rf"^(({_TOKEN}+|\*)\.)*({_TOKEN}+|\*|>)$", "maxLength": 255}
_OFFSET: Json = {"type": "string", "pattern": "^-?[0-9]{1,18}$"}
_PLACE: Json = {"anyOf": [{"enum": ["earliest", "latest"]}, _OFFSET, _TIME]}
_ID: Json = {"type": "string", "pattern": "^$|^[A-Za-z0-9_-]{10,64}(\\.[A-Za-z0-9_-]{16})?$"}
_LINE: Json = {"type": "string", "pattern": r"^[^\u0000\r\n]*$"}

TOPIC: Json = {
    "name": "topic",
    "in": "path",
    "required": True,
    "description": "Tokens joined by dots; other characters are percent-encoded.",
    "schema": _NAME,
}
CLOUD_EVENT: Json = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"type": "string", "pattern": r"^1\.[0-9]{1,9}$"},
        **{name: _LINE | {"minLength": 1} for name in ("id", "source", "type")},
        "data": {},
        "data_base64": {"type": "string", "pattern": "^([A-Za-z0-9+/]{4})*$"},
    },
    "propertyNames": {"pattern": "^[a-z0-9]{1,64}$|^data_base64$"},
    "additionalProperties": {"anyOf": [_LINE, {"type": ["integer", "boolean", "null"]}]},
}
PROBLEM = {"4XX": {"$ref": "#/components/responses/Problem"}, "5XX": {"$ref": "#/components/responses/Problem"}}

SCHEMAS: Json = {
    "Position": _object("topic epoch offset", topic=_TEXT, epoch=_EXACT, offset=_EXACT),
    "Span": _object(
        "topic epoch first last count", topic=_TEXT, epoch=_EXACT, first=_EXACT, last=_EXACT, count=_NUMBER
    ),
    "Record": _object(
        "topic offset epoch sequence time payload",
        topic=_TEXT,
        offset=_EXACT,
        epoch=_EXACT,
        sequence=_EXACT,
        time=_TIME,
        payload=_TEXT,
        encoding={"type": "string", "enum": ["base64"]},
        key=_TEXT,
        key_encoding={"type": "string", "enum": ["base64"]},
        headers={"type": "object", "additionalProperties": _TEXT},
    ),
    "Gap": _object(
        "topic first end count reason",
        topic=_TEXT,
        first=_EXACT,
        end=_EXACT,
        count={"type": ["integer", "null"]},
        reason=_TEXT,
    ),
    "Reply": _object(
        "payload",
        payload=_TEXT,
        encoding={"type": "string", "enum": ["base64"]},
        headers={"type": "object", "additionalProperties": _TEXT},
    ),
    "Failure": _object("error why", error=_TEXT, why=_TEXT),
    "Replies": _object(
        "replies failures",
        replies={"type": "array", "items": _reference("Reply")},
        failures={"type": "array", "items": _reference("Failure")},
    ),
    "Records": _object(
        "topic epoch first end records next",
        topic=_TEXT,
        epoch=_EXACT,
        first=_EXACT,
        end=_EXACT,
        records={"type": "array", "items": _reference("Record")},
        next=_EXACT,
        next_link=_TEXT,
        gap=_reference("Gap"),
    ),
    "CloudEvent": CLOUD_EVENT,
    "Topics": _object("topics", topics=_TEXTS),
    "DeadTopic": _object(
        "topic groups open first end", topic=_TEXT, groups=_TEXTS, open=_NUMBER, first=_EXACT, end=_EXACT
    ),
    "DeadTopics": _object("topics", topics={"type": "array", "items": _reference("DeadTopic")}),
    "DeadLetter": _object(
        "topic offset epoch sequence time payload story",
        topic=_TEXT,
        offset=_EXACT,
        epoch=_EXACT,
        sequence=_EXACT,
        time={"type": "string", "format": "date-time"},
        payload=_TEXT,
        encoding={"type": "string", "enum": ["base64"]},
        key=_TEXT,
        key_encoding={"type": "string", "enum": ["base64"]},
        headers={"type": "object", "additionalProperties": _TEXT},
        story={"type": "object", "additionalProperties": _TEXT},
    ),
    "DeadLetters": _object(
        "topic epoch open letters next",
        topic=_TEXT,
        epoch=_EXACT,
        open=_NUMBER,
        letters={"type": "array", "items": _reference("DeadLetter")},
        next={"type": ["integer", "null"]},
    ),
    "Chosen": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "offsets": {"type": ["array", "null"], "items": _EXACT_ASKED, "maxItems": 10_000},
            "all": {"type": "boolean"},
            "epoch": _EXACT_ASKED | {"type": ["integer", "string", "null"]},
        },
        "oneOf": [
            {"required": ["offsets"], "properties": {"all": {"const": False}, "offsets": {"type": "array"}}},
            {"required": ["all"], "properties": {"all": {"const": True}, "offsets": {"type": "null"}}},
        ],
    },
    "Replayed": _object("topic replayed", topic=_TEXT, replayed=_NUMBER),
    "Discarded": _object("topic discarded", topic=_TEXT, discarded=_NUMBER),
    "Status": _object("status", status=_TEXT),
    "Problem": _object(
        "type title status code detail",
        type=_TEXT,
        title=_TEXT,
        status=_NUMBER,
        code=_TEXT,
        detail=_TEXT,
        stored=_reference("Span"),
        error=_TEXT,
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
        *(_header(header_of(name), _about(one), schema_of(one)) for name, one in publish_headers().items()),
    ],
    "requestBody": {
        "content": {
            "*/*": {"schema": {"type": "string", "format": "binary"}},
            "application/x-ndjson": {"schema": {"description": "Lines of any text, at least one"}},
            "application/cloudevents+json": {"schema": _reference("CloudEvent")},
            "application/cloudevents-batch+json": {
                "schema": {"type": "array", "minItems": 1, "items": _reference("CloudEvent")}
            },
        }
    },
    "responses": {
        "201": _answer("It is stored", {"oneOf": [_reference("Position"), _reference("Span")]}),
        **PROBLEM,
    },
}

REQUEST: Json = {
    "operationId": "request",
    "summary": "Publish a request, and wait for the reply",
    "description": "With limit: all replies that come within timeout, at most so many. The body is the value.",
    "parameters": [
        TOPIC,
        _query("timeout", "Seconds to wait", {"type": "number", "exclusiveMinimum": 0, "maximum": 300, "default": 5}),
        _query("limit", "Gather so many replies at most", {"type": "integer", "minimum": 1, "maximum": 10_000}),
        *(
            _header(header_of(name), _about(one), schema_of(one))
            for name, one in publish_headers().items()
            if name == "key"
        ),
    ],
    "requestBody": {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    "responses": {
        "200": _answer("What came", {"oneOf": [_reference("Reply"), _reference("Replies")]}),
        **PROBLEM,
    },
}

RECORDS: Json = {
    "operationId": "records",
    "summary": "History of a topic",
    "parameters": [
        TOPIC,
        _query("start", "earliest, latest, an offset (below 0: from the end) or a time; `from` is the same", _PLACE),
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
        _query("topic", "A name or a pattern; more than one if you like", {"type": "array", "items": _PATTERN}),
        _query("pattern", "The same", {"type": "array", "items": _PATTERN}),
        _query("start", "latest, earliest, a time; of one topic also an offset, below 0 from the end", _PLACE),
        *(_query(name, _about(one), schema_of(one)) for name, one in event_options().items()),
        _query("key", "Only records with one of these keys", _TEXTS),
        _query("lastEventId", "The id to go on from, where the header cannot be sent", _ID),
        _header("Last-Event-ID", "The id to go on from", _ID),
    ],
    "responses": {"200": _answer("The stream", kind="text/event-stream"), **PROBLEM},
}

_FROM: Json = {"type": "integer", "minimum": 0, "default": 0, "maximum": 10**18 - 1}


def _settle(operation: str, summary: str, answer: str) -> Json:
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "description": "Give offsets, or all: true. With epoch, only of the topic in this life of it (else 410).",
            "parameters": [TOPIC],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _reference("Chosen")}}},
            "responses": {"200": _answer("How many", _reference(answer)), **PROBLEM},
        }
    }


UPDATES: Json = {
    "operationId": "updates",
    "summary": "Figures for the console, as server-sent events",
    "description": "An event `figures` every second. What it holds is for the console and may change: see /metrics.",
    "parameters": [
        _query("view", "What is looked at", {"type": "string", "enum": list(VIEWS), "default": "topics"}),
        _query("topic", "Which topic, with view=topic", _NAME),
        _query("from", "The first row of the page", _FROM | {"maximum": 999_999_999}),
        _query("limit", "Rows of the page", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}),
        _query("sort", "By what, - before it: downwards", {"type": "string", "pattern": "^-?[a-z_]*$"}),
        _query("filter", "A part of the names", {"type": "string", "maxLength": 255}),
    ],
    "responses": {"200": _answer("The stream", kind="text/event-stream"), **PROBLEM},
}

_FOUND_FROM = _query("from", "Where to begin: earliest, an offset, below 0 from the end, or a time", _PLACE)
_FIND = _query("find", "A text in the value, the key or a header", {"type": "string", "maxLength": 1_000})
_KEY = _query("key", "Exactly this key", {"type": "string", "maxLength": 1_000})

ACTIONS: Json = {
    "operationId": "actions",
    "summary": "What operators do from the console",
    "description": "One action, tagged by do; the rights are those of the same calls elsewhere. It may change.",
    "requestBody": {"required": True, "content": {"application/json": {"schema": _object("do", do=_TEXT)}}},
    "responses": {"200": _answer("What it led to", {"type": "object"}), **PROBLEM},
}

SOCKET: Json = {
    "operationId": "ws",
    "summary": "A websocket",
    "description": "Text messages are JSON lines, one command or event each; binary ones are the native protocol.",
    "responses": {"101": {"description": "It is one"}, **PROBLEM},
}

FILE: Json = {
    "name": "file",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z][a-z0-9_]*\\.[a-z.]+$"},
}
FILES: Json = {
    "description": "The file",
    "content": {
        kind: {"schema": _TEXT}
        for kind in ("text/html", "text/css", "text/javascript", "application/typescript", "image/svg+xml")
    },
}


def _get(operation: str, summary: str, ok: Json, *parameters: Json) -> Json:
    known = {"operationId": operation, "summary": summary, "responses": {"200": ok, **PROBLEM}}
    return {"get": known | ({"parameters": list(parameters)} if parameters else {})}


PATHS: Json = {
    "/topics": _get(
        "topics",
        "Names of topics",
        _answer("Sorted", _reference("Topics")),
        _query("pattern", "Those it covers", _PATTERN),
    ),
    "/topics/{topic}": {"post": PUBLISH},
    "/topics/{topic}/records": {"get": RECORDS},
    "/topics/{topic}/request": {"post": REQUEST},
    "/topics/{topic}/presence": _get(
        "presence",
        "Who is subscribed to a topic",
        _answer("Those that came first come first", {"type": "object"}),
        TOPIC,
    ),
    "/events": {"get": EVENTS},
    "/ws": {"get": SOCKET},
    "/metrics": _get("metrics", "Figures for Prometheus", _answer("Its text format", kind="text/plain")),
    "/varz": _get("varz", "Figures as a NATS server shows them", _answer("JSON", {"type": "object"})),
    "/healthz": _get("healthz", "Whether the process answers", _answer("It does", _reference("Status"))),
    "/readyz": _get("readyz", "Whether it takes records", _answer("It does", _reference("Status"))),
    "/openapi.json": _get("openapi", "This document", _answer("OpenAPI 3.1", {"type": "object"})),
    "/dead-letters": _get("dead_topics", "Topics that dead letters go to", _answer("Sorted", _reference("DeadTopics"))),
    "/dead-letters/{topic}": _get(
        "dead_letters",
        "Dead letters that are not dealt with",
        _answer("The oldest first; `next` is where to go on", _reference("DeadLetters")),
        TOPIC,
        _query("from", "The offset to begin at", _FROM),
        _query("limit", "How many at most", {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 50}),
    ),
    "/dead-letters/{topic}/replay": _settle("replay", "Put dead letters back where they came from", "Replayed"),
    "/dead-letters/{topic}/discard": _settle("discard", "Be done with dead letters", "Discarded"),
    "/console/updates": {"get": UPDATES},
    "/console/analytics": _get(
        "analytics",
        "Series over time for the console, from telemetry and the analytics pipeline",
        _answer("Throughput, latency, lag, drops, dead letters; for the console: it may change", {"type": "object"}),
        _query("span", "How far back", {"type": "string", "enum": list(SPANS), "default": "minutes"}),
    ),
    "/console/charts": _get(
        "charts",
        "The last hours of some figures, for the console",
        _answer("Series of means; for the console: it may change", {"type": "object"}),
        _query("kind", "Of what", {"type": "string", "enum": list(KINDS), "default": "totals"}),
        _query("name", "Which one; of a group the name, a newline and the pattern", _TEXT),
        _query("span", "How far back", {"type": "string", "enum": list(SHORT_SPANS), "default": "1h"}),
    ),
    "/console/topic": _get(
        "console_topic",
        "The options and the type of a topic",
        _answer("For the console: it may change", {"type": "object"}),
        _query("topic", "Which", _NAME, required=True),
    ),
    "/console/records": _get(
        "search",
        "Records that fit, a bounded number at a time",
        _answer("Those found; `next` is where to go on", {"type": "object"}),
        _query("topic", "Which", _NAME, required=True),
        _FOUND_FROM,
        _FIND,
        _KEY,
        _query("limit", "How many at most", {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}),
    ),
    "/console/download": _get(
        "download",
        "Records as a file",
        {
            "description": "The file",
            "content": {kind: {"schema": _TEXT} for kind in ("application/x-ndjson", "application/vnd.apache.parquet")},
        },
        _query("topic", "Which", _NAME, required=True),
        _FOUND_FROM,
        _query("to", "The offset to end before, or a time", {"type": "string", "pattern": "^[0-9]{1,18}$"}),
        _FIND,
        _KEY,
        _query("limit", "How many at most", {"type": "integer", "minimum": 1, "maximum": 1_000_000}),
        _query("format", "The format", {"type": "string", "enum": ["ndjson", "parquet"], "default": "ndjson"}),
    ),
    "/console/letters": _get(
        "search_letters",
        "Dead letters by reason, and those that fit",
        _answer("Reasons, letters, and the offsets of all that fit", {"type": "object"}),
        _query("topic", "A topic of dead letters", _NAME, required=True),
        _query("from", "The offset to begin at", _FROM),
        _FIND,
        _query("reason", "Exactly this reason", _TEXT),
        _query("limit", "How many are shown", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}),
    ),
    "/console/actions": {"post": ACTIONS},
    "/": _get("console", "The console, a page", _answer("The page", kind="text/html")),
    "/console/{file}": _get("console_file", "A file of the console", FILES, FILE),
    "/runnel.js": _get("runnel_js", "A module for pages of yours", _answer("ES module", kind="text/javascript")),
    "/runnel-socket.js": _get("socket_js", "The same over a WebSocket", _answer("ES module", kind="text/javascript")),
    "/runnel.d.ts": _get("runnel_types", "Its types", _answer("TypeScript", kind="application/typescript")),
    "/runnel-socket.d.ts": _get("socket_types", "Its types", _answer("TypeScript", kind="application/typescript")),
}

SPECIFICATION: Json = {
    "openapi": "3.1.0",
    "info": {"title": "runnel", "version": version("runnel-mq"), "summary": "Durable, real-time pub/sub"},
    "paths": PATHS,
    "components": {
        "schemas": SCHEMAS,
        "responses": {"Problem": _answer("What went wrong", _reference("Problem"), "application/problem+json")},
    },
}

DOCUMENT = msgspec.json.encode(SPECIFICATION)
