"""The clients of a server as the console shows them: who, from where, how much they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.server.tcp_info import tcp_info

if TYPE_CHECKING:
    from runnel.server.connections import Connections


def transferred(connection: Any) -> tuple[int, int] | None:
    """Bytes (received, sent) over a TCP connection so far; None where the system does not report it."""
    info = tcp_info(connection)
    return None if info is None else (info.received, info.acked)


class ConnectionTrends:
    """All connections of a server, with the bytes a second that each received and sent since it was last looked."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._before: dict[int, tuple[int, int]] = {}
        self._at: float | None = None
        self._rows: list[dict[str, Any]] = []

    def rows(self, now: float) -> list[dict[str, Any]]:
        """All of them, as of `now`, the time of a sample. Bytes count as received or sent from the server's side."""
        if now == self._at:
            return self._rows
        rows, seen = [], {}
        for number, peer in self._connections.numbered():
            row: dict[str, Any] = {"connection": number, **peer.describe()}
            counts = transferred(peer.raw_socket)
            if counts is not None:
                seen[number] = counts
                row["received"], row["sent"] = counts
                before = self._before.get(number)
                if before is not None and self._at is not None:
                    seconds = max(1e-3, now - self._at)
                    row["received_rate"], row["sent_rate"] = (
                        round((value - then) / seconds, 1) for value, then in zip(counts, before, strict=True)
                    )
            rows.append(row)
        self._rows, self._before, self._at = rows, seen, now
        return rows
