"""The port to a folder of files: all that the journal asks of an operating system.

Nothing here is durable before it is synced: bytes of a file by `File.sync`, names (created,
renamed, removed) by `Storage.sync_names`. Three storages keep this contract: the system's
(os_storage), and in `runnel.testing` one in memory that loses power and one that fails.
Below: nothing. Above: every module of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class File(Protocol):
    """One open file. Reads and writes say where; there is no current position."""

    @property
    def name(self) -> str:
        """Its name when it was opened."""

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `pieces`, one behind the other, from `offset` on. Raises OSError unless all were written."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""

    def size(self) -> int:
        """How long the file is."""

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long and reserve the space; new bytes read as zeros."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return when everything written to this file, and its length, is durable."""

    def map(self) -> memoryview:
        """The whole file, to be read without copying. It must not change any more."""

    def close(self) -> None:
        """Let go of it. Closing twice is harmless."""


class Storage(Protocol):
    """One folder of files, without folders in it."""

    def create(self, name: str) -> File:
        """A new, empty file, open for reading and writing. An old one of that name is cut to nothing."""

    def open(self, name: str, *, writable: bool = False) -> File:
        """A file that is there. Raises FileNotFoundError."""

    def names(self) -> list[str]:
        """The files there are, sorted."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of any other file that has it."""

    def remove(self, name: str) -> None:
        """Remove a file; those who have it open go on reading. Raises FileNotFoundError."""

    def sync_names(self) -> None:
        """Return when every create, rename and remove so far is durable."""

    def free(self) -> int:
        """How many bytes may still be written before the disk is full."""
