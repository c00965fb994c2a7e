"""The stages of a transaction: noted, waited for, taken all or none, and told how it went."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable import staging
from runnel.broker.durable.staging import StagingArea
from runnel.broker.tx.commit import TransactionStages
from runnel.core.errors import StageEnded, UnknownStage
from runnel.core.position import Position
from runnel.core.publishing import Append, Publication
from runnel.core.stages import StageKey
from runnel.journal.format.ledger import StageState
from tests.broker.durable_broker import Disk, log_of, open_on, turns


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(Disk(), tmp_path, segment_bytes=1 << 24) as opened:
        yield opened


def staging_of(broker: Broker) -> StagingArea:
    assert broker.backend.store is not None
    found: StagingArea = broker.backend.store.staging
    return found


async def staged(broker: Broker, part: int, *values: bytes) -> StageKey:
    stage = broker.stage("t", writer="w", batch=1, part=part)
    await stage.write(values)
    return stage.key


def noted(broker: Broker, *keys: StageKey) -> tuple[TransactionStages, list[Publication]]:
    publications = [Publication("", 0) for _ in keys]
    return TransactionStages(staging_of(broker), dict(zip(keys, publications, strict=True))), publications


async def test_what_is_taken_says_what_to_write_and_where_it_is(broker: Broker, monkeypatch: Any) -> None:
    small, empty = await staged(broker, 0, b"a"), await staged(broker, 1)
    monkeypatch.setattr(staging, "INLINE_BYTES", 150)
    large = await staged(broker, 2, bytes(1000), b"b")
    one, publications = noted(broker, small, empty, large)
    assert (len(one), one.in_the_way()) == (3, None)
    entries, parts = one.take()
    assert [type(entry) for _, entry in entries] == [Append, StageState]
    assert [part.topic for part in parts] == [1, 2], "those that leave nothing behind"
    epoch = log_of(broker, "t").epoch
    assert one.placed([5, 6]) == [
        (publications[0], Position(epoch, 5)),
        (publications[1], Position(epoch, 0)),
        (publications[2], Position(epoch, 6)),
    ]
    one.landed()
    assert len(staging_of(broker)) == 0
    with pytest.raises(StageEnded, match="it was committed"):
        one.in_the_way()


async def test_if_it_fails_all_are_as_open_as_before(broker: Broker) -> None:
    key = await staged(broker, 0, b"a")
    one, _ = noted(broker, key)
    one.take()
    other, _ = noted(broker, key)
    with pytest.raises(StageEnded, match="it is being committed"):
        other.in_the_way()
    one.failed()
    assert other.in_the_way() is None
    one.failed()


async def test_a_stage_that_is_not_there_keeps_the_others_from_being_taken(broker: Broker) -> None:
    key = await staged(broker, 0, b"a")
    one, _ = noted(broker, key, StageKey("w", 1, 9, 0))
    with pytest.raises(UnknownStage):
        one.in_the_way()
    with pytest.raises(UnknownStage):
        one.take()
    assert noted(broker, key)[0].in_the_way() is None


async def test_a_write_that_is_on_its_way_is_waited_for(broker: Broker) -> None:
    key = await staged(broker, 0, b"a")
    stage = broker.stage("t", writer="w", batch=1)
    writing = asyncio.ensure_future(stage.write([b"b"]))
    await turns(2)
    one, _ = noted(broker, key)
    waiting = one.in_the_way()
    assert waiting is not None
    await waiting
    assert (one.in_the_way(), stage.records) == (None, 2)
    await writing
