"""The pipelines there are: those that come with runnel, and those in the folder `pipelines` beside a program.

Modules of built-in pipelines have a name `PIPELINE`, and so has a file of the folder. Loading them loads no Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from runnel.core.errors import InvalidOption
from runnel.spark.pipelines.pipeline import Pipeline

BUILT_IN: dict[str, str] = {
    "archive": "runnel.spark.pipelines.archive",
    "audit": "runnel.spark.pipelines.audit",
    "current": "runnel.spark.pipelines.current",
    "analytics": "runnel.spark.pipelines.analytics",
}
"""By name, the module that has it as `PIPELINE`."""

FOLDER = "pipelines"
"""Where `runnel pipeline new` puts pipelines, and where they are looked for."""


def known_pipelines(folder: str | Path = FOLDER) -> list[Pipeline]:
    """Every built-in pipeline, and every one of the folder, by name."""
    return [find_pipeline(name, folder) for name in (*BUILT_IN, *own_pipelines(folder))]


def own_pipelines(folder: str | Path = FOLDER) -> list[str]:
    """The names of the folder's pipelines, without loading them."""
    return sorted(
        file.stem
        for file in Path(folder).glob("*.py")
        if file.stem.isidentifier() and not file.stem.startswith(("_", "test_")) and file.stem not in BUILT_IN
    )


def find_pipeline(name: str, folder: str | Path = FOLDER) -> Pipeline:
    """The pipeline of that name."""
    if name in BUILT_IN:
        found = import_module(BUILT_IN[name]).PIPELINE
        assert isinstance(found, Pipeline)
        return found
    if name in own_pipelines(folder):
        return _load(name, Path(folder) / f"{name}.py")
    there = ", ".join([*BUILT_IN, *own_pipelines(folder)])
    raise InvalidOption("pipeline", name, f"there is none of that name; there are {there} (`runnel pipeline list`)")


def _load(name: str, file: Path) -> Pipeline:
    spec = spec_from_file_location(name, file)
    assert spec is not None, "the file is there"
    assert spec.loader is not None, "it is Python"
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "PIPELINE", None)
    if not isinstance(found, Pipeline):
        raise InvalidOption("pipeline", name, f"{str(file)!r} has no PIPELINE = runnel.spark.pipelines.Pipeline(…)")
    return found


def send_to_tasks(pipeline: Pipeline) -> None:
    """Have Spark send the code of a pipeline of one's own to tasks: executors need not have its file."""
    module = sys.modules.get(pipeline.build.__module__)
    if module is not None and not module.__name__.startswith("runnel."):
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
