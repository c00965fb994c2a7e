"""The NATS client protocol: bytes in, operations out, in both directions; and operations as bytes.

One pass over the received bytes gives every complete operation. A line or a payload beyond its limit is
refused before it is complete, so no peer can fill the memory with one. Names of operations are case-insensitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from runnel.core.errors import LimitExceeded, ProtocolError

MAX_CONTROL_LINE = 4096
MAX_INFO_LINE = 1 << 20  # INFO and CONNECT carry JSON, and INFO lists every server of a cluster
MAX_PAYLOAD = 64 << 20

HEADER_VERSION = b"NATS/1.0"
CRLF = b"\r\n"
PING, PONG, OK = b"PING\r\n", b"PONG\r\n", b"+OK\r\n"

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """MSG or HMSG: a message for the subscription `sid`. `head` is its header block, as it came; None: none."""

    sid: int
    subject: str
    reply: str | None
    head: bytes | None
    payload: bytes


class Publish(NamedTuple):
    """PUB or HPUB."""

    subject: str
    reply: str | None
    head: bytes | None
    payload: bytes


class Subscribe(NamedTuple):
    """SUB: the `sid` is text, since a client chooses it."""

    subject: str
    queue: str | None
    sid: str


class Unsubscribe(NamedTuple):
    """UNSUB, at once or after `limit` messages."""

    sid: str
    limit: int | None


class Info(NamedTuple):
    """INFO: the description of the server."""

    fields: dict[str, Any]


class Connect(NamedTuple):
    """CONNECT: the description of the client."""

    fields: dict[str, Any]


class Failure(NamedTuple):
    """-ERR, without its quotes."""

    why: str


class Signal(NamedTuple):
    """PING, PONG or +OK."""

    name: str


Operation: TypeAlias = Message | Publish | Subscribe | Unsubscribe | Info | Connect | Failure | Signal

_SIGNALS = {b"PING": Signal("PING"), b"PONG": Signal("PONG"), b"+OK": Signal("+OK")}
PING_SIGNAL, PONG_SIGNAL = _SIGNALS[b"PING"], _SIGNALS[b"PONG"]
_WITH_PAYLOAD = {b"MSG", b"HMSG", b"PUB", b"HPUB"}
_KNOWN = {*_SIGNALS, *_WITH_PAYLOAD, b"SUB", b"UNSUB", b"INFO", b"CONNECT", b"-ERR"}
_LONGEST = max(map(len, _KNOWN))


class NatsParser:
    r"""Bytes in, whole operations out.

    >>> parser = NatsParser()
    >>> parser.feed(b"MSG greetings 1 5\r\nhel")
    []
    >>> parser.feed(b"lo\r\nPING\r\n")
    [Message(sid=1, subject='greetings', reply=None, head=None, payload=b'hello'), Signal(name='PING')]
    """

    __slots__ = ("_buffer", "_error", "_max_json", "_max_line", "_max_payload", "_more", "_needed")

    def __init__(
        self, max_payload: int = MAX_PAYLOAD, max_line: int = MAX_CONTROL_LINE, max_json: int = MAX_INFO_LINE
    ) -> None:
        self._max_payload, self._max_line, self._max_json = max_payload, max_line, max_json
        self._buffer = b""
        self._more = bytearray()  # behind it, while a payload is not complete
        self._needed = 0  # bytes of the operation that is under way, if its first line is known
        self._error: Exception | None = None

    @property
    def held(self) -> int:
        """Bytes of an operation that is not complete."""
        return len(self._buffer) + len(self._more)

    @property
    def error(self) -> Exception | None:
        """Why it reads no more."""
        return self._error

    def feed(self, data: bytes) -> list[Operation]:
        """The operations that are complete with `data`.

        `ProtocolError` or `LimitExceeded` for what breaks the rules: the operations before it were returned, or are
        returned by this call, and the error comes with the next. Behind it nothing can be trusted.
        """
        if self._error is not None:
            raise self._error
        if self._buffer:
            if len(self._buffer) + len(self._more) + len(data) < self._needed:
                self._more += data  # a large payload in small pieces: looked at once, when it is complete
                return []
            data = b"".join((self._buffer, self._more, data))
            self._more.clear()
        found: list[Operation] = []
        try:
            at = self._parse(data, found)
        except (ProtocolError, LimitExceeded, UnicodeDecodeError) as error:
            self._buffer = b""
            self._error = ProtocolError(f"not UTF-8: {error}") if isinstance(error, UnicodeDecodeError) else error
            if not found:
                raise self._error from None
            return found
        self._buffer = data[at:] if at else data
        return found

    def _parse(self, data: bytes, found: list[Operation]) -> int:
        """Append complete operations to `found`; return where the rest begins."""
        at, length, find, add = 0, len(data), data.find, found.append
        new = tuple.__new__  # half the time of the constructor that a NamedTuple has
        max_line, max_payload = self._max_line, self._max_payload
        self._needed = 0
        while at < length:
            end = find(CRLF, at)
            if end < 0 or end - at > max_line:
                self._check_line(data, at, length - (data[-1] == 13) if end < 0 else end)  # its CR may have come
                if end < 0:
                    return at
            line = data[at:end]
            if line[:4] == b"MSG ":
                is_headed, is_message, fields = False, True, line[4:].split()
            elif line[:4] == b"PUB ":
                is_headed, is_message, fields = False, False, line[4:].split()
            elif line[:5] == b"HMSG ":
                is_headed, is_message, fields = True, True, line[5:].split()
            else:
                verb, fields = _verb(line)
                if verb not in _WITH_PAYLOAD:
                    add(_simple(verb, line, fields))
                    at = end + 2
                    continue
                is_headed, is_message = verb[:1] == b"H", verb[-3:] == b"MSG"
            # A message is: subject, sid if it is one for a subscription, reply if there is one, sizes.
            least = 2 + is_message + is_headed
            count = len(fields)
            if count != least and count != least + 1:
                raise ProtocolError(f"an operation with a payload has {count} fields: {_shown(line)}")
            size = fields[-1]
            head_size = fields[-2] if is_headed else b"0"
            if not (size.isdigit() and head_size.isdigit()) or len(size) > 10 or len(head_size) > 10:
                raise ProtocolError(f"a size is not a number: {_shown(line)}")
            total, head_length = int(size), int(head_size)
            if total > max_payload:
                raise LimitExceeded("max_payload", total, max_payload)
            if head_length > total:
                raise ProtocolError(f"the headers are larger than the whole: {_shown(line)}")
            start = end + 2
            stop = start + total
            if stop + 2 > length:
                self._needed = stop + 2 - at
                return at
            if data[stop : stop + 2] != CRLF:
                raise ProtocolError(f"a payload of {total:,} bytes does not end where its size says: {_shown(line)}")
            reply = None
            if count > least:
                reply = fields[1 + is_message].decode()
            head = None
            if is_headed:
                head = data[start : start + head_length]
                if head[:8] != HEADER_VERSION or head[-4:] != b"\r\n\r\n":
                    raise ProtocolError(f"a header block is {_shown(head)}")
                start += head_length
            if is_message:
                sid = fields[1]
                if not sid.isdigit() or len(sid) > 18:
                    raise ProtocolError(f"the id of a subscription is {_shown(sid)}")
                add(new(Message, (int(sid), fields[0].decode(), reply, head, data[start:stop])))
            else:
                add(new(Publish, (fields[0].decode(), reply, head, data[start:stop])))
            at = stop + 2
        return at

    def _check_line(self, data: bytes, at: int, end: int) -> None:
        """Refuse a line that is too long or cannot become an operation, before its end has come."""
        begun = data[at : at + _LONGEST + 1].upper()
        name = begun if begun[:1].isspace() else begun.split(None, 1)[0]
        if not any(known.startswith(name) for known in _KNOWN):
            raise ProtocolError(f"there is no operation {_shown(data[at : at + 32])}")
        limit = self._max_json if name in (b"INFO", b"CONNECT") else self._max_line
        if end - at > limit:
            raise LimitExceeded("max_control_line", end - at, limit)


def _verb(line: bytes) -> tuple[bytes, list[bytes]]:
    name, *rest = line.split(None, 1) or (b"",)
    verb = name.upper()
    if verb not in _KNOWN or line[:1].isspace():
        raise ProtocolError(f"there is no operation {_shown(line)}")
    return verb, rest[0].split() if rest and verb not in (b"INFO", b"CONNECT", b"-ERR") else rest


def _simple(verb: bytes, line: bytes, fields: list[bytes]) -> Operation:
    """An operation without a payload."""
    if (signal := _SIGNALS.get(verb)) is not None:
        return signal
    if verb == b"-ERR":
        return Failure(fields[0].decode(errors="replace").strip().strip("'") if fields else "")
    if verb == b"SUB":
        if not 2 <= len(fields) <= 3:
            raise ProtocolError(f"SUB has a subject, a queue group or none, and an id: {_shown(line)}")
        return Subscribe(fields[0].decode(), fields[1].decode() if len(fields) == 3 else None, fields[-1].decode())
    if verb == b"UNSUB":
        if not 1 <= len(fields) <= 2 or (len(fields) == 2 and not (fields[1].isdigit() and len(fields[1]) < 19)):
            raise ProtocolError(f"UNSUB has an id and at most a number: {_shown(line)}")
        return Unsubscribe(fields[0].decode(), int(fields[1]) if len(fields) == 2 else None)
    try:
        said = _decode_json(fields[0]) if fields else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ProtocolError(f"{verb.decode()} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{verb.decode()} is not a JSON object")
    return (Info if verb == b"INFO" else Connect)(said)


def _shown(data: bytes) -> str:
    return repr(data if len(data) <= 60 else data[:60] + b"...")[1:]


# -- writing ---------------------------------------------------------------------------------------------


def info(fields: Mapping[str, Any]) -> bytes:
    """INFO with these fields."""
    return b"INFO " + _encode_json(fields) + CRLF


def connect(fields: Mapping[str, Any]) -> bytes:
    """CONNECT with these fields."""
    return b"CONNECT " + _encode_json(fields) + CRLF


def subscribe(subject: str, sid: int | str, queue: str | None = None) -> bytes:
    """SUB."""
    return f"SUB {subject} {queue} {sid}\r\n".encode() if queue else f"SUB {subject} {sid}\r\n".encode()


def unsubscribe(sid: int | str, limit: int | None = None) -> bytes:
    """UNSUB, at once or after `limit` messages."""
    return f"UNSUB {sid}\r\n".encode() if limit is None else f"UNSUB {sid} {limit}\r\n".encode()


def publish(subject: str, payload: bytes, reply: str | None = None, head: bytes | None = None) -> bytes:
    """PUB, or HPUB if there is a header block."""
    to = f"{subject} {reply}" if reply else subject
    if head is None:
        return b"".join((f"PUB {to} {len(payload)}\r\n".encode(), payload, CRLF))
    return b"".join((f"HPUB {to} {len(head)} {len(head) + len(payload)}\r\n".encode(), head, payload, CRLF))


def delivery(subject: str, sid: int | str, reply: str | None, head: bytes | None, payload: bytes) -> bytes:
    """MSG, or HMSG if there is a header block."""
    to = f"{subject} {sid} {reply}" if reply else f"{subject} {sid}"
    if head is None:
        return b"".join((f"MSG {to} {len(payload)}\r\n".encode(), payload, CRLF))
    return b"".join((f"HMSG {to} {len(head)} {len(head) + len(payload)}\r\n".encode(), head, payload, CRLF))


def failure(why: str) -> bytes:
    """-ERR."""
    return f"-ERR '{why}'\r\n".encode()


# -- headers ---------------------------------------------------------------------------------------------


def headers(fields: Mapping[str, str] | Iterable[tuple[str, str]], status: str = "") -> bytes:
    """A header block. Values of users must not hold line ends: publishing checks that."""
    items = fields.items() if isinstance(fields, Mapping) else fields
    lines = "".join(f"{name}:{value}\r\n" for name, value in items)
    return f"NATS/1.0{' ' + status if status else ''}\r\n{lines}\r\n".encode()


def read_headers(head: bytes) -> dict[str, str]:
    """The fields of a header block; of one that is there several times, the first."""
    found: dict[str, str] = {}
    for line in head[len(HEADER_VERSION) :].split(CRLF)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            found.setdefault(name.decode(errors="replace"), value.strip().decode(errors="replace"))
    return found


def read_status(head: bytes) -> tuple[int, str] | None:
    """The status of a header block and its description, such as (503, "No Responders"); None: it is a message."""
    if head[8:9] != b" ":
        return None
    line = head[9 : head.find(CRLF)]
    code, _, why = line.strip().partition(b" ")
    return (int(code), why.decode(errors="replace")) if code.isdigit() and len(code) == 3 else None
