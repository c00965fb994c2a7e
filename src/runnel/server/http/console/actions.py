"""`POST /console/actions`: what operators do from a page. Each action is a small struct, tagged by `do`.

The backend of the peer checks the right to each action, as for any other listener; a session needs its CSRF token, as
for every request that changes something (`authentication`).
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import InvalidOption, UnknownTopic
from runnel.core.options import SubscribeOptions, TopicOptions
from runnel.core.pattern import check_name
from runnel.core.position import Position, Start, reads_by_sequence
from runnel.security.principal import ConsoleRole
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import RequestBody, parse_start
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.core.backend import Reader
    from runnel.server.served_broker import ServedBroker

Facts = dict[str, Any]


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """One thing to do. `run` does it, and returns what to say of it."""

    async def run(self, serving: ServedBroker) -> Facts:
        """Do it, or raise."""
        raise NotImplementedError


# -- topics -----------------------------------------------------------------------------------------------------


class CreateTopic(Action, frozen=True, tag="create_topic"):
    """Declare a topic with these options."""

    topic: str
    options: dict[str, Any] = {}

    async def run(self, serving: ServedBroker) -> Facts:
        """Raises if it exists with other options."""
        options = TopicOptions.of(self.options).given()
        await serving.publisher.declare(check_name(self.topic), options, None)
        await serving.backend.flushed()
        return {"options": await serving.backend.describe(self.topic) or options}


class ConfigureTopic(Action, frozen=True, tag="configure_topic"):
    """Change options of a topic; null takes one back to its default."""

    topic: str
    changes: dict[str, Any]

    async def run(self, serving: ServedBroker) -> Facts:
        """The present state."""
        return {"options": await serving.backend.configure(check_name(self.topic), self.changes)}


class TrimTopic(Action, frozen=True, tag="trim_topic"):
    """Remove the records before an offset or a time."""

    topic: str
    before: str
    force: bool = False

    async def run(self, serving: ServedBroker) -> Facts:
        """The first offset that is left."""
        before = parse_start("before", self.before)
        if not isinstance(before, int | datetime) or (isinstance(before, int) and before < 0):
            raise InvalidOption("before", self.before[:64], "expected an offset, or a time with its zone")
        await _known(serving, self.topic)
        return {"first": json_number(await serving.broker.topic(self.topic).trim(before, force=self.force))}


class DeleteTopic(Action, frozen=True, tag="delete_topic"):
    """Delete a topic and its records."""

    topic: str

    async def run(self, serving: ServedBroker) -> Facts:
        """Raises if there is none."""
        await _known(serving, self.topic)
        await serving.broker.delete(self.topic)
        return {}


# -- groups and named subscriptions -----------------------------------------------------------------------------


class PauseGroup(Action, frozen=True, tag="pause_group"):
    """Pause or continue the delivery of a group."""

    group: str
    pattern: str
    paused: bool

    async def run(self, serving: ServedBroker) -> Facts:
        """Leases that are out can still be settled."""
        await serving.backend.ask_group(self.group, self.pattern, "pause" if self.paused else "resume")
        return {}


class ResetGroup(Action, frozen=True, tag="reset_group"):
    """Move a group to another place."""

    group: str
    pattern: str
    start: str

    async def run(self, serving: ServedBroker) -> Facts:
        """An offset is for a group of one topic."""
        start = parse_start("start", self.start)
        await serving.backend.ask_group(self.group, self.pattern, "reset", start)
        return {}


class ForgetGroup(Action, frozen=True, tag="forget_group"):
    """Forget a group without members, and its progress."""

    group: str
    pattern: str

    async def run(self, serving: ServedBroker) -> Facts:
        """`GroupInUse` while it has members."""
        await serving.broker.forget_group(self.group, self.pattern)
        return {}


class PlaceSubscription(Action, frozen=True, tag="place_subscription"):
    """Move the position of a named subscription that is not open. `topic` may be the pattern that it reads."""

    name: str
    topic: str
    start: str

    async def run(self, serving: ServedBroker) -> Facts:
        """The offset that it has now; of a pattern, the sequence."""
        start = parse_start("start", self.start)
        if reads_by_sequence(self.topic):
            sequence = await _sequence(serving, self.topic.split(" "), start)
            await serving.broker.place({self.name: (self.topic, sequence)})
            return {"sequence": json_number(sequence)}
        position = await _position(serving, self.topic, start)
        await serving.broker.place({self.name: (self.topic, position)})
        return {"offset": json_number(position.offset)}


class ForgetSubscription(Action, frozen=True, tag="forget_subscription"):
    """Forget a named subscription: its position, and what it holds."""

    name: str

    async def run(self, serving: ServedBroker) -> Facts:
        """`NameInUse` while it is open."""
        await serving.broker.forget(self.name)
        return {}


# -- connections ------------------------------------------------------------------------------------------------


class CloseConnection(Action, frozen=True, tag="close_connection"):
    """Close the connection of a client, whatever is under way. A client that reconnects by itself comes back."""

    connection: int

    async def run(self, serving: ServedBroker) -> Facts:
        """For administrators."""
        access = serving.access
        if access is not None:
            access.check_role(ConsoleRole.ADMIN, "close connections")
        for number, peer in serving.connections.numbered():
            if number == self.connection:
                if access is not None:
                    await access.control.audited(access, "close a connection", str(number))
                peer.abort()
                return {}
        raise InvalidOption("connection", self.connection, "it is closed already")


_ACTIONS = (
    CreateTopic
    | ConfigureTopic
    | TrimTopic
    | DeleteTopic
    | PauseGroup
    | ResetGroup
    | ForgetGroup
    | PlaceSubscription
    | ForgetSubscription
    | CloseConnection
)
_decode = msgspec.json.Decoder(_ACTIONS).decode


class ActionsRoute:
    """The route."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving

    async def act(self, request: Request) -> Response:
        """Do one action; the answer has what it led to."""
        serving = serving_of(request.scope, self._serving)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # no form of another site can send this without a CORS preflight
            raise InvalidOption("Content-Type", kind[:64], "expected application/json")
        body = await RequestBody(request, self._serving.options, self._serving.memory).whole()
        try:
            action = _decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidOption(
                "body", "…", f'expected an action such as {{"do": "delete_topic", …}}: {error}'
            ) from None
        return Response(encode_json(await action.run(serving)), media_type="application/json")


