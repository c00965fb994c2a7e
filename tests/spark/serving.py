"""A server in a process of its own, whose cleaner has much to do: to be killed and started again.

Run as a program: folder, port.
"""

from __future__ import annotations

import asyncio
import sys

import runnel
from runnel.server import Server, ServerOptions


async def main(folder: str, port: str) -> None:
    """Serve until somebody kills it."""
    small = {"segment_bytes": 1 << 15, "clean_bytes_per_second": 1 << 30}
    async with runnel.open(folder, **small) as broker, Server(broker, ServerOptions(port=int(port), json_port=None)):  # type: ignore[arg-type]
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
