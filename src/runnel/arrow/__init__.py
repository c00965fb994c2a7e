"""Topics as Arrow, without Spark: `read` gives a table, `batches` an iterator of record batches.

Journal and lake are read as one topic: old records from the lake, the others from the folder or the server. Needs
`pip install 'runnel-mq[lake]'`; importing this package does not load Arrow.
"""

from __future__ import annotations

from runnel.arrow.reading import batches, read

__all__ = ["batches", "read"]
