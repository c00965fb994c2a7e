"""The process that measures cells, one after the other: `python -m benchmarks.matrix.measuring PLAN`.

It tells each cell that it begins, each that it measured, and ends; `running` stops it when a cell takes too long. CPU
is that of all threads of this process and of the servers' process; time is by the clock, less what these threads waited
for a core that others had. Each figure is the least of several short rounds, in turn with the plain case: what else the
machine does adds to some rounds, and never takes away.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from benchmarks.harness import loop_factory
from benchmarks.matrix.backends import Absent, Backend, Fill, backend
from benchmarks.matrix.growth import MAKING, PROBES, THINGS, Probe
from benchmarks.matrix.host import Host
from benchmarks.matrix.operations import OPERATIONS, TOPIC, Operation, Run
from benchmarks.matrix.options import STEEP, Given, Options
from benchmarks.web_crowd import scheduled
from runnel import InvalidOption, NotSupported

MOST_CALLS = 5_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one call."""

    cpu: float
    wall: float

    def least(self, other: Cost) -> Cost:
        """The lesser of each."""
        return Cost(min(self.cpu, other.cpu), min(self.wall, other.wall))

    def told(self, per: int) -> dict[str, float]:
        """The figures, in nanoseconds a record, of which one call handles so many."""
        return {"cpu": self.cpu / per * 1e9, "wall": self.wall / per * 1e9}


async def _cost(run: Run, calls: Sequence[Options], pids: Sequence[int]) -> Cost:
    """What one of these calls costs, in this process and the others."""
    others, ready = _scheduled(pids)
    own, begun = time.process_time(), time.perf_counter()
    await run(calls)
    await asyncio.sleep(0)  # what it left for the next iteration of the event loop
    wall, own = time.perf_counter() - begun, time.process_time() - own
    others, ready = (now - then for now, then in zip(_scheduled(pids), (others, ready), strict=True))
    used = own + others
    return Cost(used / len(calls), max(wall - ready, min(wall, used)) / len(calls))


def _scheduled(pids: Sequence[int]) -> tuple[float, float]:
    """Seconds of CPU of other processes, and seconds that threads of all processes were ready and had no core.

    Of this process the kernel tells the CPU at ticks only; `process_time` knows it better.
    """
    others, ready = scheduled(pids)
    return others, ready + scheduled((os.getpid(),))[1]


class Subject:
    """An operation that is set up, and its cost so far."""

    def __init__(self, operation: Operation, run: Run, calls: Iterator[Options], pids: Sequence[int]) -> None:
        self._per, self._run, self._calls, self._pids = operation.per, run, calls, pids
        self.cost: Cost | None = None
        self._count = 1

    async def round(self, seconds: float) -> None:
        """One round of about so many seconds."""
        calls = list(islice(self._calls, self._count))
        cost = await _cost(self._run, calls, self._pids)
        self.cost = cost if self.cost is None else self.cost.least(cost)
        # The next round is as long as it should be, but grows step by step: the first calls are the dearest.
        self._count = min(MOST_CALLS, 8 * len(calls), max(1, int(seconds / max(cost.wall, 1e-9))))

    def told(self) -> dict[str, float]:
        """The figures."""
        assert self.cost is not None
        return self.cost.told(self._per)


@asynccontextmanager
async def _subject(operation: Operation, made: Backend, given: Given) -> AsyncIterator[Subject]:
    async with operation.setup(made, given) as run:
        yield Subject(operation, run, given.calls(), made.pids)


def tell(**said: Any) -> None:
    """A line for `running`."""
    print(json.dumps(said), flush=True)


