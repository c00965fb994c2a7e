"""What stands behind a connection: a session that makes sense of its frames, and sources of frames to send.

Above: connection, which calls them; native, relay, which are sessions; streams, members, which are sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[int, int, int, bytes], None]
"""What to do with a frame: (flags, extra, id, payload)."""


class Source(Protocol):
    """Somebody with frames to send as long as there is room."""

    queued: bool  # whether it waits for its turn; kept by the connection

    def pump(self, room: int) -> bool:
        """Send a little, `room` bytes or a frame more; whether there may be more now."""


class Session(Protocol):
    """Who makes sense of the frames of a connection."""

    handlers: list[Handler]  # by kind

    def opened(self) -> None:
        """The connection stands."""

    def lost(self) -> None:
        """It is gone, and all that was held for it is to be released."""

    def stranger(self, first: bytes) -> bytes | None:
        """What to answer to somebody who speaks something else; None: an ERROR frame."""

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: say goodbye, answer what is under way, and close."""

    def describe(self) -> dict[str, Any]:
        """What it is and holds."""


class Nobody:
    """The session of a connection that is gone."""

    handlers: list[Handler]

    def __init__(self) -> None:
        self.handlers = []

    def opened(self) -> None:
        """Nobody is there."""

    def lost(self) -> None:
        """Nobody was."""

    def stranger(self, first: bytes) -> bytes | None:
        """Nobody asks."""
        return None

    def drain(self, reason: str, retry: float | None) -> None:
        """Nobody hears it."""

    def describe(self) -> dict[str, Any]:
        """Nothing."""
        return {}


NOBODY = Nobody()
