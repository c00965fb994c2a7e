"""A loop's time in the hands of a test: it passes when the test says so, however slow the machine is."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tests.patience import PATIENCE

TURNS = 3  # of the loop, in which all that is due by then is done


@contextmanager
def held_time() -> Iterator[Callable[[float], Awaitable[None]]]:
    """While the block lasts no time passes for the loop, but by what it gives: `await later(seconds)`.

    Only for asyncio's own loop, and for seconds rather than minutes: a test's patience passes, too. Sockets work as
    ever; `asyncio.sleep` does not return before it is that much later.
    """
    loop = asyncio.get_running_loop()
    real, began = loop.time, loop.time()
    passed = 0.0

    def time() -> float:
        # If a test hangs its time does pass after all, for what makes it fail then.
        return began + passed + max(0.0, real() - began - PATIENCE)

    async def later(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        for _ in range(TURNS):
            await asyncio.sleep(0)

    loop.time = time  # type: ignore[method-assign]
    try:
        yield later
    finally:
        loop.time = real  # type: ignore[method-assign]
