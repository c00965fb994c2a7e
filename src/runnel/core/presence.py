"""Who is subscribed to a topic: members as a subscriber sees them, and what changed between two looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

MAX_PRESENT = 10_000  # members of one topic that are reported: those that came first
MAX_PRESENCE = 1024  # longest presence text of a subscriber, in characters


class Present(msgspec.Struct, frozen=True):
    """One subscription of a topic: an own one, or one of a pattern that covers it.

    `name` is that of the subscription or of the member of `group`; `presence` is what the subscriber says of itself.
    `principal` is the login, if the server asks for one. `since` is in seconds since 1970.
    """

    id: str
    name: str
    since: float
    group: str | None = None
    presence: str | None = None
    principal: str | None = None


class PresenceEvent(msgspec.Struct, frozen=True):
    """A member came or went."""

    event: Literal["join", "leave"]
    member: Present


def present_id(name: str, group: str | None, since: float) -> str:
    """Identifies one subscription: one of the same name that comes later is another one."""
    return f"{name}@{since:.6f}" if group is None else f"{group}/{name}@{since:.6f}"


def presence_changes(before: Mapping[str, Present], now: Iterable[Present]) -> list[PresenceEvent]:
    """The changes since `before`: those that left, then those that came."""
    present = {member.id: member for member in now}
    left = [PresenceEvent("leave", member) for id, member in before.items() if id not in present]
    return left + [PresenceEvent("join", member) for id, member in present.items() if id not in before]
