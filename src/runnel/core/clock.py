"""The port through which a broker knows the time and asks to be called later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something asked for that can still be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it already happened."""


class Clock(Protocol):
    """Wall-clock seconds, and timers. The system's, or one that a test moves."""

    def time(self) -> float:
        """Seconds since the Unix epoch."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the event loop after `delay` seconds."""
