"""Columns of what records carry, written record by record."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.record import Meta


def columns_of(metas: Sequence[Meta | None] | None) -> Columns | None:
    """What records carry, of which each says its own; None: nothing."""
    columns = Columns()
    for index, meta in enumerate(metas or ()):
        if meta is not None:
            own = {KEYS: meta.key, HEADERS: dict(meta.headers) or None, DUE: meta.due, EXPIRES: meta.expires}
            for kind, item in {**own, PRIORITIES: meta.priority or None}.items():
                if item is not None:
                    columns.add(kind, index, item)
    return columns or None


def metas_of(columns: Columns | None, count: int) -> list[Meta | None]:
    """What each of `count` records carries."""
    rows = {} if columns is None else columns.rows()
    return [rows.get(index) for index in range(count)]
