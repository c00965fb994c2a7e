"""`runnel log staged`: what is staged, by whom, and how to be rid of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runnel.opening import open as open_broker
from tests.cli.conftest import Command


def stage(folder: Path, *batches: int) -> None:
    async def staging() -> None:
        async with open_broker(folder, segment_bytes=1 << 16) as broker:
            await broker.publish("orders", b"seen")
            for batch in batches:
                await broker.stage("orders", writer="spark", batch=batch, part=2).write([bytes(1000)] * 50)

    asyncio.run(staging())


def test_nothing(runnel: Command, tmp_path: Path) -> None:
    stage(tmp_path / "data")
    done = runnel("log", "staged")
    assert (done.status, done.out) == (0, "nothing is staged\n")
    assert runnel("log", "staged", "--json").json() == {"stages": []}


def test_stages_are_listed_with_what_they_hold(runnel: Command, tmp_path: Path) -> None:
    stage(tmp_path / "data", 7, 8)
    done = runnel("log", "staged")
    assert done.status == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][:7] == ["ID", "WRITER", "BATCH", "PART", "ATTEMPT", "TOPIC", "RECORDS"]
    assert lines[1][:9] == ["1", "spark", "7", "2", "0", "orders", "50", "49.0", "KiB"]
    assert lines[1][-1] == "ago"
    assert "runnel log staged --drop ID" in done.out
    first, second = runnel("log", "staged", "data", "--json").json()["stages"]
    assert (first["id"], first["batch"], first["records"], first["topic"]) == (1, 7, 50, "orders")
    assert second["bytes"] > 50_000
    assert 0 <= second["age"] < 600


def test_stages_are_dropped_and_their_segments_go(runnel: Command, tmp_path: Path) -> None:
    stage(tmp_path / "data", 1, 2, 3)
    before = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.seg"))
    done = runnel("log", "staged", "data", "--drop", 2, 3)
    assert (done.status, done.out) == (0, "dropped 2 stages: 100 records, 98.1 KiB\n")
    assert [one["batch"] for one in runnel("log", "staged", "--json").json()["stages"]] == [1]
    assert runnel("log", "staged", "data", "--json", "--drop", 1).json()["dropped"][0]["batch"] == 1
    assert runnel("log", "staged").out == "nothing is staged\n"
    assert sum(path.stat().st_size for path in (tmp_path / "data").glob("*.seg")) < before


def test_an_unknown_stage_drops_nothing(runnel: Command, tmp_path: Path) -> None:
    stage(tmp_path / "data", 1)
    done = runnel("log", "staged", "data", "--drop", 1, 9)
    assert done.status == 1
    assert "there is no open stage 9" in done.err
    assert "(unknown_stage)" in done.err
    assert len(runnel("log", "staged", "--json").json()["stages"]) == 1


async def test_beside_an_owner_they_are_listed_and_only_it_drops_them(runnel: Command, tmp_path: Path) -> None:
    async with open_broker(tmp_path / "data") as broker:
        await broker.stage("orders", writer="w", batch=1).write([b"x"])
        assert runnel("log", "staged", "--json").json()["stages"][0]["writer"] == "w"
        done = runnel("log", "staged", "data", "--drop", 1)
        assert done.status == 1
        assert "in use" in done.err
        assert len(await broker.stages()) == 1


@pytest.mark.parametrize("folder", ["nowhere"])
def test_no_folder(runnel: Command, folder: str) -> None:
    assert "(no_journal)" in runnel("log", "staged", folder).err
