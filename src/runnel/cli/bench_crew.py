"""Publishers and subscribers of a load, in one process or in several, and whoever conducts them.

They talk in small messages: ready, go, published, total, outcomes. Subscribers are there before the first record is
published; how many records there will have been is known at the end, and then told to them.
Below: bench_load. Above: bench.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import runnel
from runnel.cli.bench_load import Load, Outcome, publish, receive
from runnel.cli.problem import Refused
from runnel.core.errors import RunnelError

Message = tuple[Any, ...]
Say = Callable[[Message], None]
Hear = Callable[[], Awaitable[Message]]


class Line(NamedTuple):
    """How the conductor talks to one crew."""

    say: Say
    hear: Hear


def shared_out(count: int, among: int) -> list[int]:
    """So many, over so many, as evenly as it goes; nobody gets none."""
    among = min(count, among)
    return [count // among + (at < count % among) for at in range(among)] if among else []


def crews(publishers: int, subscribers: int, processes: int) -> list[tuple[int, int]]:
    """Who works in which process: publishers and subscribers apart, where there are two processes or more."""
    if processes == 1:
        return [(publishers, subscribers)]
    for_publishers = max(1, processes // 2) if subscribers else processes
    found = [(count, 0) for count in shared_out(publishers, for_publishers)]
    return found + [(0, count) for count in shared_out(subscribers, max(1, processes - for_publishers))]


async def work(load: Load, publishers: int, subscribers: int, say: Say, hear: Hear, *, alone: bool = False) -> None:
    """One crew: it says when it is ready, publishes when it is told to go, and reads until it has the total.

    If it is the only one, it also tidies up.
    """
    try:
        async with runnel.open(load.where) as broker:
            options: dict[str, Any] = {} if load.durable is None else {"durable": load.durable}
            await broker.topic(load.topic, **options).declare()
            total: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            here = asyncio.Semaphore(0)

            async def expected() -> int:
                return await asyncio.shield(total)

            reading = [asyncio.ensure_future(receive(broker, load, here.release, expected)) for _ in range(subscribers)]
            for _ in reading:
                await _either(here.acquire(), reading)
            say(("ready",))
            await hear()
            outcomes = await asyncio.gather(*(publish(broker, load) for _ in range(publishers)))
            say(("published", sum(one.count for one in outcomes)))
            total.set_result((await hear())[1])
            outcomes += await asyncio.gather(*reading)
            if load.temporary and alone:
                await broker.delete(load.topic)
        say(("outcomes", outcomes))
    except RunnelError as error:
        say(("error", error.code, str(error)))


async def _either(waiting: Any, others: Sequence[asyncio.Future[Any]]) -> None:
    """Wait; an error of one of the others is an error here."""
    mine = asyncio.ensure_future(waiting)
    done, _ = await asyncio.wait([mine, *others], return_when=asyncio.FIRST_COMPLETED)
    if mine not in done:
        mine.cancel()
        for one in done:
            one.result()


async def conduct(lines: list[Line]) -> list[Outcome]:
    """Have all crews do their work together; what each publisher and subscriber did."""
    await _all(lines, "ready")
    for line in lines:
        line.say(("go",))
    counts = await _all(lines, "published")
    for line in lines:
        line.say(("total", sum(count for (count,) in counts)))
    return [one for (outcomes,) in await _all(lines, "outcomes") for one in outcomes]


async def _all(lines: list[Line], expected: str) -> list[Message]:
    found = []
    for message in await asyncio.gather(*(line.hear() for line in lines)):
        if message[0] == "error":
            raise Refused(message[1], message[2])
        if message[0] != expected:
            raise Refused("bench_failed", f"a process said {message[0]!r}, not {expected!r}")
        found.append(message[1:])
    return found


async def together(load: Load, publishers: int, subscribers: int, processes: int) -> list[Outcome]:
    """The whole load, in this process or in others."""
    if processes == 1:
        there: asyncio.Queue[Message] = asyncio.Queue()
        back: asyncio.Queue[Message] = asyncio.Queue()
        crew = asyncio.ensure_future(work(load, publishers, subscribers, back.put_nowait, there.get, alone=True))
        try:
            return await conduct([Line(there.put_nowait, back.get)])
        finally:
            crew.cancel()
            await asyncio.wait([crew])
    context = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = []
    lines = []
    try:
        for members in crews(publishers, subscribers, processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=_child, args=(load, *members, theirs), daemon=True)
            process.start()
            theirs.close()  # so that its end is noticed here
            started.append(process)
            lines.append(Line(mine.send, partial(asyncio.to_thread, _received, mine)))
        return await conduct(lines)
    finally:
        for child in started:
            child.terminate()


def _received(pipe: Connection) -> Message:
    try:
        return tuple(pipe.recv())
    except EOFError:
        return ("error", "bench_failed", "a process of the load ended before it was done")


def _child(load: Load, publishers: int, subscribers: int, pipe: Connection) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever conducts hears it
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        loop_factory = None

    async def hear() -> Message:
        return await asyncio.to_thread(_received, pipe)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work(load, publishers, subscribers, pipe.send, hear))
