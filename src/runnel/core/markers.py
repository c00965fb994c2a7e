"""Transaction markers: a named value with the value that it is expected to replace.

A marker moves forward only; a transaction whose marker is already that far is a no-op.
"""

from __future__ import annotations

from typing import Any, Final

from runnel.core.errors import InvalidOption, MarkConflict
from runnel.core.pattern import check_no_control

MarkerValue = int | str | bytes

MAX_MARKER_NAME = 256  # characters
MAX_MARKER_VALUE = 4096  # bytes, of a str or bytes
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


class NoExpectation:
    """Means that no value is expected."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = NoExpectation()


class Marker:
    """The new value that a transaction sets, and the value that it expects before."""

    __slots__ = ("expected", "name", "value")

    def __init__(
        self, name: str, value: MarkerValue | None, expected: MarkerValue | NoExpectation | None = ANYTHING
    ) -> None:
        self.name, self.value, self.expected = check_marker_name(name), _checked("value", value), expected
        if value is not None:  # one that an earlier version stored can still be forgotten
            check_no_control("mark", name)
        if not isinstance(expected, NoExpectation):
            _checked("expected", expected)

    def __repr__(self) -> str:
        return f"<Marker {self.name!r} = {self.value!r}>"

    def is_past(self, current: MarkerValue | None) -> bool:
        """Whether `current` has reached the new value. Raises when they cannot be compared, or another was expected."""
        if _same(self.value, current):
            return True
        if not isinstance(self.expected, NoExpectation) and not _same(self.expected, current):
            raise MarkConflict(self.name, self.expected, current)
        if self.value is None or current is None:
            return False
        if type(self.value) is not type(current):
            why = f"the mark {self.name!r} is {current!r}, another type, and only like values can be compared; "
            raise InvalidOption("value", self.value, f"{why}use the same type, or delete the marker first (None)")
        value: Any = self.value
        return bool(value <= current)


def check_marker_name(name: str) -> str:
    """`name`, if a mark can be called that."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_MARKER_NAME or not _is_text(name):
        raise InvalidOption("mark", name, f"the name of a mark is a str of 1 to {MAX_MARKER_NAME} characters")
    return name


def _checked(option: str, value: MarkerValue | None) -> MarkerValue | None:
    if value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str | bytes):
        raise InvalidOption(option, value, "a mark is an int, a str or bytes; None forgets it")
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise InvalidOption(option, value, "a mark that is an int has at most 64 bits; write larger ones as text")
    elif isinstance(value, str) and not _is_text(value):
        raise InvalidOption(option, value, "it cannot be encoded as UTF-8")
    elif len(value if isinstance(value, bytes) else value.encode()) > MAX_MARKER_VALUE:
        raise InvalidOption(
            option, value[:16], f"a mark has at most {MAX_MARKER_VALUE:,} bytes; this one begins like that"
        )
    return value


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
