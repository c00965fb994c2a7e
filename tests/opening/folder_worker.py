"""One of several processes in a folder: publishes, reads, and works in a group, until it is told to stop or killed.

`python -m tests.opening.folder_worker FOLDER NOTES NAME`. Its history is in a file that outlives it.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec

import runnel
from runnel import Broker
from runnel.testing.history import History

TOPIC, GROUP = "orders", "billing"
PUBLISHERS = 2
PAUSE = 0.002  # seconds between two publishes of one publisher


class Work(msgspec.Struct):
    """What a member of the group did to a record: "took" it, or had its ack confirmed."""

    at: float
    offset: int
    what: str


async def publish(broker: Broker, history: History, name: str, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        id = f"{name}-{number}"
        history.intend(TOPIC, id, name)
        position = await broker.publish(TOPIC, id)
        history.acknowledged(TOPIC, id, position.epoch, position.offset)
        await asyncio.sleep(PAUSE)


async def read(broker: Broker, history: History, name: str, opened: asyncio.Event) -> None:
    async with broker.subscribe(TOPIC, start="latest", strict=True) as records:
        history.subscribed(name, TOPIC)
        opened.set()
        async for record in records:
            history.saw(name, record)


async def work(broker: Broker, notes: Path) -> None:
    with notes.open("ab", buffering=0) as file:

        def note(offset: int, what: str) -> None:
            file.write(msgspec.json.encode(Work(time.monotonic(), offset, what)) + b"\n")

        async with broker.subscribe(TOPIC, group=GROUP, prefetch=16) as deliveries:
            async for delivery in deliveries:
                note(delivery.record.offset, "took")
                try:
                    await delivery.ack(durable=True)
                except (runnel.LeaseEnded, runnel.NotNow):  # its owner died meanwhile: somebody gets it again
                    continue
                note(delivery.record.offset, "acked")


async def main(folder: str, notes: Path, name: str) -> None:
    loop, stop, opened = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    with (notes / f"{name}.history").open("ab", buffering=0) as file:
        history = History(clock=time.monotonic, write=file.write)
        async with runnel.open(folder, segment_bytes=1 << 20) as broker:
            reading = asyncio.create_task(read(broker, history, name, opened))
            working = asyncio.create_task(work(broker, notes / f"{name}.work"))
            await opened.wait()
            publishing = [publish(broker, history, f"{name}-{n}", stop) for n in range(PUBLISHERS)]
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.gather(*publishing)
            for task in (reading, working):
                if task.done():
                    task.result()  # why it ended too soon
                task.cancel()
            await asyncio.wait([reading, working])
            history.ended(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
