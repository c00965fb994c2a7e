"""Typed topics on their way into a typed table of a lake: records beside the columns of their values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runnel.arrow.lake_columns import tombstones_as_none
from runnel.arrow.range_reader import durable_only
from runnel.arrow.reading import batches, reader_of
from runnel.arrow.typed_values import Digits, TypedDecoder
from runnel.core.errors import InvalidOption, UnknownTopic
from runnel.core.pattern import is_pattern
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds
from runnel.lake import Lake, LakeCommit, LakeHistory, TypedRows
from runnel.lake.layout import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

_BAD = "_corrupt_record"


class RowTyper:
    """How records of one schema become rows of a typed table."""

    def __init__(self, schema: Schema, *, digits: Digits | None = None) -> None:
        self._decoder = TypedDecoder(schema, bad=_BAD, digits=digits)

    def __repr__(self) -> str:
        return f"<RowTyper {', '.join(field.name for field in self.fields)}>"

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of the values."""
        return self._decoder.fields[:-1]

    def rows(self, records: Iterable[pa.RecordBatch]) -> Iterator[TypedRows]:
        """Records, and the columns of their values. Tombstones, which have a key and no value, have nulls."""
        import pyarrow as pa

        for batch in records:
            # A value that does not fit is no error here, so no place is needed.
            *made, bad = self._decoder.columns(tombstones_as_none(batch), lambda at: ("", at))
            yield TypedRows(batch, pa.RecordBatch.from_arrays(made, schema=pa.schema(self.fields)), bad.is_valid())


def archive_typed(
    where: str | os.PathLike[str],
    topic: str,
    lake: Lake,
    *,
    table: str | None = None,
    client: Mapping[str, Any] | None = None,
) -> LakeCommit:
    """Copy what is new of a typed topic into a table of its own, with a column for each field. Each record once.

    - `where`: a folder, or the URL of a server. Records that the journal has dropped come from the lake itself.
    - `table`: the name below `tables/`; None: that of the topic.

    Values that do not fit go to the quarantine of the lake.

    >>> runnel.arrow.archive_typed("data/", "orders", Lake("lake/")).rows
    1000
    """
    if is_pattern(topic):
        raise InvalidOption("topic", topic, "a typed table is filled topic by topic; name one")
    history = LakeHistory(lake.storage.uri, storage_options=lake.storage.options)
    bounds = _bounds(where, topic, history, client or {})
    if bounds.schema is None:
        raise InvalidOption("topic", topic, "it has no type; archive it into the table of records")
    typer = RowTyper(bounds.schema)
    target = lake.typed(table or topic)
    target.merge(typer.fields)
    known = target.next_offsets([topic])
    start = max(known.get((topic, bounds.epoch), 0), bounds.first)
    end = max(start, bounds.end)
    records = batches(where, topic, start, end, lake=history, columns=record_schema().names, client=client)
    files = target.write(typer.rows(records), behind=known)
    ends = {(topic, bounds.epoch): bounds.end}
    return target.commit_files(files, application="archive_typed", version=bounds.end, ends=ends)


def _bounds(where: str | os.PathLike[str], topic: str, history: LakeHistory, client: Mapping[str, Any]) -> TopicBounds:
    reader = reader_of(where, history, client)
    try:
        found = durable_only(reader.bounds([topic]), [topic])
    finally:
        reader.close()
    if not found:
        raise UnknownTopic(topic)
    return found[0]
