"""The handle on a stage: made of a key, with no I/O, on one topic."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel.broker.tx.stage import BatchPieces
from runnel.core.batch_format import JSON, UnpackedBatch, pack, unpack
from runnel.core.errors import BrokerClosed, NotSupported, ValidationFailed
from runnel.core.record import Meta
from tests.broker.durable_broker import Disk, journal_of, open_on
from tests.carried import columns_of


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


# -- batch pieces --------------------------------------------------------------------------------------------
# A packed batch is staged as it came, or in batches of which none is too large: with all that its records carry.


METAS = st.builds(
    Meta,
    key=st.none() | st.binary(max_size=5),
    headers=st.dictionaries(st.sampled_from(["a", "b"]), st.text("xy", max_size=3), max_size=2),
    due=st.none() | st.floats(0, 10),
    expires=st.none() | st.floats(0, 10),
    priority=st.integers(0, 9),
)
RECORDS = st.lists(st.tuples(st.binary(max_size=60), METAS), min_size=1, max_size=40)


def pieces(data: bytes, at: int = 0, piece: int = 1 << 20) -> list[UnpackedBatch]:
    arrival = BatchPieces(data, unpack(data))
    arrival.at, arrival.size = at, piece
    found = [(unpack(one.pack()), one.count) for one in arrival]
    assert [len(batch) for batch, _ in found] == [count for _, count in found]
    return [batch for batch, _ in found]


def said(batch: UnpackedBatch) -> list[Any]:
    return [(value, batch.metas.get(at)) for at, value in enumerate(batch.values)]


def test_one_that_fits_goes_on_in_the_very_bytes_that_it_came_in() -> None:
    data = pack([b"a", b"b"])
    (found,) = BatchPieces(data, unpack(data))
    assert found.pack() is data
    assert found.count == 2


@given(records=RECORDS, at=st.integers(0, 45), piece=st.integers(1, 400), compression=st.sampled_from([None, "zstd"]))
def test_cut_anywhere_every_record_comes_once_with_what_it_carries(
    records: list[tuple[bytes, Meta]], at: int, piece: int, compression: str | None
) -> None:
    values, metas = [value for value, _ in records], [meta for _, meta in records]
    data = pack(values, columns_of(metas), compression=compression, content_type=JSON)
    whole = said(unpack(data))
    found = pieces(data, at, piece)
    assert [one for batch in found for one in said(batch)] == whole[at:]
    assert all(batch.header.content_type == JSON for batch in found)


def test_pieces_of_a_compressed_batch_are_compressed() -> None:
    data = pack([bytes(100)] * 1000, compression="zstd")
    assert len(data) < 10_000
    found = pieces(data, at=1, piece=20_000)
    assert [batch.header.compression for batch in found] == ["zstd"] * len(found)


def test_pieces_are_about_as_large_as_they_may_be() -> None:
    data = pack([bytes(100)] * 1000)
    found = pieces(data, piece=10_000)
    assert 10 <= len(found) <= 12
    assert max(len(batch) for batch in found) <= 100


def test_how_large_a_piece_may_be_can_change_on_the_way() -> None:
    data = pack([bytes(100)] * 100)
    arrival = BatchPieces(data, unpack(data))
    arrival.size = 2000
    found = iter(arrival)
    first = next(found)
    arrival.size = 200
    assert first.count > 10 * next(found).count / 2
