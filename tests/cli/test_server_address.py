"""Which server is meant: what was said, then the environment, then the file, then the one on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.server_address import add_server, location_of
from tests.journal.folders import fill


def chosen(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_server(parser)
    return parser.parse_args(arguments)


def test_the_nearest_word_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNEL_SERVER", raising=False)
    monkeypatch.delenv("RUNNEL_DATA", raising=False)
    assert location_of(chosen()) == "runnel://127.0.0.1:7788", "there is no folder 'data' here"
    fill(tmp_path / "data", batches=1)
    assert location_of(chosen()) == "data"
    monkeypatch.setenv("RUNNEL_DATA", "elsewhere")
    assert location_of(chosen()) == "elsewhere"
    monkeypatch.delenv("RUNNEL_DATA")
    (tmp_path / "runnel.toml").write_text('server = "runnel://file:1"')
    assert location_of(chosen()) == "runnel://file:1"
    monkeypatch.setenv("RUNNEL_SERVER", "runnel://env:1")
    assert location_of(chosen()) == "runnel://env:1"
    assert location_of(chosen("--server", "runnel://flag:1")) == "runnel://flag:1"
    assert location_of(chosen("--data", "folder")) == "folder"
    with pytest.raises(CommandError, match="a server and a folder"):
        location_of(chosen("--server", "runnel://flag:1", "--data", "folder"))
