"""Topics as Arrow, without Spark: `read` gives a table, `batches` an iterator of record batches.

Journal and lake are read as one topic: old records from the lake, the others from the folder or the server. Needs
`pip install 'runnel-mq[lake]'`; importing this package does not load Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.arrow.reading import batches, read
    from runnel.arrow.typed_rows import archive_typed

__all__ = ["archive_typed", "batches", "read"]

_HOMES = {"archive_typed": "typed_rows", "batches": "reading", "read": "reading"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"runnel.arrow.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