class Measuring:
    """What the plan says of all cells: how long a round is, how many there are, and how long a cell may take."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._seconds, self._rounds, self._limit = plan["seconds"], plan["rounds"], plan["limit"]

    async def measured(self, *subjects: Subject, plain: Cost | None = None) -> None:
        """Rounds of all subjects in turn; what would be marked, beside the plain case, is looked at again."""
        await self._measure(subjects)
        plain = plain or subjects[0].cost
        last = subjects[-1].cost
        if plain and last and last.cpu >= STEEP * plain.cpu:
            await self._measure(subjects)

    async def _measure(self, subjects: Sequence[Subject]) -> None:
        """As many rounds as there is time for, one at least."""
        begun = time.perf_counter()
        warm = 4  # rounds in which the number of calls grows
        for turn in range(warm + self._rounds):
            for subject in subjects:
                await subject.round(self._seconds)
            if turn == 0:
                tell(first=subjects[-1].cost.wall if subjects[-1].cost else 0)
            if time.perf_counter() - begun > self._limit / 2:
                return


def _outcome(cell: Any, error: Exception) -> None:
    if isinstance(error, NotSupported | InvalidOption | Absent):
        tell(cell=cell, absent=str(error))
    else:
        tell(cell=cell, error=f"{type(error).__name__}: {error}")


async def _options(plan: dict[str, Any]) -> None:
    """Cells of options, operation by operation: its plain case stays open, and is measured again with each option."""
    async with AsyncExitStack() as stack:
        host = Host(stack)
        for title, cells in groupby(plan["cells"], key=lambda cell: cell["operation"]):
            async with AsyncExitStack() as own:
                await _operation(OPERATIONS[title], cells, _Opening(plan, host), Measuring(plan), own)


class _Opening:
    """Opens the backend of a plan, and sets operations up there."""

    def __init__(self, plan: dict[str, Any], host: Host) -> None:
        self._name, self._folder, self._host = plan["backend"], Path(plan["folder"]), host

    async def subject(self, operation: Operation, given: Given, stack: AsyncExitStack) -> Subject:
        """An operation at a new broker; both are closed with the stack."""
        made = await stack.enter_async_context(backend(self._name, self._folder, self._host, given.open))
        return await stack.enter_async_context(_subject(operation, made, given))


async def _operation(
    operation: Operation, cells: Iterable[Any], opening: _Opening, measuring: Measuring, stack: AsyncExitStack
) -> None:
    """Cells of one operation; none, once its plain case cannot be set up."""
    given = {one.label: one.given for one in operation.variations()}
    plain: Subject | None = None
    for cell in cells:
        tell(begin=cell)
        gc.collect()
        try:
            plain = plain or await opening.subject(operation, Given(), stack)
            plain.cost = None
            if not cell["label"]:
                await measuring.measured(plain)
                tell(cell=cell, plain=plain.told())
                continue
            async with AsyncExitStack() as own:
                varied = await opening.subject(operation, given[cell["label"]], own)
                await measuring.measured(plain, varied)
            tell(cell=cell, plain=plain.told(), varied=varied.told())
        except Exception as error:  # of one cell: the others are still worth their figures
            _outcome(cell, error)
            if plain is None:
                return


async def _filled(fill: Fill, thing: str, first: int, end: int, calls: Sequence[Options]) -> None:
    await fill(thing, first, end)


async def _growth(plan: dict[str, Any]) -> None:
    """All probes beside more and more of one thing, in one broker."""
    measuring, thing = Measuring(plan), THINGS[plan["thing"]]
    probes: dict[str, Probe] = {probe.title: probe for probe in PROBES}
    there, plain = 0, dict[str, Cost]()
    async with AsyncExitStack() as stack:
        host = Host(stack)
        made = await stack.enter_async_context(backend(plan["backend"], Path(plan["folder"]), host))
        fill = made.fill
        assert fill is not None
        if thing.topic:
            await made.native.topic(TOPIC, **thing.topic).declare()
        for cell in plan["cells"]:
            if cell["count"] > there:
                making = {"probe": MAKING, "count": cell["count"]}
                tell(fill=making)
                cost = await _cost(partial(_filled, fill, thing.title, there, cell["count"]), [{}], made.pids)
                tell(cell=making, plain=cost.told(cell["count"] - there))
                there = cell["count"]
                gc.collect()
            tell(begin=cell)
            probe = probes[cell["probe"]]
            try:
                async with _subject(OPERATIONS[probe.operation], made, probe.given) as subject:
                    await measuring.measured(subject, plain=plain.get(probe.title))
                tell(cell=cell, plain=subject.told())
                if subject.cost:
                    plain.setdefault(probe.title, subject.cost)
            except Exception as error:
                _outcome(cell, error)
        tell(done=True)


def main(arguments: Sequence[str]) -> int:
    """Measure the cells of a plan."""
    plan = json.loads(arguments[0])
    logging.getLogger("runnel").setLevel(logging.ERROR)  # some operations lose records on purpose
    work: Callable[[dict[str, Any]], Any] = _growth if "thing" in plan else _options
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
