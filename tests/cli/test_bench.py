"""`runnel bench`: figures with their conditions, and an exit code that notices what was lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel.cli import bench
from runnel.cli.bench import (
    STAMP,
    BenchLoad,
    BenchOutcome,
    LatencySamples,
    human_latency,
    percentiles,
    publish,
    receive,
    report,
    run_load,
    share_out,
    shown,
    workers_by_process,
)
from runnel.cli.errors import CommandError
from tests.cli.conftest import Command
from tests.patience import PATIENCE

LOAD = BenchLoad("runnel://h:1", "t", 100, 10, 4, 500, None, None)


def outcomes(delivered: int = 1000, missed: int = 0) -> list[BenchOutcome]:
    return [
        BenchOutcome("publisher", 500, 10.0, 11.0, [0.001]),
        BenchOutcome("publisher", 500, 10.5, 12.0, [0.003]),
        BenchOutcome("subscriber", delivered, 10.1, 14.0, [0.002, 0.004], missed),
    ]


def test_a_run_against_a_server(runnel: Command, server: str) -> None:
    done = runnel("bench", "--messages", "2000", "--subscribers", "2", "--processes", "1", "--server", server, "--json")
    assert done.status == 0
    found = done.json()
    assert (found["published"], found["delivered"], found["lost"]) == (2000, 4000, 0)
    for latency in (found["latency"], found["publish_latency"]):
        assert list(latency) == ["p50", "p90", "p99", "max"]
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    topics = [one["topic"] for one in runnel("topic", "list", "--server", server, "--json").json()]
    assert found["topic"] not in topics  # it was made for the run


def test_a_topic_that_was_named_is_kept_and_may_be_in_memory(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    done = runnel("bench", "--messages", "50", "--batch", "1", "--topic", topic, "--durable", "no", *at)
    assert done.status == 0, done.err
    assert "call             publish, awaited, 8 in flight each; random values of 100 bytes\n" in done.out
    assert runnel("topic", "show", topic, *at, "--json").json()["published"] == 50


def test_a_folder_without_a_server(runnel: Command) -> None:
    assert runnel("bench", "--messages", "100", "--data", "data", "--json").json()["lost"] == 0
    assert runnel("topic", "list", "data", "--json").json() == []
    assert "(usage_error)" in runnel("bench", "--data", "data", "--processes", "2").err


def test_rates_are_over_all_of_the_time() -> None:
    found = report(LOAD, outcomes(), 2)
    assert (found["published"], found["publish_seconds"], found["published_per_second"]) == (1000, 2.0, 500.0)
    assert (found["delivered_per_second"], found["lost"]) == (250.0, 0)  # from the first publish to the last read
    assert found["publish_latency"] == {"p50": 0.001, "p90": 0.003, "p99": 0.003, "max": 0.003}


def test_what_was_dropped_was_said_and_what_is_lost_was_not() -> None:
    found = report(LOAD, outcomes(900, 60), 2)
    assert (found["dropped"], found["lost"]) == (60, 40)
    text = shown(found, LOAD)
    assert "LOST" in text
    assert "the subscribers were too slow, and said so" in text
    assert "LOST" not in shown(report(LOAD, outcomes(), 2), LOAD)


def test_the_conditions_stand_beside_the_figures() -> None:
    text = shown(report(LOAD, outcomes(), 2), LOAD)
    assert "publish_many of 10, awaited, 4 in flight each; random values of 100 bytes" in text
    assert "2 publishers, 1 subscriber, as fast as it goes" in text
    assert "p50 2.00 ms" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch", "0"),
        ("--size", "4"),
        ("--size", "big"),
        ("--seconds", "soon"),
        ("--rate", "0"),
        ("--subscribers", "-1"),
        ("--publishers", "0"),
        ("--topic", "a b"),
        ("--messages", "5", "--seconds", "5"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(runnel: Command, arguments: tuple[str, ...]) -> None:
    done = runnel("bench", *arguments, "--server", "runnel://127.0.0.1:1")
    assert (done.status, done.out) == (2, "")


# -- Who publishes and who reads: all of it is counted, latencies count from when a record was due -----------


def load(**more: object) -> BenchLoad:
    given = {"size": 100, "batch": 10, "in_flight": 1, "messages": 95, "seconds": None, "rate": None} | more
    return BenchLoad("", "t", **given)  # type: ignore[arg-type]


async def test_as_many_as_were_asked_for_in_batches_that_say_when_they_were_due() -> None:
    async with runnel.open() as broker, broker.subscribe("t", buffer=1000) as reader:
        done = await publish(broker, load(in_flight=3))
        values: list[bytes] = []
        async for batch in reader.batches():
            values += batch.values
            if len(values) == 95:
                break
    assert (done.role, done.count) == ("publisher", 95)
    assert len(done.latencies) == 11  # ten calls, and the largest once more
    assert {len(value) for value in values} == {100}
    stamps = [STAMP.unpack_from(value)[0] / 1e9 for value in values]
    assert stamps == sorted(stamps)
    assert all(done.began <= stamp <= done.ended for stamp in stamps)


async def test_a_rate_is_kept_and_a_late_record_counts_from_when_it_was_due() -> None:
    async with runnel.open() as broker:
        done = await publish(broker, load(messages=20, batch=1, rate=100.0))
        assert done.ended - done.began >= 0.19
        slow = broker.topic("t")

        class Late:
            async def publish(self, value: bytes) -> None:
                await asyncio.sleep(0.05)
                await slow.publish(value)

        class Place:
            def topic(self, _: str) -> Late:
                return Late()

        late = await publish(Place(), load(messages=5, batch=1, rate=100.0))
    assert max(late.latencies) > 0.2  # the fifth was due after 0.04 s, and done after 0.25


async def test_a_time_ends_it() -> None:
    async with runnel.open() as broker:
        done = await publish(broker, load(messages=None, seconds=0.1))
    assert done.count > 0
    assert done.ended - done.began >= 0.1


async def test_a_reader_is_there_before_and_stops_when_it_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runnel.open() as broker:
        ready, total = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def expected() -> int:
            return int(await total)

        reading = asyncio.ensure_future(receive(broker, load(), ready.set, expected))
        await ready.wait()
        await publish(broker, load())
        total.set_result(95)
        done = await reading
        assert (done.role, done.count, done.missed) == ("subscriber", 95, 0)
        assert 0 < max(done.latencies) < PATIENCE


async def test_what_was_dropped_is_missed_and_what_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUIET_SECONDS", 0.1)
    async with runnel.open() as broker:
        ready, total = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def expected() -> int:
            return int(await total)

        reading = asyncio.ensure_future(receive(broker, load(buffer=100), ready.set, expected))
        await ready.wait()
        await broker.topic("t").publish_many([bytes(100)] * 1500)
        total.set_result(2000)  # 500 more
        done = await reading
    assert (done.count, done.missed) == (100, 1400)


# -- Publishers and subscribers in one process or several do one load together -------------------------------


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 20))
def test_every_member_works_in_one_place_only(publishers: int, subscribers: int, processes: int) -> None:
    found = workers_by_process(publishers, subscribers, processes)
    assert sum(one for one, _ in found) == publishers
    assert sum(one for _, one in found) == subscribers
    assert len(found) <= max(processes, 2)
    assert all(any(one) for one in found)
    if processes > 1:
        assert all(0 in one for one in found)  # apart


def test_they_are_shared_out_evenly() -> None:
    assert share_out(10, 4) == [3, 3, 2, 2]
    assert share_out(2, 4) == [1, 1]
    assert share_out(0, 4) == []


@pytest.mark.parametrize("processes", [1, 2, 3])
async def test_all_of_it_reaches_everybody(server: str, topic: str, processes: int) -> None:
    load = BenchLoad(server, topic, 100, 10, 4, 500, None, None, temporary=processes == 1)
    outcomes = await run_load(load, 2, 3, processes)
    assert [one.count for one in outcomes if one.role == "publisher"] == [500, 500]
    assert [one.count for one in outcomes if one.role == "subscriber"] == [1000, 1000, 1000]


@pytest.mark.parametrize("processes", [1, 2])
async def test_an_error_in_one_of_them_is_reported(processes: int) -> None:
    load = BenchLoad("runnel://127.0.0.1:1", "t", 100, 10, 4, 500, None, None)
    with pytest.raises(CommandError, match="cannot reach") as refused:
        await run_load(load, 1, 1, processes)
    assert refused.value.code == "unreachable"


# -- Latencies: percentiles out of a fair sample, and the largest of all -------------------------------------


def test_percentiles_of_a_hundred_numbers() -> None:
    assert percentiles(float(one) for one in range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) is None
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert list(found.values()) == sorted(found.values())
    assert found["max"] == max(values)


def test_a_long_run_keeps_a_bounded_and_fair_sample_and_the_largest() -> None:
    samples = LatencySamples(most=1000)
    samples.add(1e9)
    for one in range(100_000):
        samples.add(float(one))
    kept = samples.values()
    assert len(kept) <= 1001
    assert max(kept) == 1e9
    found = percentiles(kept)
    assert found is not None
    assert found["p50"] == pytest.approx(50_000, rel=0.1)


@pytest.mark.parametrize(("seconds", "shown"), [(0.000083, "83 µs"), (0.00125, "1.25 ms"), (2.1, "2.10 s")])
def test_a_latency_is_shown_in_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert human_latency(seconds) == shown
