"""Warnings about dead letters: a group that gives up its records must not do so silently."""

from __future__ import annotations

import logging

from runnel.core.clock import Clock, Timer

INTERVAL = 5.0  # seconds between two lines about one group
MAX_REASON = 200  # characters of a reason; the dead letter has all of it

logger = logging.getLogger("runnel")


class DeadLetterLog:
    """Warns about a group's first dead letter at once, and about later ones every `INTERVAL` seconds with a count."""

    def __init__(self, clock: Clock, group: str) -> None:
        self._clock, self._group = clock, group
        self._timer: Timer | None = None  # while lines would follow too fast
        self._count = 0  # dead letters since the last line
        self._last = ("", 0, "", "")

    def note(self, topic: str, offset: int, reason: str, letters: str | None, count: int = 1) -> None:
        """Records of `topic`, from `offset` on, became dead letters in the topic `letters` (None: unknown here)."""
        to = f" in {letters!r}" if letters is not None else ""
        self._count += count
        self._last = topic, offset, f"{to}: {reason[:MAX_REASON]!r}", f"runnel letters list {letters or ''}".rstrip()
        if self._timer is None:
            self._say()
            self._timer = self._clock.call_later(INTERVAL, self._on_timer)

    def _say(self) -> None:
        count, self._count = self._count, 0
        topic, offset, why, command = self._last
        what = "the record" if count == 1 else f"{count:,} records, the last"
        verb = "is a dead letter" if count == 1 else "are dead letters"
        logger.warning(
            "group %r: %s of %r at offset %d %s now%s; see `%s`", self._group, what, topic, offset, verb, why, command
        )

    def _on_timer(self) -> None:
        self._timer = None
        if self._count:
            self._say()
            self._timer = self._clock.call_later(INTERVAL, self._on_timer)

    def close(self) -> None:
        """Write what was counted: the group or its member ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            self._say()
