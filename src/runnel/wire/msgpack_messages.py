"""Payloads of the native protocol that are msgpack maps, as msgspec Structs.

Unknown fields are ignored, so that fields can be added; a field of a wrong type raises a `ProtocolError`
that names it. Payloads with a fixed layout are in `wire.binary_messages`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from sys import float_info
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from runnel.core.backend import SettleVerb as SettleVerb  # of a Settlement
from runnel.core.clock import from_micros, micros
from runnel.core.errors import InvalidOption, LimitExceeded, ProtocolError
from runnel.core.options import Policy, PolicyKind, SharedSubscribeOptions
from runnel.core.position import Position, Start
from runnel.core.publishing import PublishDetails as PublishDetails  # of a PUBLISH
from runnel.core.record import NO_HEADERS, Gap, Record
from runnel.core.replication import Generation
from runnel.wire.frames import MAX_CONTROL_FRAME

PROTOCOL_VERSION = 1
SHARED_DELIVER = "shared_deliver"
"""The feature in HELLO of a client that reads a DELIVER for several subscriptions."""

M = TypeVar("M")

Number = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=-float_info.max)]  # a NaN has no place in any order


RECALLS = "recalls"
"""The feature of a client that answers RECALL frames."""

OPERATOR = "operator"
"""The feature of a connection for operators and standbys: a server that refuses clients answers its calls."""


class Hello(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A client's first frame: the newest version that it speaks, what it is, and what it can do beyond that.

    `token` proves who it is, where the server asks for that. `seen`: the highest generation of the journal that it
    knows.
    """

    version: Number
    client: str = ""
    features: list[str] = []
    token: str = ""
    seen: Generation | None = None

    def __repr__(self) -> str:
        return f"Hello(version={self.version}, client={self.client!r})"  # no secret in a log


class Welcome(msgspec.Struct, kw_only=True):
    """A server's first frame: the version that both speak from now on, and what the server is.

    `journal` is the id of its journal, None in memory; `time` its clock, in seconds since 1970; `ping` the seconds
    of silence after which it sends a PING; `expires` the time at which the client's token does. `generation` and
    `origin`, the id of the first journal if that is another one: of a journal with a standby, see `core.replication`.
    """

    version: Number = PROTOCOL_VERSION
    server: str = ""
    features: list[str] = []
    journal: str | None = None
    durable: bool = False
    fsync: str | None = None
    max_frame: Number = 0
    ping: Seconds = 15.0
    time: Seconds = 0.0
    connection: Number = 0
    expires: Seconds | msgspec.UnsetType = msgspec.UNSET
    generation: Generation | msgspec.UnsetType = msgspec.UNSET
    origin: str | msgspec.UnsetType = msgspec.UNSET


