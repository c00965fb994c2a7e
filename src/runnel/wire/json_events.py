"""Events of JSON lines: answers to commands, and messages of subscriptions.

Each is one line and begins with its `event`. Fields without a value are left out. Values and keys that are not
UTF-8 are sent as base64, and say so. Offsets, sequences and epochs beyond 2^53 are sent as strings of digits, since
JavaScript and many parsers of JSON would round them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from runnel.core import replies as core
from runnel.core.by_reference import REASON, ByReference
from runnel.core.errors import NotSupported, RequestFailed, RunnelError
from runnel.core.presence import PresenceEvent, Present
from runnel.core.record import Gap, Record
from runnel.wire.json_commands import FORMS, Id

BASE64 = "base64"
EXACT = 2**53 - 1  # the largest number that every parser of JSON reads exactly

JsonNumber = int | str


def json_number(number: int) -> JsonNumber:
    """An offset, a sequence or an epoch, as JSON carries it: beyond 2^53 a string of its digits."""
    return number if number <= EXACT else str(number)


class ReplyFacts(Struct, frozen=True, omit_defaults=True, gc=False):
    """The result of a responder."""

    payload: str
    encoding: str | None = None
    headers: Mapping[str, str] | None = None


class FailureFacts(Struct, frozen=True, gc=False):
    """The failure of a responder: the code of its error, and the reason."""

    error: str
    why: str


class MemberFacts(Struct, frozen=True, omit_defaults=True, gc=False):
    """One subscription of a topic."""

    id: str
    name: str
    since: datetime
    group: str | None = None
    presence: str | None = None
    principal: str | None = None


def member_facts(member: Present) -> MemberFacts:
    """A member as JSON says it."""
    since = datetime.fromtimestamp(member.since, UTC)
    return MemberFacts(member.id, member.name, since, member.group, member.presence, member.principal)


class Event(Struct, frozen=True, omit_defaults=True, tag_field="event", tag=str.lower, gc=False):
    """One line to a client."""

    def line(self) -> bytes:
        """As bytes, with the end of line."""
        return _encode(self) + b"\n"


class Message(Event, frozen=True, gc=False):
    """A record. In a group it is a delivery, to be settled by its number."""

    topic: str
    offset: JsonNumber
    payload: str
    sequence: JsonNumber
    epoch: JsonNumber
    time: datetime
    encoding: str | None = None
    key: str | None = None
    key_encoding: str | None = None
    headers: Mapping[str, str] | None = None
    delivery: int | None = None
    attempt: int | None = None
    id: Id | None = None


class Missing(Event, frozen=True, tag="gap", gc=False):
    """Records that this subscription will not see, and why; before the message that follows them."""

    topic: str
    first: JsonNumber
    end: JsonNumber
    count: int | None
    reason: str
    id: Id | None = None


class End(Event, frozen=True, gc=False):
    """A subscription is over. With a code: because of an error."""

    topic: str
    code: str | None = None
    message: str | None = None
    id: Id | None = None


class Presence(Event, frozen=True, gc=False):
    """Who is subscribed to a topic."""

    topic: str
    members: list[MemberFacts]
    id: Id | None = None


class Join(Event, frozen=True, gc=False):
    """A subscription of a topic began, or was there when the watch did."""

    topic: str
    member: MemberFacts
    id: Id | None = None


class Leave(Event, frozen=True, gc=False):
    """A subscription of a topic ended."""

    topic: str
    member: MemberFacts
    id: Id | None = None


class Published(Event, frozen=True, gc=False):
    """The record is stored, on disk where its topic is durable."""

    topic: str
    offset: JsonNumber
    epoch: JsonNumber
    id: Id | None = None


class Reply(Event, frozen=True, gc=False):
    """The reply to a request."""

    topic: str
    payload: str
    encoding: str | None = None
    headers: Mapping[str, str] | None = None
    id: Id | None = None


class Replies(Event, frozen=True, gc=False):
    """All replies to a request that came until its deadline, or its limit; and what responders failed with."""

    topic: str
    replies: list[ReplyFacts]
    failures: list[FailureFacts]
    id: Id | None = None


class Replied(Event, frozen=True, gc=False):
    """A reply was sent; `taken` is false if the requester no longer waits."""

    taken: bool
    id: Id | None = None


class Subscribed(Event, frozen=True, gc=False):
    """Its messages follow."""

    topic: str
    group: str | None = None
    name: str | None = None
    id: Id | None = None


class Unsubscribed(Event, frozen=True, gc=False):
    """No more records of so many subscriptions follow."""

    topic: str
    count: int
    id: Id | None = None


class Credited(Event, frozen=True, gc=False):
    """So many records may be sent now, before the next request."""

    topic: str
    credit: int
    id: Id | None = None


class _OfDelivery(Event, frozen=True, gc=False):
    delivery: int
    id: Id | None = None


class Acked(_OfDelivery, frozen=True, gc=False):
    """The work of a delivery is done."""


class Nacked(_OfDelivery, frozen=True, gc=False):
    """The record is delivered again, to this member or another."""


class Rejected(_OfDelivery, frozen=True, gc=False):
    """The record went to the dead letters."""


class Extended(_OfDelivery, frozen=True, gc=False):
    """The delivery has its new time."""


class Authenticated(Event, frozen=True, gc=False):
    """The client has logged in."""

    principal: str
    id: Id | None = None


class Pong(Event, frozen=True, gc=False):
    """The answer to a ping."""

    id: Id | None = None


class Ping(Event, frozen=True, gc=False):
    """Needs no answer: it shows whether the client still reads. Only for clients that have closed their own side."""


class Topics(Event, frozen=True, gc=False):
    """The names of all topics, sorted."""

    topics: list[str]
    id: Id | None = None


class Info(Event, frozen=True, gc=False):
    """Which server this is, what it allows, and what this connection has open."""

    server: str
    version: str
    time: datetime
    limits: dict[str, Any]
    subscriptions: int
    deliveries: int
    id: Id | None = None


class Help(Event, frozen=True, gc=False):
    """One command, by example."""

    command: str
    example: msgspec.Raw
    about: str
    id: Id | None = None


class Bye(Event, frozen=True, gc=False):
    """The server closes the connection, after this line."""

    reason: str
    id: Id | None = None


class Error(Event, frozen=True, gc=False):
    """A command was refused; nothing happened."""

    code: str
    message: str
    command: str | None = None
    field: str | None = None
    id: Id | None = None


_encode = msgspec.json.Encoder().encode


def message(
    record: Record[bytes], id: Id | None = None, delivery: int | None = None, attempt: int | None = None
) -> bytes:
    """The line that delivers `record`."""
    payload, encoding = as_text(record.value)
    key, key_encoding = (None, None) if record.key is None else as_text(record.key)
    return Message(
        record.topic,
        json_number(record.offset),
        payload,
        json_number(record.sequence),
        json_number(record.epoch),
        record.time,
        encoding,
        key,
        key_encoding,
        dict(record.headers) or None,
        delivery,
        attempt,
        id,
    ).line()


def reply_facts(record: Record[bytes]) -> ReplyFacts:
    """A reply, to be encoded."""
    payload, encoding = as_text(record.value)
    return ReplyFacts(payload, encoding, dict(record.headers) or None)


def failure_facts(found: core.Replies[bytes]) -> list[FailureFacts]:
    """The failures of responders."""
    return [FailureFacts(one.error, one.why) for one in found.failures if isinstance(one, RequestFailed)]


def presence(topic: str, members: Iterable[Present], id: Id | None) -> bytes:
    """Who is subscribed."""
    return Presence(topic, [member_facts(member) for member in members], id).line()


def presence_change(topic: str, change: PresenceEvent, id: Id | None) -> bytes:
    """A member came or went."""
    kind = Join if change.event == "join" else Leave
    return kind(topic, member_facts(change.member), id).line()


def reply(topic: str, record: Record[bytes], id: Id | None = None) -> bytes:
    """The line that brings a requester its reply."""
    said = reply_facts(record)
    return Reply(topic, said.payload, said.encoding, said.headers, id).line()


def replies(topic: str, found: core.Replies[bytes], id: Id | None = None) -> bytes:
    """The line that brings a requester all its replies."""
    return Replies(topic, list(map(reply_facts, found)), failure_facts(found), id).line()


def gap(missed: Gap, id: Id | None = None) -> bytes:
    """The line that reports a gap to a subscriber."""
    first, end = json_number(missed.first), json_number(missed.end)
    return Missing(missed.topic, first, end, missed.count, missed.reason, id).line()


def error(problem: RunnelError, command: str | None = None, id: Id | None = None) -> bytes:
    """The line that says what went wrong."""
    field = getattr(problem, "field", None)
    return Error(problem.code, str(problem), command, field if isinstance(field, str) else None, id).line()


def help_lines(id: Id | None = None) -> bytes:
    """A line for each command, by example."""
    return b"".join(Help(name, msgspec.Raw(form.encode()), ABOUT[name], id).line() for name, form in FORMS.items())


def as_text(value: bytes) -> tuple[str, str | None]:
    """`value` as text, and None; or, where it is no text, in base64, and that word."""
    if value.__class__ is ByReference:
        raise NotSupported("sending a record", REASON)
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), BASE64


ABOUT = {
    "AUTH": "log in, before anything else, where the server asks for that",
    "SUB": "read a topic, or a pattern such as orders.* or orders.>; also credit, id and all options of subscribe",
    "UNSUB": "stop reading a topic, or the subscription with this id",
    "PUB": "publish; also key, headers, encoding (base64), delay, expires, priority, message_id, expected_offset",
    "REQUEST": "publish, and wait for the reply; also key, headers, timeout, limit (several replies)",
    "REPLY": "answer a message that has the header runnel-reply-to",
    "ACK": "a delivery of a group is done",
    "NACK": "it failed: again, after so many seconds",
    "REJECT": "it can never succeed: to the dead letters",
    "EXTEND": "it takes longer: so many seconds from now",
    "PRESENCE": "who is subscribed to a topic and, unless watch is false, who comes and goes",
    "CREDIT": "so many records more may be sent of a subscription that was opened with a credit",
    "PING": "answered by a pong, after all that was sent before",
    "TOPICS": "the names of all topics",
    "INFO": "the server and its limits",
    "HELP": "this",
    "QUIT": "answer what is under way, then close",
}
