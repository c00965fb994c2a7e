"""Colour only where somebody sees it."""

import io

import pytest

from runnel.cli.output import BOLD, GREEN, PLAIN, RED, is_colourful, painted, pairs, table
from tests.cli.conftest import Terminal


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


def test_a_table_in_colour_lines_up_and_shows_what_is_well() -> None:
    rows = [("disk", "ok"), ("a clock", "wrong"), ("ok", "sealed")]
    shown = table(("WHAT", "STATE"), rows, colourful=True)
    assert shown.splitlines() == [
        f"{BOLD}WHAT   {PLAIN}  {BOLD}STATE{PLAIN}",
        f"disk     {GREEN}ok{PLAIN}",
        f"a clock  {RED}wrong{PLAIN}",
        "ok       sealed",
    ]
    for code in (BOLD, GREEN, RED, PLAIN):
        shown = shown.replace(code, "")
    assert shown == table(("WHAT", "STATE"), rows)


def test_names_of_facts_are_bold() -> None:
    assert pairs([("a", 1), ("longer", "x")], colourful=True) == f"{BOLD}a     {PLAIN}  1\n{BOLD}longer{PLAIN}  x"
