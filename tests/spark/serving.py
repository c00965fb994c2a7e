"""A server in a process of its own, whose cleaner has much to do: to be killed and started again.

Run as a program: folder, port.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import monotonic, sleep

import runnel
import runnel.blocking
from runnel.core.errors import Unreachable
from runnel.server import Server, ServerOptions
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.spark.driver import Driver


class Serving:
    """The server, which may be killed and comes back."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self._log, self._port = folder, log, free_port()
        self.url = f"runnel://127.0.0.1:{self._port}"
        self._running: Driver | None = None

    def start(self) -> None:
        self._running = Driver("tests.spark.serving", self.folder, self._port, log=self._log)
        end = monotonic() + PATIENCE
        while True:
            try:
                with runnel.blocking.open(self.url):
                    return
            except Unreachable:
                assert monotonic() < end, self._running.told()
                sleep(0.02)

    def kill(self) -> None:
        assert self._running is not None
        self._running.kill()


async def main(folder: str, port: str) -> None:
    """Serve until somebody kills it."""
    small = {"segment_bytes": 1 << 15, "clean_bytes_per_second": 1 << 30}
    async with runnel.open(folder, **small) as broker, Server(broker, ServerOptions(port=int(port), json_port=None)):  # type: ignore[arg-type]
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
