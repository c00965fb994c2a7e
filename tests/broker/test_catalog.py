"""The topics of a broker: made, agreed upon, deleted."""

from pathlib import Path
from typing import Any, cast

import pytest

import runnel
from runnel.broker.catalog import UNSAID
from runnel.core.codec import Codec
from runnel.core.errors import InvalidName, NotSupported, SchemaConflict, TopicConflict, UnknownTopic
from runnel.core.options import TopicOptions
from runnel.testing.clock import JumpingClock


async def test_a_log_is_found_again_and_made_once() -> None:
    async with runnel.open() as broker:
        log = broker._bus.catalog.find("t")
        assert broker._bus.catalog.find("t") is log
        assert broker._bus.catalog.names() == ["t"]
        with pytest.raises(InvalidName):
            broker._bus.catalog.find("a..b")


async def test_internal_logs_are_not_among_the_names() -> None:
    async with runnel.open() as broker:
        broker._bus.catalog.make("$runnel.x")
        assert broker._bus.catalog.names() == []


async def test_epochs_rise_even_when_the_clock_stands_still_or_goes_back() -> None:
    clock = JumpingClock()
    async with runnel.open(clock=clock) as broker:
        epochs = [broker._bus.catalog.make(name).epoch for name in "abc"]
        clock._now -= 1000
        epochs.append(broker._bus.catalog.make("d").epoch)
        assert epochs == sorted(set(epochs))
    async with runnel.open(clock=JumpingClock()) as later:
        assert later._bus.catalog.make("a").epoch > 0


async def test_the_first_who_says_options_decides() -> None:
    async with runnel.open() as broker:
        assert broker._bus.catalog.find("t").options is UNSAID
        said = TopicOptions(retention_count=5)
        assert broker._bus.catalog.find("t", said).options is said
        broker._bus.catalog.find("t", TopicOptions())
        with pytest.raises(TopicConflict):
            broker._bus.catalog.find("t", TopicOptions(retention_count=6))


async def test_declared_topics_may_be_made_without_auto_create() -> None:
    async with runnel.open(auto_create=False) as broker:
        with pytest.raises(UnknownTopic):
            broker._bus.catalog.find("t")
        log = broker._bus.catalog.find("t", declared=True)
        assert broker._bus.catalog.find("t") is log


async def test_a_type_closes_the_short_way_and_must_agree() -> None:
    async with runnel.open() as broker:
        broker.topic("t").publish_nowait(b"1")
        log = broker._bus.catalog.logs["t"]
        assert log.trip > 0
        broker._bus.catalog.find("t", codec=Codec(int))
        assert log.trip == 0
        with pytest.raises(SchemaConflict):
            broker._bus.catalog.find("t", codec=Codec(str))


async def test_a_deleted_log_counts_on_in_the_totals() -> None:
    async with runnel.open() as broker:
        await broker.topic("t").publish_many([b"ab", b"c"])
        broker._bus.catalog.make("$runnel.x")
        broker._bus.catalog.delete("t")
        broker._bus.catalog.delete("$runnel.x")
        assert (broker._bus.ended.published, broker._bus.ended.published_bytes) == (2, 3)
        assert broker._bus.catalog.logs == {}


async def test_whether_anybody_listens() -> None:
    async with runnel.open() as broker:
        assert not broker._bus.catalog.has_readers("t")
        async with broker.subscribe("*"):
            assert broker._bus.catalog.has_readers("t")
            assert not broker._bus.catalog.has_readers("a.b")
        async with broker.subscribe("t"):
            assert broker._bus.catalog.has_readers("t")
        assert not broker._bus.catalog.has_readers("t")


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
