"""What test_full_disk runs inside a small file system of its own: fill it, and see what still works.

Prints one JSON document: what was found at each step.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import runnel
from tests.patience import PATIENCE

BIG = 64 * 1024


async def fill(broker: runnel.Broker, topic: str) -> tuple[int, str]:
    """Publish until the disk is full; how many records were acknowledged, and the code of the error."""
    count = 0
    try:
        while True:
            await broker.publish(topic, count.to_bytes(4, "big") + os.urandom(BIG))
            count += 1
    except runnel.RunnelError as error:
        return count, error.code


async def numbers(broker: runnel.Broker, topic: str, end: int) -> list[int]:
    """The first four bytes of every record, as they were counted."""
    found = []
    async with broker.subscribe(topic, start="earliest") as records:
        async for record in records:
            found.append(int.from_bytes(record.value[:4], "big"))
            if len(found) == end:
                break
    return found


async def main(folder: Path, min_free: int) -> dict[str, object]:
    """The story, in order."""
    told: dict[str, object] = {}
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(4 * 1024 * 1024))
    options: dict[str, Any] = {"segment_bytes": 1024 * 1024, "min_free": min_free, "tail_bytes": 256 * 1024}
    async with runnel.open(folder / "data", **options) as broker:
        for at in range(5):
            await broker.publish("jobs", str(at))
        await broker.publish("old", b"x")
        count, told["error"] = await fill(broker, "big")
        told["acknowledged"] = count
        told["read_while_full"] = await numbers(broker, "big", count) == list(range(count))
        async with broker.subscribe("jobs", group="workers") as deliveries:
            done = 0
            async for delivery in deliveries:
                await delivery.ack(durable=True)
                done += 1
                if done == 3:
                    break
        await broker.delete("old")
        again, told["error_again"] = await fill(broker, "big")
        ballast.unlink()
        more, told["error_after_room"] = await fill(broker, "big")
        told["more_after_room"] = more
    async with runnel.open(folder / "data", **options) as broker:
        total = count + again + more
        found = await numbers(broker, "big", total)
        told["all_there"] = found == [*range(count), *range(again), *range(more)]
        told["topics"] = await broker.topics()
        told["jobs_left"] = broker.group("workers", "jobs").statistics().lag
        # It was opened on a full disk. Trimming makes room, and publishing goes on.
        refused, told["error_reopened"] = await fill(broker, "big")
        while (journal := broker.statistics().journal) is None or journal.free_bytes is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        told["shown"] = (journal.low, journal.full)
        kept = await broker.topic("big").trim(total - 10)
        trimmed: list[int] = []
        async with asyncio.timeout(PATIENCE):  # whoever still reads what was removed lets go of it in a moment
            while len(trimmed) < 50:
                some, told["error_trimmed"] = await fill(broker, "big")
                trimmed += range(some)
                await asyncio.sleep(0.01)
        told["more_after_trim"] = len(trimmed)
        async with broker.subscribe("jobs", group="workers") as deliveries:
            async for delivery in deliveries:
                await delivery.ack(durable=True)
                break
    async with runnel.open(folder / "data", **options) as broker:
        found = await numbers(broker, "big", 10 + refused + len(trimmed))
        told["all_there_again"] = kept == total - 10 and found[10:] == [*range(refused), *trimmed]
        told["jobs_left_again"] = broker.group("workers", "jobs").statistics().lag
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))))
