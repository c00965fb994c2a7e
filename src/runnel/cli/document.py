"""JSON for programs: one document, or a line for each record.

Bytes are text where they are UTF-8; where they are not the field is called `…_base64` and says so.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from datetime import datetime
from typing import Any, TextIO

import msgspec

from runnel.core.record import Gap, Record

_UTF_8 = ("utf-8", "utf8")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")  # in JSON these are in strings only


def print_document(found: object) -> None:
    """One JSON document, indented."""
    print(_fit(msgspec.json.format(msgspec.json.encode(found), indent=2).decode(), sys.stdout))


def print_line(found: object, stream: TextIO | None = None) -> None:
    """One JSON document on a line of its own."""
    out = stream or sys.stdout
    out.write(_fit(msgspec.json.encode(found).decode(), out) + "\n")


def of_record(record: Record[bytes]) -> dict[str, Any]:
    """A record as an object."""
    return {
        "topic": record.topic,
        "offset": record.offset,
        "sequence": record.sequence,
        "epoch": record.epoch,
        "time": iso(record.time),
        **_bytes("key", record.key),
        "headers": dict(record.headers),
        **_bytes("value", record.value),
    }


def of_gap(gap: Gap) -> dict[str, Any]:
    """What cannot be read, as an object."""
    return {"gap": msgspec.structs.asdict(gap)}


def iso(time: datetime) -> str:
    """A time in UTC, to the microsecond."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _fit(text: str, stream: TextIO) -> str:
    """The same JSON, in characters that the stream can take: all but ASCII escaped where it may not be UTF-8."""
    if text.isascii() or (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") in _UTF_8:
        return text
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
