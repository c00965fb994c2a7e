"""Keys, headers, times and priorities of records, in columns, as batches hold them in memory, on disk and on the wire.

A column is a list with an item for each record, and is absent where no record has anything of its kind. So a record
with a key costs one more item, and no object of its own; a `Meta` is made for a reader that asks for one.
"""

from __future__ import annotations

from itertools import repeat, zip_longest
from types import MappingProxyType
from typing import Any

from runnel.core.record import NO_HEADERS, Meta

VALUES, KEYS, HEADERS, TIMES, DUE, EXPIRES, PRIORITIES, DELTAS = (1 << bit for bit in range(8))


class Columns(dict[int, Any]):
    """Keys, headers, due times, expiries and priorities of records that lie side by side, by kind.

    None marks a record without an item of that kind. A column may be shorter than there are records: those behind
    its end have nothing of it, so that records which carry nothing can be appended without a look at the columns.
    Headers are dicts that do not change; a `Record` shows them read-only.
    """

    __slots__ = ()

    def add(self, kind: int, index: int, item: Any) -> None:
        """Give the record at `index`, behind all that have anything of this kind, its own."""
        if kind not in self:
            self[kind] = []
        column = self[kind]
        if len(column) != index:
            column.extend(repeat(None, index - len(column)))
        column.append(item)

    def extend(self, index: int, others: Columns) -> None:
        """Give the records from `index` on what `others` carry."""
        for kind, items in others.items():
            column = self.get(kind)
            if column is None:
                column = self[kind] = []
            if len(column) != index:
                column.extend(repeat(None, index - len(column)))
            column.extend(items)

    def part(self, start: int, end: int) -> Columns | None:
        """The columns of the records [start, end); None: they have none."""
        found = Columns()
        for kind, column in self.items():
            items = column[start:end]
            if items.count(None) != len(items):
                found[kind] = items
        return found or None

    def remove(self, start: int, end: int) -> None:
        """Take out the records [start, end): those behind them move up."""
        for kind, column in list(self.items()):
            del column[start:end]
            if not column:
                del self[kind]

    @property
    def weight(self) -> int:
        """About how many bytes the keys and the headers take."""
        weight = sum(map(len, filter(None, self.get(KEYS, ()))))
        for headers in filter(None, self.get(HEADERS, ())):
            weight += sum(map(len, headers)) + sum(map(len, headers.values()))
        return weight

    def rows(self, first: int = 0) -> dict[int, Meta]:
        """The items of each record that has any, by record number; the first record is number `first`."""
        columns = [self.get(kind, ()) for kind in (KEYS, HEADERS, DUE, EXPIRES, PRIORITIES)]
        return {
            number: Meta(key, MappingProxyType(headers) if headers else NO_HEADERS, due, expires, priority or 0)
            for number, (key, headers, due, expires, priority) in enumerate(zip_longest(*columns), first)
            if key is not None or headers or due is not None or expires is not None or priority
        }
