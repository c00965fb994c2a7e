"""`runnel worker`: it finds the broker, runs its handlers, drains at a signal, and starts again what died."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.cli.worker_process import load_broker
from runnel.cli.worker_supervisor import code_below
from runnel.journal.read.inspection import owner_of
from tests.cli.conftest import Command
from tests.patience import PATIENCE

PROGRAM = """
import os, runnel
from pathlib import Path

broker = runnel.open({where!r})

@broker.on("jobs", group="work", publish="done", prefetch=1)
def work(name: str) -> str:
    if name.startswith("slow"):
        begun = Path(f"begun.{{name}}.{{os.getpid()}}")
        begun.touch()
        while not Path(f"go_on.{{os.getpid()}}").exists():
            pass
    return f"{{name}} by {{os.getpid()}}"
"""


class Workers:
    """`runnel worker` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.errors = folder / "worker.err"
        command = [sys.executable, "-m", "runnel", "worker", "app:broker", "--json", *arguments]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )

    def ready(self) -> tuple[int, int]:
        """The number and the process id of the next worker that is ready."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], self.errors.read_text()
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        found = json.loads(line)
        assert found["event"] == "ready"
        return found["worker"], found["pid"]

    def stop(self) -> int:
        """Its exit code after a SIGTERM."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def rest(self) -> None:
        """Return when all that hold its output have ended."""
        assert self.process.stdout is not None
        self.process.stdout.read()


def begun(folder: Path) -> int:
    """How many slow jobs were begun."""
    return len(list(folder.glob("begun.*")))


