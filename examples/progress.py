"""A worker reports progress; three watchers want three different things from the same topic.

- The log must have every step: `block`. The worker waits for it alone.
- The bar wants the newest step only: `drop_oldest` with a buffer of one. It skips what it was too
  slow for, gets a gap that says how much, and always ends at 100 %.
- The supervisor gives up on what it cannot follow: `disconnect`.

Prints::

    the log wrote 100 of 100 steps and missed 0
    the bar drew ... of 100 steps, skipped ..., and ended at 100 %
    the supervisor was too slow: disconnected after 20 drops in a row
"""

import asyncio
import logging

import runnel

STEPS = 100


async def work(broker: runnel.Broker, done: asyncio.Event) -> None:
    progress = broker.topic("job.42.progress")
    for step in range(1, STEPS + 1):
        await asyncio.sleep(0.001)
        await progress.publish(str(step))
    done.set()


async def write_log(steps: runnel.Subscription[bytes]) -> str:
    written = missed = 0
    async for record in steps:
        await asyncio.sleep(0.002)  # slower than the worker
        written += 1
        missed += (record.gap.count or 0) if record.gap else 0
        if record.value == b"100":
            break
    return f"the log wrote {written} of {STEPS} steps and missed {missed}"


async def draw_bar(steps: runnel.Subscription[bytes]) -> str:
    drawn = skipped = 0
    async for record in steps:
        await asyncio.sleep(0.02)  # a terminal is not fast
        drawn += 1
        skipped += (record.gap.count or 0) if record.gap else 0
        if record.value == b"100":
            break
    assert drawn + skipped == STEPS  # nothing goes untold
    return f"the bar drew {drawn} of {STEPS} steps, skipped {skipped}, and ended at {record.value.decode()} %"


async def supervise(steps: runnel.Subscription[bytes], done: asyncio.Event) -> str:
    try:
        async for _ in steps:
            await done.wait()  # has other things to do meanwhile
    except runnel.Disconnected as error:
        return f"the supervisor was too slow: disconnected after {error.after} drops in a row"
    return "the supervisor followed"


async def main() -> None:
    # Watchers that miss more than 1 % are warned about once, in the log. Here they do so on purpose.
    logging.getLogger("runnel").setLevel(logging.ERROR)
    done = asyncio.Event()
    async with (
        runnel.open() as broker,
        broker.subscribe("job.42.progress", policy="block", buffer=10) as for_log,
        broker.subscribe("job.42.progress", policy="drop_oldest", buffer=1) as for_bar,
        broker.subscribe("job.42.progress", policy=runnel.Policy.disconnect(after=20), buffer=5) as for_supervisor,
    ):
        outcome = asyncio.gather(write_log(for_log), draw_bar(for_bar), supervise(for_supervisor, done))
        await work(broker, done)
        print(*await outcome, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
