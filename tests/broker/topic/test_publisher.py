"""From what a caller wants published to an append, and from there into the log or into the queue."""

import asyncio
import gc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.api.broker import Broker
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.core.columns import HEADERS, KEYS
from runnel.core.errors import InvalidOption, TopicDeleted, ValidationFailed, WouldDeadlock
from runnel.core.options import NO_TOPIC_OPTIONS
from runnel.core.publishing import Append, append_of, append_of_many
from runnel.core.schema import Codec
from runnel.testing.clock import START, JumpingClock
from tests.brokers import local_broker
from tests.carried import metas_of


def one(broker: Broker, value: object, *, codec: Codec[Any] | None = None, **options: Any) -> Append:
    return append_of(broker.backend.writer("t", codec, NO_TOPIC_OPTIONS), value, **options)


def many(broker: Broker, values: list[object], *, codec: Codec[Any] | None = None, **options: Any) -> Append:
    return append_of_many(broker.backend.writer("t", codec, NO_TOPIC_OPTIONS), values, **options)


def test_a_plain_record_carries_nothing_besides_its_value() -> None:
    entry = one(local_broker(), "é")
    assert (entry.values, entry.columns, entry.size, entry.message_id, entry.checked) == (
        ("é".encode(),),
        None,
        2,
        None,
        False,
    )


def test_times_are_counted_from_the_brokers_clock() -> None:
    entry = one(local_broker(clock=JumpingClock()), b"", delay=5, expires=timedelta(minutes=1), priority=3, key="k")
    (meta,) = metas_of(entry.columns, 1)
    assert meta is not None
    assert (meta.due, meta.expires, meta.priority, meta.key) == (START + 5, START + 60, 3, b"k")


def test_many_share_what_is_the_same_for_all() -> None:
    broker = local_broker()
    plain = many(broker, [b"a", "b", bytearray(b"cc")])
    assert (list(plain.values), plain.columns, plain.size) == ([b"a", b"b", b"cc"], None, 4)
    shared = many(broker, [b"a", b"b"], headers={"h": "x"})
    assert shared.columns is not None
    assert shared.columns[HEADERS][0] is shared.columns[HEADERS][1]
    keyed = many(broker, [b"a", b"b"], keys=["k", None])
    assert keyed.columns == {KEYS: [b"k", None]}
    with pytest.raises(InvalidOption, match="there are 2 values"):
        many(broker, [b"a", b"b"], keys=["k"])


def test_typed_entries_are_checked_already() -> None:
    broker = local_broker()
    codec: Codec[int] = Codec(int)
    assert one(broker, 5, codec=codec).checked
    assert many(broker, [5, 6], codec=codec).checked
    assert many(broker, [5], keys=["k"], codec=codec).checked
    with pytest.raises(ValidationFailed):
        many(broker, [5, "x"], codec=codec)


async def test_raw_entries_of_a_typed_log_are_checked_before_they_are_appended() -> None:
    async with runnel.open() as broker:
        log = broker.backend.catalog.find("t", codec=Codec(int))
        with pytest.raises(ValidationFailed):
            broker.backend.publisher.append_now(log, many(broker, [b"1", b"x"]))
        assert log.end == 0
        assert broker.backend.publisher.append_now(log, many(broker, [b"1", b"2"])) == 0


async def test_a_publish_that_waits_for_the_journal_is_held_against_the_type_the_topic_gets_meanwhile(
    tmp_path: Path,
) -> None:
    async with runnel.open(tmp_path, max_pending_bytes=1) as broker:
        topic = broker.topic("t")
        await topic.declare()
        fills = asyncio.ensure_future(topic.publish(b"1"))
        waits = asyncio.ensure_future(topic.publish(b"garbage"))
        await asyncio.sleep(0)  # both are under way
        log = broker.backend.catalog.find("t", codec=Codec(int))
        await fills
        with pytest.raises(ValidationFailed):
            await waits
        assert log.end == 1


async def test_the_trace_is_asked_for_unless_the_caller_has_one() -> None:
    broker = local_broker()
    mine, current = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
    broker.backend.publisher.tracing.current = lambda: current
    assert broker.backend.publisher.tracing.is_active
    for headers, expected in ((None, current), ({"h": "x"}, current), ({"traceparent": mine}, mine)):
        entry = one(broker, b"", headers=headers)
        assert entry.columns is not None
        assert entry.columns[HEADERS][0]["traceparent"] == expected
    broker.backend.publisher.tracing.current = lambda: None
    assert one(broker, b"").columns is None


async def test_a_message_id_is_found_even_when_it_waited() -> None:
    async with runnel.open() as broker, broker.subscribe("t", policy="block", buffer=1) as subscription:
        await broker.publish("t", b"a")
        first = asyncio.ensure_future(broker.publish("t", b"b", message_id="m"))
        second = asyncio.ensure_future(broker.publish("t", b"b again", message_id="m"))
        values = [(await anext(subscription)).value for _ in range(2)]
        third = asyncio.ensure_future(anext(subscription))
        assert (await first) == (await second)
        third.cancel()
        assert values == [b"a", b"b"]
        assert broker.statistics().published == 2


async def test_a_queue_is_left_empty_when_all_is_done() -> None:
    async with runnel.open() as broker:
        async with broker.subscribe("t", policy="block", buffer=1):
            await broker.publish("t", b"a")
            waiting = [asyncio.ensure_future(broker.publish("t", b"x")) for _ in range(3)]
            await asyncio.sleep(0)
            assert broker.statistics().waiting_publishers == 3
        await asyncio.gather(*waiting)
        assert broker.backend.publisher.blocked == set()


async def test_only_ones_own_task_can_deadlock() -> None:
    async with runnel.open() as broker, broker.subscribe("t", policy="block", buffer=1) as subscription:
        await broker.publish("t", b"a")
        await anext(subscription)
        log, entry = broker.backend.catalog.logs["t"], one(broker, b"x")
        with pytest.raises(WouldDeadlock):
            broker.backend.publisher.queue(log, entry, asyncio.current_task())
        assert not log.topic_readers or not log.topic_readers.blocked
        waiting = broker.backend.publisher.queue(log, entry, None)
        assert not waiting.done()
        waiting.cancel()


async def test_a_durable_publish_that_fails_keeps_nothing_in_memory(tmp_path: Path) -> None:
    """The error's traceback holds the publish; the publish must not hold its batch, or neither is ever freed."""
    async with runnel.open(tmp_path) as broker:
        for _ in range(20):
            publishing = asyncio.ensure_future(broker.publish("failing", bytes(1000), key="k"))
            await asyncio.sleep(0)
            broker.backend.catalog.delete("failing")
            with pytest.raises(TopicDeleted):
                await publishing
        del publishing
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, PendingBatch) and one.log.name == "failing"]
        assert len(kept) <= 1  # the last one may still be in the hands of the commit thread
