"""Jobs that outlive the program: a worker dies in the middle, and the next one finishes.

The broker has a folder, so `publish` returns when a job is on disk. The first worker does two of five
jobs and dies at the third: the broker is closed while that job is in its hands. The folder is opened
again, as after a restart: what was acked stays done, the job that was cut off comes first, then the
rest. A third opening finds nothing left to do, and all five jobs still there to be read.

Prints::

    published 5 jobs, the last at offset 4
    first worker: resized cat.png
    first worker: resized dog.png
    first worker: died at emu.png
    --- opened again: 3 jobs are not done
    second worker: resized emu.png
    second worker: resized fox.png
    second worker: resized gnu.png
    --- opened again: 0 jobs are not done
    the topic still holds cat.png dog.png emu.png fox.png gnu.png
"""

import asyncio
import tempfile
from pathlib import Path

import runnel

PICTURES = ["cat.png", "dog.png", "emu.png", "fox.png", "gnu.png"]


async def work(broker: runnel.Broker, worker: str, dies_at: str | None = None) -> None:
    """Do jobs until none is left, or until the worker dies."""
    # A prefetch of 1: what a worker does not hold, it cannot take with it.
    async with broker.subscribe("pictures", group="resizers", prefetch=1) as deliveries:
        while broker.statistics().groups[0].lag:
            delivery = await anext(deliveries)
            picture = delivery.value.decode()
            if picture == dies_at:
                print(f"{worker}: died at {picture}")
                broker.close()  # no ack, no goodbye: to the journal this job was never done
                return
            print(f"{worker}: resized {picture}")
            await delivery.ack(durable=True)  # on disk when it returns; a plain ack() is within 5 ms


async def first_life(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        _, last = await broker.topic("pictures").publish_many(PICTURES)
        print(f"published {len(PICTURES)} jobs, the last at offset {last.offset}")
        await work(broker, "first worker", dies_at="emu.png")


async def second_life(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        print(f"--- opened again: {broker.statistics().groups[0].lag} jobs are not done")
        await work(broker, "second worker")


async def third_life(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        print(f"--- opened again: {broker.statistics().groups[0].lag} jobs are not done")
        async with broker.subscribe("pictures", start="earliest") as pictures:
            kept = [(await anext(pictures)).value.decode() for _ in PICTURES]
        print("the topic still holds", *kept)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for life in (first_life, second_life, third_life):
            await life(Path(folder) / "data")


if __name__ == "__main__":
    asyncio.run(main())
