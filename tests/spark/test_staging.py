"""Rows become staged batches: each once, in order, by topic, with what they carry; and what fails leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import BadBatch, InvalidName, InvalidValue, NotSupported, StagingFull, ValidationFailed
from runnel.core.stages import StageKey
from runnel.spark import staging as module
from runnel.spark.connection import BrokerConnection, open_connection
from runnel.spark.options import BrokerLocation
from runnel.spark.staging import TOPICS, TaskStaging, WriterId, commit_job
from tests.spark.rig import Served

ME = WriterId("q", "life")


HEADERS = pa.map_(pa.string(), pa.string())


def rows(values: list[Any], kind: Any = None, **columns: Any) -> pa.RecordBatch:
    """Rows with these values, and other columns."""
    kind = kind or pa.binary()
    made = {"value": pa.array(values, kind)} | {
        name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()
    }
    return pa.record_batch(made)


async def _everything(served: Served, topic: str) -> list[Any]:
    end = served.broker.statistics().topics[topic].end
    found: list[Any] = []
    async with served.broker.subscribe(topic, start="earliest") as subscription:
        while len(found) < end:
            found.append(await anext(aiter(subscription)))
    return found


def header_lists(lists: list[Any]) -> pa.Array:
    """Headers as lists of names and bytes."""
    made = [None if one is None else [{"key": name, "value": text} for name, text in one] for one in lists]
    return pa.array(made, pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))


def everything(served: Served, topic: str) -> list[Any]:
    """The records of a topic."""
    return served.run(_everything(served, topic))


def written(line: BrokerConnection, *batches: pa.RecordBatch, topic: str | None = "t", task: int = 1) -> TaskStaging:
    """Rows that are staged."""
    staging = TaskStaging(line, ME, 0, task, topic)
    staging.write(batches)
    return staging


def committed(line: BrokerConnection, *batches: pa.RecordBatch, topic: str | None = "t") -> None:
    commit_job(line, ME, written(line, *batches, topic=topic).keys, None)


def test_rows_are_staged_and_no_reader_sees_them_before_the_commit(served: Served, line: BrokerConnection) -> None:
    staging = written(line, rows([b"a", b"b"]), rows([]), rows([b"c"]))
    assert staging.records == 3
    assert staging.keys == [StageKey("spark:q:life", 0, TOPICS, 0)]
    assert served.broker.statistics().topics["t"].end == 0
    commit_job(line, ME, staging.keys, None)
    assert [one.value for one in everything(served, "t")] == [b"a", b"b", b"c"]


def test_keys_and_headers_go_along_and_text_is_as_good_as_bytes(served: Served, line: BrokerConnection) -> None:
    headers = pa.array([[("a", "1"), ("b", "2")], None, []], HEADERS)
    committed(line, rows(["ä", "b", "c"], pa.string(), key=[None, "k", ""], headers=headers))
    more = written(line, rows([b"d"], key=pa.array([b"\xff"])), rows(["e"], pa.large_string()), task=2)
    commit_job(line, ME, more.keys, None)
    found = everything(served, "t")
    assert [one.value for one in found] == ["ä".encode(), b"b", b"c", b"d", b"e"]
    assert [one.key for one in found] == [None, b"k", b"", b"\xff", None]
    assert [dict(one.headers) for one in found] == [{"a": "1", "b": "2"}, {}, {}, {}, {}]


def test_headers_may_be_a_list_of_names_and_bytes(served: Served, line: BrokerConnection) -> None:
    """As a source of Kafka gives them. The first row is cut off: what follows begins within the list."""
    lists = [[("z", b"0")], [("a", b"1"), ("b", "ä".encode())], None, []]
    committed(line, rows([b"v"] * 4, headers=header_lists(lists)).slice(1))
    assert [dict(one.headers) for one in everything(served, "t")] == [{"a": "1", "b": "ä"}, {}, {}]


def test_headers_of_any_slice_belong_to_their_rows(
    served: Served, line: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 200)  # a few rows at a time
    maps = [None if number % 5 == 0 else [("n", str(number)), ("m", "x")][: number % 3] for number in range(100)]
    batch = rows([b"%d" % number for number in range(100)], headers=pa.array(maps, HEADERS))
    committed(line, batch.slice(10))
    found = everything(served, "t")
    assert [dict(one.headers) for one in found] == [dict(one or ()) for one in maps[10:]]


def test_a_column_topic_says_where_each_row_goes_and_order_is_kept(served: Served, line: BrokerConnection) -> None:
    names = [f"t.{number % 7}" for number in range(500)]
    values = [b"%d" % number for number in range(500)]
    staging = written(
        line, rows(values[:200], topic=names[:200]), rows(values[200:], topic=names[200:]), topic=None, task=3
    )
    assert [key.part for key in staging.keys] == [3 * TOPICS + number for number in range(7)]
    commit_job(line, ME, staging.keys, None)
    for number in range(7):
        assert [one.value for one in everything(served, f"t.{number}")] == values[number::7]


def test_the_option_topic_wins_over_the_column(served: Served, line: BrokerConnection) -> None:
    committed(line, rows([b"a", b"b"], topic=["x", "y"]))
    assert served.run(served.broker.topics()) == ["t"]


@given(
    sizes=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=40), max_size=5),
    piece=st.sampled_from([64, 300, 4096]),
    held=st.sampled_from([256, 1 << 20]),
)
def test_however_rows_come_and_are_cut_each_is_there_once_and_in_order(
    sizes: list[list[tuple[int, int]]], piece: int, held: int
) -> None:
    taken: dict[str, list[bytes]] = {}
    expected: dict[str, list[bytes]] = {}
    batches, number = [], 0
    for some in sizes:
        values = []
        for _, size in some:
            values.append(b"%06d" % number + bytes(size))
            number += 1
        names = [f"t{topic}" for topic, _ in some]
        for name, value in zip(names, values, strict=True):
            expected.setdefault(name, []).append(value)
        batches.append(rows(values, topic=pa.array(names, pa.string())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_BYTES", piece)
        patch.setattr(module, "BUFFER_BYTES", held)
        line = Book(taken)
        staging = TaskStaging(line, ME, 0, 1, None)  # type: ignore[arg-type]
        staging.write(batches)
    assert taken == expected
    assert staging.records == number


class Book:
    """A line to a server that writes down what is staged, and checks that nothing is left out."""

    def __init__(self, taken: dict[str, list[bytes]]) -> None:
        self._taken = taken

    def check_durable(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def ask(self, method: str, **args: Any) -> Any:
        assert method == "describe"

    def tell(self, method: str, *, topic: str, key: StageKey, batch: bytes, ordinal: int) -> Any:
        from runnel.core.batch_format import unpack
        from runnel.spark.connection import PendingCall

        before = self._taken.setdefault(topic, [])
        assert ordinal == len(before)
        before += unpack(batch).values
        question = PendingCall(method, b"")
        question.is_over = True
        return question


def test_a_compressed_topic_gets_compressed_batches(served: Served, line: BrokerConnection) -> None:
    line.ask("declare", topic="t", options={"compression": "zstd"})
    staging = written(line, rows([b"x" * 1000] * 100))
    (stage,) = line.ask("stages")
    assert stage["bytes"] < 5000
    commit_job(line, ME, staging.keys, None)
    assert len(everything(served, "t")) == 100


def test_a_row_without_a_value_is_a_tombstone_where_there_are_any(served: Served, line: BrokerConnection) -> None:
    line.ask("declare", topic="kept", options={"compact": True})
    committed(line, rows([b"1", None], key=["a", "a"]), rows([None], pa.string(), key=["b"]), topic="kept")
    assert [(one.key, one.value) for one in everything(served, "kept")] == [(b"a", b"1"), (b"a", b""), (b"b", b"")]
    with pytest.raises(InvalidValue, match="a row has none"):
        written(line, rows([b"1", None], key=["a", None]), topic="kept")
    with pytest.raises(InvalidValue, match="a row has none"):
        written(line, rows([None], key=["a"]), topic="plain")
    with pytest.raises(InvalidValue, match="a row has none"):
        written(line, rows([None]), topic="kept")


@pytest.mark.parametrize(
    ("batch", "topic", "error"),
    [
        (rows([b"x", b"y"], topic=["a", None]), None, InvalidName),
        (rows([b"x"], topic=["not a name"]), None, InvalidName),
        (rows([b"x"], headers=pa.array([[("a", None)]], HEADERS)), "t", InvalidValue),
        (rows([b"x"], headers=pa.array([[("no name", "1")]], HEADERS)), "t", BadBatch),
        (rows([b"x"], headers=pa.array([[("a", "two\nlines")]], HEADERS)), "t", BadBatch),
        (rows([b"x"], headers=header_lists([[("a", b"1"), ("a", b"2")]])), "t", InvalidValue),
        (rows([b"x"], headers=header_lists([[("a", b"\xff")]])), "t", InvalidValue),
        (rows([b"x"], headers=header_lists([[("a", None)]])), "t", InvalidValue),
    ],
)
def test_what_may_not_be_published_fails_and_leaves_nothing(
    line: BrokerConnection, batch: pa.RecordBatch, topic: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        written(line, rows([b"good"] * 3, topic=["t"] * 3), batch, topic=topic)
    assert line.ask("stages") == []


def test_a_typed_topic_takes_what_fits_its_schema(served: Served, line: BrokerConnection) -> None:
    served.run(served.broker.topic("n", int).declare())
    committed(line, rows(["1", "2"], pa.string()), topic="n")
    with pytest.raises(ValidationFailed):
        written(line, rows(["no number"], pa.string()), topic="n")
    assert [one.value for one in everything(served, "n")] == [b"1", b"2"]


def test_over_the_bound_the_error_names_the_option_of_the_source(tmp_path: Path) -> None:
    with (
        Served(tmp_path / "small", max_staged_bytes=200_000) as served,
        open_connection(BrokerLocation(url=served.url)) as line,
    ):
        old = TaskStaging(line, WriterId("q", "an earlier life"), 0, 1, "t")
        old.write([rows([bytes(1000)] * 50)])
        other = TaskStaging(line, WriterId("other", "x"), 0, 1, "t")
        other.write([rows([bytes(1000)] * 50)])
        with pytest.raises(StagingFull, match=r"max_staged_bytes is 200,000.*maxBytesPerTrigger"):
            written(line, rows([bytes(1000)] * 150))
        # The next attempt has more room: what other lives of the query left is gone, and nobody else's.
        assert [one["writer"] for one in line.ask("stages")] == ["spark:other:x"]
        written(line, rows([bytes(1000)] * 140))


def test_an_error_in_the_rows_themselves_drops_what_was_staged(line: BrokerConnection) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows([bytes(300_000)] * 4)
        raise RuntimeError("the task's own")

    staging = TaskStaging(line, ME, 0, 1, "t")
    with pytest.raises(RuntimeError, match="own"):
        staging.write(failing())
    assert line.ask("stages") == []


def test_a_server_in_memory_refuses(tmp_path: Path) -> None:
    import asyncio
    from threading import Thread

    import runnel
    from runnel.server import Server, ServerOptions

    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    broker = runnel.open()
    server = Server(broker, ServerOptions(port=0, json_port=None))
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        assert server.serving is not None
        with open_connection(BrokerLocation(url=server.serving.listeners[0].url)) as line:
            with pytest.raises(NotSupported, match="memory only"):
                written(line, rows([b"x"]))
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        broker.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_task_loads_what_it_needs_and_no_more(served: Served) -> None:
    code = f"""
import sys
import pyarrow as pa
had = set(sys.modules)
from runnel.spark.connection import open_connection
from runnel.spark.options import BrokerLocation
from runnel.spark.staging import TaskStaging, WriterId, commit_batch
with open_connection(BrokerLocation(url={served.url!r})) as line:
    staging = TaskStaging(line, WriterId("q", "x"), 4, 1, "lean")
    staging.write([pa.record_batch({{"value": pa.array([b"x"] * 10)}})])
    print(commit_batch(line, WriterId("q", "x"), 4, staging.keys))
print(*(set(sys.modules) - had))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    applied, loaded = done.stdout.splitlines()
    modules = set(loaded.split())
    assert applied == "True"
    rooms = {name.split(".")[1] for name in modules if name.startswith("runnel.")}
    assert rooms == {"arrow", "client", "core", "runtime", "spark", "wire"}
    assert {name for name in modules if name.startswith("runnel.runtime.")} == {"runnel.runtime.connection_options"}
    assert not modules & {"asyncio", "runnel.client.backend", "runnel.client.server_link", "runnel.blocking", "pyspark"}
    assert len(everything(served, "lean")) == 10
