"""Options of topics, of publishing and of subscribing, checked when they are given.

Every option of `publish` and `subscribe` is spelled once, here. An option that means nothing, alone or beside
another one, is an `InvalidOption` that names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from math import inf
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from runnel.core.compression import check_compression
from runnel.core.errors import InvalidName, InvalidOption, NotSupported
from runnel.core.pattern import check_name, check_no_control, is_pattern, matches
from runnel.core.position import SnapshotStart, Start, check_start
from runnel.core.presence import MAX_PRESENCE
from runnel.core.record import Gap, Record

ENCODINGS = ("json", "msgpack")

Seconds = float | timedelta

Headers = Mapping[str, str] | Sequence[Mapping[str, str] | None]
"""Of every record of a list; or a list of those of each."""


def positive(option: str, value: int) -> int:
    """`value`, when it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(option, value, "expected a whole number above 0")
    return value


def not_negative(option: str, value: float) -> float:
    """`value`, when it is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidOption(option, value, "expected seconds, 0 or more")
    return value


def above_zero(option: str, value: float, of: str = "a number of seconds") -> float:
    """`value`, when it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise InvalidOption(option, value, f"expected {of} above 0")
    return value


def _yes_or_no(option: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(option, value, "expected True or False")
    return value


def _encoding(option: str, value: str) -> str:
    if value not in ENCODINGS:
        raise InvalidOption(option, value, "expected 'json' or 'msgpack'")
    return value


def _until(option: str, value: str) -> str:
    if value != "archived":
        raise InvalidOption(option, value, "expected 'archived': records stay until the archive has confirmed them")
    return value


def _topic(option: str, value: str) -> str:
    try:
        return check_name(value)
    except InvalidName as error:
        raise InvalidOption(option, value, f"expected the name of a topic: {error.why}") from None


def _pauses(option: str, value: Sequence[float]) -> tuple[float, ...]:
    pauses = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    try:
        for pause in pauses:
            not_negative(option, pause)
    except InvalidOption:
        pauses = ()
    if not pauses:
        raise InvalidOption(option, value, "expected pauses in seconds, such as (1, 5, 30)")
    return pauses


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "durable": _yes_or_no,
    "retention_age": above_zero,
    "retention_bytes": positive,
    "retention_count": positive,
    "retention_until": _until,
    "compact": _yes_or_no,
    "compression": lambda _, value: check_compression(value),
    "encoding": _encoding,
    "dead_letter": _topic,
    "max_deliver": positive,
    "backoff": _pauses,
}


KEEP_COUNT = 1024  # records in memory of a topic that says nothing about retention
KEEP_BYTES = 64 << 20  # and their bytes, at most


# Names of options in Kafka, NATS, Redis and Celery, and the options that are meant: the first that `owner` has.
_ELSEWHERE = {
    "consumer_group": ("group",),
    "queue": ("group",),
    "queue_group": ("group",),
    "durable": ("name",),
    "durable_name": ("name",),
    "from_": ("start",),
    "offset": ("start", "expected_offset"),
    "since": ("start",),
    "idempotency_key": ("message_id",),
    "max_age": ("retention_age",),
    "max_bytes": ("retention_bytes",),
    "max_len": ("retention_count",),
    "maxlen": ("retention_count",),
    "max_msgs": ("retention_count",),
    "max_retries": ("retries", "max_deliver"),
    "ttl": ("expires", "retention_age"),
}


_HANDLERS = "it is an option of handlers, @broker.on(...)"
_TOPICS = "it is an option of topics, broker.topic(name, ...)"
_SERVERS = "it is an option for the address of a server, runnel.open('runnel://host:7788', ...)"

# Where an option belongs that was given elsewhere.
_BELONGS = {
    "retries": f"{_HANDLERS}; a group has max_deliver, one more than the retries",
    **dict.fromkeys(("concurrency", "rate", "time_limit", "middleware"), _HANDLERS),
    **dict.fromkeys(("retention_age", "retention_bytes", "retention_count", "compact", "compression"), _TOPICS),
    **dict.fromkeys(("timeout", "token", "reconnect_timeout"), _SERVERS),
    "fsync": "it is an option of folders, runnel.open('data/', fsync=...)",
}


