"""A process that reads a topic from its beginning, again and again: live readers are measured beside it.

`python -m benchmarks.history_reader URL TOPIC COUNT` says how many records it has read, a line for each million.
"""

from __future__ import annotations

import asyncio
import sys

import runnel

TOLD = 1_000_000


async def main(url: str, topic: str, count: int) -> None:
    """Read the first `count` records by batch until the process is ended."""
    seen = told = 0
    async with runnel.open(url) as broker:
        while True:
            async with broker.subscribe(topic, start="earliest") as records:
                left = count
                async for batch in records.batches():
                    left -= len(batch)
                    seen += len(batch)
                    if seen - told >= TOLD:
                        told = seen
                        print(seen, flush=True)
                    if left <= 0:
                        break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
