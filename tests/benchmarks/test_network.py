"""The questions about the network, with loads so small that they say nothing about speed, only that they measure."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import crew, network, network_acks, network_latency
from benchmarks.crew import DELIVERIES, P50, P99, PROCESSES, flooded, stored
from benchmarks.disk import FSYNC, PER_SECOND, PER_SYNC, where
from benchmarks.harness import Aim, Answer, Contender, Question, ask
from benchmarks.load import BATCH, Lossy
from benchmarks.report import report

FEW = (1_100, 1_000, 1_000)
ASKED: dict[str, Callable[[Path], Question]] = {
    "network": lambda folder: network.question(
        folder=folder, loads=network.Loads(3_000, FEW, FEW, (100, 100, 100), FEW, fsyncs=1)
    ),
    "network_latency": lambda folder: network_latency.question(
        folder=folder, loads=network_latency.Loads(singles=50, flood=3_000, seconds=0.02, fsyncs=1)
    ),
    "network_acks": lambda folder: network_acks.question(folder=folder, loads=network_acks.Loads(5, 128, 64, fsyncs=1)),
}
SOME = {"network": "1 → 1", "network_latency": network_latency.SINGLE, "network_acks": "64 tasks"}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_contenders_of_a_question_about_the_network_give_their_figures(name: str, whole: bool, tmp_path: Path) -> None:
    question = ASKED[name](tmp_path)
    # Each takes a server and two or three processes more. The leagues differ in numbers only, some peers in a setting.
    some = [one for one in question.contenders if one.league == SOME[name] or "at half, 1 → 10" in one.name]
    some = [one for one in some if "always" not in one.name]
    answer = ask(replace(question, contenders=question.contenders if whole else some), 1)
    assert [result.error for result in answer.results if result.error] == []
    assert {result.skipped for result in answer.results} <= {"", "redis-server is not installed"}
    there = [result for result in answer.results if not result.skipped]
    assert len(there) >= 2
    assert all({FSYNC, PROCESSES, PER_SECOND} <= result.figures.keys() for result in there)
    assert where(tmp_path) in report(answer)


@pytest.mark.parametrize("name", ASKED)
def test_aims_are_about_contenders_that_there_are(name: str, tmp_path: Path) -> None:
    question = ASKED[name](tmp_path)
    names = [one.name for one in question.contenders]
    assert len(set(names)) == len(names)
    assert {aim.contender for aim in question.aims} <= {*names}
    assert {aim.peer for aim in question.aims if aim.peer} <= {*names}


async def test_what_all_subscribers_had_counts_and_how_it_came(tmp_path: Path) -> None:
    figures = await flooded(crew.RUNNEL, tmp_path, 5_000, 3, 1)
    assert figures[DELIVERIES] == pytest.approx(3 * figures[PER_SECOND])
    assert figures[PROCESSES] == 4  # a server, a publisher, and two that are the subscribers
    assert figures[BATCH] >= 1
    assert figures[PER_SYNC] >= 1000  # a list is one entry


async def test_in_memory_nothing_is_synced(tmp_path: Path) -> None:
    assert PER_SYNC not in await stored(crew.RUNNEL_IN_MEMORY, tmp_path, 10, 2, 1)


async def test_a_subscriber_that_misses_something_fails_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "STALLED", 0.5)
    with pytest.raises(Lossy, match="should have got 1,001 values"):
        await crew._together(crew.RUNNEL, tmp_path, {"task": "flood", "count": 1_000}, 1_001, 1, 1)


def test_an_aim_may_name_the_peer_and_the_figure_that_it_is_measured_by() -> None:
    def giving(p50: float, p99: float) -> Contender:
        async def measure() -> dict[str, float]:
            return {P50: p50, P99: p99}

        return Contender(f"{p50:g}", measure, "f()", peer=p50 > 2)

    contenders = [giving(2, 10), giving(4, 50), giving(3, 40)]
    aims = [Aim("2", P50, times_best_peer=2, peer="4"), Aim("2", P50, times_best_peer=2), Aim("2", P99, at_most=9)]
    answer: Answer = ask(Question("q", "?", contenders, P99, aims), 1)
    assert [str(reached) for reached in answer.aims()] == [
        "✓ 2: aim ≥ 2 × 4, p50 µs: 2 ×",
        "✗ 2: aim ≥ 2 × best peer, p50 µs: 1.5 ×",
        "✗ 2: aim ≤ 9 p99 µs: 10",
    ]


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def measure() -> dict[str, float]:
        raise AssertionError("it cannot run")

    absent = Contender("absent", measure, "f()", programs=("no-such-server",))
    answer = ask(Question("q", "?", [absent], P99), 1)
    assert answer.results[0].skipped == "no-such-server is not installed"
