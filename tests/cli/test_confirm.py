"""A person is asked, a program has to say `--yes`, and nobody is taken for having agreed."""

from __future__ import annotations

import argparse
import io

import pytest

from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import CommandError
from tests.cli.conftest import Terminal


@pytest.mark.parametrize("stdin", [None, io.StringIO("y\n")])
def test_without_a_terminal_yes_has_to_be_said(monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO | None) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(CommandError, match="--yes") as refused:
        check_can_confirm(argparse.Namespace(yes=False, json=False))
    assert refused.value.status == 2
    check_can_confirm(argparse.Namespace(yes=True, json=False))


def test_with_json_yes_has_to_be_said_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    check_can_confirm(argparse.Namespace(yes=False, json=False))
    with pytest.raises(CommandError, match="--json"):
        check_can_confirm(argparse.Namespace(yes=False, json=True))


@pytest.mark.parametrize(
    ("said", "meant"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_yes_is_yes(monkeypatch: pytest.MonkeyPatch, said: str, meant: bool) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(said))
    assert confirmed(argparse.Namespace(yes=False), "Do this?") is meant
