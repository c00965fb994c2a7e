"""Commands of JSON lines as structs. A line that is no command becomes an error that shows the right form."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, Struct, field

from runnel.core.errors import BadCommand
from runnel.core.options import OptionKind, PublishOptions, SubscribeOptions, options_of
from runnel.core.position import Position

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digits = Annotated[str, Meta(pattern=r"^[0-9]{1,19}\Z")]  # a number beyond 2^53, as messages and answers write it
Seconds = Annotated[float, Meta(ge=0)]
Id = str | int


class Command(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Fields of all commands: `id`, chosen by the client, comes back in the answer."""

    command: str
    id: Id | None = None

    @property
    def verb(self) -> str:
        """Its name, in capitals: any case is accepted."""
        return self.command.upper()


class Place(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A position to start at, as in messages and answers."""

    epoch: Count | Digits
    offset: Count | Digits


# The options of SUB and PUB are the fields of the structs in `core.options`. This is how each kind is written in JSON,
# and what an error says of a value that is written otherwise.
_WHOLE = "it is a whole number, 0 or more"
_SECONDS = "it is a number of seconds, 0 or more"
_STRING = "it is a string"
_START = (
    'it is "earliest", "latest", an offset, a time with its zone such as "2026-03-01T12:00:00Z", '
    'or a position such as {"epoch": 1, "offset": 5}'
)
_JSON: dict[OptionKind, tuple[Any, str]] = {
    OptionKind.START: (str | Count | Place, _START),
    OptionKind.NAME: (str, _STRING),
    OptionKind.GROUP: (str, _STRING),
    OptionKind.PRESENCE: (str, _STRING),
    OptionKind.TOPIC: (str, _STRING),
    OptionKind.POLICY: (str, 'it is a string, such as "drop_oldest", "block:5" or "disconnect:100"'),
    OptionKind.COUNT: (Count, _WHOLE),
    OptionKind.SIZE: (Count, _WHOLE),
    OptionKind.SWITCH: (bool, "it is true or false"),
    OptionKind.DURATION: (Seconds, _SECONDS),
    OptionKind.PAUSES: (tuple[Seconds, ...], "it is a list of seconds, such as [1, 5, 30]"),
    OptionKind.SHARE: (Seconds, "it is a number from 0 to 1"),
    OptionKind.KEY: (str, _STRING),
    OptionKind.HEADERS: (dict[str, str], 'they are strings by name, such as {"source": "till-7"}'),
    OptionKind.SECONDS: (Seconds, _SECONDS),
    OptionKind.PRIORITY: (Count, "it is a whole number from 0 (last) to 9 (first)"),
    OptionKind.MESSAGE_ID: (str, _STRING),
    OptionKind.OFFSET: (Count | Digits, _WHOLE),
}
_NAMES = {"start": "from"}  # options that are called otherwise in JSON

C = TypeVar("C", bound=Command)


def _with_options(options: type[Any]) -> Callable[[type[C]], type[C]]:
    """Give a command a field for each of `options` that JSON can say."""

    def extended(command: type[C]) -> type[C]:
        fields = [
            (name, _JSON[option.kind][0] | None, field(default=None, name=_NAMES.get(name)))
            for name, option in options_of(options).items()
            if option.kind in _JSON
        ]
        made: Any = msgspec.defstruct(
            command.__name__,
            fields,
            bases=(command,),
            namespace={"__doc__": command.__doc__},
            module=__name__,
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,
        )
        return cast("type[C]", made)

    return extended


class _OptionsCommand(Command, frozen=True, gc=False):
    """A command with the fields of an options struct, which a type checker cannot see."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@_with_options(SubscribeOptions)
class Sub(_OptionsCommand, frozen=True, gc=False):
    """Read a topic or pattern, alone or as a member of a group. The other fields are those of `SubscribeOptions`."""

    topic: str
    credit: Count | None = None

    def options(self) -> SubscribeOptions:
        """The checked options of the subscription."""
        given = {name: getattr(self, name) for name in SUBSCRIBE_OPTIONS}
        return SubscribeOptions.of(given | {"start": self.where()})

    def where(self) -> str | int | datetime | Position | None:
        """Where to start, as `Broker.subscribe` takes it."""
        start: str | int | Place | None = self.start
        if isinstance(start, Place):
            return Position(int(start.epoch), int(start.offset))
        if not isinstance(start, str) or start in ("earliest", "latest"):
            return start
        if re.fullmatch(r"\d{1,19}:\d{1,19}", start, re.ASCII):
            return Position.parse(start)
        if re.fullmatch(r"\d{1,19}", start, re.ASCII):
            return int(start)
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


class _PayloadCommand(_OptionsCommand, kw_only=True, frozen=True, gc=False):
    """A command with a value."""

    payload: Raw
    encoding: str | None = None

    def value(self) -> bytes:
        """The bytes to send: of a string its text, of other JSON the text that came."""
        raw = bytes(self.payload)
        if not raw.startswith(b'"'):
            if self.encoding is not None:
                raise _refused(self.command, "payload", "with an encoding it is a string")
            return raw
        return self._bytes("payload", msgspec.json.decode(raw, type=str), self.encoding)

    def _bytes(self, name: str, text: str, encoding: str | None) -> bytes:
        if encoding is None:
            return text.encode()
        if encoding != "base64":
            raise _refused(self.command, "encoding", 'it is "base64", or left out for text')
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _refused(self.command, name, "it is not base64 (A-Z a-z 0-9 + / and = at the end)") from None


class _KeyedCommand(_PayloadCommand, kw_only=True, frozen=True, gc=False):
    """A command that publishes a value, under a key."""

    topic: str
    key_encoding: str | None = None

    def key_bytes(self) -> bytes | None:
        """The key to publish under."""
        key: str | None = self.key
        return None if key is None else self._bytes("key", key, self.key_encoding)


@_with_options(PublishOptions)
class Pub(_KeyedCommand, frozen=True, gc=False):
    """Publish one record. The other fields are those of `PublishOptions`."""

    def options(self) -> dict[str, Any]:
        """The options of the publish, as `Topic.publish` takes them."""
        found = zip(PUBLISH_OPTIONS, _publish_options(self), strict=True)
        given = {name: value for name, value in found if value is not None}
        if "key" in given:
            given["key"] = self.key_bytes()
        if "expected_offset" in given:
            given["expected_offset"] = int(given["expected_offset"])
        return given


class Request(_KeyedCommand, kw_only=True, frozen=True, gc=False):
    """Publish a request and wait for the reply; with `limit`, for all that come within `timeout`, at most so many."""

    key: str | None = None
    headers: dict[str, str] | None = None
    timeout: Seconds = 5.0
    limit: Count | None = None


class Reply(_PayloadCommand, kw_only=True, frozen=True, gc=False):
    """Answer a request, by the header `runnel-reply-to` of its message."""

    reply_to: str
    headers: dict[str, str] | None = None


PUBLISH_OPTIONS = tuple(name for name, option in options_of(PublishOptions).items() if option.kind in _JSON)
_publish_options = attrgetter(*PUBLISH_OPTIONS)  # three times as quick as one by one
SUBSCRIBE_OPTIONS = tuple(name for name, option in options_of(SubscribeOptions).items() if option.kind in _JSON)


class Auth(Command, frozen=True, gc=False):
    """Logs in, or continues with a new token of the same principal."""

    token: str

    def __repr__(self) -> str:
        return "Auth(token=…)"  # no secret in a log


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


class Presence(Command, frozen=True, gc=False):
    """Asks who is subscribed to a topic and, unless `watch` is false, for who comes and goes until UNSUB."""

    topic: str
    watch: bool = True


class Ping(Command, frozen=True, gc=False):
    """Asks for a pong."""


class Topics(Command, frozen=True, gc=False):
    """Asks for the names of all topics."""


class Info(Command, frozen=True, gc=False):
    """Asks which server this is, and for its limits."""


class Help(Command, frozen=True, gc=False):
    """Requests the list of commands."""


class Quit(Command, frozen=True, gc=False):
    """Answer pending commands, then close the connection."""


class Refusal(Struct, frozen=True, gc=False):
    """A line that is no command: why, and as much as was understood of it."""

    error: BadCommand
    command: str | None = None
    id: Id | None = None


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.upper(): kind
    for kind in (
        Auth,
        Sub,
        Unsub,
        Pub,
        Request,
        Reply,
        Ack,
        Nack,
        Reject,
        Extend,
        Credit,
        Presence,
        Ping,
        Topics,
        Info,
        Help,
        Quit,
    )
}

