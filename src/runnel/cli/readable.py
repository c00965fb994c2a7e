"""A record on one line, for people: text as it is, and nothing that could break the line or the terminal."""

from __future__ import annotations

from runnel.cli.document import iso
from runnel.core.record import Record


def line_of(record: Record[bytes]) -> str:
    """A record on one line."""
    key = "-" if record.key is None else readable(record.key)
    return f"{record.topic}  {record.offset}  {iso(record.time)}  {key}  {readable(record.value)}"


def readable(value: bytes) -> str:
    """Text as it is, with what would break the line escaped; other bytes as hex."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
