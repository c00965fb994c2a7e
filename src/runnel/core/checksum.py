"""CRC-32C, the checksum of everything on disk and on the wire, in hardware where the CPU has it."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

crc_of: Callable[[bytes], int] = google_crc32c.value
"""The crc of some bytes."""

crc_extended: Callable[[int, bytes], int] = google_crc32c.extend
"""Extend the crc of earlier bytes by `data`."""

BEFORE_CRC = 0x9BE09BAB
"""Four zero bytes bring this crc to 0, where every crc starts. XORed with four others, it is brought there by those."""


def crc_behind(data: bytes) -> int:
    """The crc of all that follows the first four bytes, which is not copied for it."""
    if len(data) < 4:
        return 0
    return crc_extended(int.from_bytes(data[:4], "little") ^ BEFORE_CRC, data)
