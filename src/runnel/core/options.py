"""What a topic can be told about itself, checked when it is said."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec

from runnel.core.compression import check_compression
from runnel.core.errors import InvalidOption


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
        for name in ("retention_bytes", "retention_count", "max_deliver"):
            value = given.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidOption(name, value, "expected a whole number above 0")
        age = given.get("retention_age")
        if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or not age > 0):
            raise InvalidOption("retention_age", age, "expected a number of seconds above 0")
        if given.get("compression") is not None:
            check_compression(given["compression"])
        if (backoff := given.get("backoff")) is not None:
            pauses = tuple(backoff) if isinstance(backoff, list | tuple) else ()
            if not pauses or not all(isinstance(pause, int | float) and pause >= 0 for pause in pauses):
                raise InvalidOption("backoff", backoff, "expected pauses in seconds, such as (1, 5, 30)")
            given = given | {"backoff": pauses}
        return cls(**given)

    @property
    def retains(self) -> bool:
        """Whether it says anything about what is kept."""
        return not (self.retention_age is self.retention_bytes is self.retention_count is None)

    def given(self) -> dict[str, Any]:
        """The options that were said, without the defaults."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
