"""What `runnel pipeline new` writes works as it is: its test passes, and the runner runs it."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runnel
from runnel.spark.pipelines import RunOptions, StateFolder, find_pipeline, run_pipeline
from runnel.spark.pipelines.scaffold import scaffold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "scaffolded_words"


async def publish(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        for key in (b"a", b"b", b"a"):
            await broker.publish("orders", b"x", key=key)


def test_a_new_pipeline_passes_its_test_and_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session of the tests: `python -m pytest pipelines/` would start another Java."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # the test adds its folder
    code, test = scaffold(NAME, tmp_path)
    assert (code.name, test.name) == (f"{NAME}.py", f"test_{NAME}.py")
    spec = spec_from_file_location(test.stem, test)
    assert spec is not None
    assert spec.loader is not None
    written = module_from_spec(spec)
    try:
        spec.loader.exec_module(written)
        tests = [one for name, one in vars(written).items() if name.startswith("test_")]
        assert tests
        for one in tests:
            one(spark)

        asyncio.run(publish(tmp_path / "data"))
        state = StateFolder(tmp_path / "state")
        options = RunOptions(
            broker={"path": str(tmp_path / "data")},
            lake=str(tmp_path / "lake"),
            state=state,
            options={"topic": "orders"},
            once=True,
        )
        assert run_pipeline(find_pipeline(NAME, code.parent), options, spark=spark)
    finally:
        sys.modules.pop(NAME, None)
    found = state.read()
    assert found is not None
    assert (found.statistics.state, found.statistics.records) == ("stopped", 3)
