"""A lake in object storage, with an S3 server on loopback: the same promises as in a folder."""

from __future__ import annotations

import pickle
import threading

import pyarrow as pa
import pytest

from runnel.core.errors import UnknownLake
from runnel.lake import Lake, LakeHistory, TypedRows
from tests.lake.rows import batch, due, places


def test_racing_committers_add_each_row_once(s3_options: dict[str, str]) -> None:
    Lake("s3://lake/race", s3_options).create()
    lakes = [Lake("s3://lake/race", s3_options) for _ in range(2)]
    ready = threading.Barrier(2)
    failed: list[BaseException] = []

    def archive(lake: Lake, name: str) -> None:
        try:
            for number in range(4):
                files = pickle.loads(pickle.dumps(lake)).write([batch("orders", range(20 * number, 20 * number + 40))])
                ready.wait(60)
                lake.commit(files, application=name, version=number)
        except BaseException as error:
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=archive, args=(lake, f"archive {at}")) for at, lake in enumerate(lakes)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert failed == []
    assert places(lakes[0]) == due("orders", range(100))
    assert lakes[0].next_offsets() == {("orders", 1): 100}


async def test_history_is_read_after_maintenance(s3_options: dict[str, str]) -> None:
    lake = Lake("s3://lake/history", s3_options)
    with pytest.raises(UnknownLake):
        lake.next_offsets()
    lake.create()
    for number in range(3):
        files = lake.write([batch("orders", range(10 * number, 10 * number + 10))])
        lake.commit(files, application="archive", version=number)
    typed = lake.typed("orders")
    typed.merge([pa.field("id", pa.int64())])
    for number in range(2):
        rows = TypedRows(batch("orders", (number,)), pa.RecordBatch.from_pydict({"id": [number]}))
        typed.commit_files(typed.write([rows]), application="typed", version=number)
    assert [table.name for table in lake.tables()] == ["orders"]
    assert lake.maintain({("orders", 1): 5}, min_files=2).erased_rows == 5 + 2
    history = LakeHistory("s3://lake/history", storage_options=s3_options)
    try:
        assert await history.bounds("orders", 1) == (5, 30)
        read = [record for part in await history.read("orders", 1, 0, 30) for record in part.records]
        assert [(record.offset, record.value) for record in read] == [(at, b"orders %d" % at) for at in range(5, 30)]
    finally:
        await history.close()


def test_secrets_are_not_shown(s3_options: dict[str, str]) -> None:
    lake = Lake("s3://lake/shown", s3_options)
    assert "secret" not in f"{lake!r} {lake.storage!r} {lake.records!r}"
