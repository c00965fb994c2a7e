"""Options of topics and subscriptions, validated when they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec

from runnel.core.compression import check_compression
from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.pattern import check_name

ENCODINGS = ("json", "msgpack")


def positive(option: str, value: int) -> int:
    """`value`, when it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(option, value, "expected a whole number above 0")
    return value


def not_negative(option: str, value: float) -> float:
    """`value`, when it is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidOption(option, value, "expected seconds, 0 or more")
    return value


def _above_zero(option: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidOption(option, value, "expected a number of seconds above 0")
    return value


def _yes_or_no(option: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(option, value, "expected True or False")
    return value


def _encoding(option: str, value: str) -> str:
    if value not in ENCODINGS:
        raise InvalidOption(option, value, "expected 'json' or 'msgpack'")
    return value


def _topic(option: str, value: str) -> str:
    try:
        return check_name(value)
    except InvalidName as error:
        raise InvalidOption(option, value, f"expected the name of a topic: {error.why}") from None


def _pauses(option: str, value: Sequence[float]) -> tuple[float, ...]:
    pauses = tuple(value) if isinstance(value, list | tuple) else ()
    try:
        for pause in pauses:
            not_negative(option, pause)
    except InvalidOption:
        pauses = ()
    if not pauses:
        raise InvalidOption(option, value, "expected pauses in seconds, such as (1, 5, 30)")
    return pauses


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "durable": _yes_or_no,
    "retention_age": _above_zero,
    "retention_bytes": positive,
    "retention_count": positive,
    "compact": _yes_or_no,
    "compression": lambda _, value: check_compression(value),
    "encoding": _encoding,
    "dead_letter": _topic,
    "max_deliver": positive,
    "backoff": _pauses,
}


class TopicOptions(msgspec.Struct, frozen=True, gc=False):
    """The options of a topic; None means the default of the place where it lives.

    - `retention_count`, `retention_bytes`, `retention_age` (seconds): what is kept, whatever any subscriber wants.
    - `durable`: whether it survives the process; `compact`, `compression`: how a durable topic is stored.
    - `encoding`: how a typed topic writes its values, "json" or "msgpack".
    - `dead_letter`, `max_deliver`, `backoff`: what happens to work that fails in a group.
    """

    durable: bool | None = None
    retention_age: float | None = None
    retention_bytes: int | None = None
    retention_count: int | None = None
    compact: bool | None = None
    compression: str | None = None
    encoding: str | None = None
    dead_letter: str | None = None
    max_deliver: int | None = None
    backoff: tuple[float, ...] | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> TopicOptions:
        """The options in `given`, or an error that names the wrong one and the nearest right one."""
        for name in given:
            if name not in cls.__struct_fields__:
                near = get_close_matches(name, cls.__struct_fields__, 1)
                raise InvalidOption(
                    name, given[name], f"there is no such topic option{f'; did you mean {near[0]!r}?' if near else ''}"
                )
        said = {name: value for name, value in given.items() if value is not None}
        for name in said:
            said[name] = _CHECKS[name](name, said[name])
        return cls(**said)

    @property
    def retains(self) -> bool:
        """Whether it says anything about what is kept."""
        return not (self.retention_age is self.retention_bytes is self.retention_count is None)

    def given(self) -> dict[str, Any]:
        """The options that were said, without the defaults."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


# -- Overflow policies -----------------------------------------------------------------------------------
# What happens when a subscriber of an in-memory topic is slow. A policy affects its own subscriber only;
# `block` is the exception, and users ask for it by name.


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
