"""`/dead-letters`: list, replay and discard dead letters, one by one or all.

Requests that change something take `application/json` only: no HTML form of another site can send that without a CORS
preflight (and `cross_origin` refuses such pages anyway).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.dead_letter import PREFIX, original_headers
from runnel.core.errors import InvalidOption, TopicDeleted, UnknownTopic
from runnel.core.record import Record
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json, record_as_json
from runnel.server.http.requests import (
    RequestBody,
    integer_parameter,
    parameters,
    parse_start,
    single_parameter,
    topic_of_request,
)
from runnel.wire.json_commands import Count, Digits
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.server.served_broker import ServedBroker

DEFAULT_LIMIT, MAX_LIMIT = 50, 1_000  # letters of a page
MAX_RESPONSE_BYTES = 4 << 20  # of their values
MAX_OFFSETS = 10_000  # in one request
FACTS = ("reason", "attempts", "group", "subscriber", "topic", "position")

Offset = Count | Digits


class ChosenLetters(msgspec.Struct, forbid_unknown_fields=True):
    """Which letters: those at `offsets`, or all. With `epoch`, only if the topic is still that one."""

    offsets: list[Offset] | None = None
    all: bool = False
    epoch: Offset | None = None

    def places(self) -> list[int] | None:
        """The chosen offsets; None: all."""
        return None if self.offsets is None else list(map(int, self.offsets))


class DeadLetterRoutes:
    """The routes."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving
        self._memory = serving.memory

    def _backend(self, request: Request) -> Backend:
        return serving_of(request.scope, self._serving).backend

    async def topics(self, request: Request) -> Response:
        """The topics that dead letters go to."""
        found = [
            {
                "topic": one.name,
                "groups": one.groups,
                "open": one.open,
                "first": json_number(one.first),
                "end": json_number(one.end),
            }
            for one in await self._backend(request).dead_letter_topics()
        ]
        return _json({"topics": found})

    async def letters(self, request: Request) -> Response:
        """The letters of one of them that are not done with, the oldest first."""
        topic, asked = topic_of_request(request), parameters(request.scope)
        start = parse_start("from", single_parameter(asked, "from") or "0")
        if not isinstance(start, int) or start < 0:
            raise InvalidOption("from", single_parameter(asked, "from"), "expected an offset, 0 or more")
        limit = integer_parameter(asked, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        found = await self._backend(request).dead_letters(topic, start, limit, MAX_RESPONSE_BYTES)
        told = {
            "topic": topic,
            "epoch": json_number(found.epoch),
            "open": found.open,
            "letters": [letter_as_json(one) for one in found.letters],
            "next": json_number(found.next) if found.next < found.end else None,
        }
        return _json(told)

    async def replay(self, request: Request) -> Response:
        """Put letters back where they came from."""
        topic, chosen = await self._chosen(request)
        count = await self._backend(request).settle_dead_letters(topic, chosen.places(), put_back=True)
        return _json({"topic": topic, "replayed": count})

    async def discard(self, request: Request) -> Response:
        """Be done with letters."""
        topic, chosen = await self._chosen(request)
        count = await self._backend(request).settle_dead_letters(topic, chosen.places(), put_back=False)
        return _json({"topic": topic, "discarded": count})

    async def _chosen(self, request: Request) -> tuple[str, ChosenLetters]:
        topic = topic_of_request(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise InvalidOption("Content-Type", kind[:64], "expected application/json")
        try:
            body = await RequestBody(request, self._serving.options, self._memory).whole()
            chosen = msgspec.json.decode(body, type=ChosenLetters)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidOption("body", "…", f'expected {{"offsets": [1, 2]}} or {{"all": true}}: {error}') from None
        if (chosen.offsets is None) != chosen.all:
            raise InvalidOption("body", "…", "give offsets, or all: true")
        if chosen.offsets is not None and len(chosen.offsets) > MAX_OFFSETS:
            raise InvalidOption("offsets", f"{len(chosen.offsets):,} of them", f"at most {MAX_OFFSETS:,} at a time")
        bounds = await self._backend(request).bounds((topic,), history=False)
        if not bounds:
            raise UnknownTopic(topic)
        if chosen.epoch is not None and int(chosen.epoch) != bounds[0].epoch:
            raise TopicDeleted(topic, int(chosen.epoch))
        return topic, chosen


def letter_as_json(record: Record[bytes]) -> dict[str, Any]:
    """A letter: the original record, and its failures."""
    known: dict[str, Any] = msgspec.to_builtins(record_as_json(record))
    known.pop("headers", None)
    story = {name: text for name in FACTS if (text := record.headers.get(f"{PREFIX}{name}")) is not None}
    if headers := original_headers(record):
        known["headers"] = headers
    return known | {"story": story}


def _json(told: Any) -> Response:
    return Response(encode_json(told), media_type="application/json")
