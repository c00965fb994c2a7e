"""Work shared by a group.

What does an acked delivery cost through one group of 4 members, with little and much waiting, with and without keys and
priorities, and what does the group itself keep in memory? What does a publish cost beside groups without members, and
how long do jobs take when a second member joins late?
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import DELIVERY, Load, Lossy, Tally, payloads, settle, share_work
from benchmarks.peers import work_queues

MEMBERS = 4
PREFETCH, BATCH_PREFETCH = 64, 1000
KEYS = 1000
LIST = 1000
ONE, MANY, ORDER, WAITING, MEMORY = "one by one", "by batch", "with keys", "while so many wait", "what it keeps"
BY_ONE = "runnel by delivery"
BY_BATCH = f"runnel by batch, prefetch {BATCH_PREFETCH:,}"
SMALL_BATCH = f"runnel by batch, prefetch {PREFETCH}"
PLAIN, KEYED = "runnel by delivery, no keys", f"runnel by delivery, {KEYS:,} keys"
URGENT = "runnel by delivery, 10 priorities"
IDLE_GROUPS, ALONE, BESIDE = "beside groups without members", "runnel, no group", "runnel, 1,000 groups without members"
LATE, ONE_MEMBER, TWO_MEMBERS = "a member joins late", "runnel, one member", "runnel, a second one joins"
MEGABYTES, EACH = "MB", "bytes a record waiting"


def question(*, quick: bool = False) -> Question:
    """Drain a backlog in each way; then the front of a short and a long one; then memory."""
    load = Load(publishes=20_000 if quick else 100_000, subscribers=MEMBERS)
    long = 100_000 if quick else 1_000_000
    few, much = "runnel by delivery, 10,000 waiting", f"runnel by delivery, {long:,} waiting"
    plain, keyed = f"the group, {long:,} waiting", f"the group, {long:,} waiting, {KEYS:,} keys"
    later = f"the group, {load.publishes:,} delayed by an hour"

    def runnel(name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str) -> Contender:
        # The yardsticks of their leagues: what keys, or a long backlog, is compared with.
        return Contender(name, measure, call, league, peer=name in (PLAIN, few, ALONE, ONE_MEMBER), needs=("runnel",))

    def peer(name: str, measure: Callable[[Load], Awaitable[Figures]], call: str, league: str) -> Contender:
        return Contender(name, partial(measure, load), call, league, peer=True)

    one = "async for delivery: delivery.value; await delivery.ack()"
    batch = "batches(): batch.values; await batch.ack()"
    held = "broker.subscribe(topic, group=...), 4 times"
    return Question(
        name="groups",
        text=asked(__doc__),
        ranked=DELIVERY,
        contenders=[
            runnel(BY_ONE, partial(_drained, load, _one_by_one), one, ONE),
            peer("asyncio.Queue", work_queues.one_by_one, "await get(); task_done()", ONE),
            runnel(SMALL_BATCH, partial(_drained, load, _by_batch), batch, MANY),
            runnel(BY_BATCH, partial(_drained, load, _by_batch, prefetch=BATCH_PREFETCH), batch, MANY),
            peer("asyncio.Queue, 64 at a time", work_queues.taken_together, "get_nowait(); task_done() for each", MANY),
            peer("asyncio.Queue of lists", work_queues.in_lists, "await get() of 1,000; task_done()", MANY),
            runnel(PLAIN, partial(_drained, load, _one_by_one), one, ORDER),
            runnel(KEYED, partial(_drained, load, _one_by_one, keys=KEYS), one, ORDER),
            runnel(URGENT, partial(_drained, load, _one_by_one, priorities=10), one, ORDER),
            runnel(few, partial(_front, 10_000), one, WAITING),
            runnel(much, partial(_front, long), one, WAITING),
            runnel(plain, partial(_memory, long, 0), held, MEMORY),
            runnel(keyed, partial(_memory, long, KEYS), held, MEMORY),
            runnel(later, partial(_delayed, load.publishes), held, MEMORY),
            runnel(ALONE, partial(_beside, 0), "await topic.publish(value)", IDLE_GROUPS),
            runnel(BESIDE, partial(_beside, 1000), "await topic.publish(value)", IDLE_GROUPS),
            runnel(ONE_MEMBER, partial(_jobs, 1), "await asyncio.sleep(0.01); await delivery.ack()", LATE),
            runnel(TWO_MEMBERS, partial(_jobs, 2), "await asyncio.sleep(0.01); await delivery.ack()", LATE),
        ],
        aims=[
            Aim(BY_ONE, DELIVERY, at_most=1e9 / 300_000),
            Aim(BY_BATCH, DELIVERY, at_most=1e9 / 2_000_000),
            Aim(KEYED, DELIVERY, times_best_peer=0.5),
            Aim(URGENT, DELIVERY, times_best_peer=1 / 3),
            Aim(much, DELIVERY, times_best_peer=0.9),
            Aim(TWO_MEMBERS, DELIVERY, times_best_peer=1.6),
            Aim(plain, MEGABYTES, at_most=50),
            Aim(keyed, MEGABYTES, at_most=50),
        ],
        notes=[
            f"{load.publishes:,} random values of 100 B wait, published in lists of {LIST:,}; only the work is timed",
            f"{MEMBERS} members, prefetch {PREFETCH} unless said; every value in hand and acked once, by one of them",
            "a queue forgets a value when it is taken: it has no leases, attempts, redelivery, keys or second group",
            "with keys, and while so many wait: the best peer is runnel itself, without keys and with 10,000 waiting",
            "while so many wait: the first 10,000 deliveries are timed, the rest stays",
            "memory: all that Python allocates (tracemalloc) from the moment the members join until each holds its",
            "prefetch and 10,000 records are acked; the records themselves were there before and are not counted",
            "delayed: what the files of the group allocated, and the slices that it keeps",
            "beside groups: CPU time of a publish, which a group without members does not read",
            "late: 40 jobs of 10 ms are with the first member when the second joins; wall clock until all are done",
        ],
    )


class Countdown:
    """How many records are still to be acked, by whomever."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.over = asyncio.Event()


