"""The trades example: its pipeline is plain functions, so that rows go in and rows come out; and its page is safe."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from os import utime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.trades import pipeline, plain
from examples.trades.market import LATEST, SYMBOLS, Tick, ticks
from tests.project.project import ROOT
from tests.spark.conftest import spark  # noqa: F401  # the session that tests of Spark share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

EXAMPLE = ROOT / "examples" / "trades"
PAGES = EXAMPLE / "pages"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SCHEMA = "symbol string, price double, size bigint, at timestamp"
WIDTH = timedelta(seconds=5)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:  # noqa: F811
    """With the settings of the pipeline."""
    before = {name: spark.conf.get(name, None) for name in pipeline.SETTINGS}
    for name, value in pipeline.SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def tick(at: float, price: float, symbol: str = "ACME", size: int = 1) -> Tick:
    return Tick(symbol, price, size, NOON + timedelta(seconds=at))


def rows_of(made: list[Tick]) -> list[tuple[Any, ...]]:
    return [(one.symbol, one.price, one.size, one.at) for one in made]


def stream(session: SparkSession, folder: Path, *batches: list[Tick]) -> DataFrame:
    """A stream with a trigger for each batch."""
    folder.mkdir()
    arrow = [("symbol", pa.string()), ("price", pa.float64()), ("size", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
    for number, batch in enumerate(batches):
        columns = zip(*rows_of(batch), strict=True)
        table = pa.table(
            [pa.array(column, kind) for column, (_, kind) in zip(columns, arrow, strict=True)], pa.schema(arrow)
        )
        path = folder / f"{number}.parquet"
        pq.write_table(table, path)
        utime(path, (number, number))  # files are read in this order
    return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(frame: DataFrame, folder: Path, mode: str = "append") -> tuple[list[Row], list[StreamingQueryProgress]]:
    """All that comes out of a stream until it has read what is there, and what Spark tells of each trigger."""
    found: list[Row] = []
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(folder / "kept"))
    query = writer.foreachBatch(lambda batch, _: found.extend(batch.collect())).trigger(availableNow=True).start()
    query.awaitTermination()
    return found, query.recentProgress


def candle_of(row: Row) -> plain.Candle:
    return plain.Candle(**{**row.asDict(), "start": row.start.astimezone(UTC)})


def test_candles_are_what_plain_python_makes_of_the_same_ticks(session: SparkSession) -> None:
    made = []
    for number, (one, late) in enumerate(islice(ticks(seed=3), 400)):
        one.at = NOON + number * timedelta(milliseconds=70) - late
        made.append(one)
    frame = session.createDataFrame(rows_of(made), SCHEMA)
    found = sorted(map(candle_of, pipeline.candles(frame).collect()))
    assert found == plain.candles(made, WIDTH)
    assert sum(one.ticks for one in found) == 400
    assert {one.symbol for one in found} == set(SYMBOLS)


def test_ticks_that_make_no_sense_are_left_out(session: SparkSession) -> None:
    bad: list[tuple[Any, ...]] = [(None, None, None, None), ("ACME", -1.0, 5, NOON), ("ACME", 1.0, 0, NOON)]
    frame = session.createDataFrame([*bad, *rows_of([tick(0, 2.0)])], SCHEMA)
    assert [row.price for row in pipeline.clean(frame).collect()] == [2.0]


def test_a_tick_is_in_the_window_that_its_own_time_is_in() -> None:
    made = plain.candles([tick(4.999, 3.0), tick(0, 1.0), tick(2, 9.0, size=4), tick(5, 7.0)], WIDTH)
    assert made == [
        plain.Candle("ACME", NOON, 1.0, 9.0, 1.0, 3.0, 6, 3),
        plain.Candle("ACME", NOON + WIDTH, 7.0, 7.0, 7.0, 7.0, 1, 1),
    ]


def test_a_candle_is_written_once_no_tick_can_change_it_and_what_is_too_late_is_left_out(
    session: SparkSession, tmp_path: Path
) -> None:
    first = [tick(1, 10.0), tick(31, 20.0)]
    then = [tick(32, 21.0)]  # behind this trigger nothing counts that is older than second 21
    late = [tick(2, 99.0), tick(22, 15.0)]  # too late, and in time
    last = [tick(90, 30.0)]
    frame = stream(session, tmp_path / "in", first, then, late, last)
    found, told = run(pipeline.candles(pipeline.clean(frame)), tmp_path)
    assert sorted(map(candle_of, found)) == plain.candles([*first, *then, late[1]], WIDTH)  # the last one is still open
    assert sum(one["numRowsDroppedByWatermark"] for each in told for one in each["stateOperators"]) == 1


def test_an_alert_looks_back_over_triggers(session: SparkSession, tmp_path: Path) -> None:
    first = [tick(0, 100.0), tick(1, 102.0), tick(0, 50.0, "BOLT")]
    second = [tick(3, 99.0), tick(2, 103.5), tick(2, 50.5, "BOLT")]  # 3.5 % above the first; then 4.3 % below that
    frame = stream(session, tmp_path / "in", first, second)
    found, _ = run(pipeline.alerts(frame), tmp_path)
    assert [(row.symbol, row.before, row.price) for row in found] == [("ACME", 100.0, 103.5), ("ACME", 103.5, 99.0)]
    assert [round(row.change, 3) for row in found] == [0.035, -0.043]


def test_rows_become_records(session: SparkSession) -> None:
    frame = pipeline.as_records(session.createDataFrame(rows_of([tick(0, 2.5)]), SCHEMA), "symbol")
    (row,) = frame.collect()
    assert row.key == "ACME"
    assert json.loads(row.value) == {"symbol": "ACME", "price": 2.5, "size": 1, "at": "2026-01-05T12:00:00.000Z"}


def test_the_example_finds_its_own_results_right(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small part of its day, in the session of the tests, which it does not stop; whole it is run at night."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("market", "pipeline", "plain", "stage"):  # nobody else knows them by these names
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = spec_from_file_location("trades_example", EXAMPLE / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "TICKS", 300)
    monkeypatch.setattr(type(session), "stop", lambda self: None)
    asyncio.run(program.main(False, tmp_path, 0))
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"302 ticks published, .* rows in the lake, .* alerts, lag 0", printed[-4])
    assert re.fullmatch(r"\d+ candles in the lake, the same that plain Python makes of the ticks", printed[-3])
    assert re.fullmatch(r"\d+ candles in the topic, the same as well, and one that is still open", printed[-2])
    assert printed[-1] == "1 tick came an hour late, and was left out"


def test_the_market_is_the_same_for_the_same_seed_and_some_of_it_comes_late() -> None:
    one, other = (list(islice(ticks(seed), 2000)) for seed in (7, 7))
    assert one == other
    late = [late for _, late in one if late]
    assert 0 < len(late) < 200
    assert max(late) <= LATEST


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.html")), ids=lambda path: path.name)
def test_the_page_has_no_script_and_no_style_of_its_own_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"<style|\son\w+=|\sstyle=|https?://", text) == []
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert scripts
    assert all("src=" in attributes and not body for attributes, body in scripts)


@pytest.mark.parametrize("script", sorted(PAGES.glob("*.js")), ids=lambda path: path.name)
def test_what_is_shown_is_text_and_nothing_polls(script: Path) -> None:
    text = script.read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|setInterval|fetch\(", text) == []


def test_rows_get_the_name_of_their_company_and_one_without_a_name_stays(session: SparkSession) -> None:
    rows = session.createDataFrame([("ACME", 1), ("NONE", 2)], "symbol string, n int")
    found = pipeline.named(rows, pipeline.companies(session, None)).orderBy("n").collect()
    assert [(row.symbol, row.name) for row in found] == [("ACME", "Acme Anvils"), ("NONE", None)]
