"""The tour runs to its end, says what happened, and fits a terminal."""

import asyncio
import io
import logging
import re
import sys

import pytest

from examples import tour as module
from examples.tour import tour

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement is as long as it needs to be for a reader; a test needs less."""
    monkeypatch.setattr(module, "VALUES", 5_000)


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> str:
    assert tour(pause=0.0, colour=False) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_the_tour_shows_what_happened(page: str) -> None:
    for line in (
        "grace  reads offset 0: hello",
        "linus  came late, reads offset 0: hello",
        "sensors.attic.temperature = 24",
        "gap: offsets 0 to 6, 7 records",
        "statistics(): delivered 3, dropped 7.",
        "publish_nowait of a third: full",
        "await publish of a third: waits",
        "published at offset 2",
        "ada    did: paint",
        "failed, attempt 2",
        "a dead letter: divide by zero, 2 attempts, ZeroDivisionError",
        "validation_failed at amount: Expected `float`, got `str`",
        "no_responders, at once",
        "with a responder: 144",
        "published up to offset 1, and on disk when publish returned",
        "acked 1; closed with 'to grace' still in hand",
        "the group goes on with 'to grace', offset 1",
        "5,000 random values of 100 B",
    ):
        assert line in page, line
    assert "humidity" not in page


def test_the_figures_are_measured(page: str) -> None:
    figures = re.findall(r"(\d+\.\d+) M publishes/s, +(\d+\.\d) ns a delivery", page)
    assert len(figures) == 3
    assert all(float(rate) > 0 and float(each) > 0 for rate, each in figures)


def test_it_ends_with_where_to_go_next(page: str) -> None:
    assert "docs/tutorial/first-steps.md" in page.split("Where to go next")[1]


def test_it_fits_eighty_columns_and_has_no_colour_unless_asked(page: str) -> None:
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert ESCAPE not in page


def test_colour_changes_nothing_but_colour(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tour(pause=0.0, colour=True) == 0
    coloured = capsys.readouterr().out
    assert ESCAPE in coloured

    def words(text: str) -> str:
        return re.sub(r"[\d.]+ M publishes/s, +[\d.]+", "", re.sub(r"\x1b\[\d*m", "", text))

    assert words(coloured).split() == words(page).split()


def test_a_terminal_without_arrows_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(paper, encoding="ascii"))
    assert tour(pause=0.0, colour=False) == 0
    sys.stdout.flush()
    assert b"-> with a responder: 144" in paper.getvalue()


def test_pauses_follow_what_happened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await really_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    tour(pause=0.4, colour=False)
    capsys.readouterr()
    assert 5 < sum(slept) < 20


def test_an_interrupted_tour_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_tour", interrupted)
    assert tour(pause=0.0, colour=False) == 130


def test_the_logger_is_left_as_it_was(page: str) -> None:
    assert logging.getLogger("runnel").level == logging.NOTSET


@pytest.mark.parametrize(
    ("watched", "arguments", "pauses"),
    [(True, [], True), (True, ["--quick"], False), (False, [], False)],
)
def test_it_pauses_and_is_colored_on_a_terminal(
    watched: bool, arguments: list[str], pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, float | bool] = {}

    def fake(pause: float, colour: bool) -> int:
        asked.update(pause=pause, colour=colour)
        return 7

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return watched

    monkeypatch.setattr(module, "tour", fake)
    monkeypatch.setattr(sys, "argv", ["tour.py", *arguments])
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert module.main() == 7
    assert (asked["pause"] > 0) is pauses
    assert asked["colour"] is watched
