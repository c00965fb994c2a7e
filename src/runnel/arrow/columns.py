"""Decoded batches as Arrow record batches, without Python code per record.

Offsets, sequences and times are computed from runs; topic and epoch are constant per batch; a column that no record
has is made of nulls. Values are copied once, in C.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.range_reader import DecodedBatch
from runnel.core.batch_format import UnpackedBatch
from runnel.core.trace_context import TRACEPARENT as TRACE

ROWS = 1 << 14
"""Of one record batch, about."""

BYTES = 8 << 20
"""Of the values of one record batch, about."""

SETTLE = 512
"""Values that are worth an array of their own. The sooner they are in one, the more of them are still in the
processor's cache, and the memory of their objects serves the next ones: to wait for a whole record batch is dearer."""

NO_HEADERS: Mapping[str, str] = {}


class RowBuffer:
    """Records of one topic that are about to become a record batch. `decoded`: their values will be, one by one.

    Of `value`, `key`, `headers`, `due`, `expires` and `priority` it keeps what `needs` names: a query that counts wants
    none of them.
    """

    def __init__(
        self, topic: str, epoch: int, *, decoded: bool = False, needs: Collection[str] = ("value", "key", "headers")
    ) -> None:
        self.topic, self.epoch, self._decoded = topic, epoch, decoded
        self._values_wanted, self._keys_wanted = "value" in needs, "key" in needs
        self._headers_wanted = "headers" in needs
        self._others_wanted = [(name, one) for name, one in _OTHERS.items() if name in needs]
        self.count = self.bytes = 0
        self.values: list[bytes] = []  # if they are to be decoded; otherwise those that are in no array yet
        self._arrays: list[pa.Array] = []
        self.keys: list[bytes | None] | None = None  # None: no record has one
        self.headers: list[dict[str, str] | None] | None = None
        self.others: dict[str, list[Any]] = {}  # due, expires, priority, where a record has one
        self._runs: list[tuple[int, int, int, int]] = []
        self._own_times: list[tuple[int, Sequence[int | None]]] = []  # from which row on, where they are their own

    def __repr__(self) -> str:
        return f"<RowBuffer of {self.topic!r}, {self.count}>"

    @property
    def is_full(self) -> bool:
        """Whether it is time to make a record batch."""
        return self.count >= ROWS or self.bytes >= BYTES

    def add(self, decoded_batch: DecodedBatch, now: float) -> None:
        """Take in some records, less those that have expired."""
        batch, at = decoded_batch.batch, decoded_batch.at
        for run in decoded_batch.runs:
            if batch.expires is None:
                self._add(batch, at, *run)
            else:
                for number, expires in enumerate(batch.expires[at : at + run.count]):
                    if expires is None or expires > now:
                        self._add(batch, at + number, run.offset + number, run.sequence + number, run.time, 1)
            at += run.count

    def _add(self, batch: UnpackedBatch, at: int, offset: int, sequence: int, time: int, count: int) -> None:
        behind, before = at + count, self.count
        whole = count == len(batch.values)
        if self._values_wanted:
            values = batch.values if whole else batch.values[at:behind]
            self._keep(values)
            self.bytes += batch.header.raw_length if whole else sum(map(len, values))
        self._runs.append((offset, sequence, time, count))
        if self._keys_wanted and (batch.keys is not None or self.keys is not None):
            self.keys = _grown(self.keys, before, batch.keys, at, behind)
        if self._headers_wanted and (batch.headers is not None or self.headers is not None):
            self.headers = _grown(self.headers, before, batch.headers, at, behind)
        for name, of_batch in self._others_wanted:
            column = getattr(batch, of_batch)
            if column is not None or name in self.others:
                self.others[name] = _grown(self.others.get(name), before, column, at, behind)
        if batch.times is not None:
            self._own_times.append((before, batch.times[at:behind]))
        self.count = before + count

    def _keep(self, values: Sequence[bytes]) -> None:
        if self._decoded or len(self.values) + len(values) < SETTLE:
            self.values += values
            return
        if self.values:
            self.values += values
            values, self.values = self.values, []
        self._arrays.append(pa.array(values, pa.binary()))

    # -- columns ------------------------------------------------------------------------------------------------

    def binary(self) -> pa.Array:
        """The column of raw values."""
        rest = [pa.array(self.values, pa.binary())] if self.values else []
        arrays = self._arrays + rest
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def places(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns offset, sequence and time (microseconds)."""
        runs = np.array(self._runs, dtype=np.int64)
        counts = runs[:, 3]
        if len(runs) == 1:
            within = np.arange(self.count, dtype=np.int64)
        else:
            begins = np.cumsum(counts) - counts
            within = np.arange(self.count, dtype=np.int64) - np.repeat(begins, counts)
        times = np.repeat(runs[:, 2], counts)
        for row, own in self._own_times:
            given = [(row + at, time) for at, time in enumerate(own) if time is not None]
            if given:
                rows, said = zip(*given, strict=True)
                times[list(rows)] = said
        return {
            "offset": np.repeat(runs[:, 0], counts) + within,
            "sequence": np.repeat(runs[:, 1], counts) + within,
            "time": times,
        }


def _grown(known: list[Any] | None, before: int, column: Sequence[Any] | None, at: int, behind: int) -> list[Any]:
    """A column and the next one, where either may be absent."""
    grown: list[Any] = [None] * before if known is None else known
    grown.extend([None] * (behind - at) if column is None else column[at:behind])
    return grown


class RecordBatchBuilder:
    """Makes record batches of one schema, whose columns are what `layout` says."""

    def __init__(self, schema: pa.Schema, layout: ColumnLayout = PLAIN_LAYOUT) -> None:
        self.schema, self._layout = schema, layout
        own = [layout.own.get(name) for name in schema.names]  # None: of the type
        self._has_places, self._has_typed = not _PLACES.isdisjoint(own), None in own
        self.needs = _needs(own)
        self._constants: dict[str, tuple[object, pa.Array]] = {}

    def __repr__(self) -> str:
        return f"<RecordBatchBuilder {', '.join(self.schema.names)}>"

    def buffer(self, topic: str, epoch: int) -> RowBuffer:
        """An empty buffer for records of a topic, which keeps what the columns are made of."""
        return RowBuffer(topic, epoch, decoded=self._layout.typed is not None, needs=self.needs)

    def batch(self, rows: RowBuffer) -> pa.RecordBatch:
        """The rows as a record batch. There is one at least."""
        places = rows.places() if self._has_places else {}
        typed = self._decoded(rows) if self._has_typed else {}
        own = self._layout.own
        arrays = [
            self._column(field, own[field.name], rows, places) if field.name in own else typed[field.name]
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _decoded(self, rows: RowBuffer) -> dict[str, pa.Array]:
        """The columns of the type. An empty value that has a key is a tombstone: nothing is left of it."""
        typed = self._layout.typed
        values: Sequence[bytes | None] = rows.values
        assert typed is not None, "there are no other columns"
        if rows.keys is not None and b"" in values:
            both = zip(values, rows.keys, strict=True)
            values = [None if value == b"" and key is not None else value for value, key in both]
        made = typed.columns(values, lambda at: (rows.topic, int(rows.places()["offset"][at])))
        return {field.name: column for field, column in zip(typed.fields, made, strict=True)}

    def _column(self, field: pa.Field, name: str, rows: RowBuffer, places: Mapping[str, Any]) -> pa.Array:
        count = rows.count
        if name in places:
            return pa.array(places[name]).view(field.type)
        if name == "value":
            return rows.binary()
        if name == "topic":
            return self._constant(field, rows.topic, count)
        if name == "epoch":
            return self._constant(field, rows.epoch, count)
        if name == "key":
            return self._constant(field, None, count) if rows.keys is None else pa.array(rows.keys, field.type)
        if name in _OTHERS:
            others = rows.others.get(name)
            if others is not None and name == "priority":
                others = [one or None for one in others]  # 0 is none: a batch says it of all its records, or of none
            return self._constant(field, None, count) if others is None else pa.array(others, field.type)
        if rows.headers is None:
            return self._constant(field, None if name == "traceparent" else (), count)
        if name == "traceparent":
            return pa.array([None if one is None else one.get(TRACE) for one in rows.headers], field.type)
        return _headers(rows.headers, field.type)

    def _constant(self, field: pa.Field, value: object, count: int) -> pa.Array:
        """The same for every row; made once, and cut to measure.

        What only the records of one topic have is made anew for the next one: there may be thousands of small ones.
        """
        last, known = self._constants.get(field.name, (None, None))
        if known is None or last != value or len(known) < count:
            size = max(count, ROWS) if value in (None, ()) else count
            if value == ():
                known = _header_array(np.zeros(size + 1, dtype=np.int32), [], [], field.type)
            elif value is None:
                known = pa.nulls(size, field.type)
            else:
                known = pa.repeat(pa.scalar(value, field.type), size)
            self._constants[field.name] = (value, known)
        return known[:count]


_PLACES = {"offset", "sequence", "time"}
_OTHERS = {"due": "due", "expires": "expires", "priority": "priorities"}  # and what a batch calls them


def _needs(own: Collection[str | None]) -> frozenset[str]:
    """The fields of a record that the columns need. Those of a type need its key, too: it marks tombstones."""
    needs = {one for one in own if one is not None}
    if "traceparent" in needs:
        needs.add("headers")
    return frozenset(needs | {"value", "key"} if None in own else needs)


def _headers(headers: Sequence[Mapping[str, str] | None], kind: pa.DataType) -> pa.Array:
    """A column of maps or of lists; a record without headers has an empty one."""
    found = [one or NO_HEADERS for one in headers]
    ends = np.cumsum(np.fromiter(map(len, found), dtype=np.int32, count=len(found)), dtype=np.int32)
    offsets = np.concatenate((np.zeros(1, dtype=np.int32), ends))
    items = chain.from_iterable(one.values() for one in found)
    return _header_array(offsets, list(chain.from_iterable(found)), list(items), kind)


def _header_array(offsets: Any, names: list[str], texts: list[str], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.MapType):
        made = pa.array(names, kind.key_type), pa.array(texts, kind.item_type)
        return pa.MapArray.from_arrays(pa.array(offsets), *made, type=kind)
    pair: pa.StructType = kind.value_type
    columns = [pa.array(names, pair.field(0).type), pa.array(texts, pa.string()).cast(pair.field(1).type)]
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.StructArray.from_arrays(columns, fields=list(pair)), type=kind
    )


def merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, small batches put together: Spark takes a millisecond for each, however small it is."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if small and (rows + batch.num_rows > ROWS or size + batch.nbytes > BYTES):
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows, size = [], 0, 0
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)
