"""The [history] tables of a file: a kind each, its options, and a factory that is imported when a server opens it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.main import make_parser
from runnel.cli.serve import settings_of
from runnel.config import history
from runnel.config.errors import InvalidConfig
from runnel.config.history import KINDS, HistoryKind, open_sources
from runnel.config.settings import load
from runnel.core.errors import InvalidOption
from runnel.testing import MemoryHistory


@pytest.fixture
def memory_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind whose sources are in memory."""
    module = ModuleType("history_for_tests")

    def make(*, dsn: str, pattern: str = ">") -> MemoryHistory:
        if not dsn:
            raise InvalidOption("dsn", dsn, "expected an address")
        return MemoryHistory(pattern)

    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "history_for_tests", module)
    monkeypatch.setitem(KINDS, "memory", HistoryKind("history_for_tests:make", "none", {"dsn": history.DSN_VARIABLE}))
    monkeypatch.setitem(KINDS, "absent", HistoryKind("runnel.there_is_no_such_module:make", "absent"))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runnel.toml"
    path.write_text(text)
    return path


def test_one_table_or_several(tmp_path: Path, memory_kind: None) -> None:
    file = written(tmp_path, '[history]\nkind = "memory"\ndsn = "x"\npattern = "a.>"\n')
    (table,) = load(file=file).history
    assert (table.kind, table.options) == ("memory", {"dsn": "x", "pattern": "a.>"})
    (source,) = open_sources([table], {})
    assert source.covers("a.b")
    several = '[[history]]\nkind = "memory"\npattern = "a"\n[[history]]\nkind = "memory"\npattern = "b"\n'
    tables = load(file=written(tmp_path, several)).history
    assert len(open_sources(tables, {history.DSN_VARIABLE: "from the environment"})) == 2
    assert load().history == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[history]\ndsn = 'x'\n", "has no kind: it is one of"),
        ("[history]\nkind = 'postgre'\n", "did you mean 'postgres'"),
        ("history = 3\n", "history"),
        ("history = [3]\n", "write [history] or [[history]]"),
    ],
)
def test_errors_are_reported_before_anything_opens(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidConfig) as found:
        load(file=written(tmp_path, text))
    assert problem in str(found.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('kind = "memory"\ndsn = ""\n', "expected an address"),
        ('kind = "memory"\ndsn = "x"\ncolour = "red"\n', "colour"),
        ('kind = "absent"\n', "pip install 'runnel-mq[absent]'"),
    ],
)
def test_a_source_that_cannot_be_made_is_reported(tmp_path: Path, memory_kind: None, text: str, problem: str) -> None:
    tables = load(file=written(tmp_path, f"[history]\n{text}")).history
    with pytest.raises(InvalidConfig) as found:
        open_sources(tables, {})
    assert problem in str(found.value)


@pytest.mark.parametrize("flags", [["--memory"], ["--backend", "runnel://127.0.0.1:7788"]])
def test_only_a_folder_has_history(
    tmp_path: Path, memory_kind: None, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("RUNNEL_")]:
        monkeypatch.delenv(name)
    file = written(tmp_path, '[history]\nkind = "memory"\n')
    chosen: Any = make_parser().parse_args(["serve", "--config", str(file), *flags])
    with pytest.raises(CommandError, match="topics in a folder"):
        settings_of(chosen)
