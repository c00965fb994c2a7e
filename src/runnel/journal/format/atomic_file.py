"""Small files that are replaced as a whole: write a temporary file, sync it, rename it.

Most hold one value: eight bytes that say what the file is, its version, a crc, and the value as msgpack.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, TypeVar

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.errors import ArchiveDamaged, FormatUnknown, JournalDamaged
from runnel.journal.format.segment import TEMPORARY
from runnel.journal.storage import Storage

T = TypeVar("T")

_HEADER = Struct("<8sII")  # magic, version, crc


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


def encode_value(magic: bytes, version: int, value: Any) -> bytes:
    """The bytes of a file that holds one value."""
    body = msgspec.msgpack.encode(value)
    return _HEADER.pack(magic, version, crc_of(body)) + body


def decode_value(
    data: bytes,
    magic: bytes,
    version: int,
    kind: type[T],
    file: str,
    other: str,
    *,
    advice: str = "",
    damaged: type[JournalDamaged | ArchiveDamaged] = JournalDamaged,
) -> T:
    """The value in the bytes of `file`; `other` says that it is something else, `advice` what to do about it."""
    if len(data) < _HEADER.size or data[:8] != magic:
        raise damaged(file, 0, f"{other}{advice}")
    _, found, crc = _HEADER.unpack_from(data)
    if found != version:
        raise FormatUnknown(file, found, version)
    if crc_of(data[_HEADER.size :]) != crc:
        raise damaged(file, _HEADER.size, f"the crc is wrong{advice}")
    return msgspec.msgpack.decode(data[_HEADER.size :], type=kind)
