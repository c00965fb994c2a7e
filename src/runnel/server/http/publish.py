"""`POST /topics/{topic}`: publish one record, many as NDJSON, or CloudEvents. Answered once they are durable.

An ASGI application of its own, error handling included: publishing skips the route table, because it is the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from runnel.core.errors import InvalidOption, NotSupported, RunnelError
from runnel.core.options import PublishOptions, options_of
from runnel.core.position import Position, Span
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS
from runnel.core.trace_context import TRACEPARENT, is_traceparent
from runnel.server.http import cloud_events, errors
from runnel.server.http.authentication import serving_of
from runnel.server.http.options import header_of, option_reader, publish_headers
from runnel.server.http.requests import RequestBody, topic_of_scope
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.api.topic import Topic
    from runnel.server.served_broker import ServedBroker


TOPICS_PATH = "/topics/"
REQUEST_SUFFIX = "/request"  # what `request_reply` answers
CACHED_TARGETS = 1024  # paths that were looked up
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
# Read-only paths that begin like a publish path. A name has no slash, unless it is
# percent-encoded, and then it is refused.
READ_ALONE = {b"/records": "records are read with GET", b"/presence": "presence is read with GET"}

_encode = msgspec.json.Encoder().encode


class PublishTarget(NamedTuple):
    """The topic that a path names, looked up once."""

    topic: str
    handle: Topic[bytes]  # kept, so that the short way of publishing can be taken
    records: str  # where its records are read
    broker: Broker  # of the peer that publishes


class StoredReply(NamedTuple):
    """The stored positions, for the response."""

    address: PublishTarget
    offset: int  # of the first
    facts: dict[str, Any]


class PublishRoute:
    """The route, as an ASGI application."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving, self._memory = serving, serving.memory
        self._addresses: dict[tuple[int, bytes], PublishTarget] = {}
        self._ways: dict[str, Callable[[Request, PublishTarget, PublishHeaders], Awaitable[StoredReply]]] = {
            **dict.fromkeys(NDJSON, self._lines),
            cloud_events.STRUCTURED: self._structured,
            cloud_events.BATCHED: self._batched,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Publish what the request holds, and answer."""
        request = Request(scope, receive)
        try:
            address, offset, facts = await self._publish(request)
        except RunnelError as error:
            await (await errors.on_runnel_error(request, error))(scope, receive, send)
        except HTTPException as error:
            await (await errors.on_http_error(request, error))(scope, receive, send)
        except Exception as error:
            await (await errors.on_failure(request, error))(scope, receive, send)
        else:
            data = _encode(facts)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(data)),
                (b"location", f"{address.records}?from={offset}&limit=1".encode("latin-1")),
            ]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": data})

    async def _publish(self, request: Request) -> StoredReply:
        scope = request.scope
        address, asked = self._address(scope), read_publish_headers(scope["headers"])
        if asked.content_encoding not in ("", "identity"):
            raise NotSupported(f"Content-Encoding {asked.content_encoding!r}", "send the body as it is")
        kind = asked.content_type.partition(";")[0].strip().lower()
        return await self._ways.get(kind, self._one)(request, address, asked)

    async def _one(self, request: Request, to: PublishTarget, asked: PublishHeaders) -> StoredReply:
        options, headers = asked.options, asked.headers
        if "ce-specversion" in headers:
            key = cloud_events.check_binary(headers)
            if key is not None:
                options.setdefault("key", key)
            if asked.content_type:
                headers.setdefault("content-type", asked.content_type)
        value = await self._body(request).whole()
        if headers:
            options["headers"] = headers
        return _reply_to_one(to, await to.handle.publish(value, **options))

    async def _structured(self, request: Request, to: PublishTarget, asked: PublishHeaders) -> StoredReply:
        event = cloud_events.structured(await self._body(request).whole())
        if event.key is not None:
            asked.options.setdefault("key", event.key)
        headers = event.headers | asked.headers
        return _reply_to_one(to, await to.handle.publish(event.value, headers=headers, **asked.options))

    async def _batched(self, request: Request, to: PublishTarget, asked: PublishHeaders) -> StoredReply:
        """All events in one transaction: every one has headers of its own."""
        options = _options_for_many(asked)
        events = cloud_events.batched(await self._body(request).whole())
        expected = options.pop("expected_offset", None)
        async with serving_of(request.scope, self._serving).broker.transaction() as tx:
            published = [
                tx.publish(
                    to.topic,
                    event.value,
                    headers=event.headers | asked.headers,
                    **{"key": event.key} | options,
                    **({"expected_offset": expected} if not at and expected is not None else {}),
                )
                for at, event in enumerate(events)
            ]
        return _reply_to_many(to, Span(published[0].position, published[-1].position), len(events))

    async def _lines(self, request: Request, to: PublishTarget, asked: PublishHeaders) -> StoredReply:
        """One record per line. A piece is stored whole or not at all; a longer body is several pieces."""
        options = _options_for_many(asked)
        key = options.pop("key", None)
        if asked.headers:
            options["headers"] = asked.headers
        handle, stored, count = to.handle, None, 0
        try:
            async for lines in self._body(request).lines(min(self._serving.options.max_body, MAX_ENTRY_BYTES // 2)):
                for first in range(0, len(lines), MAX_ENTRY_RECORDS):
                    piece = lines[first : first + MAX_ENTRY_RECORDS]
                    if key is not None:
                        options["keys"] = [key] * len(piece)
                    span = await handle.publish_many(piece, **options)
                    stored = Span(span.first if stored is None else stored.first, span.last)
                    count += len(piece)
                    if "expected_offset" in options:
                        options["expected_offset"] = span.last.offset + 1
        except RunnelError as error:
            if stored is not None:
                error.http_facts = {"stored": _facts(to.topic, stored, count)}  # type: ignore[attr-defined]
            raise
        if stored is None:
            raise InvalidOption("body", "", "there is no line in it")
        return _reply_to_many(to, stored, count)

    def _body(self, request: Request) -> RequestBody:
        return RequestBody(request, self._serving.options, self._memory)

    def _address(self, scope: Scope) -> PublishTarget:
        path = scope.get("raw_path") or scope["path"].encode()
        broker = serving_of(scope, self._serving).broker
        found = self._addresses.get((id(broker), path))
        if found is not None and found.broker is not broker:
            found = None  # a record that was removed had the same id
        if found is None:
            for suffix, advice in READ_ALONE.items():
                if path.endswith(suffix):
                    raise HTTPException(405, advice, {"allow": "GET"})
            topic = topic_of_scope(scope, TOPICS_PATH)
            if len(self._addresses) >= CACHED_TARGETS:
                self._addresses.clear()
            records = f"{quote(scope.get('root_path', ''))}{TOPICS_PATH}{quote(topic, safe='')}/records"
            found = PublishTarget(topic, broker.topic(topic), records, broker)
            self._addresses[id(broker), path] = found
        return found


def _options_for_many(asked: PublishHeaders) -> dict[str, Any]:
    for name, value in asked.options.items():
        if not options_of(PublishOptions)[name].many:
            why = "it names one record; many are sent again safely with Runnel-Expected-Offset"
            raise InvalidOption(header_of(name), value, why)
    return dict(asked.options)


def _reply_to_one(to: PublishTarget, position: Position) -> StoredReply:
    facts = {"topic": to.topic, "epoch": json_number(position.epoch), "offset": json_number(position.offset)}
    return StoredReply(to, position.offset, facts)


def _reply_to_many(to: PublishTarget, span: Span, count: int) -> StoredReply:
    return StoredReply(to, span.first.offset, _facts(to.topic, span, count))


def _facts(topic: str, span: Span, count: int) -> dict[str, Any]:
    first, last = span
    epoch, start, end = json_number(first.epoch), json_number(first.offset), json_number(last.offset)
    return {"topic": topic, "epoch": epoch, "first": start, "last": end, "count": count}


# -- Publish options in request headers ------------------------------------------------------------------
# `Runnel-Key`, `Runnel-Header-…` and `ce-…` are percent-encoded, as in CloudEvents, so that a browser can send any
# text. They are checked after decoding, like those of any publish: `%0D%0A` forges no line elsewhere.


RECORD_HEADER_PREFIX = "runnel-header-"
CLOUD_EVENT_PREFIX = "ce-"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_READERS = {name: option_reader(header_of(name), option) for name, option in publish_headers().items()}
_SINGLE = {header_of(name).lower(): name for name in publish_headers()} | {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
}

# Headers of nearly every request, which are no options.
_IGNORED = frozenset(
    b"host content-length user-agent accept accept-encoding accept-language connection origin referer".split()
)


class PublishHeaders(NamedTuple):
    """The options of `publish`, the record's headers, and the type of the body."""

    options: dict[str, Any]
    headers: dict[str, str]
    content_type: str
    content_encoding: str


def read_publish_headers(raw: Iterable[tuple[bytes, bytes]]) -> PublishHeaders:
    """Read the headers of a request."""
    said: dict[str, str] = {}
    headers: dict[str, str] = {}
    trace: str | None = None
    for name_bytes, value in raw:
        if name_bytes in _IGNORED:
            continue
        name = name_bytes.decode("latin-1").lower()
        if name in _SINGLE:
            _once(said, _SINGLE[name], name, _header_text(name, value))
        elif name.startswith(RECORD_HEADER_PREFIX):
            _once(headers, name.removeprefix(RECORD_HEADER_PREFIX), name, percent_decoded(name, value))
        elif name.startswith(CLOUD_EVENT_PREFIX):
            _once(headers, name, name, percent_decoded(name, value))
        elif name == TRACEPARENT:
            trace = value.decode("latin-1")
    if trace is not None and TRACEPARENT not in headers and is_traceparent(trace):
        headers[TRACEPARENT] = trace  # one that is malformed is ignored, as W3C has it
    content_type, encoding = said.pop("content_type", ""), said.pop("content_encoding", "")
    options = {name: _READERS[name](text) for name, text in said.items()}
    return PublishHeaders(options, headers, content_type, encoding)


def percent_decoded(name: str, value: bytes) -> str:
    """A percent-encoded text."""
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidOption(name, value.decode("latin-1"), "it is not UTF-8, percent-encoded or not") from None


def _header_text(name: str, value: bytes) -> str:
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
