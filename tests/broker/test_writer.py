"""The fast path of publishing in this process: when a handle takes it, and when it must not."""

import sys
import threading
from typing import Any

import msgspec
import pytest

import runnel
from runnel.api.topic import Topic
from runnel.broker.topic.log import SMALL, Log


class Order(msgspec.Struct):
    id: int


def log_of(topic: Topic[Any]) -> Log:
    """The log that the fast path appends to."""
    writer: Any = topic._writer
    assert isinstance(writer.log, Log)
    return writer.log


def is_fast(topic: Topic[bytes], value: bytes = b"x", **options: str | int) -> bool:
    """Whether publishing took the fast path: the log grew and its trip stayed."""
    log = log_of(topic)
    before = log.trip
    topic.publish_nowait(value, **options)  # type: ignore[arg-type]
    return before == log.trip > 0


@pytest.fixture
def nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that does not import OpenTelemetry."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)


@pytest.mark.usefixtures("nobody_traces")
async def test_small_plain_bytes_take_the_fast_path_within_a_turn() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        assert not is_fast(topic)
        assert is_fast(topic)
        assert is_fast(topic, bytes(SMALL - 1))
        assert broker.statistics().topics["t"].published == 3


async def test_what_carries_more_takes_the_slow_path_and_is_not_lost() -> None:
    async with runnel.open() as broker, broker.subscribe("t") as subscription:
        topic = broker.topic("t")
        topic.publish_nowait(b"0")
        topic.publish_nowait("1")
        topic.publish_nowait(b"2", key=b"k")
        topic.publish_nowait(b"3", headers={"h": "x"})
        topic.publish_nowait(b"4", priority=1)
        topic.publish_nowait(b"5", message_id="m")
        topic.publish_nowait(b"6", expires=60)
        topic.publish_nowait(b"7", delay=60)
        topic.publish_nowait(bytearray(b"8"))  # type: ignore[arg-type]
        topic.publish_nowait(bytes(SMALL))
        records = [await anext(subscription) for _ in range(10)]
    assert [record.value for record in records[:9]] == [b"%d" % number for number in range(9)]
    assert (records[2].key, records[3].headers, len(records[9].value)) == (b"k", {"h": "x"}, SMALL)


async def test_a_subclass_of_bytes_is_not_mistaken_for_bytes() -> None:
    class Tagged(bytes):
        pass

    async with runnel.open() as broker:
        topic = broker.topic("t")
        topic.publish_nowait(b"x")
        assert not is_fast(topic, Tagged(b"x"))


@pytest.mark.usefixtures("nobody_traces")
async def test_a_thread_never_takes_the_fast_path() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        topic.publish_nowait(b"x")
        thread = threading.Thread(target=lambda: topic.publish_nowait(b"y"))
        thread.start()
        thread.join()
        assert len(log_of(topic).values) == 1
        broker.backend.loop_owner.take_posted()
        assert len(log_of(topic).values) == 2


async def test_a_typed_handle_and_a_handle_on_a_typed_topic_never_do() -> None:
    async with runnel.open() as broker:
        typed = broker.topic("t", Order)
        typed.publish_nowait(Order(1))
        assert log_of(typed).trip == 0
        raw = broker.topic("t")
        raw.publish_nowait(b'{"id":1}')
        assert not is_fast(raw, b'{"id":2}')


async def test_where_spans_may_be_current_nobody_does() -> None:
    async with runnel.open() as broker:
        broker.backend.publisher.tracing.current = lambda: None
        topic = broker.topic("t")
        topic.publish_nowait(b"x")
        assert log_of(topic).trip == 0
        assert broker.statistics().published == 1


async def test_awaited_publishing_takes_the_same_way() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        offsets = [(await topic.publish(b"x")).offset for _ in range(5)]
        topic.publish_nowait(b"x")
        offsets.append((await topic.publish(b"x")).offset)
        assert offsets == [0, 1, 2, 3, 4, 6]
