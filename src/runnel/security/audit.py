"""The events of the security log, and the aggregation of those that come at any rate.

An event has a principal, an action, a peer, a listener, and an outcome. Any client can cause refusals, and logins by
the holder of any token: those of one principal, peer, listener, action and outcome within a second become one event
with a count. Refusals, logins and the rest have a topic each, so that a flood of one evicts none of the others.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runnel.core.pattern import SECURITY_LOG_TOPICS

EVENTS_TOPIC, LOGINS_TOPIC, REFUSALS_TOPIC = SECURITY_LOG_TOPICS
RETENTION_AGE = 90 * 86_400.0
RETENTION_BYTES = 1 << 30
MAX_DIFFERENT = 1000  # events within a second; beyond that they are counted together
MAX_TEXT = 256

Outcome = Literal["allowed", "refused", "failed"]


class SecurityEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the security log. `time`: seconds since 1970. `count`: how many alike within that second.

    `request` is the id of the request that the event belongs to; of several events, that of the first.
    """

    time: float
    kind: str  # login, refusal, admin, token
    principal: str
    peer: str
    listener: str
    action: str
    target: str = ""
    outcome: Outcome = "allowed"
    why: str = ""
    count: int = 1
    request: str = ""

    def encoded(self) -> bytes:
        """As JSON, in one line."""
        return msgspec.json.encode(self)


def shortened(text: str) -> str:
    """A value chosen by a peer, cut to a length that a log can hold."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


class EventCounter:
    """Counts equal events until `due` returns them."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str, str, str], SecurityEvent] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, event: SecurityEvent) -> None:
        """One more. The first of its kind gives the target."""
        key = (event.principal, event.peer, event.listener, event.action, event.outcome)
        if key not in self._open and len(self._open) >= MAX_DIFFERENT:
            key = ("", "", "", event.kind, event.outcome)
            event = msgspec.structs.replace(event, principal="", peer="", listener="", action="many", target="")
        known = self._open.get(key)
        self._open[key] = event if known is None else msgspec.structs.replace(known, count=known.count + 1)

    def due(self) -> list[SecurityEvent]:
        """All that were counted since the last call, to be written now."""
        found, self._open = list(self._open.values()), {}
        return found
