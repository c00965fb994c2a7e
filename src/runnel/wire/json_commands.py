"""Commands of JSON lines as structs. A line that is no command becomes an error that shows the right form."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field

from runnel.core.errors import BadCommand
from runnel.core.position import Position

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0)]
Id = str | int


class Command(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What all commands have: `id`, of the client's choosing, comes back in the answer."""

    command: str
    id: Id | None = None

    @property
    def verb(self) -> str:
        """What it is called, in capitals: people may write it as they like."""
        return self.command.upper()


class Place(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A position to start at, as messages and answers tell it."""

    epoch: Count
    offset: Count


class Sub(Command, frozen=True, gc=False):
    """Read a topic or pattern, alone or as a member of a group."""

    topic: str
    start: str | Count | Place | None = field(default=None, name="from")
    group: str | None = None
    name: str | None = None
    prefetch: Count | None = None
    ack_wait: Seconds | None = None
    max_deliver: Count | None = None
    dead_letter: str | None = None
    credit: Count | None = None

    def where(self) -> str | int | datetime | Position | None:
        """Where to start, as `Broker.subscribe` takes it."""
        start = self.start
        if isinstance(start, Place):
            return Position(start.epoch, start.offset)
        if not isinstance(start, str) or start in ("earliest", "latest"):
            return start
        if re.fullmatch(r"\d{1,19}:\d{1,19}", start, re.ASCII):
            return Position.parse(start)
        try:
            time = datetime.fromisoformat(start)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise _refused(self.command, "from", _START)
        return time


class Unsub(Command, frozen=True, gc=False):
    """End subscriptions of this connection: the one with this id, or those of this topic."""

    topic: str | None = None


class Credit(Command, frozen=True, gc=False):
    """So many records more may be sent of a subscription: the one with this id, or those of this topic."""

    records: Count
    topic: str | None = None


class Pub(Command, frozen=True, gc=False):
    """Publish one record."""

    topic: str
    payload: Raw
    encoding: str | None = None
    key: str | None = None
    key_encoding: str | None = None
    headers: dict[str, str] | None = None
    delay: Seconds | None = None
    expires: Seconds | None = None
    priority: Count = 0
    message_id: str | None = None
    expected_offset: Count | None = None

    def value(self) -> bytes:
        """The bytes to publish: of a string its text, of other JSON the text that came."""
        raw = bytes(self.payload)
        if not raw.startswith(b'"'):
            if self.encoding is not None:
                raise _refused(self.command, "payload", "with an encoding it is a string")
            return raw
        return self._bytes("payload", msgspec.json.decode(raw, type=str), self.encoding)

    def key_bytes(self) -> bytes | None:
        """The key to publish under."""
        return None if self.key is None else self._bytes("key", self.key, self.key_encoding)

    def _bytes(self, name: str, text: str, encoding: str | None) -> bytes:
        if encoding is None:
            return text.encode()
        if encoding != "base64":
            raise _refused(self.command, "encoding", 'it is "base64", or left out for text')
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _refused(self.command, name, "it is not base64 (A-Z a-z 0-9 + / and = at the end)") from None


class Ack(Command, frozen=True, gc=False):
    """The work of a delivery is done."""

    delivery: Count
    durable: bool = False


class Nack(Command, frozen=True, gc=False):
    """The work of a delivery failed: again after `delay` seconds, or after the group's backoff."""

    delivery: Count
    delay: Seconds | None = None
    reason: str = "nacked"


class Reject(Command, frozen=True, gc=False):
    """The work of a delivery can never succeed: to the dead letters."""

    delivery: Count
    reason: str = "rejected"


class Extend(Command, frozen=True, gc=False):
    """The work of a delivery takes so many seconds longer, from now."""

    delivery: Count
    seconds: Seconds


class Ping(Command, frozen=True, gc=False):
    """Asks for a pong."""


class Topics(Command, frozen=True, gc=False):
    """Asks for the names of all topics."""


class Info(Command, frozen=True, gc=False):
    """Asks which server this is, and for its limits."""


class Help(Command, frozen=True, gc=False):
    """Asks what can be said here."""


class Quit(Command, frozen=True, gc=False):
    """Answer what is under way, then close the connection."""


class Refusal(Struct, frozen=True, gc=False):
    """A line that is no command: why, and as much as was understood of it."""

    error: BadCommand
    command: str | None = None
    id: Id | None = None


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.upper(): kind
    for kind in (Sub, Unsub, Pub, Ack, Nack, Reject, Extend, Credit, Ping, Topics, Info, Help, Quit)
}

