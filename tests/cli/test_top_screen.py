"""A page is drawn over itself: one write, no line wider than the terminal, nothing left behind."""

from __future__ import annotations

import io

import pytest

from runnel.cli.output import BOLD, PLAIN
from runnel.cli.top import Screen, cut


class Counting(io.StringIO):
    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Counting:
    # The variables, not the function: pytest itself asks for the size of its terminal.
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "3")
    return Counting()


def test_the_page_begins_at_the_top_and_clears_what_is_left_of_each_line(stream: Counting) -> None:
    with Screen(stream) as screen:
        stream.truncate(0)
        stream.seek(0)
        before = stream.writes
        screen.show(["one", "a line that is too long", "three", "four"])
        assert stream.writes == before + 1
        assert stream.getvalue() == "\x1b[Hone\x1b[K\r\na line tha\x1b[K\r\nthree\x1b[K\x1b[J"


def test_what_was_there_before_comes_back_whatever_happened(stream: Counting) -> None:
    with pytest.raises(KeyboardInterrupt), Screen(stream):
        raise KeyboardInterrupt
    assert stream.getvalue().startswith("\x1b[?1049h\x1b[?25l")
    assert stream.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_styles_take_no_room_and_are_ended() -> None:
    line = f"{BOLD}abc{PLAIN}def"
    assert cut(line, 6) == line
    assert cut(line, 4) == f"{BOLD}abc{PLAIN}d"
    assert cut(line, 2) == f"{BOLD}ab{PLAIN}"
