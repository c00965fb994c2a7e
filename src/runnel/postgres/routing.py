"""From a row to a record: its topic, key, headers and value, by the table's configuration.

A column fills exactly one token of the topic. A row that cannot be routed is not dropped: `Unroutable` says why,
and the relay publishes it as a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from runnel.core.pattern import MAX_NAME_BYTES
from runnel.postgres.config import TableConfig
from runnel.postgres.types import TypeCatalog, plain_bytes, row_encoder
from runnel.wire.pgoutput import UNCHANGED, ColumnValue, Relation

CACHED_TOPICS = 65_536  # names that are kept by the values of their columns

_NO_TOKEN = re.compile(r"[.*>$\s\x00-\x20\x7f-\x9f]")
_NO_HEADER = re.compile(r"[\r\n\0]")


class Unroutable(Exception):
    """A row that cannot be published as configured, and why."""


class TooLargeValue(Exception):
    """A value beyond `max_value`, without a pointer to publish in its place."""


class RowRouter:
    """Routes the rows of one table, as long as it has one shape."""

    def __init__(self, table: TableConfig, relation: Relation, catalog: TypeCatalog) -> None:
        self.table, self.name = table, relation.name
        self.columns = tuple(column.name for column in relation.columns)
        self.shape = [[column.name, catalog.name(column.type_oid)] for column in relation.columns]
        self._is_key = [column.is_key for column in relation.columns]
        self._types = [column.type_oid for column in relation.columns]
        self._catalog = catalog
        self._fault: str | None = None  # why no row of this shape can be routed
        self._holes = [self._find(name, "topic") for name in table.template_columns]
        self._topics: dict[tuple[ColumnValue, ...], str] = {}
        self._headers = [(name, self._find(column, "headers")) for name, column in table.headers.items()]
        self._key, self._key_bytes = self._raw(table.key, "key")
        self._is_plain_key = self._key_bytes is plain_bytes
        self._pointer, self._pointer_bytes = self._raw(table.pointer, "pointer")
        self._value, self._value_bytes = self._raw(table.value_column, "value")
        self._encode_row = row_encoder(list(zip(self.columns, self._types, strict=True)), catalog)

    def _find(self, name: str, option: str) -> int:
        if name not in self.columns:
            self._fault = f"{self.name} has no published column {name!r}, which its {option} needs"
            return 0
        return self.columns.index(name)

    def _raw(self, name: str | None, option: str) -> tuple[int | None, Callable[[bytes], bytes]]:
        """The column `name`, and the function from its text to the bytes that it represents."""
        if name is None:
            return None, bytes
        at = self._find(name, option)
        return at, self._catalog.to_bytes(self._types[at]) if self._types else bytes

    # -- where a row goes ---------------------------------------------------------------------------------------

    def topic_of(self, row: Sequence[ColumnValue]) -> str:
        """The topic of a row; `Unroutable` says which column is in the way."""
        if self._fault is not None:
            raise Unroutable(self._fault)
        values = tuple([row[at] for at in self._holes])
        topic = self._topics.get(values)
        if topic is None:
            topic = self._filled(values)
            if len(self._topics) >= CACHED_TOPICS:
                self._topics.clear()
            self._topics[values] = topic
        return topic

    def _filled(self, values: Sequence[ColumnValue]) -> str:
        template, pieces = self.table.topic, self.table.template_pieces
        filled = [pieces[0]]
        for name, value, piece in zip(self.table.template_columns, values, pieces[1:], strict=True):
            if value is None:
                raise Unroutable(f"the column {name!r} is NULL, and the topic {template!r} needs it")
            token = _known(value, name).decode(errors="replace")
            if not token:
                raise Unroutable(f"the column {name!r} is empty, and the topic {template!r} needs it")
            if found := _NO_TOKEN.search(token):
                raise Unroutable(f"the column {name!r} holds {found.group()!r}, which no token of a topic may hold")
            filled += (token, piece)
        topic = "".join(filled)
        if len(topic.encode()) > MAX_NAME_BYTES:
            raise Unroutable(f"the topic would be {len(topic.encode())} bytes long, more than {MAX_NAME_BYTES}")
        return topic

    def key_of(self, row: Sequence[ColumnValue]) -> bytes | None:
        """The key of a row."""
        if self._key is None:
            return None
        value = row[self._key]
        if self._is_plain_key and value.__class__ is bytes:
            return value
        if value is None:
            if self.table.compact:
                raise Unroutable(f"the key {self.table.key!r} is NULL, and a compacted topic needs it")
            return None
        return _converted(self._key_bytes, _known(value, self.columns[self._key]), self.columns[self._key])

    def headers_of(self, row: Sequence[ColumnValue]) -> dict[str, str]:
        """The headers that come from columns; those of NULL and of unchanged columns are absent."""
        headers = {}
        for name, at in self._headers:
            if isinstance(value := row[at], bytes):
                headers[name] = text = value.decode(errors="replace")
                if _NO_HEADER.search(text):
                    raise Unroutable(f"the column {self.columns[at]!r} has several lines, and a header has one")
        return headers

    # -- what it says -------------------------------------------------------------------------------------------

    def value_of(self, row: Sequence[ColumnValue], *, is_delete: bool = False) -> bytes:
        """The value of a row: JSON of its columns, or one column raw. Of a deleted row columns may be unknown."""
        if self._value is None:
            try:
                value = self._encode_row(row)
            except ValueError as error:
                raise Unroutable(str(error)) from None
        else:
            raw, name = row[self._value], self.columns[self._value]
            if raw is None or (is_delete and raw is UNCHANGED):
                return b""
            value = _converted(self._value_bytes, _known(raw, name), name)
        if len(value) > self.table.max_value:
            return self._pointer_of(row, len(value))
        return value

    def _pointer_of(self, row: Sequence[ColumnValue], size: int) -> bytes:
        too_large = f"the value has {size} bytes, more than max_value ({self.table.max_value})"
        if self._pointer is None:
            raise TooLargeValue(f"{too_large}; raise max_value, or name a pointer column")
        pointer = row[self._pointer]
        if not isinstance(pointer, bytes):
            raise TooLargeValue(f"{too_large}, and the pointer column {self.table.pointer!r} has no value")
        return _converted(self._pointer_bytes, pointer, self.columns[self._pointer])

    def unchanged(self, row: Sequence[ColumnValue]) -> list[str]:
        """The columns that were not sent, since an UPDATE did not change them."""
        return [name for name, value in zip(self.columns, row, strict=True) if value is UNCHANGED]

    def key_only(self, row: Sequence[ColumnValue]) -> list[ColumnValue]:
        """An old row of which PostgreSQL sent the replica identity alone: its other columns are unknown, not NULL."""
        return [value if is_key else UNCHANGED for value, is_key in zip(row, self._is_key, strict=True)]

    def texts_of(self, row: Sequence[ColumnValue], columns: Sequence[str]) -> tuple[ColumnValue, ...]:
        """The values of some columns, as PostgreSQL wrote them."""
        return tuple([row[self.columns.index(name)] for name in columns if name in self.columns])

    def dead_letter_of(self, row: Sequence[ColumnValue]) -> bytes:
        """JSON of the row for a dead letter: as published, or of the plain texts. Empty beyond `max_value` bytes."""
        try:
            value = self._encode_row(row)
        except ValueError:
            texts = {
                name: None if text is None else text.decode(errors="backslashreplace")
                for name, text in zip(self.columns, row, strict=True)
                if text is not UNCHANGED
            }
            value = msgspec.json.encode(texts)
        return value if len(value) <= self.table.max_value else b""


def _known(value: ColumnValue, name: str) -> bytes:
    """A value that is not NULL, if it was sent."""
    if isinstance(value, bytes):
        return value
    raise Unroutable(f"the column {name!r} did not change and was not sent; give the table REPLICA IDENTITY FULL")


def _converted(convert: Callable[[bytes], bytes], text: bytes, name: str) -> bytes:
    try:
        return convert(text)
    except ValueError as error:
        raise Unroutable(f"column {name!r}: {error}") from None
