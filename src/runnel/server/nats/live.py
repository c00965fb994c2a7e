"""Live subjects: subjects that are no topics, such as inboxes.

A message on one goes to the clients of this listener that subscribe to it now, and is kept nowhere: a million requests
with an inbox each leave nothing behind.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from runnel.core.errors import InvalidName, InvalidPattern
from runnel.core.pattern import PatternTable, check_name, check_pattern
from runnel.core.record import INBOX

_INBOXES = "_INBOX"  # begins the inboxes of clients; some put a prefix of their own behind it
_OWN = "$runnel."


class LiveSubscription(Protocol):
    """A subscription of a client, as a live message needs it."""

    queue: str | None

    @property
    def owner(self) -> Any:
        """The session that it belongs to."""

    @property
    def is_open(self) -> bool:
        """Whether it takes a message now."""

    def deliver(self, subject: str, reply: str | None, head: bytes | None, payload: bytes) -> None:
        """Send a message to the client."""


def is_live(subject: str) -> bool:
    """Whether messages on a subject, which has no wildcard, go to present subscribers only, and are no records."""
    first = subject[0]
    if first == "_" and subject.startswith(_INBOXES):
        return True
    if first == "$":
        return not subject.startswith(_OWN) or subject.startswith(INBOX)
    try:
        check_name(subject)
    except InvalidName:
        return True
    return False


def may_be_live(pattern: str) -> bool:
    """Whether a pattern covers live subjects."""
    return pattern.split(".", 1)[0] in ("*", ">") or is_live(_example(pattern))


def may_be_topics(pattern: str) -> bool:
    """Whether a pattern covers topics. Elsewhere a wildcard is part of a token, and means itself."""
    try:
        check_pattern(pattern)
    except InvalidPattern:
        return False
    return not is_live(_example(pattern))


def _example(pattern: str) -> str:
    """A subject that the pattern covers."""
    return ".".join("x" if token in ("*", ">") else token for token in pattern.split("."))


class LiveSubjects:
    """The subscriptions to live subjects, of all clients of one listener."""

    def __init__(self) -> None:
        self._table: PatternTable[LiveSubscription] = PatternTable()

    def add(self, pattern: str, subscription: LiveSubscription) -> None:
        """Deliver to `subscription` from now on."""
        self._table.add(pattern, subscription)

    def remove(self, pattern: str, subscription: LiveSubscription) -> None:
        """Deliver no more to it."""
        self._table.remove(pattern, subscription)

    def deliver(self, subject: str, reply: str | None, head: bytes | None, payload: bytes, but: object = None) -> bool:
        """Deliver to every subscription, and to one of each queue group; whether there was any. `but`: not to its."""
        found = self._table.covering(subject)
        if but is not None:
            found = [one for one in found if one.owner is not but]
        if len(found) == 1 and found[0].is_open:
            found[0].deliver(subject, reply, head, payload)
            return True
        chosen = _chosen(found)
        for subscription in chosen:
            subscription.deliver(subject, reply, head, payload)
        return bool(chosen)


def _chosen(found: Sequence[LiveSubscription]) -> list[LiveSubscription]:
    """Every subscription without a queue group, and a random one of each group."""
    chosen: list[LiveSubscription] = []
    queues: dict[str, list[LiveSubscription]] = {}
    for one in found:
        if not one.is_open:
            continue
        if one.queue is None:
            chosen.append(one)
        else:
            queues.setdefault(one.queue, []).append(one)
    return chosen + [random.choice(members) for members in queues.values()]
