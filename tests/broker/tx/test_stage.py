"""The handle on a stage: made of a key, with no I/O, on one topic."""

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel.core.errors import BrokerClosed, NotSupported, ValidationFailed
from tests.broker.durable_broker import Disk, journal_of, open_on


async def test_making_one_does_nothing(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        stage = broker.stage("t", writer="w", batch=1)
        assert (stage.records, stage.bytes, stage.topic, stage.key) == (0, 0, "t", ("w", 1, 0, 0))
        assert (await broker.stages(), await broker.topics()) == ([], [])
        await stage.drop()
        assert journal_of(broker).ledger.stages == {}


async def test_before_and_after_the_block_it_says_so(tmp_path: Path) -> None:
    broker = runnel.open(tmp_path)
    stage = broker.stage("t", writer="w", batch=1)
    assert stage.records == 0
    with pytest.raises(NotSupported, match="before the folder is open"):
        await stage.write([b"x"])
    async with broker:
        await stage.write([b"x"])
    for use in (stage.write([b"x"]), stage.drop(), broker.stages()):
        with pytest.raises(BrokerClosed):
            await use


async def test_another_thread_may_write_and_drop(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        stage = broker.stage("t", writer="w", batch=1)
        assert await asyncio.to_thread(lambda: asyncio.run(stage.write([b"a", b"b"], keys=["k", None]))) == 2
        assert stage.records == 2
        await asyncio.to_thread(lambda: asyncio.run(stage.drop()))
        assert await broker.stages() == []


async def test_what_comes_without_a_type_is_held_against_that_of_the_topic(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        await broker.topic("t", int).declare()
        stage = broker.stage("t", writer="w", batch=1)
        assert await stage.write([b"1", b"2"]) == 2
        with pytest.raises(ValidationFailed):
            await stage.write([b"1", b"no number"])
        assert stage.records == 2
