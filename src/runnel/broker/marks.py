"""Marks: named values that move forward, written together with what they stand for.

A mark says how far somebody came: the last row of a table, the number of a batch, a term of office. It is
written in the same entry as the records of its transaction, so the two never disagree. A transaction whose mark is
there already, or further, was done before.
What is on its way counts for those who come after it: if it fails, so do they.
Below: journal. Above: attempt, broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from runnel.broker.waiting import tell
from runnel.core.errors import InvalidOption
from runnel.core.transaction_errors import MarkConflict
from runnel.journal.entry import Part
from runnel.journal.parts import mark_part

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.journal.ledger import MarkValue

MAX_NAME = 256  # characters
MAX_VALUE = 4096  # bytes, of a str or bytes
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


class Unasked:
    """Stands for an expectation that nobody has."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = Unasked()


class Mark:
    """What a transaction wants a mark to be, and what it expects it to be before."""

    __slots__ = ("expected", "name", "value")

    def __init__(self, name: str, value: MarkValue | None, expected: MarkValue | Unasked | None) -> None:
        self.name, self.value, self.expected = check_mark_name(name), _checked("value", value), expected
        if not isinstance(expected, Unasked):
            _checked("expected", expected)

    def __repr__(self) -> str:
        return f"<Mark {self.name!r} = {self.value!r}>"

    def is_past(self, current: MarkValue | None) -> bool:
        """Whether `current` is as far, or further. Raises when the two cannot be compared, or another was expected."""
        if _same(self.value, current):
            return True
        if not isinstance(self.expected, Unasked) and not _same(self.expected, current):
            raise MarkConflict(self.name, self.expected, current)
        if self.value is None or current is None:
            return False
        if type(self.value) is not type(current):
            why = f"the mark {self.name!r} is {current!r}, another type, and only like values can be compared; "
            raise InvalidOption("value", self.value, f"{why}go on with the same type, or forget the mark first (None)")
        value: Any = self.value
        return bool(value <= current)


class Flight:
    """The marks of one transaction on its way, and who waits for them to be durable."""

    __slots__ = ("marks", "waiters")

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.marks = {mark.name: mark.value for mark in marks}
        self.waiters: list[asyncio.Future[None]] = []


class Marks:
    """All marks of a broker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, MarkValue] | None = None  # until somebody asks: none, or what the journal knows
        self._coming: dict[str, Flight] = {}  # the last one that has a mark of that name

    def __repr__(self) -> str:
        return f"<Marks, {len(self.values)} known, {len(self._coming)} on their way>"

    @property
    def values(self) -> dict[str, MarkValue]:
        """Those that are as durable as they get."""
        if self._known is None:
            store = self._bus.store
            self._known = {} if store is None else dict(store.journal.ledger.marks)
        return self._known

    def are_past(self, marks: Sequence[Mark]) -> bool:
        """Whether one of them is there already, or further. A conflict of any of them comes first, and raises."""
        past = [mark.is_past(self._current(mark.name)) for mark in marks]
        return any(past)

    def _current(self, name: str) -> MarkValue | None:
        flight = self._coming.get(name)
        return self.values.get(name) if flight is None else flight.marks[name]

    def joined(self, marks: Sequence[Mark]) -> asyncio.Future[None] | None:
        """Done when what is on its way of `marks` is durable; None: all of it is."""
        flights = {flight for mark in marks if (flight := self._coming.get(mark.name)) is not None}
        if not flights:
            return None
        # The last of them: commits land in order.
        flight = next(flight for flight in reversed(self._coming.values()) if flight in flights)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        return waiter

    # -- a transaction's marks ----------------------------------------------------------------------------------

    @staticmethod
    def parts(marks: Sequence[Mark]) -> list[Part]:
        """What is written of them."""
        return [mark_part(mark.name, mark.value) for mark in marks]

    def hand_over(self, marks: Sequence[Mark]) -> Flight:
        """They are on their way."""
        flight = Flight(marks)
        for name in flight.marks:
            self._coming.pop(name, None)  # the last to come is last in order, too
            self._coming[name] = flight
        return flight

    def land(self, flight: Flight) -> None:
        """They are durable."""
        values = self.values
        for name, value in flight.marks.items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
        self._end(flight, None)

    def fail(self, flight: Flight, error: Exception) -> None:
        """They are not; and what came after them will not be either."""
        self._end(flight, error)

    def _end(self, flight: Flight, error: Exception | None) -> None:
        for name in flight.marks:
            if self._coming.get(name) is flight:
                del self._coming[name]
        for waiter in flight.waiters:
            tell(waiter, error)


def check_mark_name(name: str) -> str:
    """`name`, if a mark can be called that."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not _is_text(name):
        raise InvalidOption("mark", name, f"the name of a mark is a str of 1 to {MAX_NAME} characters")
    return name


def _checked(option: str, value: MarkValue | None) -> MarkValue | None:
    if value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str | bytes):
        raise InvalidOption(option, value, "a mark is an int, a str or bytes; None forgets it")
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise InvalidOption(option, value, "a mark that is an int has at most 64 bits; write larger ones as text")
    elif isinstance(value, str) and not _is_text(value):
        raise InvalidOption(option, value, "it cannot be encoded as UTF-8")
    elif len(value if isinstance(value, bytes) else value.encode()) > MAX_VALUE:
        raise InvalidOption(option, value[:16], f"a mark has at most {MAX_VALUE:,} bytes; this one begins like that")
    return value


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
