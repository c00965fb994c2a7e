"""How a dead letter is written: the record as it was, and why it failed, in headers.

A dead letter keeps value, key, headers and trace of the original record, so it can be put back as it was.
"""

from __future__ import annotations

from typing import Any

from runnel.core.record import Record
from runnel.core.trace_context import TRACEPARENT

PREFIX = "runnel-dead-letter-"
REASON, TOPIC, POSITION = f"{PREFIX}reason", f"{PREFIX}topic", f"{PREFIX}position"
ATTEMPTS, GROUP, SUBSCRIBER = f"{PREFIX}attempts", f"{PREFIX}group", f"{PREFIX}subscriber"


def is_dead_letter(record: Record[Any]) -> bool:
    """Whether `record` is one already."""
    return REASON in record.headers


def dead_letter_headers(record: Record[Any], reason: str, **facts: str) -> dict[str, str]:
    """The headers of `record` as a dead letter."""
    told = {f"{PREFIX}{fact}": text for fact, text in facts.items()}
    # An exception's text may hold anything, and a dead letter must not fail for want of a proper header.
    text = str(reason).encode(errors="replace").decode().replace("\0", "?")
    one_line = " ".join(text.split())[:1000] or "no reason given"
    return {
        **original_headers(record),
        TRACEPARENT: record.traceparent,
        REASON: one_line,
        TOPIC: record.topic,
        POSITION: str(record.position),
        **told,
    }


def original_headers(record: Record[Any]) -> dict[str, str]:
    """The headers that `record` had before it died."""
    return {name: text for name, text in record.headers.items() if not name.startswith(PREFIX)}
