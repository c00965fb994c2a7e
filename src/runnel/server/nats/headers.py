"""Headers of NATS messages and headers of records: one becomes the other.

A record has one value for each name; of a NATS header that is there several times, the values are joined by ", ". The
key of a record is the header `Runnel-Key`. The reply subject of a request is in the record's header for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runnel.core.errors import InvalidOption
from runnel.core.record import NATS_INBOX, REPLY_TO
from runnel.wire.nats import CRLF, HEADER_VERSION, MAX_CONTROL_LINE

KEY = "Runnel-Key"
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
MAX_REPLY = MAX_CONTROL_LINE // 2  # characters of a reply subject
_MEANINGS = {one.lower(): one for one in (KEY, MESSAGE_ID, EXPECTED, TTL)}


class PublishHeaders(NamedTuple):
    """The headers of a publish: those of the record, and the options that have a header."""

    headers: dict[str, str] | None
    key: str | None = None
    message_id: str | None = None
    expected_offset: int | None = None
    expires: float | None = None


def read_publish_headers(head: bytes) -> PublishHeaders:
    """The contents of a header block; an invalid value is an `InvalidOption`."""
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    for line in head[len(HEADER_VERSION) :].split(CRLF)[1:]:
        found, colon, text = line.partition(b":")
        if not colon:
            continue
        name, value = found.decode(errors="replace").strip(), text.decode(errors="replace").strip()
        known = _MEANINGS.get(name.lower())
        if known is None:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        elif known == KEY:
            options["key"] = value
        elif known == MESSAGE_ID:
            options["message_id"] = value
            headers[name] = value  # subscribers of NATS see it
        elif known == EXPECTED:
            options["expected_offset"] = _number(EXPECTED, value)  # the sequence is one more than the offset
        else:
            options["expires"] = _seconds(value)
    return PublishHeaders(headers or None, **options)


def head_of(headers: Mapping[str, str] | None, key: bytes | None) -> tuple[str | None, bytes | None]:
    """The reply subject and the header block of a record; None: it has none."""
    if not headers and key is None:
        return None, None
    reply = None
    lines = ["NATS/1.0\r\n"]
    for name, value in (headers or {}).items():
        if name == REPLY_TO:
            reply = _subject(value.removeprefix(NATS_INBOX))
        else:
            lines.append(f"{name}: {value}\r\n")
    if key is not None and (shown := _shown(key)) is not None:
        lines.append(f"{KEY}: {shown}\r\n")
    if len(lines) == 1:
        return reply, None
    return reply, ("".join(lines) + "\r\n").encode()


def _subject(text: str) -> str | None:
    """A reply subject that another listener took; None: it would break the line that it stands in."""
    return text if text.isprintable() and " " not in text and len(text) <= MAX_REPLY else None


def _shown(key: bytes) -> str | None:
    """A key as the value of a header; None: it is no printable text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise InvalidOption(name, value, "expected a whole number")
    return int(value)


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: str) -> float | None:
    """A TTL: seconds, or a number with a unit, such as "1500ms"; "never" is none."""
    if value == "never":
        return None
    number = value.rstrip("nsumh")
    unit = _UNITS.get(value[len(number) :] or "s")
    try:
        seconds = float(number) * (unit or 0.0)
    except ValueError:
        seconds = 0.0
    if unit is None or not 0 < seconds < 1e9:
        raise InvalidOption(TTL, value, 'expected seconds, or a number with a unit, such as "1500ms"')
    return seconds