# The right form of each, as help and errors show it.
FORMS = {
    "SUB": '{"command": "SUB", "topic": "test", "from": "earliest"}',
    "UNSUB": '{"command": "UNSUB", "topic": "test"}',
    "PUB": '{"command": "PUB", "topic": "test", "payload": "100"}',
    "ACK": '{"command": "ACK", "delivery": 1}',
    "NACK": '{"command": "NACK", "delivery": 1, "delay": 5}',
    "REJECT": '{"command": "REJECT", "delivery": 1, "reason": "no such customer"}',
    "EXTEND": '{"command": "EXTEND", "delivery": 1, "seconds": 30}',
    "CREDIT": '{"command": "CREDIT", "topic": "test", "records": 100}',
    "PING": '{"command": "PING"}',
    "TOPICS": '{"command": "TOPICS"}',
    "INFO": '{"command": "INFO"}',
    "HELP": '{"command": "HELP"}',
    "QUIT": '{"command": "QUIT"}',
}
_START = (
    'it is "earliest", "latest", an offset, a time with its zone such as "2026-03-01T12:00:00Z", '
    'or a position such as {"epoch": 1, "offset": 5}'
)
_WHOLE = "it is a whole number, 0 or more"
_ID = "it is a string or a whole number"
_SECONDS = "it is a number of seconds, 0 or more"
_WHAT = {  # how a field must look, where a type alone does not say it
    "from": _START,
    "id": _ID,
    "payload": "it is the message: a string, or any other JSON",
    "headers": 'they are strings by name, such as {"source": "till-7"}',
    "delivery": "it is the number that came with the message",
    "seconds": _SECONDS,
    "delay": _SECONDS,
    "expires": _SECONDS,
    "ack_wait": _SECONDS,
    "prefetch": _WHOLE,
    "credit": "it is a whole number, 0 or more: how many records may be sent before you ask for more",
    "records": _WHOLE,
    "max_deliver": _WHOLE,
    "priority": "it is a whole number from 0 (last) to 9 (first)",
    "expected_offset": _WHOLE,
    "durable": "it is true or false",
}
# What people say who know the Python API, or another broker.
_MEANT = {
    "start": "from",
    "pattern": "topic",
    "channel": "topic",
    "subject": "topic",
    "value": "payload",
    "data": "payload",
    "body": "payload",
    "message": "payload",
    "sid": "id",
    "lease": "delivery",
    "SUBSCRIBE": "SUB",
    "PSUBSCRIBE": "SUB",
    "UNSUBSCRIBE": "UNSUB",
    "PUBLISH": "PUB",
    "EXIT": "QUIT",
    "BYE": "QUIT",
    "CLOSE": "QUIT",
    "LIST": "TOPICS",
}
_PATH = re.compile(r"`\$\.([^`.\[]*)")  # where msgspec says that something is wrong
_NAMED = re.compile(r"field `([^`]*)`")


class _Head(Struct, frozen=True, gc=False):
    """What must be known before the rest can be."""

    command: Any = None
    id: Any = None


_head = msgspec.json.Decoder(_Head)
_bodies = {name: msgspec.json.Decoder(kind) for name, kind in COMMANDS.items()}


def parse(line: bytes) -> Command | Refusal:
    """The command that `line` says, or why it says none. Never raises."""
    name: str | None = None
    head = _Head()
    try:
        line.decode()  # what passes as raw JSON further down must be text as well
        head = _head.decode(line)
        name = _known(head.command)
        return _bodies[name].decode(line)
    except BadCommand as error:
        return _refusal(error, name, head.id)
    except UnicodeDecodeError as error:
        return _refusal(BadCommand(f"the line is not UTF-8 (byte {error.start})"), name, head.id)
    except RecursionError:
        return _refusal(BadCommand("the JSON is nested too deeply"), name, head.id)
    except msgspec.ValidationError as error:
        if name is None:
            return _refusal(BadCommand("the line is JSON, and no object"), name, head.id)
        return _refusal(_misfit(name, str(error)), name, head.id)
    except msgspec.DecodeError as error:
        return _refusal(
            BadCommand(f"the line is not JSON: {str(error).removeprefix('JSON is malformed: ')}"), name, head.id
        )


def _refusal(error: BadCommand, name: str | None, id: Any) -> Refusal:
    return Refusal(error, name, id if isinstance(id, str | int) and not isinstance(id, bool) else None)


def _known(command: Any) -> str:
    """The command's name as it is in `COMMANDS`."""
    if not isinstance(command, str):
        raise BadCommand('"command" is missing' if command is None else '"command" is not a string')
    name = command.upper()
    if name in COMMANDS:
        return name
    raise BadCommand(f"there is no command {_shown(command)}{_suggestion(name, list(COMMANDS))}")


def _misfit(name: str, why: str) -> BadCommand:
    """What msgspec says about a field, for people."""
    if (path := _PATH.search(why)) is not None:
        which = path[1]
        return _refused(name, which, _WHAT.get(which, "it is a string"))
    if (named := _NAMED.search(why)) is None:
        return _refused(name, None, why)
    which = named[1]
    if "missing" in why.partition("`")[0]:
        return _refused(name, which, "it is missing")
    fields = [item.encode_name for item in msgspec.structs.fields(COMMANDS[name])]
    return _refused(name, which, f"there is no such field{_suggestion(which, fields)}")


def _refused(name: str, which: str | None, why: str) -> BadCommand:
    name = name.upper()
    about = "" if which is None else f"field {_shown(which)}: "
    return BadCommand(f"{name}: {about}{why}", field=which, form=FORMS[name])


def _suggestion(said: str, known: list[str]) -> str:
    """The one that was meant, as far as can be told."""
    meant = _MEANT.get(said)
    if meant not in known:
        meant = next(iter(get_close_matches(said[:64], known, 1, 0.6)), None)
    return f" (did you mean {_shown(meant)}?)" if meant else f"; known are {', '.join(known)}"


def _shown(text: str) -> str:
    """A short form of what a peer said, quoted."""
    return '"' + (text if len(text) <= 40 else text[:40] + "…") + '"'
