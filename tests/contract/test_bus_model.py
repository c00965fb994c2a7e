"""Any sequence of publishing, subscribing, reading, leaving, deleting and closing, against a model of plain lists."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import runnel
from runnel import Broker, Gap, Policy, Record, Subscription
from tests.contract.bus_model import Item, Missed, ModelBus, ModelSubscriber
from tests.contract.reading import rest
from tests.nightly import examples

T = TypeVar("T")

TOPICS = st.sampled_from(["a", "b", "a.x"])
PATTERNS = st.sampled_from(["a", "b", "a.x", "*", ">", "a.*"])
VALUES = st.lists(st.integers(0, 40).map(bytes), min_size=1, max_size=7)
POLICIES = st.sampled_from(["drop_oldest", "drop_newest", "block", "disconnect"])


class Pair:
    """One subscription and the model of it."""

    def __init__(self, real: Subscription[bytes], model: ModelSubscriber, limit: int | None, drops: list[Any]) -> None:
        self.real, self.model, self.limit, self.drops = real, model, limit, drops


def same(record: Record[bytes], item: Item) -> bool:
    return (record.topic, record.offset, record.sequence, record.value) == (
        item.topic,
        item.offset,
        item.sequence,
        item.value,
    )


def same_gap(gap: Gap | None, missed: Missed | None) -> bool:
    if gap is None or missed is None:
        return gap is None and missed is None
    return (gap.first, gap.end, gap.count) == (missed.first, missed.end, missed.count)


class BusMachine(RuleBasedStateMachine):
    """Every rule acts on the bus and on the model, and compares what both say."""

    subscriptions: Bundle[Pair] = Bundle("subscriptions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pairs: list[Pair] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def open(self) -> None:
        self.model = ModelBus()
        self.pairs = []
        self.broker: Broker = self.run(self._opened())

    async def _opened(self) -> Broker:
        return await runnel.open().__aenter__()

    def teardown(self) -> None:
        self.run(self._leave_all())
        self.broker.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _leave_all(self) -> None:
        for pair in self.pairs:
            await pair.real.__aexit__(None, None, None)

    # -- publishing ---------------------------------------------------------------------------------------------

    @rule(topic=TOPICS, values=VALUES, how=st.sampled_from(["await", "nowait", "many"]))
    def publish(self, topic: str, values: list[bytes], how: str) -> None:
        if how == "many":
            self._publish(topic, values, how)
        else:
            for value in values:
                self._publish(topic, [value], how)

    def _publish(self, topic: str, values: list[bytes], how: str) -> None:
        sizes = [len(value) for value in values]
        if not all(one.fits(sizes) for one in self.model.readers(topic)):
            with pytest.raises(runnel.Full):
                self.run(self._nowait(topic, values[0], until_full=len(values)))
            self.model.topics.setdefault(topic, [])
            return
        expected = self.model.publish(topic, values)
        if how == "many":
            first, last = self.run(self.broker.topic(topic).publish_many(values))
            assert (first.offset, last.offset) == (expected[0].offset, expected[-1].offset)
        elif how == "await":
            assert self.run(self.broker.topic(topic).publish(values[0])).offset == expected[0].offset
        else:
            self.run(self._nowait(topic, values[0]))

    async def _nowait(self, topic: str, value: bytes, until_full: int = 1) -> None:
        """One record; of a batch that did not fit as a whole, record by record until one does not."""
        for _ in range(until_full - 1):
            if not all(one.fits([len(value)]) for one in self.model.readers(topic)):
                break
            self.broker.topic(topic).publish_nowait(value)
            self.model.publish(topic, [value])
        else:
            if until_full > 1:
                raise runnel.Full(topic, "nobody: the rest fitted one by one", 0)
        self.broker.topic(topic).publish_nowait(value)

    @rule(topic=TOPICS, count=st.integers(1, 12), size=st.integers(0, 30))
    def flood(self, topic: str, count: int, size: int) -> None:
        """Many records in one turn through one handle: the short way."""

        async def publish() -> None:
            handle = self.broker.topic(topic)
            for _ in range(count):
                if all(one.fits([size]) for one in self.model.readers(topic)):
                    handle.publish_nowait(bytes(size))
                    self.model.publish(topic, [bytes(size)])
                else:
                    with pytest.raises(runnel.Full):
                        handle.publish_nowait(bytes(size))
                    self.model.topics.setdefault(topic, [])

        self.run(publish())

    # -- subscribing --------------------------------------------------------------------------------------------

    @rule(
        target=subscriptions,
        pattern=PATTERNS,
        policy=POLICIES,
        buffer=st.integers(1, 6),
        buffer_bytes=st.sampled_from([30, 90, 10**6]),
        after=st.integers(1, 4),
        start=st.sampled_from(["latest", "earliest"]),
        limit=st.sampled_from([None, None, 1, 3, 100]),
        eager=st.booleans(),
    )
    def subscribe(
        self,
        pattern: str,
        policy: str,
        buffer: int,
        buffer_bytes: int,
        after: int,
        start: str,
        limit: int | None,
        eager: bool,
    ) -> Any:
        if len(self.pairs) >= 5:
            return multiple()
        drops: list[Record[bytes]] = []
        real = self.broker.subscribe(
            pattern,
            policy=Policy.disconnect(after) if policy == "disconnect" else policy,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            start=start,
            on_drop=drops.append if eager else None,
        )
        self.run(real.__aenter__())
        model = ModelSubscriber(pattern, policy, buffer, buffer_bytes, after, eager)
        self.model.subscribe(model, start)
        pair = Pair(real, model, limit, drops)
        self.pairs.append(pair)
        return pair

    @rule(pair=consumes(subscriptions))
    def leave(self, pair: Pair) -> None:
        if pair in self.pairs:
            self.run(pair.real.__aexit__(None, None, None))
            self.pairs.remove(pair)
            if pair.model in self.model.subscribers:
                self.model.end(pair.model)

    # -- reading ------------------------------------------------------------------------------------------------

    @rule(pair=subscriptions, times=st.integers(1, 6))
    def read(self, pair: Pair, times: int) -> None:
        if pair not in self.pairs:
            return
        for _ in range(times):
            if pair.model.error is not None:
                with pytest.raises(runnel.Ended) as caught:
                    self.run(self._ask(pair))
                assert type(caught.value).__name__ == pair.model.error
                self.run(pair.real.__aexit__(None, None, None))
                self.pairs.remove(pair)
                return
            if not (self._read_record(pair) if pair.limit is None else self._read_batch(pair)):
                return

    def _items(self, pair: Pair) -> AsyncIterator[Any]:
        return aiter(pair.real) if pair.limit is None else pair.real.batches(max_records=pair.limit)

    async def _ask(self, pair: Pair) -> Any:
        """The next item, or None when it would wait."""
        asking = asyncio.ensure_future(anext(self._items(pair)))
        for _ in range(5):
            await asyncio.sleep(0)
        asking.cancel()
        try:
            return await asking
        except asyncio.CancelledError:
            return None

    def _read_record(self, pair: Pair) -> bool:
        expected = pair.model.next_record()
        record = self.run(self._ask(pair))
        if expected is None:
            assert record is None
            return False
        item, missed = expected
        assert same(record, item)
        assert same_gap(record.gap, missed)
        return True

    def _read_batch(self, pair: Pair) -> bool:
        model = pair.model
        model.ask_for_batch()
        expected = model.take(pair.limit or 0)
        batch = self.run(self._ask(pair))
        if expected is None:
            assert batch is None
            return False
        missed, model.carried = model.carried, None
        assert same_gap(batch.gap, missed)
        assert len(batch) == len(expected)
        assert all(same(record, item) for record, item in zip(batch, expected, strict=True))
        assert batch.values == tuple(item.value for item in expected)
        return True

    # -- deleting and closing -----------------------------------------------------------------------------------

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        if topic not in self.model.topics:
            with pytest.raises(runnel.UnknownTopic):
                self.run(self.broker.delete(topic))
            return
        self.model.delete(topic)
        self.run(self.broker.delete(topic))

    @rule()
    def close(self) -> None:
        """Close; whoever is still there reads to the end; and a new broker takes over."""
        self.broker.close()
        for pair in self.pairs:
            if pair.model.error is None:
                self._drain(pair)
            self.run(pair.real.__aexit__(None, None, None))
        with pytest.raises(runnel.BrokerClosed):
            self.run(self.broker.publish("a", b""))
        self.open()

    def _drain(self, pair: Pair) -> None:
        items = self.run(rest(self._items(pair)))
        records = items if pair.limit is None else [record for batch in items for record in batch]
        expected = []
        if pair.limit is None:
            while (one := pair.model.next_record()) is not None:
                expected.append(one[0])
        else:
            pair.model.ask_for_batch()
            while (taken := pair.model.take(pair.limit)) is not None:
                expected += taken
                pair.model.ask_for_batch()
        assert [(r.topic, r.offset, r.sequence, r.value) for r in records] == [
            (item.topic, item.offset, item.sequence, item.value) for item in expected
        ]

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_counters_agree(self) -> None:
        statistics = self.broker.statistics()
        model = self.model
        assert {name: one.published for name, one in statistics.topics.items()} == {
            name: len(log) for name, log in model.topics.items()
        }
        assert statistics.published == model.published
        assert statistics.delivered == model.ended_delivered + sum(one.delivered for one in model.subscribers)
        assert statistics.dropped == model.ended_dropped + sum(one.dropped() for one in model.subscribers)
        by_label = {one.label: one for one in statistics.subscriptions}
        for pair in self.pairs:
            one = pair.model
            if one.error is not None:
                assert pair.real.label not in by_label
                continue
            now = by_label[pair.real.label]
            assert (now.delivered, now.dropped, now.lag) == (one.delivered, one.dropped(), one.lag())
            in_hand = len(one.hand) if one.strict else 0  # where it counts against the bound it still lags
            assert now.delivered + now.dropped + now.lag - in_hand == one.published
            assert [record.sequence for record in pair.drops] == [item.sequence for item in one.handed_on]
            assert now.lag <= one.buffer + one.history()


BusMachine.TestCase.settings = examples(80, 500, stateful_step_count=50)


TestBus = BusMachine.TestCase
