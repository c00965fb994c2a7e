"""`/dead-letters`: what failed for good, listed, put back or discarded, one by one or all.

What changes something takes JSON and nothing else: no form of another page can send that without being asked first
whether it may (and `guard` refuses such pages anyway).
Below: broker.letterbox, shape. Above: application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.broker import letterbox
from runnel.broker.dead_letter import PREFIX, original
from runnel.broker.letterbox import Letterbox
from runnel.core.errors import InvalidOption, TopicDeleted, UnknownTopic
from runnel.core.record import Record
from runnel.server.http import body
from runnel.server.http.path import parameters, single, start_of, topic_of, whole
from runnel.server.http.shape import encode, shape

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.log import Log
    from runnel.server.options import ServerOptions

LIMIT, MOST = 50, 1_000  # letters of a page
MOST_BYTES = 4 << 20  # of their values
MOST_OFFSETS = 10_000  # in one request
FACTS = ("reason", "attempts", "group", "subscriber", "topic", "position")

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Chosen(msgspec.Struct, forbid_unknown_fields=True):
    """Which letters are meant: those at `offsets`, or all. `epoch`: of the topic in this life of it only."""

    offsets: list[Whole] | None = None
    all: bool = False
    epoch: Whole | None = None


class LetterRoutes:
    """The routes."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options

    async def topics(self, request: Request) -> Response:
        """The topics that dead letters go to."""
        bus = self._broker._bus
        bus.home.check_usable("listing dead letters")
        found = []
        for name, groups in letterbox.topics(bus).items():
            box = Letterbox(bus, bus.catalog.logs[name])
            found.append({"topic": name, "groups": groups, "open": box.open(), "first": box.floor, "end": box.log.end})
        return _json({"topics": found})

    async def letters(self, request: Request) -> Response:
        """The letters of one of them that are not done with, the oldest first."""
        topic, asked = topic_of(request), parameters(request.scope)
        start = start_of("from", single(asked, "from") or "0")
        if not isinstance(start, int) or start < 0:
            raise InvalidOption("from", single(asked, "from"), "expected an offset, 0 or more")
        limit = whole(asked, "limit", LIMIT, MOST)
        found = await letterbox.letters(self._broker, topic, start, limit, MOST_BYTES)
        told = {
            "topic": topic,
            "epoch": found.epoch,
            "open": Letterbox(self._broker._bus, self._log(topic)).open(),
            "letters": [_letter(one) for one in found.letters],
            "next": found.next if found.next < found.end else None,
        }
        return _json(told)

    async def replay(self, request: Request) -> Response:
        """Put letters back where they came from."""
        topic, chosen = await self._chosen(request)
        count = await letterbox.settle(self._broker, topic, chosen.offsets, put_back=True)
        return _json({"topic": topic, "replayed": count})

    async def discard(self, request: Request) -> Response:
        """Be done with letters."""
        topic, chosen = await self._chosen(request)
        count = await letterbox.settle(self._broker, topic, chosen.offsets, put_back=False)
        return _json({"topic": topic, "discarded": count})

    async def _chosen(self, request: Request) -> tuple[str, Chosen]:
        topic = topic_of(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise InvalidOption("Content-Type", kind[:64], "expected application/json")
        try:
            chosen = msgspec.json.decode(await body.whole(request, self._options.max_body), type=Chosen)
        except msgspec.MsgspecError as error:
            raise InvalidOption("body", "…", f'expected {{"offsets": [1, 2]}} or {{"all": true}}: {error}') from None
        if (chosen.offsets is None) != chosen.all:
            raise InvalidOption("body", "…", "give offsets, or all: true")
        if chosen.offsets is not None and len(chosen.offsets) > MOST_OFFSETS:
            raise InvalidOption("offsets", f"{len(chosen.offsets):,} of them", f"at most {MOST_OFFSETS:,} at a time")
        log = self._log(topic)
        if chosen.epoch is not None and chosen.epoch != log.epoch:
            raise TopicDeleted(topic, chosen.epoch)
        return topic, chosen

    def _log(self, topic: str) -> Log:
        log = self._broker._bus.catalog.logs.get(topic)
        if log is None:
            raise UnknownTopic(topic)
        return log


def _letter(record: Record[bytes]) -> dict[str, Any]:
    """A letter: the record as it was, and its story."""
    known: dict[str, Any] = msgspec.to_builtins(shape(record))
    known.pop("headers", None)
    story = {name: text for name in FACTS if (text := record.headers.get(f"{PREFIX}{name}")) is not None}
    if headers := original(record):
        known["headers"] = headers
    return known | {"story": story}


def _json(told: Any) -> Response:
    return Response(encode(told), media_type="application/json")
