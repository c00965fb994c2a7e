import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.conditions import bare_fsync_p50, conditions
from benchmarks.harness import Aim, Contender, Figures, Question, Spread, ask, asked, number
from benchmarks.load import BATCH, DELIVERY, PUBLISH, RATE, Load, Lossy, Tally, counted, share_work
from benchmarks.peers import calls, queues, work_queues
from benchmarks.report import calls as called
from benchmarks.report import report

NS = "ns"


def giving(*rounds: float) -> Callable[[], Awaitable[Figures]]:
    left = iter(rounds)

    async def measure() -> Figures:
        return {NS: next(left)}

    return measure


def race(aims: list[Aim]) -> Question:
    return Question(
        name="race",
        text="Who is quick?",
        ranked=NS,
        contenders=[
            Contender("we", giving(12, 10, 11), "we()"),
            Contender("slow", giving(99, 98, 97), "slow()", peer=True),
            Contender("quick", giving(55, 54, 56), "quick()", peer=True),
            Contender("floor", giving(1, 1, 1), "floor()"),
            Contender("elsewhere", giving(1, 1, 1), "elsewhere()", league="other", peer=True),
        ],
        aims=aims,
    )


def test_contenders_take_turns() -> None:
    seen: list[str] = []
    ask(race([]), 2, seen.append)
    assert seen[:2] == ["race: round 1 of 2, we", "race: round 1 of 2, slow"]
    assert seen[5] == "race: round 2 of 2, we"


def test_the_median_counts_and_ratios_are_against_the_best_peer_of_the_league() -> None:
    answer = ask(race([]), 3)
    we, slow, quick, floor, _ = answer.results
    assert str(we.figures[NS]) == "11 [10..12]"
    assert answer.best_peer("") == 55
    assert [answer.ratio(result) for result in (we, slow, quick, floor)] == [5, 55 / 98, 1, 55]


def test_aims_are_shown_met_or_not() -> None:
    aims = [
        Aim("we", NS, at_most=15),
        Aim("we", NS, at_most=5),
        Aim("we", NS, times_best_peer=5),
        Aim("we", NS, times_best_peer=6),
        Aim("nobody", NS, at_most=1),
    ]
    assert [str(reached) for reached in ask(race(aims), 3).aims()] == [
        "✓ we: aim ≤ 15 ns: 11",
        "✗ we: aim ≤ 5 ns: 11",
        "✓ we: aim ≥ 5 × best peer, ns: 5 ×",
        "✗ we: aim ≥ 6 × best peer, ns: 5 ×",
        "✗ nobody: aim ≤ 1 ns: not measured",
    ]


def test_one_that_breaks_or_is_missing_does_not_spoil_the_others() -> None:
    async def lossy() -> Figures:
        raise Lossy(10, [10, 9])

    answer = ask(
        Question(
            name="q",
            text="?",
            ranked=NS,
            contenders=[
                Contender("lossy", lossy, "lossy()"),
                Contender("absent", lossy, "absent()", needs=("no_such_package",)),
                Contender("sound", giving(7), "sound()"),
            ],
        ),
        1,
    )
    text = report(answer)
    assert "lossy: FAILED, Lossy: each subscriber should have got 10 values, but they got 9..10" in text
    assert "absent: no_such_package is not installed" in text
    assert "7 [7..7]" in text


def test_counting_all_gives_figures_and_anything_else_raises() -> None:
    load = Load(publishes=100, subscribers=2)
    figures = counted(load, 1e-6, [Tally(100, 1), Tally(100, 3)])
    assert figures == {DELIVERY: pytest.approx(5), PUBLISH: pytest.approx(10), BATCH: 50}
    for values in (99, 101):
        with pytest.raises(Lossy):
            counted(load, 1e-6, [Tally(100, 1), Tally(values, 3)])


@pytest.mark.parametrize("measure", [queues.one_by_one, queues.in_lists, calls.one_by_one, calls.in_lists])
def test_a_peer_delivers_everything(measure: Callable[[Load], Awaitable[Figures]]) -> None:
    async def run() -> Figures:
        return await measure(Load(publishes=250, subscribers=3, chunk=100))

    assert asyncio.run(run())[DELIVERY] > 0


@pytest.mark.parametrize("measure", [work_queues.one_by_one, work_queues.taken_together, work_queues.in_lists])
def test_workers_who_share_do_everything_once(measure: Callable[[Load], Awaitable[Figures]]) -> None:
    async def run() -> Figures:
        return await measure(Load(publishes=250, subscribers=4, chunk=100))

    assert asyncio.run(run())[RATE] > 0


def test_work_that_no_worker_did_raises() -> None:
    def idle(tally: Tally) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            tally.values += 1

        return work

    async def run() -> Figures:
        return await share_work(Load(publishes=250, subscribers=4), idle, partial(asyncio.sleep, 0))

    with pytest.raises(Lossy):
        asyncio.run(run())


def test_numbers_have_as_many_digits_as_a_person_reads() -> None:
    assert [number(n) for n in (0.934, 3.416, 87.14, 356.2, 4930.4)] == ["0.934", "3.42", "87.1", "356", "4,930"]


def test_the_question_is_the_second_paragraph() -> None:
    assert asked("A title.\n\nHow much\nis it?\n") == "How much is it?"


def test_conditions_name_what_a_figure_depends_on(tmp_path: Path) -> None:
    assert {"Python", "machine", "loop", "packages", "gc"} <= conditions().keys()
    assert bare_fsync_p50(tmp_path, times=3) > 0


def test_the_command_line_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "no question named nonsense; there are fanout" in capsys.readouterr().err


def test_json_holds_every_round() -> None:
    document = json.loads(json.dumps(ask(race([Aim("we", NS, at_most=15)]), 3).as_json()))
    assert document["contenders"][0]["figures"][NS] == {"median": 11, "rounds": [12, 10, 11]}
    assert document["aims"] == [{"text": "✓ we: aim ≤ 15 ns: 11", "met": True, "value": 11}]


def test_a_spread_is_a_median_and_its_extremes() -> None:
    rounds: Iterator[float] = iter([3.0, 1.0, 2.0, 10.0])
    assert str(Spread(tuple(rounds))) == "2.5 [1..10]"


def test_contenders_that_are_called_alike_are_named_once_and_others_each() -> None:
    told = [("we, 1 task", "f()"), ("we, 64 tasks", "f()"), ("they, 1 task", "g()"), ("they, 64 tasks", "h()")]
    assert called(told) == {"we": "f()", "they, 1 task": "g()", "they, 64 tasks": "h()"}
