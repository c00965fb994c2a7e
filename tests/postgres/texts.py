"""PostgreSQL's text format as its output functions write it, for tests: arrays and composite values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias, Union

Nested: TypeAlias = Union[str, list["Nested"], None]  # noqa: UP007  # `|` cannot name itself


def array_text(value: Nested, delimiter: str = ",") -> str:
    """As `array_out` writes it: quotes only where they are needed."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + delimiter.join(array_text(one, delimiter) for one in value) + "}"
    if value and value.upper() != "NULL" and not re.search(rf'["\\{{}}{re.escape(delimiter)} \t\n\v\f\r]', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def composite_text(fields: Iterable[str | None]) -> str:
    """As `record_out` writes it."""
    return "(" + ",".join("" if field is None else _field(field) for field in fields) + ")"


def _field(value: str) -> str:
    if value and not re.search(r'["\\(), \t\n\v\f\r]', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\1\1", value) + '"'
