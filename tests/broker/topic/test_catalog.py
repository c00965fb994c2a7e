"""The topics of a broker: made, agreed upon, deleted."""

from pathlib import Path
from typing import Any, cast

import pytest

import runnel
from runnel import Broker, Gap
from runnel.broker.read.reader import LocalReader
from runnel.broker.topic.catalog import UNDECLARED
from runnel.core.errors import (
    InvalidName,
    InvalidOption,
    NotSupported,
    OffsetOutOfRange,
    SchemaConflict,
    TopicConflict,
    UnknownTopic,
)
from runnel.core.options import TopicOptions
from runnel.core.schema import Codec
from runnel.testing.clock import JumpingClock


async def test_a_log_is_found_again_and_made_once() -> None:
    async with runnel.open() as broker:
        log = broker.backend.catalog.find("t")
        assert broker.backend.catalog.find("t") is log
        assert broker.backend.catalog.names() == ["t"]
        with pytest.raises(InvalidName):
            broker.backend.catalog.find("a..b")


async def test_internal_logs_are_not_among_the_names() -> None:
    async with runnel.open() as broker:
        broker.backend.catalog.make("$runnel.x")
        assert broker.backend.catalog.names() == []


async def test_epochs_rise_even_when_the_clock_stands_still_or_goes_back() -> None:
    clock = JumpingClock()
    async with runnel.open(clock=clock) as broker:
        epochs = [broker.backend.catalog.make(name).epoch for name in "abc"]
        clock._now -= 1000
        epochs.append(broker.backend.catalog.make("d").epoch)
        assert epochs == sorted(set(epochs))
    async with runnel.open(clock=JumpingClock()) as later:
        assert later.backend.catalog.make("a").epoch > 0


async def test_the_first_who_says_options_decides() -> None:
    async with runnel.open() as broker:
        assert broker.backend.catalog.find("t").options is UNDECLARED
        said = TopicOptions(retention_count=5)
        assert broker.backend.catalog.find("t", said).options is said
        broker.backend.catalog.find("t", TopicOptions())
        with pytest.raises(TopicConflict):
            broker.backend.catalog.find("t", TopicOptions(retention_count=6))


async def test_declared_topics_may_be_made_without_auto_create() -> None:
    async with runnel.open(auto_create=False) as broker:
        with pytest.raises(UnknownTopic):
            broker.backend.catalog.find("t")
        log = broker.backend.catalog.find("t", declared=True)
        assert broker.backend.catalog.find("t") is log


async def test_a_type_closes_the_short_way_and_must_agree() -> None:
    async with runnel.open() as broker:
        broker.topic("t").publish_nowait(b"1")
        log = broker.backend.catalog.logs["t"]
        assert log.trip > 0
        broker.backend.catalog.find("t", codec=Codec(int))
        assert log.trip == 0
        with pytest.raises(SchemaConflict):
            broker.backend.catalog.find("t", codec=Codec(str))


async def test_a_deleted_log_counts_on_in_the_totals() -> None:
    async with runnel.open() as broker:
        await broker.topic("t").publish_many([b"ab", b"c"])
        broker.backend.catalog.make("$runnel.x")
        broker.backend.catalog.delete("t")
        broker.backend.catalog.delete("$runnel.x")
        assert (broker.backend.totals.published, broker.backend.totals.published_bytes) == (2, 3)
        assert broker.backend.catalog.logs == {}


async def test_whether_a_topic_has_readers() -> None:
    async with runnel.open() as broker:
        assert not broker.backend.catalog.has_readers("t")
        async with broker.subscribe("*"):
            assert broker.backend.catalog.has_readers("t")
            assert not broker.backend.catalog.has_readers("a.b")
        async with broker.subscribe("t"):
            assert broker.backend.catalog.has_readers("t")
        assert not broker.backend.catalog.has_readers("t")


@pytest.mark.parametrize("option", ["durable", "compact"])
def test_what_needs_a_disk_is_refused_unless_it_is_declined(option: str) -> None:
    broker, yes, no = runnel.open(), cast(Any, {option: True}), cast(Any, {option: False})
    with pytest.raises(NotSupported, match=option):
        broker.topic("t", **yes)
    broker.topic("t", **no)


@pytest.mark.parametrize("option", [{"compact": True}, {"compression": "zstd"}])
async def test_what_is_stored_in_a_way_has_to_be_stored(option: Any, tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        with pytest.raises(NotSupported, match="durable=False"):
            broker.topic("t", durable=False, **option)
        await broker.topic("t", **option).declare()


async def test_what_was_only_asked_for_is_forgotten_with_its_last_reader(runnel_broker: Broker) -> None:
    catalog = runnel_broker.backend.catalog
    async with runnel_broker.subscribe(">") as everything:
        async with runnel_broker.subscribe("t"):
            async with runnel_broker.subscribe("t"):
                pass
            assert await runnel_broker.topics() == ["t"]
        assert catalog.logs == {}
        reader = everything._source
        assert isinstance(reader, LocalReader)
        assert reader.attachment.logs == set()
        await runnel_broker.publish("t", b"a")  # it is made again, and seen by those who cover it
        assert (await anext(everything)).value == b"a"


@pytest.mark.parametrize("said", ["declared", "typed", "published"])
async def test_a_topic_that_was_published_to_or_declared_stays(said: str, runnel_broker: Broker) -> None:
    async with runnel_broker.subscribe("t"):
        if said == "published":
            await runnel_broker.publish("t", b"a")
        else:
            await runnel_broker.topic("t", int if said == "typed" else None).declare()
    async with runnel_broker.subscribe("t"):
        pass
    assert await runnel_broker.topics() == ["t"]


async def test_a_group_keeps_its_topic_until_it_is_forgotten(runnel_broker: Broker) -> None:
    async with runnel_broker.subscribe("t", group="g"):
        pass
    async with runnel_broker.subscribe("t"):
        pass
    assert await runnel_broker.topics() == ["t"]
    await runnel_broker.publish("t", b"a")
    async with runnel_broker.subscribe("t", group="g") as deliveries:
        assert (await anext(deliveries)).value == b"a"
    async with runnel_broker.subscribe("u", group="g"):
        pass
    await runnel_broker.forget_group("g", "u")
    assert await runnel_broker.topics() == ["t"]


@pytest.mark.parametrize("options", [{"start": 5}, {"start": 5, "group": "g"}, {"group": "g", "buffer": 0}])
async def test_a_reader_that_comes_to_nothing_leaves_no_topic(options: Any, runnel_broker: Broker) -> None:
    with pytest.raises((OffsetOutOfRange, InvalidOption)):
        async with runnel_broker.subscribe("t", **options):
            pass
    assert await runnel_broker.replay("dead") == 0
    assert await runnel_broker.topics() == []


async def test_a_name_on_a_topic_that_was_forgotten_is_owed_all_of_it(runnel_broker: Broker) -> None:
    async with runnel_broker.subscribe("t", name="n"):
        pass
    assert await runnel_broker.topics() == []
    topic = runnel_broker.topic("t", retention_count=2)
    await topic.publish_many([b"a", b"b", b"c"])
    gaps: list[Gap] = []
    async with runnel_broker.subscribe("t", name="n", on_gap=gaps.append) as records:
        assert [(await anext(records)).value for _ in range(2)] == [b"b", b"c"]
    assert [(gap.first, gap.end) for gap in gaps] == [(0, 1)]
