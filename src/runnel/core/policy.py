"""What happens when a subscriber of an in-memory topic is slow.

A policy never touches another subscriber: what one loses, waits for or is thrown
out for is its own affair. (`block` is the exception that one asks for by name.)
"""

from __future__ import annotations

from enum import Enum

import msgspec

from runnel.core.errors import InvalidOption


class PolicyKind(Enum):
    """The four ways to deal with a slow subscriber."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    BLOCK = "block"
    DISCONNECT = "disconnect"


class Policy(msgspec.Struct, frozen=True, gc=False):
    """What to do when a subscriber's buffer is full. Strings work too: `policy="block"`.

    - `Policy.drop_oldest()` (the default): the oldest unread records go.
    - `Policy.drop_newest()`: what is published while it is full goes.
    - `Policy.block(timeout=None)`: publishers wait for room, at most `timeout` seconds.
    - `Policy.disconnect(after=1024)`: like drop_oldest, and after so many drops in a
      row the subscription ends with `Disconnected`.
    """

    kind: PolicyKind = PolicyKind.DROP_OLDEST
    timeout: float | None = None
    after: int = 1024

    @staticmethod
    def drop_oldest() -> Policy:
        """Keep the newest `buffer` records; the default."""
        return Policy()

    @staticmethod
    def drop_newest() -> Policy:
        """Keep the oldest `buffer` records until they are read."""
        return Policy(PolicyKind.DROP_NEWEST)

    @staticmethod
    def block(timeout: float | None = None) -> Policy:
        """Lose nothing: publishers wait. After `timeout` seconds they get PublishTimeout."""
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (number and timeout >= 0):
            raise InvalidOption("timeout", timeout, "a policy's timeout is a number of seconds, 0 or more")
        return Policy(PolicyKind.BLOCK, timeout=timeout)

    @staticmethod
    def disconnect(after: int = 1024) -> Policy:
        """Drop the oldest, and end the subscription after so many drops in a row."""
        if isinstance(after, bool) or not isinstance(after, int) or after < 1:
            raise InvalidOption("after", after, "a subscription can be disconnected after 1 drop or more")
        return Policy(PolicyKind.DISCONNECT, after=after)

    @staticmethod
    def of(policy: Policy | str | None) -> Policy:
        """The policy that a caller named, or the default."""
        if policy is None:
            return Policy()
        if isinstance(policy, Policy):
            return policy
        try:
            return Policy(PolicyKind(policy))
        except ValueError:
            names = ", ".join(repr(kind.value) for kind in PolicyKind)
            raise InvalidOption("policy", policy, f"expected a runnel.Policy or one of {names}") from None

    def __str__(self) -> str:
        return self.kind.value
