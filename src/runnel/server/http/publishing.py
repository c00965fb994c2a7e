"""`POST /topics/{topic}`: one record, many as lines, or CloudEvents. Answered once they are durable.

An ASGI application of its own, errors included, so that the way here from the door is short: see application.
Below: wishes, cloud_events, body, problem. Above: application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from runnel.core.errors import InvalidOption, NotSupported, RunnelError
from runnel.core.position import Position, Span
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS
from runnel.server.http import body, cloud_events, problem
from runnel.server.http.path import topic_in
from runnel.server.http.wishes import Wishes, wishes

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.topic import Topic
    from runnel.server.options import ServerOptions

PATH = "/topics/"
KNOWN = 1024  # paths that were looked up
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
HISTORY = b"/records"

_encode = msgspec.json.Encoder().encode


class Address(NamedTuple):
    """What a path names, looked up once."""

    topic: str
    handle: Topic[bytes]  # kept, so that the short way of publishing can be taken
    records: str  # where its records are read


class Told(NamedTuple):
    """What was stored, to be answered."""

    address: Address
    offset: int  # of the first
    facts: dict[str, Any]


class Publishing:
    """The route."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options
        self._addresses: dict[bytes, Address] = {}
        self._ways: dict[str, Callable[[Request, Address, Wishes], Awaitable[Told]]] = {
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
            await (await problem.on_runnel_error(request, error))(scope, receive, send)
        except HTTPException as error:
            await (await problem.on_http_error(request, error))(scope, receive, send)
        except Exception as error:
            await (await problem.on_failure(request, error))(scope, receive, send)
        else:
            data = _encode(facts)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(data)),
                (b"location", f"{address.records}?from={offset}&limit=1".encode("latin-1")),
            ]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": data})

    async def _publish(self, request: Request) -> Told:
        scope = request.scope
        address, asked = self._address(scope), wishes(scope["headers"])
        if asked.content_encoding not in ("", "identity"):
            raise NotSupported(f"Content-Encoding {asked.content_encoding!r}", "send the body as it is")
        kind = asked.content_type.partition(";")[0].strip().lower()
        return await self._ways.get(kind, self._one)(request, address, asked)

    async def _one(self, request: Request, to: Address, asked: Wishes) -> Told:
        options, headers = asked.options, asked.headers
        if "ce-specversion" in headers:
            key = cloud_events.check_binary(headers)
            if key is not None:
                options.setdefault("key", key)
            if asked.content_type:
                headers.setdefault("content-type", asked.content_type)
        value = await body.whole(request, self._options.max_body)
        if headers:
            options["headers"] = headers
        return _at(to, await to.handle.publish(value, **options))

    async def _structured(self, request: Request, to: Address, asked: Wishes) -> Told:
        event = cloud_events.structured(await body.whole(request, self._options.max_body))
        if event.key is not None:
            asked.options.setdefault("key", event.key)
        headers = event.headers | asked.headers
        return _at(to, await to.handle.publish(event.value, headers=headers, **asked.options))

    async def _batched(self, request: Request, to: Address, asked: Wishes) -> Told:
        """All events in one transaction: every one has headers of its own."""
        options = _for_many(asked)
        events = cloud_events.batched(await body.whole(request, self._options.max_body))
        expected = options.pop("expected_offset", None)
        async with self._broker.transaction() as tx:
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
        return _of_many(to, Span(published[0].position, published[-1].position), len(events))

    async def _lines(self, request: Request, to: Address, asked: Wishes) -> Told:
        """A record a line. What one piece holds is stored whole or not at all; a longer body is several pieces."""
        options = _for_many(asked)
        key = options.pop("key", None)
        if asked.headers:
            options["headers"] = asked.headers
        handle, stored, count = to.handle, None, 0
        try:
            async for lines in body.lines(request, min(self._options.max_body, MAX_ENTRY_BYTES // 2)):
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
        return _of_many(to, stored, count)

    def _address(self, scope: Scope) -> Address:
        path = scope.get("raw_path") or scope["path"].encode()
        found = self._addresses.get(path)
        if found is None:
            if path.endswith(HISTORY):  # a name has no slash, unless it is percent-encoded, and then it is refused
                raise HTTPException(405, "records are read with GET", {"allow": "GET"})
            topic = topic_in(scope, PATH)
            if len(self._addresses) >= KNOWN:
                self._addresses.clear()
            records = f"{quote(scope.get('root_path', ''))}{PATH}{quote(topic, safe='')}/records"
            found = self._addresses[path] = Address(topic, self._broker.topic(topic), records)
        return found


def _for_many(asked: Wishes) -> dict[str, Any]:
    if "message_id" in asked.options:
        why = "it names one record; many are sent again safely with Runnel-Expected-Offset"
        raise InvalidOption("Idempotency-Key", asked.options["message_id"], why)
    return dict(asked.options)


def _at(to: Address, position: Position) -> Told:
    facts = {"topic": to.topic, "epoch": position.epoch, "offset": position.offset}
    return Told(to, position.offset, facts)


def _of_many(to: Address, span: Span, count: int) -> Told:
    return Told(to, span.first.offset, _facts(to.topic, span, count))


def _facts(topic: str, span: Span, count: int) -> dict[str, Any]:
    first, last = span
    return {"topic": topic, "epoch": first.epoch, "first": first.offset, "last": last.offset, "count": count}
