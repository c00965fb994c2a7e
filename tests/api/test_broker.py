"""The broker as a handle: what it says of itself, and the handles that it keeps."""

from pathlib import Path

import pytest

import runnel
from runnel.core.errors import NotSupported
from tests.brokers import local_broker


async def test_a_pattern_that_never_reads_survives_the_compaction_of_the_timeline() -> None:
    async with local_broker() as broker, broker.subscribe("*", buffer=10) as subscription:
        for number in range(3000):
            name = f"t{number % 3}"
            broker.topic(name, retention_count=1).publish_nowait(b"%d" % number)
        broker.close()
        records = [record async for record in subscription]
    missed = sum(record.gap.count or 0 for record in records if record.gap)
    assert missed + len(records) == 3000
    assert [record.value for record in records] == [b"2997", b"2998", b"2999"]


async def test_a_broker_in_this_process_is_connected_to_nothing_and_tells_what_it_knows(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        with pytest.raises(NotSupported, match="in this process"):
            _ = broker.connection
        assert await broker.info() == {"version": runnel.__version__, "journal": broker.id, "fsync": "commit"}
    async with runnel.open() as broker:
        assert (await broker.info())["fsync"] is None


async def test_handles_of_topics_are_kept_for_publishing_but_not_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.api.topic.HANDLES", 2)
    async with runnel.open() as broker:
        for name in ("a", "b", "c"):
            await broker.publish(name, b"x")
        assert list(broker._topics) == ["c"]
        await broker.delete("c")
        assert (await broker.publish("c", b"y")).offset == 0, "a kept handle finds the topic that is there now"


async def test_figures_have_the_handlers_of_the_broker_that_is_asked() -> None:
    async with runnel.open() as broker:

        async def work(value: bytes) -> None: ...

        broker.on("a")(work)
        assert [handler.pattern for handler in broker.statistics().handlers] == ["a"]
        assert broker.backend.statistics().handlers == ()


async def test_it_says_what_it_is() -> None:
    broker = local_broker()
    async with broker, broker.subscribe("t"):
        assert repr(broker) == "<Broker in memory, open, 1 topics, 1 readers>"
    assert "closed" in repr(broker)


def test_without_a_loop_it_says_what_to_use() -> None:
    with pytest.raises(NotSupported, match=r"runnel\.blocking"):
        runnel.open().topic("t").publish_nowait(b"x")
