"""`runnel bench`: figures with their conditions, and an exit code that notices what was lost."""

from __future__ import annotations

import pytest

from runnel.cli.bench import BenchLoad, BenchOutcome, report, shown
from tests.cli.conftest import Command

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
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(runnel: Command, arguments: tuple[str, ...]) -> None:
    done = runnel("bench", *arguments, "--server", "runnel://127.0.0.1:1")
    assert (done.status, done.out) == (2, "")
