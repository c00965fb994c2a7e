"""Sensors that live in threads publish into an asyncio program.

`publish_nowait` works from any thread: the record is handed over and appended at the loop's next
turn. Each thread's records keep their order.

Prints::

    kitchen  100 readings, in order: True
    cellar   100 readings, in order: True
    attic    100 readings, in order: True
"""

import asyncio
import threading
from collections import defaultdict

import runnel

ROOMS = ("kitchen", "cellar", "attic")
READINGS = 100


def sense(topic: runnel.Topic[bytes]) -> None:
    """An ordinary thread: it knows no event loop."""
    for number in range(READINGS):
        topic.publish_nowait(str(number))


async def main() -> None:
    async with runnel.open() as broker:
        async with broker.subscribe("sensors.*") as readings:
            for room in ROOMS:
                threading.Thread(target=sense, args=[broker.topic(f"sensors.{room}")]).start()

            seen: dict[str, list[int]] = defaultdict(list)
            async for record in readings:
                seen[record.topic].append(int(record.value))
                if sum(map(len, seen.values())) == READINGS * len(ROOMS):
                    break

    for room in ROOMS:
        numbers = seen[f"sensors.{room}"]
        print(f"{room:<8} {len(numbers)} readings, in order: {numbers == sorted(numbers)}")


if __name__ == "__main__":
    asyncio.run(main())
