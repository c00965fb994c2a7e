"""Log lines that any client can cause, at a bounded rate."""

from __future__ import annotations

import logging
import time

INTERVAL = 10.0  # seconds between two lines


class LimitedLog:
    """Writes one warning every `INTERVAL` seconds at most; the next one says how many were left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = 0.0  # when the next line may be written
        self._left_out = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Write the line, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out:,} more like it since the last line)" if self._left_out else ""
        self._next, self._left_out = now + INTERVAL, 0
        self._log.warning(message + "%s", *arguments, more)
