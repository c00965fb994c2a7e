"""Members that come, go, fail and are cancelled at random, over thousands of records; judged by what they saw."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest

from runnel import Broker, Delivery
from runnel.testing import History
from tests.contract.working import look
from tests.nightly import nightly_beyond

COUNT = 3000


class Crew:
    """A group's members, and what each of them saw, for the judge."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker, self.random, self.history = broker, random.Random(seed), History()
        self.by_key: dict[bytes, list[int]] = defaultdict(list)
        self.busy: dict[bytes, str] = {}
        self.seen = 0
        self.moved = asyncio.Event()  # somebody saw something, or is done
        self.members = 0
        self.dead = 0

    async def publish(self) -> None:
        """Some records have a key, some are urgent, some come late."""
        jobs = self.broker.topic("jobs")
        for number in range(COUNT):
            id = b"%d" % number
            self.history.intend("jobs", id)
            options: dict[str, Any] = {}
            if self.random.random() < 0.5:
                options["key"] = f"k{self.random.randrange(20)}"
            if self.random.random() < 0.1:
                options["priority"] = self.random.randrange(1, 10)
            position = await jobs.publish(id, **options)
            self.history.acknowledged("jobs", id, position.epoch, position.offset)
            if number % 50 == 0:
                await asyncio.sleep(0)

    async def life(self) -> None:
        """One member, until it has done enough or is cancelled."""
        self.members += 1
        name = f"m{self.members}"
        enough = self.random.randrange(5, 60)
        prefetch = self.random.choice([1, 4, 16])
        size = self.random.choice([None, None, 30])
        async with self.broker.subscribe(
            "jobs", group="g", name=name, prefetch=prefetch, prefetch_bytes=size
        ) as deliveries:
            try:
                if self.random.random() < 0.3:
                    async for batch in deliveries.batches(self.random.randrange(1, 9)):
                        for delivery in batch:
                            self.see(name, delivery)
                        await asyncio.sleep(0)
                        await batch.ack()
                        for delivery in batch:
                            self.told(name, delivery, "acked")
                        enough -= len(batch)
                        if enough <= 0:
                            break
                else:
                    async for delivery in deliveries:
                        self.see(name, delivery)
                        await self.work(name, delivery)
                        enough -= 1
                        if enough <= 0:
                            break
            finally:  # before it leaves: then what it holds is somebody else's
                self.busy = {key: holder for key, holder in self.busy.items() if holder != name}
                self.history.left("g", name)

    def see(self, name: str, delivery: Delivery[bytes]) -> None:
        self.seen += 1
        self.moved.set()
        self.history.leased(
            "g", name, "jobs", delivery.epoch, delivery.offset, delivery.value, attempt=delivery.attempt
        )
        key = delivery.key
        if key is not None:
            assert key not in self.busy, f"{key!r} is with {self.busy[key]} and {name}"
            self.busy[key] = name
            order = self.by_key[key]
            assert not order or delivery.offset >= order[-1], f"{key!r} went back from {order[-1]}"
            order.append(delivery.offset)

    def told(self, name: str, delivery: Delivery[bytes], what: str) -> None:
        """The member is done with it, one way or the other."""
        if delivery.key is not None:
            self.busy.pop(delivery.key, None)
        getattr(self.history, what)("g", name, "jobs", delivery.epoch, delivery.offset)

    async def work(self, name: str, delivery: Delivery[bytes]) -> None:
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        chance = self.random.random()
        if chance < 0.1 and delivery.attempt < 5:
            self.told(name, delivery, "nacked")
            await delivery.nack(delay=0)
        elif chance < 0.12:
            self.dead += 1
            self.told(name, delivery, "rejected")
            await delivery.reject("unlucky")
        else:
            await delivery.ack()
            self.told(name, delivery, "acked")

    def begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(doing)
        task.add_done_callback(lambda _: self.moved.set())
        return task

    async def run(self) -> None:
        """Publish while members come and go, until nothing is left."""
        self.history.grouped("g", "jobs")
        publishing = self.begin(self.publish())
        at_work: list[asyncio.Task[None]] = []
        goal = 0
        while not publishing.done() or look(self.broker).lag:
            while len(at_work) < 4:
                at_work.append(self.begin(self.life()))
            self.moved.clear()
            if (
                self.seen >= goal
            ):  # by what was done, not by the time it took: or on a slow machine nobody ever gets far
                goal = self.seen + self.random.randrange(1, 8)
                if self.random.random() < 0.1:
                    self.random.choice(at_work).cancel()
            elif publishing.done():
                await asyncio.sleep(0.001)  # what was settled last is on its way, and tells nobody when it is there
            else:
                await self.moved.wait()
            for task in [task for task in at_work if task.done()]:
                at_work.remove(task)
                if not task.cancelled():
                    task.result()
        await publishing
        for task in at_work:
            task.cancel()
        await asyncio.wait(at_work)
        for task in at_work:
            if not task.cancelled():
                task.result()
        self.history.drained("g", "jobs")


@pytest.mark.parametrize("seed", nightly_beyond(1, [1, 2, 3]))
async def test_whatever_members_do_nothing_is_lost_doubled_or_out_of_order(broker: Broker, seed: int) -> None:
    crew = Crew(broker, seed)
    async with broker.subscribe("jobs", group="g"):
        pass
    await crew.run()
    crew.history.check().raise_if_any()
    group = look(broker)
    assert (group.acked + group.dead_lettered, group.lag, group.in_flight) == (COUNT, 0, 0)
    assert group.dead_lettered == crew.dead
    assert crew.members > 20
    assert group.redelivered > 50
    assert len(crew.by_key) == 20
