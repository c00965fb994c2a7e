"""Spark starts from an archive of its classes where `make` has made one, and without it where there is none."""

import sys
from pathlib import Path

import pytest

from tools.spark_archive import QUICK, archive, options


def test_java_gets_the_archive_if_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert options() == QUICK
    archive().touch()
    assert options().startswith(QUICK)
    assert f"-XX:SharedArchiveFile={archive()}" in options()
