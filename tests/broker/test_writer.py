"""The fast path of publishing in this process: when a handle takes it, and when it must not."""

import asyncio
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.api.topic import Topic
from runnel.broker.topic.log import SMALL, Log
from runnel.core.publishing import MAX_RECORD_BYTES
from runnel.core.record import Meta
from tests.carried import metas_of


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


CARRIED: list[dict[str, Any]] = [
    {"key": b"k"},
    {"key": "k"},
    {"headers": {"h": "x"}},
    {"priority": 1},
    {"expires": 60},
    {"delay": timedelta(seconds=60)},
    {"message_id": "m"},
    {"key": b"k", "headers": {"h": "x"}, "priority": 9, "expires": 1.5, "message_id": "n"},
]


@pytest.mark.usefixtures("nobody_traces")
@pytest.mark.parametrize("carried", CARRIED, ids=lambda carried: "+".join(carried))
async def test_what_carries_more_takes_it_too(carried: dict[str, Any]) -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        await topic.publish(b"first")
        assert is_fast(topic, **carried)
        assert (await topic.publish(b"x", **carried)).offset == (1 if "message_id" in carried else 2)
        slow = broker.topic("slow")  # the first publish of a turn
        await asyncio.sleep(0)
        slow.publish_nowait(b"x", **carried)
        ours, theirs = metas_of(log_of(topic).columns, 2)[1], metas_of(log_of(slow).columns, 1)[0]
        if ours is not None and theirs is not None and {"delay", "expires"} & carried.keys():
            moment = {"due": None, "expires": None}
            ours, theirs = (msgspec.structs.replace(one, **moment) for one in (ours, theirs))
        assert ours == theirs


@pytest.mark.parametrize("kind", ["memory", "folder"])
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"key": 5}, runnel.InvalidValue),
        ({"headers": {"a b": "x"}}, runnel.InvalidOption),
        ({"headers": {"a": "x\n"}}, runnel.InvalidOption),
        ({"headers": {"a": 5}}, runnel.InvalidValue),
        ({"priority": 10}, runnel.InvalidOption),
        ({"priority": True}, runnel.InvalidOption),
        ({"expires": -1.0}, runnel.InvalidOption),
        ({"delay": float("nan")}, runnel.InvalidOption),
        ({"message_id": ""}, runnel.InvalidOption),
        ({"key": bytes(MAX_RECORD_BYTES + 1)}, runnel.TooLarge),
        ({"headers": {"h": "x" * (MAX_RECORD_BYTES + 1)}}, runnel.TooLarge),
    ],
    ids=lambda one: str(one)[:30],
)
async def test_what_is_wrong_is_refused_there_too(
    kind: str, wrong: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    async with runnel.open(tmp_path if kind == "folder" else None) as broker:
        topic = broker.topic("t")
        await topic.publish(b"first")
        topic.publish_nowait(b"second")
        with pytest.raises(error):
            topic.publish_nowait(b"x", **wrong)
        with pytest.raises(error):
            await topic.publish(b"x", **wrong)
        assert (await topic.publish(b"third", key=b"k")).offset == 2


@pytest.mark.usefixtures("nobody_traces")
async def test_records_with_and_without_keys_and_ids_share_a_batch_on_disk(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        topic = broker.topic("t")
        await topic.publish(b"0")
        topic.publish_nowait(b"1")
        topic.publish_nowait(b"2", key=b"k")
        topic.publish_nowait(b"3")
        topic.publish_nowait(b"4", message_id="m", headers={"h": "x"})
        log = log_of(topic)
        assert log.stored is not None
        assert log.stored.pending_batch is not None
        assert log.stored.pending_batch.count == 4
        again = asyncio.ensure_future(topic.publish(b"4 again", message_id="m"))
        assert (await topic.publish(b"5", key=b"l", message_id="n")).offset == 5
        assert (await again).offset == 4
    async with runnel.open(tmp_path) as broker, broker.subscribe("t", start="earliest") as records:
        found = [await anext(records) for _ in range(6)]
        assert [record.value for record in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [record.key for record in found] == [None, None, b"k", None, None, b"l"]
        assert dict(found[4].headers) == {"h": "x"}
        assert (await broker.publish("t", b"5 again", message_id="n")).offset == 5


async def test_what_takes_the_slow_path_is_not_lost() -> None:
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


@pytest.mark.usefixtures("nobody_traces")
async def test_a_typed_handle_has_a_fast_path_and_a_raw_handle_on_a_typed_topic_has_none() -> None:
    async with runnel.open() as broker:
        raw = broker.topic("t")
        raw.publish_nowait(b'{"id":0}')
        assert is_fast(raw, b'{"id":1}')
        typed = broker.topic("t", Order)
        typed.publish_nowait(Order(2))  # the topic gets its type
        log: Log = typed._writer.typed  # type: ignore[attr-defined]
        room = log.room
        typed.publish_nowait(Order(3), key="k")
        assert (await typed.publish(Order(4))).offset == 4
        assert (log.room, log.trip) == (room, 0)
        for wrong in (Order("x"), object(), b"{}"):  # type: ignore[arg-type]
            with pytest.raises(runnel.ValidationFailed):
                typed.publish_nowait(wrong)  # type: ignore[arg-type]
        with pytest.raises(runnel.ValidationFailed):
            raw.publish_nowait(b"x")
        assert not is_fast(raw, b'{"id":5}')
        assert log.values == [b'{"id":%d}' % number for number in range(6)]
        assert metas_of(log.columns, 6)[3] == Meta(b"k")
        await typed.delete()
        typed.publish_nowait(Order(7))
        typed.publish_nowait(Order(8))
        assert broker.statistics().topics["t"].published == 2


@pytest.mark.usefixtures("nobody_traces")
async def test_a_typed_handle_leaves_what_is_more_than_a_buffer_to_the_policy() -> None:
    async with runnel.open() as broker, broker.subscribe("t", policy="block", buffer=5) as subscription:
        typed = broker.topic("t", Order)
        for number in range(5):
            typed.publish_nowait(Order(number))
        with pytest.raises(runnel.Full):
            typed.publish_nowait(Order(5))
        assert subscription.lag == 5


async def test_no_span_is_current_where_spans_may_be_current() -> None:
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
