"""`Table` without asyncio: each call blocks until it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from runnel.blocking.portal import Portal
from runnel.blocking.watch import Watch
from runnel.core.clock import Clock
from runnel.core.markers import ANYTHING, NoExpectation

if TYPE_CHECKING:
    from runnel.api.table import Table as AsyncTable
    from runnel.api.table import TableEntry

V = TypeVar("V")


class Table(Generic[V]):
    """`runnel.Table` without asyncio."""

    def __init__(self, table: AsyncTable[V], portal: Portal, clock: Clock) -> None:
        self._table, self._portal, self._clock = table, portal, clock

    def __repr__(self) -> str:
        return f"<Blocking {self._table!r}>"

    def get(self, key: str, default: V | None = None) -> V | None:
        """The value of `key`, or `default`."""
        return self._portal.run(self._table.get(key, default))

    def entry(self, key: str) -> TableEntry[V] | None:
        """The value of `key` with its offset."""
        return self._portal.run(self._table.entry(key))

    def items(self) -> dict[str, V]:
        """All keys with their values."""
        return self._portal.run(self._table.items())

    def put(self, key: str, value: V, *, expected: int | NoExpectation | None = ANYTHING) -> int:
        """Set the value of `key`; its offset. `expected`: the offset of its last put, None: there is no such key."""
        return self._portal.run(self._table.put(key, value, expected=expected))

    def delete(self, key: str, *, expected: int | NoExpectation | None = ANYTHING) -> None:
        """Remove `key`."""
        self._portal.run(self._table.delete(key, expected=expected))

    def update(self, key: str, function: Callable[[V | None], V | None]) -> V | None:
        """Replace the value of `key` by what `function`, called on the broker's event loop, makes of it."""
        return self._portal.run(self._table.update(key, function))

    def watch(self, key: str | None = None, *, initial: bool = True) -> Watch[TableEntry[V]]:
        """Follow the table, or one key: the current entries, then every change. Use it with `with`."""
        return Watch(self._table.watch(key, initial=initial), self._table.name, self._portal, self._clock)
