"""What is handed to a journal to be written, and how far it came when that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runnel.journal.entry import Part


class Draft(NamedTuple):
    """An entry to be written: its parts, and its time in microseconds."""

    parts: Sequence[Part]
    time: int


class WriteFailed(Exception):
    """A write stopped: drafts before `done` are durable, before `begun` unknown, the others not written."""

    def __init__(self, done: int, begun: int, cause: Exception) -> None:
        self.done, self.begun, self.cause = done, begun, cause
        super().__init__(f"{done} entries were written, {begun - done} perhaps: {cause}")
