"""Small files that are replaced as a whole: write a temporary file, sync it, rename it."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.journal.format.segment import TEMPORARY
from runnel.journal.storage import Storage


def replace_file(storage: Storage, name: str, pieces: Sequence[bytes]) -> None:
    """A file of `pieces`, durable but for its name. The caller syncs names before anything refers to it."""
    file = storage.create(name + TEMPORARY)
    try:
        file.write(0, pieces)
        file.sync()
        storage.rename(name + TEMPORARY, name)
    finally:
        file.close()


def read_whole(storage: Storage, name: str) -> bytes:
    """All of a file. Raises FileNotFoundError."""
    file = storage.open(name)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
