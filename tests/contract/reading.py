"""Ways to read that the contract's tests share."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sized
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from runnel import Broker, Record, Subscription
from runnel.cluster.backend import ClusterBackend
from runnel.cluster.layout import covering
from runnel.cluster.member import ClusterMember
from runnel.core.errors import JournalFailed
from tests.contract import afar
from tests.patience import PATIENCE

T = TypeVar("T")

TURNS = 50  # of the loop: enough for every task that can go on to come to rest
QUIET = 3  # turns in which nobody else had anything to do: then nobody has
ROUNDS = 3  # of commits, where there is a disk: what one sets off may need another
WAITING = 2.0  # seconds for a cluster: a request that waits for another task is not answered by waiting here

opened: WeakSet[Broker] = WeakSet()  # those that `at_rest` waits for


async def read(subscription: AsyncIterator[T], count: int) -> list[T]:
    """The next `count` items."""
    return [await anext(subscription) for _ in range(count)]


async def values(subscription: Subscription[T], count: int) -> list[T]:
    """The values of the next `count` records."""
    return [record.value for record in await read(subscription, count)]


async def rest(subscription: AsyncIterable[T]) -> list[T]:
    """Everything up to the end."""
    return [item async for item in subscription]


async def at_rest() -> None:
    """Let every task run that can, every commit land, and every frame arrive."""
    await _turns()
    quiet = rounds = 0
    while afar.running and quiet < 2 and rounds < TURNS:  # what one side does may set off the other
        moved, rounds = False, rounds + 1
        for server in [server for served in afar.running for server in served.servers]:
            moved |= bool(await server.there(lambda server=server: _landed([server.broker])))  # type: ignore[misc]
        quiet = 0 if await _turns() or moved else quiet + 1
    await _landed(list(opened))


async def _landed(brokers: list[Broker]) -> bool:
    """Every commit of these brokers that are of this loop, and all that it sets off; whether anything happened."""
    moved = await _turns()
    for broker in brokers:
        backend = broker.backend
        if isinstance(backend, ClusterBackend):
            moved |= await _cluster_landed(backend)
            continue
        if backend.is_remote or backend.loop_owner.loop is not asyncio.get_running_loop():
            continue
        if backend.store is not None:
            for _ in range(ROUNDS):
                if backend.loop_owner.closed:
                    break
                while backend.store.retention.is_busy:  # noqa: ASYNC110  # a thread looks what is too old
                    await asyncio.sleep(0)
                with suppress(JournalFailed):  # then nothing more is on its way
                    await backend.flushed()
                moved |= await _turns()
    return moved


async def _cluster_landed(backend: ClusterBackend) -> bool:
    """Every request to a cluster is answered, and every record that a reader or member has room for has come."""
    moved, quiet, end = False, 0, time.monotonic() + WAITING
    while quiet < ROUNDS and time.monotonic() < end and not backend.loop_owner.closed:
        if backend.link.state != "connected":
            break
        await backend.flushed()
        await backend.link.flushed()
        moved |= await _turns()
        quiet = 0 if backend.link._requests or await _is_behind(backend) else quiet + 1
    return moved


async def _is_behind(backend: ClusterBackend) -> bool:
    """Whether a reader or a member will get records that are stored."""
    for one in list(backend._readers.open):
        if isinstance(one, ClusterMember):
            if one.has_room() and not one._is_stuck:
                found = await asyncio.gather(*map(one.consumers.info, one.consumers.buckets))
                # A bucket with keys has one message out at a time.
                if any(
                    info and info["num_pending"] and not (info["num_ack_pending"] and at) and not info.get("paused")
                    for at, info in enumerate(found)
                ):
                    return True
        elif (consumer := one._consumer) is not None and not consumer.is_ended and consumer.has_room():
            for pattern in covering(one._patterns):
                last = await backend.js.last(backend.js.subjects.every_bucket(pattern))
                if last is not None and last.sequence >= consumer.next:
                    return True
    return False


async def _turns() -> bool:
    """Turns of this loop until nobody else has anything to do; whether anybody had."""
    ready: Sized = getattr(asyncio.get_running_loop(), "_ready", "?")  # who is to run; not every loop shows it
    moved, quiet = False, 0
    for _ in range(TURNS):
        await asyncio.sleep(0)
        quiet = 0 if ready else quiet + 1
        moved = moved or not quiet
        if quiet == QUIET:
            break
    return moved


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what depends on more than tasks and commits: something is read from disk, say."""
    while not condition():
        await at_rest()


async def visible(broker: Broker, topic: str, end: int) -> None:
    """Wait until `topic` reaches to offset `end`: where there is a disk, what was handed over has to land first.

    Where it is visible at once nobody else gets to run.
    """
    if isinstance(broker.backend, ClusterBackend):
        await at_rest()  # its offsets have holes
        return
    while broker.statistics().topics[topic].end < end:  # noqa: ASYNC110 - a subscriber would be told, and counted
        await asyncio.sleep(0)


@asynccontextmanager
async def running(coroutine: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that has come as far as it can; cancelled when the block is left."""
    task = asyncio.ensure_future(coroutine)
    await at_rest()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def soon(awaitable: Awaitable[T]) -> T:
    """What is awaited, unless it takes suspiciously long."""
    return await asyncio.wait_for(awaitable, PATIENCE)


def coordinates(records: list[Record[Any]]) -> list[tuple[str, int, int]]:
    """(topic, offset, sequence) of each."""
    return [(record.topic, record.offset, record.sequence) for record in records]
