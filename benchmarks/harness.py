"""What every benchmark shares: contenders in turn, rounds, medians with their spread, ratios, aims.

A figure compares only within one run, so all contenders of a question are measured round by
round, interleaved: what the machine does meanwhile hits all of them. An aim that is missed is
shown as missed; it never fails the run. A measurement that went wrong (a lossy one, say) does.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, TypeAlias

Figures: TypeAlias = Mapping[str, float]
"""What one measurement gives: figures by name, the name being the unit ("ns a delivery")."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing what the question asks."""

    name: str
    measure: Callable[[], Awaitable[Figures]]
    call: str  # what a user writes, and what is in hand after it
    league: str = ""  # ratios compare within a league: one by one with one by one
    peer: bool = False  # counts when the best peer is looked for
    needs: tuple[str, ...] = ()  # packages
    programs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Aim:
    """What a contender should reach: a figure at most so much, or so many times that of the best peer, or of `peer`."""

    contender: str
    figure: str
    at_most: float | None = None
    times_best_peer: float | None = None
    peer: str = ""  # a contender's name; without it the best one of the league


@dataclass(frozen=True, slots=True)
class Question:
    """A question and those who answer it. `ranked` is the figure that ratios are made of; less is better."""

    name: str
    text: str
    contenders: Sequence[Contender]
    ranked: str
    aims: Sequence[Aim] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over all rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is reported."""
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{number(self.median)} [{number(min(self.rounds))}..{number(max(self.rounds))}]"


@dataclass(slots=True)
class Result:
    """What a contender came to; `error` says why there is nothing, or too little."""

    contender: Contender
    rounds: list[Figures] = field(default_factory=list)
    error: str = ""
    skipped: str = ""

    @property
    def figures(self) -> dict[str, Spread]:
        """Each figure over the rounds."""
        if not self.rounds:
            return {}
        return {name: Spread(tuple(figures[name] for figures in self.rounds)) for name in self.rounds[0]}


@dataclass(frozen=True, slots=True)
class Reached:
    """An aim and how it went; `value` None: it could not be measured."""

    aim: Aim
    value: float | None

    @property
    def met(self) -> bool:
        """Whether the aim was reached."""
        if self.value is None:
            return False
        if self.aim.at_most is not None:
            return self.value <= self.aim.at_most
        return self.value >= (self.aim.times_best_peer or 0)

    def __str__(self) -> str:
        aim = self.aim
        want = (
            f"≤ {number(aim.at_most)}"
            if aim.at_most is not None
            else f"≥ {number(aim.times_best_peer or 0)} × {aim.peer or 'best peer'},"
        )
        got = "not measured" if self.value is None else number(self.value)
        if self.value is not None and aim.at_most is None:
            got += " ×"
        return f"{'✓' if self.met else '✗'} {aim.contender}: aim {want} {aim.figure}: {got}"


@dataclass(frozen=True, slots=True)
class Answer:
    """All that was measured for a question."""

    question: Question
    results: Sequence[Result]

    @property
    def errors(self) -> list[str]:
        """What broke."""
        return [result.error for result in self.results if result.error]

    def best_peer(self, league: str, figure: str = "", peer: str = "") -> float | None:
        """The least median of a figure (the ranked one) among the peers of a league, or of the one peer named."""
        figure = figure or self.question.ranked
        asked = [r for r in self.results if (r.contender.name == peer if peer else _is_peer(r, league))]
        return min((r.figures[figure].median for r in asked if figure in r.figures), default=None)

    def ratio(self, result: Result, figure: str = "", peer: str = "") -> float | None:
        """How many times the best peer of its league, or the one named, a contender is; above 1 is better."""
        figure = figure or self.question.ranked
        best = self.best_peer(result.contender.league, figure, peer)
        if best is None or figure not in result.figures:
            return None
        return best / result.figures[figure].median

    def aims(self) -> list[Reached]:
        """Each aim with what was measured."""
        by_name = {result.contender.name: result for result in self.results}
        reached = []
        for aim in self.question.aims:
            result = by_name.get(aim.contender)
            value: float | None = None
            if result is not None and aim.figure in result.figures:
                median = result.figures[aim.figure].median
                value = self.ratio(result, aim.figure, aim.peer) if aim.at_most is None else median
            reached.append(Reached(aim, value))
        return reached

    def as_json(self) -> dict[str, Any]:
        """Everything, raw rounds included, for machines."""
        return {
            "name": self.question.name,
            "question": self.question.text,
            "notes": list(self.question.notes),
            "contenders": [
                {
                    "name": result.contender.name,
                    "call": result.contender.call,
                    "league": result.contender.league,
                    "peer": result.contender.peer,
                    "error": result.error,
                    "skipped": result.skipped,
                    "times_best_peer": self.ratio(result),
                    "figures": {
                        name: {"median": spread.median, "rounds": list(spread.rounds)}
                        for name, spread in result.figures.items()
                    },
                }
                for result in self.results
            ],
            "aims": [{"text": str(reached), "met": reached.met, "value": reached.value} for reached in self.aims()],
        }


def ask(question: Question, rounds: int, progress: Callable[[str], None] = lambda line: None) -> Answer:
    """Measure all contenders, in turn, `rounds` times. One that breaks is left out from then on."""
    results = [Result(contender, skipped=_missing(contender)) for contender in question.contenders]
    for turn in range(rounds):
        for result in results:
            if result.error or result.skipped:
                continue
            progress(f"{question.name}: round {turn + 1} of {rounds}, {result.contender.name}")
            try:
                result.rounds.append(measured(result.contender.measure))
            except Exception as error:  # whatever one contender does, the others are still worth their figures
                result.error = f"{type(error).__name__}: {error}"
    return Answer(question, results)


def measured(measure: Callable[[], Awaitable[Figures]]) -> Figures:
    """One measurement: a new loop, and nobody pays for garbage that others left."""
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_awaited(measure))
    finally:
        gc.unfreeze()


async def _awaited(measure: Callable[[], Awaitable[Figures]]) -> Figures:
    return await measure()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed; None: asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def _missing(contender: Contender) -> str:
    missing = [name for name in contender.needs if find_spec(name) is None]
    missing += [name for name in contender.programs if program(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def program(name: str) -> str | None:
    """Where a program is: installed beside this interpreter, or on the PATH."""
    return which(name, path=str(Path(sys.executable).parent)) or which(name)


def _is_peer(result: Result, league: str) -> bool:
    return result.contender.peer and result.contender.league == league


def asked(docstring: str | None) -> str:
    """The question, as the second paragraph of a module's docstring asks it."""
    return " ".join((docstring or "").split("\n\n", 1)[-1].split())


def number(value: float) -> str:
    """A figure with as many digits as anybody reads: 3.42, 87.1, 4,930."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
