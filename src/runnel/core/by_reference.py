"""Python objects that pass by reference, on topics of the type `object` that are kept in memory.

The object travels as an attribute of the bytes that replace it. Those bytes name its type, so a program that finds
them elsewhere (a dead letter, a reader without the type) can tell; the object itself never reaches a disk or a
connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

REASON = "its values are Python objects that pass by reference, which stay in their process"
MAX_NAME = 200  # characters of a class that are shown


class ByReference(bytes):
    """The value of a record of such a topic."""

    referent: Any  # the object

    is_used = False  # whether this process has made one: without any, no value need be looked at

    @classmethod
    def of(cls, value: object) -> ByReference:
        """The stored bytes that reference `value`."""
        kind = type(value)
        made = cls(f"<{kind.__module__}.{kind.__qualname__[:MAX_NAME]} by reference>".encode(errors="replace"))
        made.referent = value
        cls.is_used = True
        return made


def has_references(values: Iterable[bytes]) -> bool:
    """Whether one of `values` is an object that must not leave this process."""
    return ByReference.is_used and any(value.__class__ is ByReference for value in values)
