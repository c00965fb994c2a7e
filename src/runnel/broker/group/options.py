"""What a group can be told, checked when it is said."""

from __future__ import annotations

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.options import not_negative, positive

BACKOFF = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)


class GroupOptions(msgspec.Struct, frozen=True):
    """How a group treats its records.

    - `ack_wait`: seconds a member has for what it holds; every ack and `extend` renews them.
    - `max_ack_pending`: records that may be fetched and not settled. It is also how far the group looks
      ahead for other keys and higher priorities.
    - `max_deliver`: attempts before a record goes to the dead-letter topic; None: no end.
    - `backoff`: pauses before the second, third, … attempt; the last one holds for all that follow.
    - `jitter`: each pause is stretched by up to this share, at random, so that failures spread.
    - `dead_letter`: the topic for what failed for good; None: `dead-letters.<group>`.
    """

    ack_wait: float = 30.0
    max_ack_pending: int = 4096
    max_deliver: int | None = None
    backoff: tuple[float, ...] = BACKOFF
    jitter: float = 0.1
    dead_letter: str | None = None

    def __post_init__(self) -> None:
        if not not_negative("ack_wait", self.ack_wait):
            raise InvalidOption("ack_wait", self.ack_wait, "expected seconds above 0")
        positive("max_ack_pending", self.max_ack_pending)
        if self.max_deliver is not None:
            positive("max_deliver", self.max_deliver)
        if not self.backoff:
            raise InvalidOption("backoff", self.backoff, "expected pauses in seconds, such as (1, 5, 30)")
        for pause in self.backoff:
            not_negative("backoff", pause)
        if not_negative("jitter", self.jitter) > 1:
            raise InvalidOption("jitter", self.jitter, "expected a share from 0 to 1")

    def pause(self, attempts: int, chance: float) -> float:
        """Seconds until the attempt after `attempts` failed ones; `chance` is random in [0, 1)."""
        pause = self.backoff[min(attempts, len(self.backoff)) - 1]
        return pause * (1 + self.jitter * chance)
