"""The counters of a TCP connection in Linux: bytes, and whether the peer still acknowledges them.

The system counts anyway, so nothing is counted on the hot path. On other systems these functions return nothing.
"""

from __future__ import annotations

import struct
import sys
from socket import IPPROTO_TCP
from typing import Any, NamedTuple

# In `struct tcp_info`: tcpi_unacked (segments), tcpi_last_ack_recv (milliseconds ago), and since Linux 4.1
# tcpi_bytes_acked (what the peer has) and tcpi_bytes_received.
_TCP_INFO = 11
_FIELDS = struct.Struct("=24xI28xI60xQQ")

BETWEEN_LOOKS = 3.0  # seconds: after a longer pause nothing is known of the time in between
UNANSWERED = 6.0  # seconds without an acknowledgement of sent bytes, after which the peer counts as disconnected


class TcpInfo(NamedTuple):
    """The counts of one connection."""

    in_flight: int  # 0 also where the peer is up and its window is closed
    last_ack: int  # milliseconds since the last acknowledgement
    acked: int  # bytes
    received: int


def tcp_info(connection: Any) -> TcpInfo | None:
    """The counts of a socket; None where the system does not say."""
    if connection is None or sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(IPPROTO_TCP, _TCP_INFO, _FIELDS.size)
    except (OSError, TypeError):
        return None  # a Unix socket, or one that is closed, or an event loop that shows no socket
    return TcpInfo(*_FIELDS.unpack(info)) if len(info) == _FIELDS.size else None


class LostPeer:
    """Notices that nothing in flight was acknowledged for `UNANSWERED` seconds. Ask it every second or so.

    A peer that is alive and does not read acknowledges that its window is closed, and nothing is in flight to it: it is
    not lost. `TCP_USER_TIMEOUT` would end it, too.
    """

    __slots__ = ("_acked", "_looked", "_since")

    def __init__(self) -> None:
        self._acked = -1
        self._looked = 0.0  # the time of the last query
        self._since = 0.0  # since when something is in flight and nothing was acknowledged

    def look(self, info: TcpInfo | None, now: float) -> bool:
        """Whether the peer is unreachable."""
        if info is None:
            return False
        looked, self._looked = self._looked, now
        if not info.in_flight or info.acked != self._acked or now > looked + BETWEEN_LOOKS:
            self._acked, self._since = info.acked, now
            return False
        return now >= self._since + UNANSWERED and info.last_ack >= UNANSWERED * 500
