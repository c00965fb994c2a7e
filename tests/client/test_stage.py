"""Stages on a server: written in batches that are stored once, and known by their key."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel.api import stage as stage_module
from runnel.core.batch_format import unpack
from runnel.wire.frames import FrameKind
from tests.client.scripted_server import Joined
from tests.held_time import held_time
from tests.patience import PATIENCE

NUMBERS = [b"%d" % number for number in range(10)]


def staged(remote: Any, **key: Any) -> Any:
    return remote.stage("t", **({"writer": "w", "batch": 1} | key))


async def visible(remote: Any, count: int) -> list[bytes]:
    async with remote.subscribe("t", start="earliest") as subscription:
        return [(await anext(subscription)).value for _ in range(count)]


async def test_what_is_staged_is_there_once_it_is_committed(remote: Any) -> None:
    stage = staged(remote)
    assert (stage.records, stage.bytes) == (0, 0)
    assert await stage.write(NUMBERS) == 10
    assert (stage.records, stage.bytes > 0, staged(remote).records) == (10, True, 10)
    async with remote.transaction() as tx:
        tx.commit(stage)
    assert await visible(remote, 10) == NUMBERS


async def test_a_long_write_goes_out_in_pieces(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "STAGE_PIECE_BYTES", 100)
    stage, values = staged(remote), [b"%03d" % number * (1 + number % 7) for number in range(200)]
    call, written = remote.backend.link.call, []

    async def counted(method: str, args: Any, **options: Any) -> Any:
        written.append(args["batch"]) if method == "stage_write" else None
        return await call(method, args, **options)

    monkeypatch.setattr(remote.backend.link, "call", counted)
    assert await stage.write(values, keys=[b"k"] * 200) == 200
    assert sum(len(unpack(batch)) for batch in written) == 200
    assert len(written) > 20
    assert max(sum(map(len, unpack(batch).values)) for batch in written) <= 100
    assert await stage.write(values, ordinal=0) == 200, "all of it is there: only that is asked"
    assert written.pop() is None
    async with remote.transaction() as tx:
        tx.commit(stage)
    assert await visible(remote, 200) == values


async def test_a_write_that_is_repeated_stages_what_is_missing(remote: Any) -> None:
    stage = staged(remote)
    await stage.write(NUMBERS[:4], ordinal=0)
    assert await stage.write(NUMBERS[:6], ordinal=0) == 6
    for wrong in (7, -1, True, "0"):
        with pytest.raises(runnel.InvalidOption, match="holds 6 records: the next is 6"):
            await stage.write(NUMBERS, ordinal=wrong)


async def test_a_concurrent_writer_writes_behind(remote: Any) -> None:
    await asyncio.gather(*(staged(remote).write([b"%d" % number] * 5) for number in range(4)))
    stage = staged(remote)
    assert stage.records == 20
    async with remote.transaction() as tx:
        tx.commit(stage)
    assert sorted(await visible(remote, 20)) == sorted([b"%d" % number for number in range(4)] * 5)


async def test_writing_nothing_opens_it_and_dropping_ends_it(remote: Any) -> None:
    stage = staged(remote)
    assert await stage.write([]) == 0
    assert [info.key for info in await remote.stages()] == [stage.key]
    await stage.drop()
    await stage.drop()
    with pytest.raises(runnel.StageEnded, match="dropped"):
        await stage.write(NUMBERS)


async def test_what_is_wrong_is_said(remote: Any) -> None:
    stage = staged(remote)
    with pytest.raises(runnel.InvalidValue, match="put one value in a list"):
        await stage.write(b"one")
    with pytest.raises(runnel.InvalidOption, match="there are 10 values"):
        await stage.write(NUMBERS, keys=["k"])
    with pytest.raises(runnel.InvalidOption):
        staged(remote, batch=-1)
    assert repr(stage) == "<Stage 'w' batch 1 part 0 attempt 0 of 't'>"


async def test_a_piece_that_is_not_answered_is_not_waited_for_and_the_write_can_be_repeated(joined: Joined) -> None:
    async with joined(timeout=1.0) as (broker, caller):
        with held_time() as later:  # so that only the one that is not answered is late
            writing = asyncio.create_task(staged(broker).write([b"0"], ordinal=0))
            caller.reply(await caller.next_call("stage_state"), {"records": 0, "bytes": 0})
            first = await caller.next_call("stage_write")
            await later(1.1)
        with pytest.raises(runnel.NoAnswer, match=r"stage_write\(\)"):
            await asyncio.wait_for(writing, PATIENCE)
        assert (await caller.next()).kind == FrameKind.CANCEL
        with held_time():
            writing = asyncio.create_task(staged(broker).write([b"0"], ordinal=0))
            caller.reply(await caller.next_call("stage_state"), {"records": 0, "bytes": 0})
            again = await caller.next_call("stage_write")
            assert (again.call[1]["ordinal"], again.call[1]["batch"]) == (0, first.call[1]["batch"])
            caller.reply(again, {"records": 1, "bytes": 50})
            assert await writing == 1