def unknown_option(owner: str, name: str, value: object, known: Sequence[str]) -> InvalidOption:
    """The error for an option that `owner` does not have: it names the nearest one, or all of them."""
    near = [one for one in _ELSEWHERE.get(name, ()) if one in known] or get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    if name in _BELONGS and not (near and near[0] in _ELSEWHERE.get(name, ())):
        hint = _BELONGS[name]
    return InvalidOption(name, value, f"{owner} has no such option; {hint}")


class TopicOptions(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The options of a topic; None means the default of the place where it lives.

    - `retention_count`, `retention_bytes`, `retention_age` (seconds): what is kept, whatever any subscriber wants.
    - `retention_until="archived"`: a durable topic drops nothing that its source of history does not have; see
      `Broker.confirm_archived`. What is confirmed goes as the three say, or at once if none of them is given.
    - `durable`: whether it survives the process; `compact`, `compression`: how a durable topic is stored.
    - `encoding`: how a typed topic writes its values, "json" or "msgpack".
    - `dead_letter`, `max_deliver`, `backoff`: what happens to work that fails in a group.
    """

    durable: bool | None = None
    retention_age: float | None = None
    retention_bytes: int | None = None
    retention_count: int | None = None
    retention_until: str | None = None
    compact: bool | None = None
    compression: str | None = None
    encoding: str | None = None
    dead_letter: str | None = None
    max_deliver: int | None = None
    backoff: tuple[float, ...] | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> TopicOptions:
        """The options in `given`, or an error that names the wrong one and the nearest right one."""
        if not given:
            return NO_TOPIC_OPTIONS
        for name in given:
            if name not in cls.__struct_fields__:
                raise unknown_option("a topic", name, given[name], cls.__struct_fields__)
        said = {name: value for name, value in given.items() if value is not None}
        for name in said:
            said[name] = _CHECKS[name](name, said[name])
        return cls(**said)

    @property
    def retains(self) -> bool:
        """Whether any retention option is set."""
        return self.is_limited or self.retention_until is not None

    @property
    def is_limited(self) -> bool:
        """Whether it is to keep no more than so many records, so many bytes or so many seconds."""
        return not (self.retention_age is self.retention_bytes is self.retention_count is None)

    def given(self) -> dict[str, Any]:
        """The options that were given, without the defaults."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


NO_TOPIC_OPTIONS = TopicOptions()
"""The options of a topic that sets none."""

_FOR_LIFE = {
    "durable": "a topic stays where it was made: delete it, and declare it again",
    "encoding": "the records that it has are encoded that way: delete the topic, and declare it again",
}


def changed_options(options: TopicOptions, changes: Mapping[str, Any]) -> TopicOptions:
    """`options` with `changes` applied; a value of None takes an option back to its default."""
    TopicOptions.of(dict(changes))  # names and values are right
    if not changes:
        raise InvalidOption("options", "none", "name at least one option to change, such as retention_age=3600")
    for name, why in _FOR_LIFE.items():
        if name in changes and changes[name] != getattr(options, name):
            raise NotSupported(f"changing {name!r} of a topic", why)
    return TopicOptions.of(options.given() | dict(changes))


# -- Overflow policies -----------------------------------------------------------------------------------
# What happens when a subscriber of an in-memory topic is slow. A policy affects its own subscriber only;
# `block` is the exception, and users ask for it by name.


class PolicyKind(Enum):
    """The four ways to deal with a slow subscriber."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    BLOCK = "block"
    DISCONNECT = "disconnect"


class Policy(msgspec.Struct, frozen=True, gc=False):
    """What to do when a subscriber's buffer is full. Strings work too: `policy="block"`, `"block:5"`.

    - `Policy.drop_oldest()` (the default): the oldest unread records go.
    - `Policy.drop_newest()`: what is published while it is full goes.
    - `Policy.block(timeout=None)`: publishers wait for room, at most `timeout` seconds.
    - `Policy.disconnect(after=1024)`: like drop_oldest, and after so many drops in a
      row the subscription ends with `Disconnected`.
    """

    kind: PolicyKind = PolicyKind.DROP_OLDEST
    timeout: float | None = None
    after: int = 1024

    @staticmethod
    def drop_oldest() -> Policy:
        """Keep the newest `buffer` records; the default."""
        return Policy()

    @staticmethod
    def drop_newest() -> Policy:
        """Keep the oldest `buffer` records until they are read."""
        return Policy(PolicyKind.DROP_NEWEST)

    @staticmethod
    def block(timeout: float | None = None) -> Policy:
        """Lose nothing: publishers wait. After `timeout` seconds they get PublishTimeout."""
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (number and timeout >= 0):
            raise InvalidOption("timeout", timeout, "a policy's timeout is a number of seconds, 0 or more")
        return Policy(PolicyKind.BLOCK, timeout=timeout)

    @staticmethod
    def disconnect(after: int = 1024) -> Policy:
        """Drop the oldest, and end the subscription after so many drops in a row."""
        if isinstance(after, bool) or not isinstance(after, int) or after < 1:
            raise InvalidOption("after", after, "a subscription can be disconnected after 1 drop or more")
        return Policy(PolicyKind.DISCONNECT, after=after)

    @staticmethod
    def of(policy: Policy | str | None) -> Policy:
        """The policy that a caller named, or the default."""
        if policy is None:
            return Policy()
        if isinstance(policy, Policy):
            return policy
        try:
            kind, colon, number = policy.partition(":") if isinstance(policy, str) else (policy, "", "")
            if colon and kind == "block":
                return Policy.block(float(number))
            if colon and kind == "disconnect":
                return Policy.disconnect(int(number))
            return Policy(PolicyKind(policy))
        except InvalidOption as error:
            raise InvalidOption("policy", policy, error.why) from None
        except ValueError:
            names = ", ".join(repr(kind.value) for kind in PolicyKind)
            raise InvalidOption("policy", policy, f"expected a runnel.Policy or one of {names}") from None

    def __str__(self) -> str:
        return self.kind.value


# -- Options of publish and subscribe --------------------------------------------------------------------
# Each option is one field of `PublishOptions` or `SubscribeOptions`, with an `Option` that says what it is. The native
# protocol, JSON lines, HTTP, the command line and the tables in docs/reference/options.md read these fields, so an
# option that is added here is known there.


class OptionKind(Enum):
    """The kinds of option values. Each listener knows how to read each kind."""

    START = "earliest, latest, an offset or a time"
    NAME = "text"
    GROUP = "a group's name"
    PRESENCE = "text of 1,024 characters at most"
    TOPIC = "a topic"
    POLICY = "drop_oldest, drop_newest, block[:SECONDS] or disconnect[:DROPS]"
    COUNT = "a whole number above 0"
    SIZE = "a number of bytes"
    SWITCH = "true or false"
    DURATION = "seconds above 0"
    PAUSES = "a list of seconds"
    SHARE = "a share from 0 to 1"
    KEY = "bytes or text"
    HEADERS = "names and values"
    SECONDS = "seconds"
    PRIORITY = "0 to 9"
    MESSAGE_ID = "text of up to 256 characters"
    OFFSET = "an offset"
    TYPE = "a type"
    FUNCTION = "a function"


PYTHON_ONLY = frozenset({OptionKind.TYPE, OptionKind.FUNCTION})  # nothing but Python code can name these


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one option for listeners, help texts and docs.

    - `about`: one sentence, the same in `--help` and in the docs; `default`: what holds when it is not given.
    - `only`: "group" or "alone" for what means nothing in the other case.
    - `in_events`: `GET /events` takes it. A GET changes nothing on the server: no names, groups and dead letters.
    - `http_header`: the request header of `POST /topics/{topic}`, if it is not `Runnel-<Option>`.
    - `many`: whether a publish of several records takes it.
    """

    kind: OptionKind
    about: str
    default: str = "none"
    only: Literal["group", "alone"] | None = None
    in_events: bool = False
    http_header: str | None = None
    many: bool = True


def check_seconds(option: str, value: Seconds) -> float:
    """`value` in seconds, when it is a duration of 0 or more."""
    if (value.__class__ is float or value.__class__ is int) and 0 <= value < 10**10:
        return float(value)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 10**10:
        raise InvalidOption(option, value, "expected seconds (or a timedelta), 0 or more")
    return float(seconds)


MAX_PRIORITY = 9


def check_priority(option: str, value: int) -> int:
    """`value`, when it is a priority."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise InvalidOption(option, value, "a priority is a whole number from 0 (last) to 9 (first)")
    return value


MAX_MESSAGE_ID = 256  # characters


def check_message_id(option: str, value: str) -> str:
    """`value`, when it is a message id."""
    if not (isinstance(value, str) and 0 < len(value) <= MAX_MESSAGE_ID):
        raise InvalidOption(option, value, "a message id is a str of 1 to 256 characters")
    return value


def check_offset(option: str, value: int) -> int:
    """`value`, when it is an offset."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOption(option, value, "an offset is a whole number, 0 or more")
    return value


def _start(_: str, value: Start) -> Start:
    check_start(value, "", is_pattern=False)
    return value


def _name(option: str, value: str) -> str:
    if not (isinstance(value, str) and value):
        raise InvalidOption(option, value, "a subscription's name is text of 1 character or more")
    return check_no_control(option, value)


def _presence(option: str, value: str) -> str:
    if not (isinstance(value, str) and 0 < len(value) <= MAX_PRESENCE):
        raise InvalidOption(option, value, f"expected a str of 1 to {MAX_PRESENCE:,} characters")
    return value


def _topic_name(option: str, value: str) -> str:
    try:
        return check_name(value)
    except InvalidName as error:
        raise InvalidName(value, f"{error.why} (option {option})") from None


def _duration(option: str, value: float) -> float:
    if not not_negative(option, value):
        raise InvalidOption(option, value, "expected seconds above 0")
    return value


def _share(option: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidOption(option, value, "expected a share from 0 to 1")
    return value


def _key(option: str, value: bytes | str) -> bytes | str:
    if not isinstance(value, bytes | bytearray | memoryview | str):
        raise InvalidOption(option, value, "expected bytes or str")
    return value


def _headers(option: str, value: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidOption(option, value, "expected a mapping of str to str")
    return value


def _function(option: str, value: Callable[..., object]) -> Callable[..., object]:
    if not callable(value):
        raise InvalidOption(option, value, "expected a function")
    return value


_KIND_CHECKS: dict[OptionKind, Callable[[str, Any], Any]] = {
    OptionKind.START: _start,
    OptionKind.NAME: _name,
    OptionKind.PRESENCE: _presence,
    OptionKind.GROUP: _topic_name,
    OptionKind.TOPIC: _topic_name,
    OptionKind.POLICY: lambda _, value: Policy.of(value),
    OptionKind.COUNT: positive,
    OptionKind.SIZE: positive,
    OptionKind.SWITCH: _yes_or_no,
    OptionKind.DURATION: _duration,
    OptionKind.PAUSES: _pauses,
    OptionKind.SHARE: _share,
    OptionKind.KEY: _key,
    OptionKind.HEADERS: _headers,
    OptionKind.SECONDS: check_seconds,
    OptionKind.PRIORITY: check_priority,
    OptionKind.MESSAGE_ID: check_message_id,
    OptionKind.OFFSET: check_offset,
    OptionKind.TYPE: lambda _, value: value,  # whether values can be of this type is found out by `Codec`
    OptionKind.FUNCTION: _function,
}


class _Checked:
    """Options that are checked when they are made. None means: not given."""

    __slots__ = ()

    def __post_init__(self: Any) -> None:
        for name, option in options_of(type(self)).items():
            if (value := getattr(self, name)) is not None:
                checked = _KIND_CHECKS[option.kind](name, value)
                if checked is not value:
                    msgspec.structs.force_setattr(self, name, checked)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The options in `given`, or an error that names the wrong one and the nearest right one."""
        known = options_of(cls)
        for name, value in given.items():
            if name not in known:
                raise unknown_option(f"{cls.__name__.removesuffix('Options').lower()}()", name, value, tuple(known))
        return cls(**{name: value for name, value in given.items() if value is not None})

    def given(self: Any) -> dict[str, Any]:
        """The options that were given, without the defaults."""
        known = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        return {name: value for name, default in known if (value := getattr(self, name)) != default}


def options_of(options: type[Any]) -> dict[str, Option]:
    """The options of a struct by name, in order."""
    if (known := _OPTIONS.get(options)) is None:
        hints = get_type_hints(options, include_extras=True)
        own_first = dict.fromkeys((*options.__annotations__, *options.__struct_fields__))
        known = _OPTIONS[options] = {
            name: said
            for name in own_first
            for said in (get_args(hints[name]) if get_origin(hints[name]) is Annotated else ())
            if isinstance(said, Option)
        }
    return known


_OPTIONS: dict[type[Any], dict[str, Option]] = {}  # reading type hints takes a while


def check_option(options: type[Any], name: str, value: Any) -> Any:
    """`value`, if it can be the option `name`: for settings that are stored apart from the call that gave them."""
    return _KIND_CHECKS[options_of(options)[name].kind](name, value)


class PublishOptions(_Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The options of one publish. The user-facing form is `publish(value, key=..., ...)`: see `PublishKeywords`.

    `Topic.publish` and `publish_nowait` take them one by one and build no struct: a publish is a fraction of a
    microsecond.
    """

    key: Annotated[
        bytes | str | None,
        Option(kind=OptionKind.KEY, about="what the record is about; a group keeps the order of records with one key"),
    ] = None
    headers: Annotated[
        Mapping[str, str] | None,
        Option(kind=OptionKind.HEADERS, about="text by name, delivered with the record", http_header="Runnel-Header-…"),
    ] = None
    delay: Annotated[
        Seconds | None,
        Option(kind=OptionKind.SECONDS, about="how long groups wait before they deliver the record"),
    ] = None
    expires: Annotated[
        Seconds | None,
        Option(kind=OptionKind.SECONDS, about="after this time the record is delivered to no subscriber"),
    ] = None
    priority: Annotated[
        int, Option(kind=OptionKind.PRIORITY, about="groups hand records with a higher one out first", default="0")
    ] = 0
    message_id: Annotated[
        str | None,
        Option(
            kind=OptionKind.MESSAGE_ID,
            about="an id that the topic saw in the last two minutes is not stored again: its first position comes back",
            http_header="Idempotency-Key",
            many=False,
        ),
    ] = None
    expected_offset: Annotated[
        int | None,
        Option(kind=OptionKind.OFFSET, about="the offset that the (first) record must get, else `OffsetConflict`"),
    ] = None


class SharedSubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `subscribe` whose values are the same in Python and in a SUBSCRIBE of the native protocol."""

    name: Annotated[
        str | None,
        Option(kind=OptionKind.NAME, about="store the position under this name; in a group, the name of the member"),
    ] = None
    group: Annotated[
        str | None,
        Option(
            kind=OptionKind.GROUP, about="join this group: each record goes to one of its members, which settles it"
        ),
    ] = None
    buffer: Annotated[
        int | None,
        Option(
            kind=OptionKind.COUNT,
            about="records that may lie ahead unread; of a group, unsettled before publishers wait",
            default="1,024; of a group 10,000,000; on a durable topic no bound",
        ),
    ] = None
    buffer_bytes: Annotated[
        int | None,
        Option(
            kind=OptionKind.SIZE,
            about="the same bound in bytes of values",
            default="64 MiB; of a group 1 GiB; on a durable topic no bound",
        ),
    ] = None
    strict: Annotated[
        bool,
        Option(
            kind=OptionKind.SWITCH,
            about="a gap ends the subscription with `RecordsMissed`",
            default="false",
            only="alone",
            in_events=True,
        ),
    ] = False
    hold: Annotated[
        bool | None,
        Option(
            kind=OptionKind.SWITCH,
            about="with a name, on disk: retention, `trim` and compaction keep what was not read under it",
            default="as the name did before; at first false",
            only="alone",
        ),
    ] = None
    dead_letter: Annotated[
        str | None,
        Option(
            kind=OptionKind.TOPIC,
            about="the topic for records that the policy dropped; of a group, for records that failed permanently",
            default="none; of a group `dead-letters.<group>`",
        ),
    ] = None
    partial: Annotated[
        bool,
        Option(
            kind=OptionKind.SWITCH,
            about="with authentication: of the pattern, read the topics that the principal may subscribe to",
            default="false: a pattern that is not wholly allowed is refused",
            only="alone",
            in_events=True,
        ),
    ] = False
    presence: Annotated[
        str | None,
        Option(
            kind=OptionKind.PRESENCE,
            about="what `presence` of the topic shows of this subscriber, such as a name or JSON",
            default="nothing but its name",
        ),
    ] = None
    prefetch: Annotated[
        int | None,
        Option(kind=OptionKind.COUNT, about="records that this member may hold", default="64", only="group"),
    ] = None
    prefetch_bytes: Annotated[
        int | None,
        Option(
            kind=OptionKind.SIZE,
            about="bytes of values that this member may hold, or one record",
            default="no bound",
            only="group",
        ),
    ] = None
    ack_wait: Annotated[
        float | None,
        Option(
            kind=OptionKind.DURATION,
            about="how long a member has to settle records granted to it; every ack and `extend` renews it",
            default="30 seconds",
            only="group",
        ),
    ] = None
    max_ack_pending: Annotated[
        int | None,
        Option(
            kind=OptionKind.COUNT,
            about="records of the group that may be fetched and not settled",
            default="4,096",
            only="group",
        ),
    ] = None
    max_deliver: Annotated[
        int | None,
        Option(
            kind=OptionKind.COUNT,
            about="attempts before a record goes to the dead-letter topic",
            default="20",
            only="group",
        ),
    ] = None
    backoff: Annotated[
        tuple[float, ...] | None,
        Option(
            kind=OptionKind.PAUSES,
            about="pauses before the second, third, … attempt; the last one holds for all that follow",
            default="1, 2, 5, 15, 30, 60 seconds",
            only="group",
        ),
    ] = None
    jitter: Annotated[
        float | None,
        Option(
            kind=OptionKind.SHARE,
            about="each pause is stretched at random by up to this share",
            default="0.1",
            only="group",
        ),
    ] = None


class SubscribeOptions(_Checked, SharedSubscribeOptions, frozen=True, kw_only=True):
    """The options of a subscription, checked. The user-facing form is `subscribe(...)`: see `SubscribeKeywords`."""

    start: Annotated[
        Start,
        Option(
            kind=OptionKind.START,
            about="where to begin",
            default="latest; with a name or a group earliest, or where it was",
            in_events=True,
        ),
    ] = None
    policy: Annotated[
        Policy | None,
        Option(
            kind=OptionKind.POLICY,
            about="what happens when the subscriber lags by more than its buffer",
            default="drop_oldest",
            only="alone",
            in_events=True,
        ),
    ] = None
    type: Annotated[Any, Option(kind=OptionKind.TYPE, about="decode values as this type", default="bytes")] = None
    on_gap: Annotated[
        Callable[[Gap], object] | None,
        Option(kind=OptionKind.FUNCTION, about="called with every gap", only="alone"),
    ] = None
    on_drop: Annotated[
        Callable[[Record[bytes]], object] | None,
        Option(kind=OptionKind.FUNCTION, about="called with every record that the policy dropped", only="alone"),
    ] = None

    def __post_init__(self) -> None:
        unmeant, when = ("alone", "with group=") if self.group is not None else ("group", "without group=")
        for name, value in self.given().items():
            if options_of(SubscribeOptions)[name].only == unmeant:
                raise InvalidOption(name, value, f"it means nothing {when}")
        super().__post_init__()
        if self.hold and self.name is None:
            raise InvalidOption("hold", True, "what is held is kept under a name; give the subscription one")
        if self.partial and self.name is not None:
            why = "a stored position would pass records that were filtered out; leave out name or partial"
            raise InvalidOption("partial", True, why)

    @property
    def lags(self) -> bool:
        """Whether no bound was given: then a subscriber of a durable topic may lag without limit."""
        bounds = (self.policy, self.buffer, self.buffer_bytes, self.on_drop, self.dead_letter)
        return bounds == (None, None, None, None, None)

    def check_for(self, patterns: Iterable[str], *, several: bool = False) -> None:
        """Raise if the options do not fit the subscription: `several` patterns, or one."""
        patterns = tuple(patterns)
        shown = " ".join(patterns)
        check_start(self.start, shown, is_pattern=several or is_pattern(shown))
        own = self.dead_letter if self.group is None else None
        if own is not None and any(matches(one, own) for one in patterns):
            raise InvalidOption("dead_letter", own, f"this subscription ({shown!r}) would read it itself")

    def shared(self) -> dict[str, Any]:
        """The options that a SUBSCRIBE of the native protocol carries unchanged."""
        return shared_options(self)


def shared_options(options: SharedSubscribeOptions) -> dict[str, Any]:
    """The fields that Python and the native protocol share, by name."""
    return {name: getattr(options, name) for name in SharedSubscribeOptions.__struct_fields__}


# -- What type checkers and people see of them -----------------------------------------------------------
# A type checker reads no struct as keyword arguments, so the two tables below repeat the names for it; a test compares
# them with the structs. Every signature that takes the options refers to one of them.


class RecordKeywords(TypedDict, total=False):
    """The options of a publish of one record, as keyword arguments."""

    key: bytes | str | None
    headers: Mapping[str, str] | None
    delay: Seconds | None
    expires: Seconds | None
    priority: int


class PublishKeywords(RecordKeywords, total=False):
    """The options of `publish`, as keyword arguments."""

    message_id: str | None
    expected_offset: int | None


class RecordsKeywords(TypedDict, total=False):
    """The options of a publish of many records, as keyword arguments."""

    keys: Sequence[bytes | str | None] | None
    headers: Headers | None
    delay: Seconds | None
    expires: Seconds | None
    priority: int


class PublishManyKeywords(RecordsKeywords, total=False):
    """The options of `publish_many`, as keyword arguments."""

    expected_offset: int | None


class SubscribeKeywords(TypedDict, total=False):
    """The options of `subscribe`, as keyword arguments. `group` and `type` stand apart: they decide what it returns."""

    start: Start | SnapshotStart
    name: str | None
    policy: Policy | str | None
    buffer: int | None
    buffer_bytes: int | None
    prefetch: int | None
    prefetch_bytes: int | None
    strict: bool
    on_gap: Callable[[Gap], object] | None
    on_drop: Callable[[Record[bytes]], object] | None
    dead_letter: str | None
    presence: str | None
    ack_wait: float | None
    max_ack_pending: int | None
    max_deliver: int | None
    backoff: Sequence[float] | None
    jitter: float | None
    partial: bool
    hold: bool | None


F = TypeVar("F", bound=Callable[..., Any])


def spell_out(keywords: type[Any], defaults: type[Any]) -> Callable[[F], F]:
    """Show the options behind `**options` one by one in `help()` and in editors that read signatures.

    `defaults` has their defaults; that of one that it does not know is None.
    """
    given = dict(zip(defaults.__struct_fields__, defaults.__struct_defaults__, strict=True))

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        plain = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=given.get(name), annotation=said.__forward_arg__
            )
            for name, said in keywords.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*plain, *options])  # type: ignore[attr-defined]
        return function

    return shown
