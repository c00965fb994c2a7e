"""Frames and record batches of the native protocol, written from docs/reference/wire.md and disk.md alone.

It shares no code with runnel: a mistake in both would have to be made twice.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import google_crc32c
import msgspec

from tests.golden.masking import Masker

PREFACE = b"RNL\x01"
KINDS = (
    "HELLO",
    "WELCOME",
    "PING",
    "PONG",
    "PUBLISH",
    "PUBLISHED",
    "CALL",
    "REPLY",
    "ERROR",
    "CANCEL",
    "SUBSCRIBE",
    "SUBSCRIBED",
    "CREDIT",
    "DELIVER",
    "GAP",
    "END",
    "UNSUBSCRIBE",
    "GRANT",
    "SETTLE",
    "LAPSED",
    "GOODBYE",
)
COLUMNS = ("values", "keys", "headers", "times", "due", "expires", "priorities", "deltas")

_HEADER = struct.Struct("<IBBHI")
_BATCH = struct.Struct("<IBBHIIIQQIB7x")
_PUBLISHED, _DELIVER, _GRANT = struct.Struct("<QQQ"), struct.Struct("<QQQq"), struct.Struct("<QQQqQQI")

pack = msgspec.msgpack.encode


class Frame(NamedTuple):
    """One frame: its kind by name, and the bytes behind its header."""

    kind: str
    id: int = 0
    payload: bytes = b""
    flags: int = 0
    extra: int = 0

    def encode(self) -> bytes:
        """The frame as it travels."""
        return _HEADER.pack(8 + len(self.payload), KINDS.index(self.kind) + 1, *self[3:], self.id) + self.payload

    def __str__(self) -> str:
        return f"{self.kind} id={self.id}" + (f" flags={self.flags}" if self.flags else "")


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames in `data`, and the rest."""
    found, at = [], 0
    while len(data) - at >= _HEADER.size:
        length, kind, flags, extra, id = _HEADER.unpack_from(data, at)
        if len(data) - at < 4 + length:
            break
        found.append(Frame(KINDS[kind - 1], id, data[at + _HEADER.size : at + 4 + length], flags, extra))
        at += 4 + length
    return found, data[at:]


# -- record batches -----------------------------------------------------------------------------------------------


def batch(*values: bytes, producer: int = 0, sequence: int = 0, **columns: list[Any]) -> bytes:
    """A record batch without compression, of these values and columns."""
    there = {"values": list(values), **columns}
    body = pack([there[name] for name in COLUMNS if name in there])
    bits = sum(1 << at for at, name in enumerate(COLUMNS) if name in there)
    head = _BATCH.pack(0, 1, 0, bits, len(values), len(body), len(body), producer, sequence, 0, 0)[4:]
    return int(google_crc32c.value(head + body)).to_bytes(4, "little") + head + body


def read_batch(data: bytes) -> dict[str, Any]:
    """A record batch, decoded. One that is compressed shows its header alone."""
    crc, _, flags, bits, count, stored, raw, producer, sequence, schema, content = _BATCH.unpack_from(data)
    if crc != google_crc32c.value(data[4:]) or len(data) != _BATCH.size + stored:
        raise ValueError("the batch is damaged")
    found = {"count": count, "raw": raw, "producer": producer, "sequence": sequence}
    found |= {"schema": schema, "content": content, "compression": flags}
    if not flags:
        names = [name for at, name in enumerate(COLUMNS) if bits >> at & 1]
        found |= zip(names, msgspec.msgpack.decode(data[_BATCH.size :]), strict=True)
    return found


def _masked_batch(data: bytes, masker: Masker) -> tuple[bytes, dict[str, Any]]:
    """A batch with its times and headers masked. What is not masked stays byte by byte as it was."""
    found = read_batch(data)
    names = [name for name in COLUMNS if name in found]
    masked = {name: masker.value(found[name], name) for name in names}
    if masked != {name: found[name] for name in names}:
        columns = {name: masked[name] for name in names if name != "values"}
        data = batch(*masked["values"], producer=found["producer"], sequence=found["sequence"], **columns)
    return data, found | masked


# -- what a frame says --------------------------------------------------------------------------------------------


def masked(frame: Frame, masker: Masker) -> tuple[Frame, Any]:
    """A frame of a server with all that is random masked, and what it says, decoded."""
    payload, says = _payload(frame, masker)
    return frame._replace(payload=payload), _readable(says)


def _payload(frame: Frame, masker: Masker) -> tuple[bytes, Any]:
    data = frame.payload
    match frame.kind:
        case "PING" | "PONG" | "END":
            return data, data
        case "PUBLISHED":
            epoch, *offsets = _PUBLISHED.unpack(data)
            shown = (masker.number(epoch), *offsets)
            return _PUBLISHED.pack(*shown), dict(zip(("epoch", "first", "last"), shown, strict=True))
        case "DELIVER" | "GRANT":
            layout = _DELIVER if frame.kind == "DELIVER" else _GRANT
            epoch, offset, sequence, time, *rest = layout.unpack_from(data)
            shown = (masker.number(epoch), offset, sequence, masker.number(time), *rest)
            topic = data[layout.size : layout.size + frame.extra]
            records, decoded = _masked_batch(data[layout.size + frame.extra :], masker)
            names = ("epoch", "offset", "sequence", "time", "lease", "place", "attempt")
            says = dict(zip(names, shown, strict=False)) | {"topic": topic.decode(), "batch": decoded}
            return layout.pack(*shown) + topic + records, says
    says = msgspec.msgpack.decode(data)
    if frame.kind == "REPLY" and isinstance(says, dict) and isinstance(says.get("batch"), bytes):
        records, decoded = _masked_batch(says["batch"], masker)
        shown_map = masker.value(says) | {"batch": records}
        return pack(shown_map), shown_map | {"batch": decoded}
    shown_any = masker.value(says)
    return pack(shown_any), shown_any


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_readable(one) for one in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
