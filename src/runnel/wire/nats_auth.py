"""Signatures with which a NATS client proves who it is: nkey seeds, and .creds files.

A server sends a nonce; the client signs it with its Ed25519 seed (RFC 8032). The seed itself is never sent. It is
written in plain Python: a connection signs once, in some ten milliseconds, and no library is needed for that.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode, urlsafe_b64encode
from binascii import Error as BadBase32
from hashlib import sha512

from runnel.core.errors import InvalidOption

_SEED, _USER = 18 << 3, 20 << 3
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+?)-{3,}\s+([A-Za-z0-9_\-.=]+)\s+-{3,}END [A-Z ]+?-{3,}")


class Nkey:
    """The key of a seed such as `SUA...`. It signs; its `public` key is what a server knows."""

    __slots__ = ("_point", "_prefix", "_scalar", "public")

    def __init__(self, seed: str) -> None:
        raw, kind = _seed(seed)
        digest = sha512(raw).digest()
        scalar = int.from_bytes(digest[:32], "little")
        self._scalar = scalar & ((1 << 254) - 8) | (1 << 254)
        self._prefix = digest[32:]
        self._point = _compressed(_times(self._scalar, _BASE))
        body = bytes([kind]) + self._point
        self.public = b32encode(body + _crc16(body).to_bytes(2, "little")).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return f"<Nkey {self.public}>"

    def sign(self, nonce: bytes) -> bytes:
        """The signature of a nonce, 64 bytes."""
        number = int.from_bytes(sha512(self._prefix + nonce).digest(), "little") % _ORDER
        point = _compressed(_times(number, _BASE))
        challenge = int.from_bytes(sha512(point + self._point + nonce).digest(), "little") % _ORDER
        return point + ((number + challenge * self._scalar) % _ORDER).to_bytes(32, "little")

    def signature(self, nonce: str) -> str:
        """The signature of the server's nonce as CONNECT carries it."""
        return urlsafe_b64encode(self.sign(nonce.encode())).rstrip(b"=").decode()


def read_creds(text: str) -> tuple[str, Nkey]:
    """The JWT of a user and the key that signs for it, from the text of a .creds file."""
    found = {name.strip(): value for name, value in _BLOCK.findall(text)}
    token = next((value for name, value in found.items() if "JWT" in name), None)
    seed = next((value for name, value in found.items() if "SEED" in name), None)
    if token is None or seed is None:
        raise InvalidOption("creds", "...", "the file holds no user JWT and nkey seed; `nsc generate creds` writes one")
    return token, Nkey(seed)


def _seed(text: str) -> tuple[bytes, int]:
    """The 32 bytes of a seed, and the kind of its public key."""
    advice = "expected a user's seed, which begins with SU"
    try:
        data = b32decode(text.strip().encode() + b"=" * (-len(text.strip()) % 8))
    except (BadBase32, ValueError, UnicodeError):
        raise InvalidOption("nkey", "...", advice) from None
    if len(data) != 36 or _crc16(data[:-2]) != int.from_bytes(data[-2:], "little"):
        raise InvalidOption("nkey", "...", f"it was cut short or mistyped: {advice}")
    kind = (data[0] & 7) << 5 | data[1] >> 3
    if data[0] & 0xF8 != _SEED or kind != _USER:
        raise InvalidOption("nkey", "...", advice)
    return data[2:-2], kind


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc


# -- Edwards 25519, in extended coordinates (x, y, z, x * y / z) -----------------------------------------

_Point = tuple[int, int, int, int]

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_BASE_Y = 4 * pow(5, _P - 2, _P) % _P


def _root_of(square: int) -> int:
    """The even square root, which exists for the base point."""
    root = pow(square, (_P + 3) // 8, _P)
    if (root * root - square) % _P:
        root = root * pow(2, (_P - 1) // 4, _P) % _P
    return root if root % 2 == 0 else _P - root


_BASE_X = _root_of((_BASE_Y * _BASE_Y - 1) * pow(_D * _BASE_Y * _BASE_Y + 1, _P - 2, _P) % _P)
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def _plus(one: _Point, two: _Point) -> _Point:
    a = (one[1] - one[0]) * (two[1] - two[0]) % _P
    b = (one[1] + one[0]) * (two[1] + two[0]) % _P
    c = 2 * one[3] * two[3] * _D % _P
    d = 2 * one[2] * two[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(factor: int, point: _Point) -> _Point:
    found: _Point = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            found = _plus(found, point)
        point = _plus(point, point)
        factor >>= 1
    return found


def _compressed(point: _Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