def until_begun(workers: Workers, folder: Path, count: int) -> None:
    """Return when so many slow jobs were begun."""
    while begun(folder) < count:
        assert workers.process.poll() is None, workers.errors.read_text()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Start workers of a program; they are gone afterwards."""
    there: list[Workers] = []

    def start(*arguments: str, where: object = "data") -> Workers:
        (tmp_path / "app.py").write_text(PROGRAM.format(where=where))
        there.append(Workers(tmp_path, *arguments))
        return there[-1]

    yield start
    for one in there:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


async def test_workers_share_the_work_and_one_that_dies_is_started_again(started: Any, tmp_path: Path) -> None:
    workers = started("--processes", "2")
    first = dict([workers.ready(), workers.ready()])
    assert sorted(first) == [1, 2]
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("done", start="earliest") as done:
        for name in ("a", "b"):
            await broker.publish("jobs", name)
            assert (await anext(done)).value.startswith(name.encode())
        os.kill(first[2], signal.SIGKILL)
        number, pid = workers.ready()
        assert (number, pid != first[2]) == (2, True)
        await broker.publish("jobs", "c")
        assert (await anext(done)).value.startswith(b"c")
    assert workers.stop() == 0
    told = workers.errors.read_text()
    assert f"worker 2 (process {first[2]}) was ended by SIGKILL; another one follows in 0.5 s" in told
    assert f"worker 1 ({first[1]}) runnel.worker: ready: 1 handler (work)" in told
    assert f"worker 2 ({pid}) runnel.worker: stopped" in told


async def test_a_call_that_runs_at_the_stop_is_finished(started: Any, tmp_path: Path) -> None:
    worker = started()
    assert worker.ready() == (1, worker.process.pid)
    async with runnel.open(tmp_path / "data") as broker:
        await broker.publish("jobs", "slow")
    await asyncio.to_thread(until_begun, worker, tmp_path, 1)
    worker.process.terminate()
    (tmp_path / f"go_on.{worker.process.pid}").touch()
    assert worker.process.wait(PATIENCE) == 0
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("done", start="earliest") as done:
        assert (await anext(done)).value == b"slow by %d" % worker.process.pid


async def test_the_owner_of_the_folder_stays_until_all_workers_have_drained(started: Any, tmp_path: Path) -> None:
    workers = started("--processes", "2")
    pids = {pid for _, pid in (workers.ready(), workers.ready())}
    owner = owner_of(tmp_path / "data")
    assert owner is not None
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("done", start="earliest") as done:
        await broker.topic("jobs").publish_many(["slow one", "slow two"])
        await asyncio.to_thread(until_begun, workers, tmp_path, 2)
        workers.process.terminate()
        for pid in sorted(pids, key=lambda pid: pid != owner.pid):  # the owner has done its part first
            (tmp_path / f"go_on.{pid}").touch()
            assert (await asyncio.wait_for(anext(done), PATIENCE)).value.endswith(b"by %d" % pid)
    assert workers.process.wait(PATIENCE) == 0
    assert begun(tmp_path) == 2  # no job was done again


def test_it_starts_again_when_the_code_changes_and_stops_without_its_supervisor(started: Any, tmp_path: Path) -> None:
    workers = started("--reload", where=None)  # alone, it may keep its topics in memory
    _, first = workers.ready()
    (tmp_path / "app.py").write_text("this is no Python")
    os.utime(tmp_path / "app.py", (1, 1))
    while "SyntaxError" not in workers.errors.read_text():
        assert workers.process.poll() is None
    (tmp_path / "app.py").write_text(PROGRAM.format(where=None))
    _, second = workers.ready()
    assert second != first
    workers.process.kill()
    workers.rest()
    assert f"worker 1 ({second}) runnel.worker: the supervisor is gone: stopping" in workers.errors.read_text()


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere:broker", "there is no module 'nowhere' in this folder"),
        ("app:nothing", "'nothing' of 'app' is no broker of runnel.open; it has broker, other"),
        ("app:answer", "'answer' of 'app' is no broker"),
        ("app:make", "'make' of 'app' is async: a plain function can return runnel.open(...)"),
        ("app:threads", "'threads' of 'app' is a broker of runnel.blocking: make it with runnel.open"),
        ("app:broker", "run='no handlers': register functions with @broker.on(...) first"),
        ("app", "say which broker of 'app': app:NAME; it has broker, other"),
        ("broken:broker", "importing 'broken:broker' failed"),
    ],
)
def test_a_wrong_target_says_what_there_is(runnel: Command, tmp_path: Path, target: str, why: str) -> None:
    (tmp_path / "app.py").write_text(
        "import runnel, runnel.blocking\nbroker, other, answer = runnel.open(), runnel.open(), 42\n"
        "with runnel.blocking.open() as threads: ...\nasync def make(): ..."
    )
    (tmp_path / "broken.py").write_text("import no_such_module")
    outcome = runnel("worker", target)
    assert (outcome.status, why in outcome.err) == (2, True), outcome.err


def test_what_ends_the_run_is_one_line(runnel: Command, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import runnel\nbroker = runnel.open()\n"
        "for wait in (5, 7):\n    broker.on('jobs', group='work', ack_wait=wait)(lambda: None)"
    )
    outcome = runnel("worker", "app:broker")
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    assert "members must agree (invalid_option)" in outcome.err


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a program imports is for one test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in {"app", "broken", "made"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_a_broker_is_found_by_its_name_and_a_function_may_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.py").write_text(
        "import runnel\nbroker = runnel.open()\nclass Shop:\n    broker = broker\ndef make(): return broker"
    )
    monkeypatch.chdir(tmp_path)
    found = load_broker("made:broker")
    assert [load_broker(target) for target in ("made", "made:make", "made:Shop.broker")] == [found] * 3


def test_several_processes_cannot_share_a_broker_in_memory(started: Any) -> None:
    workers = started("--processes", "2", where=None)
    assert workers.process.wait(PATIENCE) == 2
    assert "a broker in memory is one process's own" in workers.errors.read_text()


@pytest.mark.parametrize(
    "wrong", [("--processes", "0"), ("--deadline", "soon"), ("--reload-dir", "src")], ids=lambda wrong: wrong[0]
)
def test_options_that_make_no_sense_are_refused(runnel: Command, wrong: tuple[str, str]) -> None:
    outcome = runnel("worker", "app:broker", *wrong)
    assert outcome.status == 2, outcome.err


def test_only_files_of_python_outside_of_environments_are_watched(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/d.txt", ".venv/e.py", "b/__pycache__/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {os.path.relpath(one, tmp_path) for one in code_below(tmp_path)} == {"a.py", "b/c.py"}
