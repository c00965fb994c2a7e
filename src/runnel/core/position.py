"""Where a record stands in its topic: (epoch, offset).

A topic that is deleted and made again has a new epoch, so an old position
never passes for one in the new topic.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from runnel.core.errors import InvalidOption


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A record's place in its topic. Printed and parsed as `epoch:offset`."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str(position)` printed."""
        epoch, colon, offset = text.partition(":")
        if not (colon and epoch.isascii() and epoch.isdigit() and offset.isascii() and offset.isdigit()):
            raise InvalidOption("position", text, "expected 'epoch:offset', two whole numbers")
        return cls(int(epoch), int(offset))


class Span(NamedTuple):
    """The first and the last position of what one `publish_many` appended; unpacks as `first, last`."""

    first: Position
    last: Position

    def records(self) -> int:
        """How many records it was."""
        return self.last.offset - self.first.offset + 1
