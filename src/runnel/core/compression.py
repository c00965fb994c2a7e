"""Compression of batch bodies: zstd for size, lz4 for speed.

`decompress` returns exactly as many bytes as the header promised, or raises: a few bytes that claim to
be gigabytes are refused before memory is allocated. The libraries are the extra `compression` and are
loaded on first use.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from runnel.core.errors import BadBatch, InvalidOption, NotSupported

COMPRESSIONS = ("zstd", "lz4")

# A context of zstd costs more to make than a batch to compress, and serves one thread at a time.
# A thread takes one out of its list, so a list grows to the number of threads that met.
_compressors: list[Any] = []
_decompressors: list[Any] = []


def check_compression(name: object) -> str:
    """`name`, when it is a compression that runnel knows."""
    if isinstance(name, str):
        if name in COMPRESSIONS:
            return name
        near = get_close_matches(name.lower(), COMPRESSIONS, 1)
    else:
        near = []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidOption("compression", name, f"expected 'zstd' or 'lz4'{hint}")


def compress(kind: str, data: bytes) -> bytes:
    """`data` made smaller, or larger when there is nothing to gain."""
    if check_compression(kind) == "lz4":
        # The bare block: a frame adds a length and a checksum, and a batch has both.
        packed: bytes = _library("lz4.block", kind).compress(data, store_size=False)
        return packed
    zstd = _library("zstandard", kind)
    try:
        context = _compressors.pop()
    except IndexError:
        context = zstd.ZstdCompressor()
    packed = context.compress(data)
    _compressors.append(context)
    return packed


def decompress(kind: str, data: bytes | memoryview, raw_size: int) -> bytes:
    """The `raw_size` bytes that were compressed; anything shorter, longer or broken is a `BadBatch`."""
    library = _library("lz4.block" if check_compression(kind) == "lz4" else "zstandard", kind)
    try:
        raw = (_unlz4 if kind == "lz4" else _unzstd)(library, data, raw_size)
    except Exception as error:  # each library has errors of its own
        raise BadBatch(f"its body is not {kind} of {raw_size:,} bytes: {error}") from error
    if len(raw) != raw_size:
        raise BadBatch(f"its body is {len(raw):,} bytes of {kind}, not {raw_size:,}")
    return raw


def _unlz4(lz4: ModuleType, data: bytes | memoryview, raw_size: int) -> bytes:
    if raw_size > 255 * len(data):  # a byte of lz4 expands to at most 255 bytes
        raise ValueError("it cannot hold that much")
    raw: bytes = lz4.decompress(data, uncompressed_size=raw_size)
    return raw


def _unzstd(zstd: ModuleType, data: bytes | memoryview, raw_size: int) -> bytes:
    # The library allocates the size that the frame claims, whatever limit it is given: check the claim first.
    claimed = zstd.frame_content_size(data)
    if claimed != raw_size:
        raise ValueError("it claims no length" if claimed < 0 else f"it claims {claimed:,} bytes")
    try:
        context = _decompressors.pop()
    except IndexError:
        context = zstd.ZstdDecompressor()
    raw: bytes = context.decompress(data, allow_extra_data=False)
    _decompressors.append(context)
    return raw


@cache
def _library(name: str, kind: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise NotSupported(
            f"compression={kind!r}",
            f"the package {name.partition('.')[0]!r} is not installed; pip install 'runnel-mq[compression]'",
        ) from None