async def _known(serving: ServedBroker, topic: str) -> None:
    if not await serving.backend.bounds((check_name(topic),), history=False):
        raise UnknownTopic(topic)


async def _position(serving: ServedBroker, topic: str, start: Start) -> Position:
    """Where a start lies in a topic, now."""
    time = start if isinstance(start, datetime) else None
    found = await serving.backend.bounds((check_name(topic),), time)
    if not found:
        raise UnknownTopic(topic)
    bounds = found[0]
    if start is None or start == "latest":
        return Position(bounds.epoch, bounds.end)
    if start == "earliest":
        return Position(bounds.epoch, bounds.first)
    if time is not None:
        return Position(bounds.epoch, bounds.end if bounds.at is None else bounds.at)
    assert isinstance(start, int)
    offset = start if start >= 0 else max(bounds.first, bounds.end + start)
    if offset > bounds.end:
        raise InvalidOption("start", start, f"the topic ends before offset {bounds.end}")
    return Position(bounds.epoch, offset)


async def _sequence(serving: ServedBroker, patterns: list[str], start: Start) -> int:
    """Where a start lies among all records; of a time, before the first record of these patterns that is not older."""
    backend = serving.backend
    end = await backend.end_sequence()
    if start is None or start == "latest":
        return end
    if start == "earliest":
        return 0
    if isinstance(start, int):
        if not 0 <= start <= end:
            raise InvalidOption("start", start, f"of a pattern it is a sequence, from 0 to {end}")
        return start
    woken = asyncio.Event()
    reader: Reader = backend.reader(patterns, SubscribeOptions(start=start), woken.set)
    try:
        if (entered := reader.enter()) is not None:
            await entered
        reader.finish()
        while True:
            woken.clear()
            if (taken := reader.take(1)) is not None:
                if taken[0]:
                    first = taken[0][0]
                    return first.stretches[0].sequence + first.start - first.stretches[0].offset
            elif reader.error is not None:
                raise reader.error
            elif reader.ended:
                return end
            else:
                reader.park()
                await woken.wait()
    finally:
        reader.leave()
        await reader.left()
