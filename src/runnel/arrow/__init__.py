"""Topics as Arrow, without Spark: `read` gives a table, `batches` an iterator of record batches.

Journal and lake are read as one topic: old records from the lake, the others from the folder or the server. Needs
`pip install 'runnel-mq[lake]'`; importing this package does not load Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.arrow.reading import batches, read

if TYPE_CHECKING:
    from runnel.arrow.typed_rows import archive_typed

__all__ = ["archive_typed", "batches", "read"]


def __getattr__(name: str) -> Any:
    if name == "archive_typed":  # it loads Arrow
        from runnel.arrow.typed_rows import archive_typed

        return archive_typed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
