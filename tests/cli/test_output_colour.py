"""Colour only where somebody sees it."""

import io

import pytest

from runnel.cli.output import BOLD, PLAIN, is_colourful, painted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_a_file_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_colourful(Terminal())
    assert not is_colourful(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colourful(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_colourful(Terminal())


def test_text_is_painted_or_left_as_it_is() -> None:
    assert painted("a", BOLD, True) == f"{BOLD}a{PLAIN}"
    assert painted("a", BOLD, False) == "a"
    assert painted("", BOLD, True) == ""
