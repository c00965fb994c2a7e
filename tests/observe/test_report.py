"""The report: one page that needs nothing else, with every name escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from runnel.core.telemetry import LATENCY_BOUNDS, DeadLetterRow, SubscriberRow, TopicRow
from runnel.observe.analytics import AnalyticsSeries
from runnel.observe.report import duration, percent, plot, powers, report, short, size, steps

HOSTILE = "<script>alert('x')</script>\"&"


def document(name: str = "orders") -> dict[str, Any]:
    """Series with something of everything."""
    series = AnalyticsSeries(1000.0, 10.0, 6)
    histogram = tuple(3 if index == 5 else 0 for index in range(len(LATENCY_BOUNDS) + 1))
    series.add(TopicRow(1020.0, 10.0, name, 500, 50_000))
    series.add(SubscriberRow(1020.0, 10.0, name, name, delivered=90, dropped=10, lag=7, deliver=histogram))
    series.add(DeadLetterRow(1020.0, 10.0, name, name, name, 3))
    return series.document()


class Reader(HTMLParser):
    """Tags and words of a page; what is left open at its end is a mistake."""

    VOID = ("meta", "line", "path")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_has_plots_and_tables_and_loads_nothing() -> None:
    page = report({"minutes": document(), "days": document()}, source="data/", made=1e9)
    read = Reader(page)
    assert read.open == []
    assert read.tags.count("svg") == 12
    assert "script" not in read.tags
    assert not re.search(r"(src|href|url\()|https?://|@import", page)
    for word in (
        "The last 15 minutes",
        "Throughput",
        "Dead letters by reason",
        "drops more than 1 %",
        "orders",
        "data/",
    ):
        assert any(word in words for words in read.words), word


def test_a_name_cannot_become_code() -> None:
    read = Reader(report({"hours": document(HOSTILE)}, source=HOSTILE, made=1e9))
    assert "script" not in read.tags
    assert HOSTILE in read.words


def test_a_span_without_telemetry_says_so() -> None:
    page = report({"days": AnalyticsSeries(0.0, 10.0, 6).document()}, source="data/", made=1e9)
    assert "There is no telemetry in this time" in page
    assert "<svg" not in page


def test_a_value_that_is_not_known_is_a_hole_in_its_line() -> None:
    drawn = plot("x", short, (0, 60), [[1.0, None, 2.0, 3.0]])
    (path,) = re.findall(r'd="([^"]*)"', drawn)
    assert (path.count("M"), path.count("L")) == (2, 1)


@pytest.mark.parametrize("highest", [0.0, 1e-7, 0.3, 1.0, 7.0, 99.9, 123_456.0])
def test_an_axis_reaches_the_highest_value_in_few_steps(highest: float) -> None:
    for marks in (steps(highest), powers(1e-4, highest)):
        assert marks[-1] >= highest * (1 - 1e-9)
        assert 2 <= len(marks) <= 11
        assert marks == sorted(set(marks))


def test_numbers_are_short() -> None:
    assert [short(one) for one in (0, 0.5, 7, 950, 12_345, 4_560_000)] == ["0", "0.5", "7", "950", "12.3 k", "4.56 M"]
    assert [size(one) for one in (12, 1_500, 2e9)] == ["12 B", "1.5 kB", "2 GB"]
    found = [duration(one) for one in (None, 0.00025, 0.004, 3.2, 90, 7200)]
    assert found == ["–", "250 µs", "4 ms", "3.2 s", "1.5 min", "2 h"]
    assert [percent(one) for one in (0, 0.0045, 0.5)] == ["0 %", "0.45 %", "50 %"]
