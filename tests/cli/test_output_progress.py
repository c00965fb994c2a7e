"""A bar on a terminal, and nothing anywhere else."""

import io
import threading

import pytest

from runnel.cli.output import Elapsed, ProgressBar, StatusLine
from tests.cli.conftest import Terminal
from tests.patience import PATIENCE


def test_a_bar_grows_and_is_gone_when_the_work_ends() -> None:
    terminal = Terminal()
    with ProgressBar("reading", terminal) as bar:
        bar(0, 2048)
        bar(1024, 2048)
        bar(1024, 2048)  # nothing new: nothing written
    _, empty, half, gone, end = terminal.getvalue().split("\r")
    assert empty == f"reading [{'.' * 30}]   0% of 2.0 KiB"
    assert half == f"reading [{'#' * 15}{'.' * 15}]  50% of 2.0 KiB"
    assert gone.strip() == end == ""


def test_what_is_not_bytes_is_named() -> None:
    terminal = Terminal()
    with ProgressBar("exporting", terminal, unit="record") as bar:
        bar(1000, 2000)
    assert "50% of 2,000 records" in terminal.getvalue()


def test_nothing_to_do_is_done() -> None:
    terminal = Terminal()
    with ProgressBar("reading", terminal) as bar:
        bar(0, 0)
    assert "100%" in terminal.getvalue()


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("reading") as bar:
        bar(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_line_is_shown_in_place_and_whoever_calls_learns_whether_anybody_sees_it() -> None:
    terminal, file = Terminal(), io.StringIO()
    with StatusLine(terminal) as ticker:
        assert ticker("10 records")
        assert ticker("9")
    assert terminal.getvalue() == "\r10 records\r9         \r \r"
    with StatusLine(file) as ticker:
        assert not ticker("10 records")
    assert file.getvalue() == ""


def test_what_takes_longer_than_a_second_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "replaying: 2 s" in text:
                shown.set()
            return super().write(text)

    monkeypatch.setattr("runnel.cli.output.SECOND", 0.001)
    terminal = Watched()
    with Elapsed("replaying", terminal):
        assert shown.wait(PATIENCE)
    assert "replaying: 1 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")  # and is gone at the end


def test_what_is_quick_says_nothing() -> None:
    terminal = Terminal()
    with Elapsed("replaying", terminal):
        pass
    assert terminal.getvalue() == ""
