"""Writing several pieces to a transport at once, on every event loop and every Python."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


def write_all(transport: asyncio.WriteTransport, pieces: Iterable[bytes]) -> None:
    """Write `pieces`, one after the other.

    The `writelines` of asyncio in Python 3.12 and 3.13 never pauses the protocol, so that a peer that does not read
    makes the buffer grow without bound; and after a lost connection it calls itself for ever. There the pieces are
    joined, as Python 3.11 does. uvloop's has neither fault, and copies nothing.
    """
    if type(transport).__module__.partition(".")[0] == "asyncio":
        transport.write(b"".join(pieces))
    else:
        transport.writelines(pieces)
