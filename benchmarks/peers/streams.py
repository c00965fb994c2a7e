"""anyio memory object streams, one for each subscriber."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import Figures
from benchmarks.load import Load, Read, Tally, fan_out


async def one_by_one(load: Load) -> Figures:
    """send_nowait into each stream; a woken reader takes all that is there."""
    return await _fan_out(load, lambda chunk: chunk, lambda values: len(values))


async def in_lists(load: Load) -> Figures:
    """Each item of a stream is a list of values."""
    return await _fan_out(load, lambda chunk: [chunk], lambda items: sum(map(len, items)))


async def _fan_out(load: Load, items: Callable[[list[bytes]], list[Any]], count: Callable[[list[Any]], int]) -> Figures:
    import anyio

    with ExitStack() as stack:
        pairs = [anyio.create_memory_object_stream[Any](load.publishes) for _ in range(load.subscribers)]
        for sender, receiver in pairs:
            stack.enter_context(sender)
            stack.enter_context(receiver)

        async def publish() -> None:
            sends = [sender.send_nowait for sender, _ in pairs]
            for chunk in load.chunks():
                for item in items(chunk):
                    for send in sends:
                        send(item)
                await asyncio.sleep(0)

        def reader(receiver: Any) -> Read:
            async def read(tally: Tally) -> None:
                receive_nowait = receiver.receive_nowait
                while tally.values < load.publishes:
                    got = [await receiver.receive()]
                    try:
                        while True:
                            got.append(receive_nowait())
                    except anyio.WouldBlock:
                        pass
                    tally.values += count(got)
                    tally.batches += 1

            return read

        return await fan_out(load, publish, [reader(receiver) for _, receiver in pairs])
