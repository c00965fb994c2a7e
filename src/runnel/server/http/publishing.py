"""`POST /topics/{topic}`: one record, many as lines, or CloudEvents. Answered once they are durable.

Below: wishes, cloud_events, body. Above: application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import InvalidOption, NotSupported, RunnelError
from runnel.core.position import Position, Span
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS
from runnel.server.http import body, cloud_events
from runnel.server.http.path import topic_of
from runnel.server.http.wishes import Wishes, wishes

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.topic import Topic
    from runnel.server.options import ServerOptions

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")

_encode = msgspec.json.Encoder().encode


class Publishing:
    """The route."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options
        self._handles: dict[str, Topic[bytes]] = {}

    async def publish(self, request: Request) -> Response:
        """Publish what the request holds."""
        topic, asked = topic_of(request), wishes(request.scope["headers"])
        if asked.content_encoding not in ("", "identity"):
            raise NotSupported(f"Content-Encoding {asked.content_encoding!r}", "send the body as it is")
        kind = asked.content_type.partition(";")[0].strip().lower()
        ways: dict[str, Callable[[Request, str, Wishes], Awaitable[Response]]] = {
            **dict.fromkeys(NDJSON, self._lines),
            cloud_events.STRUCTURED: self._structured,
            cloud_events.BATCHED: self._batched,
        }
        return await ways.get(kind, self._one)(request, topic, asked)

    async def _one(self, request: Request, topic: str, asked: Wishes) -> Response:
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
        position = await self._handle(topic).publish(value, **options)
        return _at(request, topic, position)

    async def _structured(self, request: Request, topic: str, asked: Wishes) -> Response:
        event = cloud_events.structured(await body.whole(request, self._options.max_body))
        if event.key is not None:
            asked.options.setdefault("key", event.key)
        headers = event.headers | asked.headers
        position = await self._handle(topic).publish(event.value, headers=headers, **asked.options)
        return _at(request, topic, position)

    async def _batched(self, request: Request, topic: str, asked: Wishes) -> Response:
        """All events in one transaction: every one has headers of its own."""
        options = _for_many(asked)
        events = cloud_events.batched(await body.whole(request, self._options.max_body))
        expected = options.pop("expected_offset", None)
        async with self._broker.transaction() as tx:
            published = [
                tx.publish(
                    topic,
                    event.value,
                    headers=event.headers | asked.headers,
                    **{"key": event.key} | options,
                    **({"expected_offset": expected} if not at and expected is not None else {}),
                )
                for at, event in enumerate(events)
            ]
        return _of_many(request, topic, Span(published[0].position, published[-1].position), len(events))

    async def _lines(self, request: Request, topic: str, asked: Wishes) -> Response:
        """A record a line. What one piece holds is stored whole or not at all; a longer body is several pieces."""
        options = _for_many(asked)
        key = options.pop("key", None)
        if asked.headers:
            options["headers"] = asked.headers
        handle, stored, count = self._handle(topic), None, 0
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
                error.http_facts = {"stored": _facts(topic, stored, count)}  # type: ignore[attr-defined]
            raise
        if stored is None:
            raise InvalidOption("body", "", "there is no line in it")
        return _of_many(request, topic, stored, count)

    def _handle(self, topic: str) -> Topic[bytes]:
        """A handle that is kept, so that the short way of publishing can be taken."""
        found = self._handles.get(topic)
        if found is None:
            if len(self._handles) >= 1024:
                self._handles.clear()
            found = self._handles[topic] = self._broker.topic(topic)
        return found


def _for_many(asked: Wishes) -> dict[str, Any]:
    if "message_id" in asked.options:
        why = "it names one record; many are sent again safely with Runnel-Expected-Offset"
        raise InvalidOption("Idempotency-Key", asked.options["message_id"], why)
    return dict(asked.options)


def _at(request: Request, topic: str, position: Position) -> Response:
    told = {"topic": topic, "epoch": position.epoch, "offset": position.offset}
    return _created(request, topic, position.offset, told)


def _of_many(request: Request, topic: str, span: Span, count: int) -> Response:
    return _created(request, topic, span.first.offset, _facts(topic, span, count))


def _facts(topic: str, span: Span, count: int) -> dict[str, Any]:
    first, last = span
    return {"topic": topic, "epoch": first.epoch, "first": first.offset, "last": last.offset, "count": count}


def _created(request: Request, topic: str, offset: int, told: dict[str, Any]) -> Response:
    root = quote(request.scope.get("root_path", ""))
    where = f"{root}/topics/{quote(topic, safe='')}/records?from={offset}&limit=1"
    return Response(_encode(told), 201, {"location": where}, "application/json")