# The right form of each, as help and errors show it.
FORMS = {
    "AUTH": '{"command": "AUTH", "token": "rnl_…"}',
    "SUB": '{"command": "SUB", "topic": "test", "from": "earliest"}',
    "UNSUB": '{"command": "UNSUB", "topic": "test"}',
    "PUB": '{"command": "PUB", "topic": "test", "payload": "100"}',
    "REQUEST": '{"command": "REQUEST", "topic": "square", "payload": "12", "timeout": 5}',
    "REPLY": '{"command": "REPLY", "reply_to": "$runnel.inbox.…", "payload": "144"}',
    "ACK": '{"command": "ACK", "delivery": 1}',
    "NACK": '{"command": "NACK", "delivery": 1, "delay": 5}',
    "REJECT": '{"command": "REJECT", "delivery": 1, "reason": "no such customer"}',
    "EXTEND": '{"command": "EXTEND", "delivery": 1, "seconds": 30}',
    "CREDIT": '{"command": "CREDIT", "topic": "test", "records": 100}',
    "PRESENCE": '{"command": "PRESENCE", "topic": "room.tea"}',
    "PING": '{"command": "PING"}',
    "TOPICS": '{"command": "TOPICS"}',
    "INFO": '{"command": "INFO"}',
    "HELP": '{"command": "HELP"}',
    "QUIT": '{"command": "QUIT"}',
}
_ID = "it is a string or a whole number"
_WHAT = {  # how a field must look
    **{
        _NAMES.get(name, name): _JSON[option.kind][1]
        for options in (PublishOptions, SubscribeOptions)
        for name, option in options_of(options).items()
        if option.kind in _JSON
    },
    "id": _ID,
    "token": _STRING,
    "payload": "it is the message: a string, or any other JSON",
    "delivery": "it is the number that came with the message",
    "seconds": _SECONDS,
    "credit": "it is a whole number, 0 or more: how many records may be sent before you ask for more",
    "records": _WHOLE,
    "durable": "it is true or false",
    "watch": "it is true or false",
    "timeout": _SECONDS,
    "limit": "it is a whole number above 0: how many replies at most",
    "reply_to": "it is the header runnel-reply-to of the message",
}
# Names of fields in the other interfaces, which are taken, too.
_ALIASES = {"value": "payload", "start": "from"}
# Names from other brokers.
_MEANT = {
    "pattern": "topic",
    "channel": "topic",
    "subject": "topic",
    "data": "payload",
    "body": "payload",
    "message": "payload",
    "sid": "id",
    "lease": "delivery",
    "SUBSCRIBE": "SUB",
    "PSUBSCRIBE": "SUB",
    "UNSUBSCRIBE": "UNSUB",
    "PUBLISH": "PUB",
    "REQ": "REQUEST",
    "CALL": "REQUEST",
    "RESPOND": "REPLY",
    "ANSWER": "REPLY",
    "EXIT": "QUIT",
    "BYE": "QUIT",
    "CLOSE": "QUIT",
    "LIST": "TOPICS",
}
_PATH = re.compile(r"`\$\.([^`.\[]*)")  # where msgspec says that something is wrong
_NAMED = re.compile(r"field `([^`]*)`")


