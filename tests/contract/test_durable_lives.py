"""Whatever brokers do in a folder, one after the other: the next one finds what a simple model remembers."""

import asyncio
from random import Random
from typing import Any

import pytest

from runnel import Broker
from tests.contract.lives import Folder
from tests.contract.reading import at_rest, read
from tests.contract.working import look
from tests.nightly import nightly_beyond

DURABLE = ("a", "b", "c")


class Model:
    """What was promised, and what was done with it."""

    def __init__(self) -> None:
        self.count = 0
        self.topics: dict[str, list[bytes]] = {}  # of durable topics, in this life of theirs
        self.places: dict[str, int] = {}  # names on one topic, which is in the name: the next offset
        self.acked: dict[str, set[bytes]] = {}  # by group, which is called after its topic
        self.order: list[bytes] = []  # everything durable that was not deleted, by sequence
        self.sequences: dict[bytes, int] = {}

    def values(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % number for number in range(self.count - count, self.count)]


class Life:
    """One broker and what is done with it."""

    def __init__(self, model: Model, broker: Broker, random: Random) -> None:
        self.model, self.broker, self.random = model, broker, random

    async def step(self) -> None:
        steps: list[Any] = [self.publish] * 4 + [self.read_by_name] * 2 + [self.work] * 3 + [self.publish_in_memory]
        await self.random.choice([*steps, self.read_all, self.delete])()

    async def publish(self) -> None:
        topic = self.random.choice(DURABLE)
        values = self.model.values(self.random.choice((1, 1, 2, 5, 30)))
        keys = [self.random.choice((None, "k", "l")) for _ in values]
        span = await self.broker.topic(topic).publish_many(values, keys=keys)
        known = self.model.topics.setdefault(topic, [])
        assert span.first.offset == len(known)
        known += values
        self.model.order += values

    async def publish_in_memory(self) -> None:
        await self.broker.topic("memory", durable=False).publish_many([b"m"] * self.random.randint(1, 20))

    async def read_by_name(self) -> None:
        if not (topics := [topic for topic, values in self.model.topics.items() if values]):
            return
        topic = self.random.choice(topics)
        name, values = f"reader of {topic}", self.model.topics[topic]
        place = self.model.places.get(name, 0)
        if place >= len(values):
            return
        count = self.random.randint(1, len(values) - place)
        async with self.broker.subscribe(topic, name=name) as subscription:
            records = await read(subscription, count)
        assert [record.value for record in records] == values[place : place + count]
        self.model.places[name] = place + count - 1  # the last one is still in hand

    async def work(self) -> None:
        if not (topics := [topic for topic, values in self.model.topics.items() if values]):
            return
        topic = self.random.choice(topics)
        acked = self.model.acked.setdefault(topic, set())
        left = [value for value in self.model.topics[topic] if value not in acked]
        async with self.broker.subscribe(
            topic, group=f"g-{topic}", prefetch=8, backoff=(0,), jitter=0, max_deliver=1000
        ) as deliveries:
            for _ in range(min(len(left), self.random.randint(1, 12))):
                delivery = await anext(deliveries)
                assert delivery.value in left
                if self.random.random() < 0.3:
                    await delivery.nack(delay=0)
                    await at_rest()
                else:
                    await delivery.ack(durable=self.random.random() < 0.3)
                    acked.add(delivery.value)
                    left.remove(delivery.value)
            assert look(self.broker, f"g-{topic}").lag == len(left)

    async def read_all(self) -> None:
        if not self.model.order:
            return
        async with self.broker.subscribe("*", start="earliest") as subscription:
            records: list[Any] = []
            while len(records) < len(self.model.order):
                records += [record for record in await read(subscription, 1) if record.topic != "memory"]
        assert [record.value for record in records] == self.model.order
        for record in records:
            assert self.model.sequences.setdefault(record.value, record.sequence) == record.sequence
        assert [record.sequence for record in records] == sorted({record.sequence for record in records})

    async def delete(self) -> None:
        if self.random.random() < 0.7 or not self.model.topics:
            return
        topic = self.random.choice(sorted(self.model.topics))
        await self.broker.delete(topic)
        gone = set(self.model.topics.pop(topic))
        self.model.order = [value for value in self.model.order if value not in gone]
        self.model.acked.pop(topic, None)
        self.model.places.pop(f"reader of {topic}", None)

    async def judge(self) -> None:
        """All of it."""
        assert await self.broker.topics() == sorted(self.model.topics)
        for topic, values in self.model.topics.items():
            async with self.broker.subscribe(topic, start="earliest") as subscription:
                assert [record.value for record in await read(subscription, len(values))] == values
            acked = self.model.acked.get(topic)
            if acked is not None:
                assert look(self.broker, f"g-{topic}").lag == len(set(values) - acked)
        await self.read_all()


@pytest.mark.parametrize("seed", nightly_beyond(4, range(12)))
async def test_lives_one_after_the_other(folder: Folder, seed: int) -> None:
    random = Random(seed)
    model = Model()
    for _ in range(6):
        options = random.choice(({}, {"tail_bytes": 1}, {"tail_bytes": 500, "segment_bytes": 4096}))
        async with folder.life(**options) as broker:
            life = Life(model, broker, random)
            await life.judge()
            for _ in range(15):
                await life.step()
            await asyncio.sleep(0)


async def test_options_that_were_changed_are_there_in_the_next_life_and_still_win(folder: Folder) -> None:
    async with folder.life() as broker:
        topic = broker.topic("t", retention_count=100)
        await topic.publish_many([b"x"] * 50)
        await topic.configure(retention_count=10, compression="zstd")
    async with folder.life() as broker:
        topic = broker.topic("t", retention_count=100)  # as the code says
        await topic.publish(b"x")
        assert await topic.configure(max_deliver=3) == {
            "retention_count": 10,
            "compression": "zstd",
            "max_deliver": 3,
        }
        assert broker.statistics().topics["t"].first == 41


async def test_sizes_mean_the_same_after_a_restart(folder: Folder) -> None:
    async def sizes(broker: Broker) -> tuple[int, int]:
        (topic,) = (await broker.backend.sample()).topics
        return topic.figures.kept_bytes, topic.figures.published_bytes

    async with folder.life() as broker:
        for number in range(40):
            await broker.publish("t", b"x" * 100, key=b"k%d" % number, headers={"a": "b"})
        await broker.topic("t").trim(20)
        before = await sizes(broker)
    async with folder.life() as broker:
        assert await sizes(broker) == before
    assert 20 * 100 < before[0] < before[1]