class WirePolicy(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A `Policy`, as it travels."""

    kind: str
    after: int | None = None
    timeout: float | None = None


class Subscribe(SharedSubscribeOptions, kw_only=True, omit_defaults=True, frozen=True):
    """The options of `Broker.subscribe`. `start` and `policy`: see `wire_start` and `wire_policy`.

    Values are checked when the broker makes `SubscribeOptions` of them: invalid ones raise `InvalidOption`, as in its
    own process.

    - `drops`: show the records that are dropped (for `on_drop`).
    - `credit`: how many bytes of records may be sent before more is given.
    - `resume`: `start` is the place of this reader on an earlier connection; it wins over a position stored under
      `name`.
    - `until`: of one topic, the offset before which it ends: an END comes when all before it was sent.
    - `several`: `pattern` is names and patterns with spaces between them, read together in the order of sequences.
    """

    pattern: str
    start: Any = None
    policy: WirePolicy | None = None
    drops: bool = False
    credit: Number = 0
    resume: bool = False
    until: Number | None = None
    several: bool = False


class SubscribeReply(msgspec.Struct, kw_only=True):
    """A subscription stands. `eager`: records come as long as there is credit; else one take for each ask."""

    label: str
    eager: bool
    position: Number
    epoch: Number | None = None
    is_pattern: bool = False


class WireGap(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A `Gap` of a subscription, sent before the records that follow it.

    `unshown`: how many dropped records were not shown since the last gap, to a subscription with `drops`.
    """

    pattern: str
    first: Number
    end: Number
    count: Number | None
    reason: str
    unshown: Number = 0


class Goodbye(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One side goes. `retry`: seconds after which a client may come back; None: it need not."""

    reason: str = ""
    retry: Seconds | None = None


class WireError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error. `branch` is the code of the branch it hangs on, for peers that do not know the code itself."""

    code: str
    message: str
    facts: dict[str, Any] = {}
    branch: str = ""


class WireRecord(NamedTuple):
    """A record in the answer to a call. `time` is in microseconds since 1970."""

    topic: str
    epoch: int
    offset: int
    sequence: int
    time: int
    key: bytes | None
    value: bytes
    headers: dict[str, str]


class Settlement(NamedTuple):
    """Settlement of the records at [first, end) of a lease."""

    subscription: Number
    lease: Number
    verb: SettleVerb
    first: Number
    end: Number
    number: float | None = None
    reason: str | None = None


class LapsedRange(NamedTuple):
    """Records of a lease that went back to the group."""

    lease: Number
    first: Number
    end: Number


class AtSequence(msgspec.Struct, frozen=True, gc=False):
    """A start at a sequence of the broker: where a reader of a pattern continues."""

    sequence: int


# -- both ways --------------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_AT = re.compile(r" - at `(?P<path>[^`]+)`$")
_FIELD = re.compile(r"field `(?P<field>[^`]+)`")


def encode_message(message: object) -> bytes:
    """A message, a result or a list as a payload. A value that cannot be encoded is an `InvalidOption`."""
    try:
        return _encode(message)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidOption("arguments", reprlib.repr(message), f"it cannot travel: {error}") from None


def decode_message(kind: type[M], payload: bytes) -> M:
    """The message in a payload, or a `ProtocolError` that names the field."""
    try:
        decoder: msgspec.msgpack.Decoder[M] = _decoder(kind)
        return decoder.decode(payload)
    except RecursionError:
        raise ProtocolError(f"{_name(kind)}: it is nested too deeply") from None
    except ValueError as error:  # msgspec's own errors are, and that of text which is not UTF-8
        raise ProtocolError(_located(_name(kind), str(error))) from None


def read_reply(payload: bytes) -> Any:
    """The result of a call."""
    return decode_message(_ANY, payload)


def call_payload(method: str, args: dict[str, Any]) -> bytes:
    """The contents of a CALL."""
    return encode_message((method, args))


def read_call(payload: bytes) -> tuple[str, dict[str, Any]]:
    """The method and the arguments of a CALL. Beside batches they may have `MAX_SMALL` bytes."""
    if len(payload) > MAX_CONTROL_FRAME:
        _check_call(payload)
    return decode_message(tuple[str, dict[str, Any]], payload)


def _check_call(payload: bytes) -> None:
    """Raise if what a large CALL says is not mostly batches: of empty lists, say, it would make 60 times as much."""
    _, args = decode_message(tuple[str, dict[str, msgspec.Raw]], payload)
    batch, publishes = args.pop("batch", _NIL), args.pop("publishes", _NO_LIST)
    abouts = [about for _, _, about in decode_message(list[tuple[str, bytes, msgspec.Raw]], bytes(publishes))]
    decode_message(_BATCH, bytes(batch))
    if (size := sum(map(len, map(bytes, [*args.values(), *abouts])))) > MAX_CONTROL_FRAME:
        raise LimitExceeded("max_frame", size, MAX_CONTROL_FRAME)


def settle_payload(settlements: Sequence[Settlement]) -> bytes:
    """The contents of a SETTLE."""
    return encode_message(settlements)


def read_settle(payload: bytes) -> list[Settlement]:
    """The settlements of a SETTLE, in order."""
    return decode_message(list[Settlement], payload)


def lapsed_payload(lapses: Sequence[tuple[int, int, int]]) -> bytes:
    """The contents of a LAPSED or a RECALL."""
    return encode_message(lapses)


def read_lapsed(payload: bytes) -> list[LapsedRange]:
    """The ranges of leases that a LAPSED or a RECALL names."""
    return decode_message(list[LapsedRange], payload)


_ANY: Any = Any
_BATCH: Any = bytes | None
_NIL, _NO_LIST = msgspec.Raw(b"\xc0"), msgspec.Raw(b"\x90")


_decoder: Callable[[Any], Any] = cache(msgspec.msgpack.Decoder)


def _name(kind: Any) -> str:
    return "a reply" if kind is Any else str(kind.__name__) if isinstance(kind, type) else str(kind)


def _located(name: str, message: str) -> str:
    """A message of msgspec, with the field that it is about in front."""
    found = _AT.search(message)
    path = found["path"].removeprefix("$").removeprefix(".") if found else ""
    why = message[: found.start()] if found else message
    if missing := _FIELD.search(why):
        path = f"{path}.{missing['field']}" if path else missing["field"]
    joint = "" if path.startswith("[") else "."
    return f"{name}{joint}{path}: {why}" if path else f"{name}: {why}"


# -- starts, policies, gaps -------------------------------------------------------------------------------------


def wire_start(start: Start | AtSequence) -> Any:
    """A start, as it travels: nil, a word, an offset, or a map that says what it is."""
    if isinstance(start, Position):
        return {"epoch": start.epoch, "offset": start.offset}
    if isinstance(start, datetime):
        return {"time": start.isoformat()}
    if isinstance(start, AtSequence):
        return {"sequence": start.sequence}
    return start


def read_start(note: Any) -> Start | AtSequence:
    """The start that travelled, or a `ProtocolError`. Words and offsets are the broker's to check, as in process."""
    match note:
        case bool():
            pass
        case None | str() | int():
            return note
        case {"epoch": epoch, "offset": offset} if len(note) == 2 and _is_number(epoch) and _is_number(offset):
            return Position(epoch, offset)
        case {"sequence": sequence} if len(note) == 1 and _is_number(sequence):
            return AtSequence(sequence)
        case {"time": str(text)} if len(note) == 1:
            return _time(text)
    raise ProtocolError(
        f"Subscribe.start: {reprlib.repr(note)} is no start; expected nil, 'latest', 'earliest', an offset, or a map "
        "with epoch and offset, with time, or with sequence"
    )


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:  # the zone may move it out of the years that there are
        raise ProtocolError(f"Subscribe.start.time: {error}") from None
    raise ProtocolError(f"Subscribe.start.time: {text!r:.100} has no zone, such as +00:00")


def wire_policy(policy: Policy | str | None) -> WirePolicy | None:
    """A policy, as it travels. None stays None: it means more than the default policy does."""
    if policy is None:
        return None
    said = Policy.of(policy)
    return WirePolicy(
        kind=said.kind.value,
        after=said.after if said.kind is PolicyKind.DISCONNECT else None,
        timeout=said.timeout,
    )


def read_policy(note: WirePolicy | None) -> Policy | None:
    """The policy that travelled, checked as if it had been said here: `InvalidOption`."""
    if note is None:
        return None
    policy = Policy.of(note.kind)
    if policy.kind is PolicyKind.BLOCK:
        return Policy.block(note.timeout)
    if policy.kind is PolicyKind.DISCONNECT and note.after is not None:
        return Policy.disconnect(note.after)
    return policy


def wire_record(record: Record[bytes]) -> WireRecord:
    """A record, as it travels in the answer to a call."""
    topic, epoch, time = record.topic, record.epoch, micros(record.time)
    return WireRecord(
        topic, epoch, record.offset, record.sequence, time, record.key, record.value, dict(record.headers)
    )


def read_record(note: Any) -> Record[bytes]:
    """The record in the answer to a call."""
    topic, epoch, offset, sequence, time, key, value, headers = note
    return Record(topic, offset, sequence, epoch, key, value, headers or NO_HEADERS, from_micros(time))


def wire_gap(gap: Gap, unshown: int = 0) -> WireGap:
    """A gap, as it travels."""
    return WireGap(pattern=gap.topic, first=gap.first, end=gap.end, count=gap.count, reason=gap.reason, unshown=unshown)


def read_gap(payload: bytes) -> tuple[Gap, int]:
    """The gap that a GAP reports, and how many dropped records were not shown."""
    note = decode_message(WireGap, payload)
    return Gap(note.pattern, note.first, note.end, note.count, note.reason), note.unshown