class _Head(Struct, frozen=True, gc=False):
    """The fields that must be known before the rest."""

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
        if (renamed := _with_own_names(line, str(error))) is not None:
            return parse(renamed)
        return _refusal(_misfit(name, str(error)), name, head.id)
    except msgspec.DecodeError as error:
        return _refusal(
            BadCommand(f"the line is not JSON: {str(error).removeprefix('JSON is malformed: ')}"), name, head.id
        )


def _refusal(error: BadCommand, name: str | None, id: Any) -> Refusal:
    return Refusal(error, name, id if isinstance(id, str | int) and not isinstance(id, bool) else None)


def _known(command: Any) -> str:
    """The command's name as in `COMMANDS`."""
    if not isinstance(command, str):
        raise BadCommand('"command" is missing' if command is None else '"command" is not a string')
    name = command.upper()
    if name in COMMANDS:
        return name
    raise BadCommand(f"there is no command {_shown(command)}{_suggestion(name, list(COMMANDS))}")


def _with_own_names(line: bytes, why: str) -> bytes | None:
    """The line with `payload` for `value` and `from` for `start`; None: its error is another one."""
    unknown = _NAMED.search(why)
    if unknown is None or "unknown" not in why or unknown[1] not in _ALIASES:
        return None
    fields = msgspec.json.decode(line, type=dict[str, Raw])
    if _ALIASES[unknown[1]] in fields:
        return None  # both were given
    return msgspec.json.encode({_ALIASES.get(field, field): value for field, value in fields.items()})


def _misfit(name: str, why: str) -> BadCommand:
    """The error of msgspec about a field, for people."""
    if (path := _PATH.search(why)) is not None:
        which = path[1]
        return _refused(name, which, _WHAT.get(which, _STRING))
    if (named := _NAMED.search(why)) is None:
        return _refused(name, None, why)
    which = named[1]
    if "missing" in why.partition("`")[0]:
        return _refused(name, which, "it is missing")
    fields = [item.encode_name for item in msgspec.structs.fields(COMMANDS[name])]
    if _ALIASES.get(which) in fields:  # the alias alone is taken
        return _refused(name, which, f"it means the same as {_shown(_ALIASES[which])}; give one of them")
    fields += [alias for alias, field in _ALIASES.items() if field in fields]
    return _refused(name, which, f"there is no such field{_suggestion(which, fields)}")


def _refused(name: str, which: str | None, why: str) -> BadCommand:
    name = name.upper()
    about = "" if which is None else f"field {_shown(which)}: "
    return BadCommand(f"{name}: {about}{why}", field=which, form=FORMS[name])


def _suggestion(said: str, known: list[str]) -> str:
    """The nearest known name."""
    meant = _MEANT.get(said)
    if meant not in known:
        meant = next(iter(get_close_matches(said[:64], known, 1, 0.6)), None)
    return f" (did you mean {_shown(meant)}?)" if meant else f"; known are {', '.join(known)}"


def _shown(text: str) -> str:
    """A short form of what a peer said, quoted."""
    return '"' + (text if len(text) <= 40 else text[:40] + "…") + '"'
