"""Commit attempts: any mix of transactions and publishes, some of which fail, against a model that is a few lists."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from runnel.api.broker import Broker
from runnel.api.delivery import Delivery
from runnel.core.errors import DiskFull, MarkConflict, NotSupported, OffsetConflict
from runnel.journal.format.entry import WriteFailed
from tests.broker.durable_broker import ByHand, Disk, log_of, open_on, turns
from tests.nightly import examples

TOPICS = ("a", "b", "memory")
MARKS = ("m", "n")
JOBS = 6


class Wish(NamedTuple):
    """A transaction to be tried; `expected` are how far off the truth its expectations are, None: it has none."""

    topics: list[str]
    expected_offset: int | None
    marks: dict[str, tuple[int, int | None]]
    ack: int | None
    cancelled: bool


wishes = st.builds(
    Wish,
    st.lists(st.sampled_from(TOPICS), max_size=4),
    st.sampled_from([None, None, 0, 1]),
    st.dictionaries(
        st.sampled_from(MARKS), st.tuples(st.integers(-1, 2), st.sampled_from([None, None, 0, 1])), max_size=2
    ),
    st.sampled_from([None, *range(JOBS)]),
    st.sampled_from([False, False, False, True]),
)
steps = st.lists(
    st.one_of(wishes, st.sampled_from(TOPICS), st.just("land"), st.just("fail"), st.just("turn")), max_size=25
)


class Effect(NamedTuple):
    """What is on its way, in the order that it was handed over."""

    task: asyncio.Task[Any]
    records: list[tuple[str, bytes]]
    marks: dict[str, int]
    ack: int | None


class World:
    """A broker whose disk the test plays, and what should be in it."""

    def __init__(self, broker: Broker, hand: ByHand, held: list[Delivery[bytes]]) -> None:
        self.broker, self.hand, self.held = broker, hand, held
        self.values: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.marks: dict[str, int] = {}
        self.acked: set[int] = set()
        self.coming: list[Effect] = []
        self.joined: list[tuple[asyncio.Task[Any], Effect]] = []  # no-ops that wait for what they double
        self.count = 0

    # -- what should be -----------------------------------------------------------------------------------------

    def mark(self, name: str) -> int | None:
        return ({**self.marks} | {key: value for one in self.coming for key, value in one.marks.items()}).get(name)

    def next(self, topic: str) -> int:
        return len(self.values[topic]) + sum(name == topic for one in self.coming for name, _ in one.records)

    def is_kept(self, wish: Wish) -> bool:
        return bool(wish.marks or wish.ack is not None or {"a", "b"} & {*wish.topics})

    # -- steps --------------------------------------------------------------------------------------------------

    async def publish(self, topic: str) -> None:
        self.count += 1
        value = b"%d" % self.count
        task = asyncio.ensure_future(self.broker.publish(topic, value))
        await asyncio.sleep(0)
        if topic == "memory":
            self.values[topic].append(value)
            await task
        else:
            self.coming.append(Effect(task, [(topic, value)], {}, None))

    async def wish(self, wish: Wish) -> None:
        marks = {}
        for name, (step, off) in wish.marks.items():
            current = self.mark(name)
            marks[name] = ((current or 0) + step, current, None if off is None else (current or 0) + off)
        conflict = any(
            expected is not None and expected != current and value != current
            for value, current, expected in marks.values()
        )
        past = any(current is not None and value <= current for value, current, _ in marks.values())
        topic = wish.topics[0] if wish.topics else None
        wrong = topic is not None and wish.expected_offset == 1
        in_memory = topic == "memory" and wish.expected_offset is not None and self.is_kept(wish)
        open_ = wish.ack is None or not self.held[wish.ack].settled
        records = []

        async def transact() -> bool:
            async with self.broker.transaction() as tx:
                for at, name in enumerate(wish.topics):
                    self.count += 1
                    records.append((name, b"%d" % self.count))
                    expected = None if at or wish.expected_offset is None else self.next(name) + wish.expected_offset
                    tx.publish(name, records[-1][1], expected_offset=expected)
                for name, (value, _, expected) in marks.items():
                    tx.mark(name, value, **({} if expected is None else {"expected": expected}))
                if wish.ack is not None and open_:
                    tx.ack(self.held[wish.ack])
            return tx.applied

        nothing = not (wish.topics or marks or (wish.ack is not None and open_))
        before = list(self.coming)
        task = asyncio.ensure_future(transact())
        await asyncio.sleep(0)
        if conflict:
            assert isinstance(task.exception(), MarkConflict)
        elif past:
            doubles = [one for one in before if any(name in one.marks for name in marks)]
            if doubles:
                self.joined.append((task, doubles[-1]))
            else:
                await turns(2)
                assert task.result() is False
        elif wrong:
            assert isinstance(task.exception(), OffsetConflict)
        elif in_memory:
            assert isinstance(task.exception(), NotSupported)
        elif nothing:
            assert task.result() is False
        else:
            acked = wish.ack if open_ else None
            effect = Effect(task, records, {name: value for name, (value, _, _) in marks.items()}, acked)
            if self.is_kept(wish._replace(ack=acked)):
                self.coming.append(effect)
                if wish.cancelled:
                    task.cancel()
            else:
                self.apply(effect)
                assert await task is True

    def apply(self, effect: Effect) -> None:
        for topic, value in effect.records:
            self.values[topic].append(value)
        self.marks |= effect.marks
        if effect.ack is not None:
            self.acked.add(effect.ack)

    async def land(self) -> None:
        """The oldest commit is written; those that it held are the oldest that were on their way."""
        await turns(2)
        under_way = [one for one in self.hand.put_in if one in self.hand._commits._under_way]
        if not under_way:
            return
        held = len(under_way[0].atomic_writes) + len(
            [one for one in under_way[0].pending_batches if not one.in_atomic_write]
        )
        plain = [one for one in under_way[0].pending_batches if not one.in_atomic_write]
        self.hand.done(under_way[0])
        await turns(2)
        atomic_writes, publishes = len(under_way[0].atomic_writes), sum(one.count for one in plain)
        for _ in range(atomic_writes + publishes):
            effect = self.coming.pop(0)
            assert effect.task.cancelled() or effect.task.result() is not None
            assert effect.task.cancelled() or effect.task.result() is not False
            self.apply(effect)
            self.join(effect, None)
        assert held or not (atomic_writes + publishes)

    async def fail(self) -> None:
        await turns(2)
        under_way = [one for one in self.hand.put_in if one in self.hand._commits._under_way]
        if not under_way:
            return
        self.hand.round += 1
        self.hand.done(under_way[0], WriteFailed(0, 0, DiskFull(0, 0)))
        await turns(2)
        if not under_way[0].holds_records:
            return
        coming, self.coming = self.coming, []
        for effect in coming:
            assert effect.task.cancelled() or isinstance(effect.task.exception(), DiskFull)
            self.join(effect, DiskFull)

    def join(self, effect: Effect, failed: type[Exception] | None) -> None:
        for task, double in list(self.joined):
            if double is effect:
                self.joined.remove((task, double))
                if failed is None:
                    assert task.result() is False
                else:
                    assert isinstance(task.exception(), failed)

    # -- what is ------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        for topic in TOPICS:
            log = log_of(self.broker, topic)
            assert log.values == self.values[topic], topic
            if topic != "memory":
                assert log.next == self.next(topic)
        assert await self.broker.marks() == self.marks
        coming = {one.ack for one in self.coming}
        for number, delivery in enumerate(self.held):
            assert delivery.settled == (number in self.acked or number in coming), number
            assert not delivery.lapsed
        (group,) = self.broker.statistics().groups
        assert group.acked == len(self.acked)
        assert group.in_flight == JOBS - len(self.acked)
        assert group.members[0].held == JOBS - len(self.acked) - len(coming - {None})


@examples(50, 150, deadline=None)
@given(steps=steps)
def test_transactions_do_what_the_model_does_whatever_fails(steps: list[Any]) -> None:
    async def live(folder: Path) -> None:
        async with open_on(Disk(), folder) as broker:
            for topic in ("a", "b", "jobs"):
                await broker.topic(topic).declare()
            await broker.topic("memory", durable=False).declare()
            await broker.topic("jobs").publish_many([b"job"] * JOBS, keys=[b"k1", b"k2", *[None] * (JOBS - 2)])
            async with broker.subscribe("jobs", group="g") as deliveries:
                held = [await anext(deliveries) for _ in range(JOBS)]
                await broker.backend.flushed()
                world = World(broker, ByHand(broker), held)
                try:
                    for step in steps:
                        if isinstance(step, Wish):
                            await world.wish(step)
                        elif step in TOPICS:
                            await world.publish(step)
                        elif step == "turn":
                            await turns(2)
                        else:
                            await (world.land() if step == "land" else world.fail())
                        await world.check()
                    while world.coming:
                        await world.land()
                        await world.check()
                finally:
                    world.hand.leave()

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        asyncio.run(live(Path(folder)))
