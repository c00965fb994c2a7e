"""Which columns records have as Arrow, and under which names.

With typed values the fields of the type are columns in place of `value`; a record's own column of the same name gets an
underscore before its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.arrow.typed_values import TypedDecoder

SHOWN = ("topic", "epoch", "offset", "sequence", "time", "key", "value", "headers", "traceparent")
"""Columns of a record, in the order that queries have them."""

ON_REQUEST = ("due", "expires", "priority")
"""Columns that a query has if it names them: what only some records carry, for copies that must lose nothing."""


class ColumnLayout:
    """The columns of a query: `own` says what of the record each is; behind them come those of `typed`, if it is.

    It travels to executors, which decode by it whatever became of the topic's type since.
    """

    def __init__(self, typed: TypedDecoder | None = None, *, header_list: bool = False) -> None:
        self.typed, self.header_list = typed, header_list
        # Spark does not look at case, so neither does this.
        taken = set() if typed is None else {field.name.lower() for field in typed.fields}
        names = (*SHOWN, *ON_REQUEST)
        self.own = {_beside(taken, name): name for name in names if typed is None or name != "value"}

    def __repr__(self) -> str:
        return f"<ColumnLayout {', '.join(self.own)}{'' if self.typed is None else f', {self.typed!r}'}>"


def _beside(taken: set[str], name: str) -> str:
    """The name of a column of the record's own, where others have the names in `taken`."""
    while name in taken:
        name = f"_{name}"
    return name


PLAIN_LAYOUT = ColumnLayout()
"""Records in their plain form."""