Work = Callable[[Any, Tally, Countdown], Awaitable[None]]


async def _one_by_one(member: Any, tally: Tally, countdown: Countdown) -> None:
    async for delivery in member:
        if countdown.left <= 0:
            return
        if delivery.value:
            tally.values += 1
        await delivery.ack()
        countdown.left -= 1
        if not countdown.left:
            countdown.over.set()


async def _by_batch(member: Any, tally: Tally, countdown: Countdown) -> None:
    async for batch in member.batches():
        values = batch.values
        tally.values += len(values)
        tally.batches += 1
        await batch.ack()
        countdown.left -= len(values)
        if countdown.left <= 0:
            countdown.over.set()


@asynccontextmanager
async def _backlog(count: int, keys: int = 0, priorities: int = 1, **options: Any) -> AsyncIterator[Any]:
    """A broker with `count` records waiting for the group, in lists of one priority each."""
    import runnel

    values = payloads(LIST)
    named = [b"key %d" % (n % keys) for n in range(LIST)] if keys else None
    async with runnel.open() as broker:
        async with broker.subscribe("t", group="g"):
            pass  # it remembers from here on
        topic = broker.topic("t")
        for number in range(count // LIST):
            if priorities > 1:
                options["priority"] = number % priorities
            await topic.publish_many(values, keys=named, **options)
        yield broker


async def _members(stack: AsyncExitStack, broker: Any, prefetch: int) -> list[Any]:
    return [
        await stack.enter_async_context(broker.subscribe("t", group="g", prefetch=prefetch)) for _ in range(MEMBERS)
    ]


async def _drained(load: Load, work: Work, *, prefetch: int = PREFETCH, keys: int = 0, priorities: int = 1) -> Figures:
    async with _backlog(load.publishes, keys, priorities) as broker, AsyncExitStack() as stack:
        return await _timed(load, await _members(stack, broker, prefetch), work)


async def _front(waiting: int) -> Figures:
    """The first 10,000 of them."""
    load = Load(publishes=10_000, subscribers=MEMBERS)
    async with _backlog(waiting) as broker, AsyncExitStack() as stack:
        return await _timed(load, await _members(stack, broker, PREFETCH), _one_by_one)


async def _timed(load: Load, members: list[Any], work: Work) -> Figures:
    """Until `load.publishes` records are acked; the members stop there."""
    countdown = Countdown(load.publishes)
    left = iter(members)

    def worker(tally: Tally) -> Callable[[], Awaitable[None]]:
        return partial(work, next(left), tally, countdown)

    return await share_work(load, worker, countdown.over.wait)


async def _memory(waiting: int, keys: int) -> Figures:
    """What is allocated while the members work at the front of the backlog."""
    load = Load(publishes=10_000, subscribers=MEMBERS)
    async with _backlog(waiting, keys) as broker, AsyncExitStack() as stack:
        tracemalloc.start()
        try:
            members = await _members(stack, broker, PREFETCH)
            await _timed(load, members, _one_by_one)
            await settle()
            used = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        (group,) = broker.statistics().groups
        if group.lag != waiting - load.publishes:
            raise Lossy(waiting - load.publishes, [group.lag])
    return {MEGABYTES: used / 1e6, EACH: used / group.lag}


async def _delayed(waiting: int) -> Figures:
    """What a group keeps of records whose time has not come: those it has to know one by one."""
    tracemalloc.start()
    try:
        async with _backlog(waiting, delay=3600) as broker, AsyncExitStack() as stack:
            await _members(stack, broker, PREFETCH)
            for _ in range(waiting):  # a group looks at so many a turn
                await settle()
                (group,) = broker.statistics().groups
                if group.scheduled == waiting:
                    break
            if group.scheduled != waiting:
                raise Lossy(waiting, [group.scheduled])
            own = [tracemalloc.Filter(True, f"*/runnel/{files}") for files in ("broker/group*", "core/batch.py")]
            taken = tracemalloc.take_snapshot().filter_traces(own)
    finally:
        tracemalloc.stop()
    used = sum(trace.size for trace in taken.traces)
    return {MEGABYTES: used / 1e6, EACH: used / waiting}


async def _beside(groups: int) -> Figures:
    """A publish to a topic with so many groups, none of which has a member."""
    import runnel

    publishes = 200
    async with runnel.open() as broker:
        topic = broker.topic("t")
        await topic.declare()
        for number in range(groups):
            async with broker.subscribe("t", group=f"g{number}"):
                pass
        for _ in range(2 + groups):  # each group wakes for its first record
            await topic.publish(b"first")
            await settle()
        begun = time.process_time()
        for _ in range(publishes):
            await topic.publish(b"value")
            await asyncio.sleep(0)
        return {DELIVERY: (time.process_time() - begun) / publishes * 1e9}


async def _jobs(members: int) -> Figures:
    """Jobs that the first member holds when the others join."""
    import runnel

    jobs = 40
    async with runnel.open() as broker, AsyncExitStack() as stack:
        await broker.topic("t").publish_many([b"job"] * jobs)
        countdown = Countdown(jobs)

        async def work(member: Any) -> None:
            async for delivery in member:
                await asyncio.sleep(0.01)
                await delivery.ack()
                countdown.left -= 1
                if not countdown.left:
                    countdown.over.set()

        tasks = []
        begun = time.perf_counter()
        for _ in range(members):
            member = await stack.enter_async_context(broker.subscribe("t", group="g"))
            tasks.append(asyncio.create_task(work(member)))
            await settle()
        await countdown.over.wait()
        took = time.perf_counter() - begun
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {DELIVERY: took / jobs * 1e9}
