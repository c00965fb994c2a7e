"""How a group treats its records, with the defaults of a group. Stored with the group, by every backend."""

from __future__ import annotations

import msgspec

from runnel.core.options import SubscribeOptions, check_option

BACKOFF = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)


class GroupOptions(msgspec.Struct, frozen=True):
    """How a group treats its records: options of `SubscribeOptions`, with the defaults of a group.

    Stored with the group. `max_ack_pending` also limits how far the group looks ahead for other keys and higher
    priorities. `max_deliver` is None, for no end, only in groups that an earlier version stored.
    """

    ack_wait: float = 30.0
    max_ack_pending: int = 4096
    max_deliver: int | None = 20
    backoff: tuple[float, ...] = BACKOFF
    jitter: float = 0.1
    dead_letter: str | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) is not None:
                check_option(SubscribeOptions, name, value)

    def pause(self, attempts: int, chance: float) -> float:
        """Seconds until the attempt after `attempts` failed ones; `chance` is random in [0, 1)."""
        pause = self.backoff[min(attempts, len(self.backoff)) - 1]
        return pause * (1 + self.jitter * chance)
