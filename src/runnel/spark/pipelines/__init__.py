"""Pipelines: streaming queries and checks on topics, and the runner that starts, watches and stops them.

A pipeline is plain functions from a DataFrame to a DataFrame and a `build` that connects them to a source and a sink.
`run_pipeline` gives the rest: session, checkpoint, trigger, progress, metrics and a graceful stop. Importing this loads
neither Spark nor Arrow.
"""

from runnel.spark.pipelines.pipeline import Check, Context, Finding, Option, Pipeline, Stream
from runnel.spark.pipelines.registry import find_pipeline, known_pipelines
from runnel.spark.pipelines.runner import RunOptions, run_pipeline
from runnel.spark.pipelines.state import PipelineStatus, StateFolder

__all__ = [
    "Check",
    "Context",
    "Finding",
    "Option",
    "Pipeline",
    "PipelineStatus",
    "RunOptions",
    "StateFolder",
    "Stream",
    "find_pipeline",
    "known_pipelines",
    "run_pipeline",
]
