"""How the loop and the commit thread wake each other: through pipes, not locks.

A thread that waits for a lock is woken while the one that released it still holds the interpreter, and
both fight for it. And of all descriptors a pipe is woken best: the system knows that the writer is about
to sleep, and runs the reader where it stands, instead of waking another core.
"""

from __future__ import annotations

import os
import select


class Doorbell:
    """Rung by any thread, heard by one that waits, or by a loop that watches `fd`. Rings not heard yet are one."""

    __slots__ = ("_poll", "_write", "fd")

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._poll: select.poll | None = None

    def ring(self) -> None:
        """Wake whoever waits, now or when it waits next."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it was rung so often that it cannot be missed

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, or for so long; whether it rang."""
        if seconds is not None:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self.fd, select.POLLIN)
            if not self._poll.poll(max(0.0, seconds) * 1000):
                return False
        self.hush()
        return True

    def hush(self) -> None:
        """Forget that it rang. Waits for it, if it did not."""
        os.read(self.fd, 4096)

    def close(self) -> None:
        """Let go of the descriptors. Nobody may ring or wait any more."""
        os.close(self.fd)
        os.close(self._write)
