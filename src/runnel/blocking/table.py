"""`Table` without asyncio: each call blocks until it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from runnel.blocking.portal import Portal
from runnel.core.markers import ANYTHING, NoExpectation

if TYPE_CHECKING:
    from runnel.api.table import Table as AsyncTable
    from runnel.api.table import TableEntry
    from runnel.api.table import TableWatch as AsyncWatch

V = TypeVar("V")


class Table(Generic[V]):
    """`runnel.Table` without asyncio."""

    def __init__(self, table: AsyncTable[V], portal: Portal) -> None:
        self._table, self._portal = table, portal

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

    def watch(self, key: str | None = None, *, initial: bool = True) -> TableWatch[V]:
        """Follow the table, or one key. Use it with `with`."""
        return TableWatch(self._table.watch(key, initial=initial), self._portal)


class TableWatch(Generic[V]):
    """The changes of a table: iterate over it inside of its block."""

    def __init__(self, watch: AsyncWatch[V], portal: Portal) -> None:
        self._watch, self._portal = watch, portal

    def __enter__(self) -> Self:
        self._portal.run(self._watch.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._watch.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[TableEntry[V]]:
        return self

    def __next__(self) -> TableEntry[V]:
        try:
            return self._portal.run(self._watch.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
