"""Every program of docs/comparison.md does its job, and its lines are counted; runnel is never the longest."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.nodes import Node
from tests.patience import PATIENCE
from tests.project.project import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
JOBS = {"Fan-out": "fan_out", "Worker": "worker", "RPC": "rpc", "Live page": "live_page"}
TOOLS = {"runnel": "runnel", "FastStream": "faststream", "nats.py": "nats", "Celery": "celery"}
DONE = {
    "fan_out": ["bill tea", "pack tea"],
    "worker": ["charged ada", "gave up expired", "try ada", "try expired", "try expired", "try expired"],
    "rpc": ["144"],
    "live_page": ["hello", "again"],
}
PROGRAMS = {
    (JOBS[job], TOOLS[tool]): source
    for job, tool, source in re.findall(
        r"^### ([^:\n]+): (\S+)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}


def lines_of(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip() and not line.strip().startswith("#"))


def run(tool: str, folder: Path, **environment: str) -> None:
    """Run the programs of a tool, each of which has to do its job."""
    there = {job: source for (job, of), source in PROGRAMS.items() if of == tool}
    for job, source in there.items():
        (folder / f"{job}.py").write_text(source.replace("nats://127.0.0.1:4222", environment.get("NATS_URL", "")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.docs.comparison", tool, folder],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{job} {DONE[job]}" for job in DONE if job in there]


@contextmanager
def nats_server(folder: Path) -> Iterator[Node]:
    node = Node("one", folder)
    node.start()
    try:
        node.ready()
        yield node
    finally:
        node.kill()


def test_the_programs_of_runnel_do_their_jobs(tmp_path: Path) -> None:
    run("runnel", tmp_path)


def test_the_programs_of_nats_do_their_jobs(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as node:
        run("nats", tmp_path, NATS_URL=node.url)


@pytest.mark.nightly
@pytest.mark.parametrize(("tool", "packages"), [("faststream", "faststream[nats,cli]"), ("celery", "celery")])
def test_the_programs_of_others_do_their_jobs(tmp_path: Path, tool: str, packages: str) -> None:
    target, programs = tmp_path / "installed", tmp_path / "programs"
    programs.mkdir()
    subprocess.run([sys.executable, "-m", "uv", "pip", "install", "-q", "--target", target, packages], check=True)
    with nats_server(tmp_path / "nats") as node:
        run(tool, programs, NATS_URL=node.url, PYTHONPATH=str(target))


def test_the_table_counts_their_lines() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(#([a-z-]+)\) \|(.*)\|$", PAGE, re.MULTILINE)
    shown = [[cell.strip() for cell in cells.split("|")] for _, cells in rows]
    counted = [
        [str(lines_of(PROGRAMS[job, tool])) if (job, tool) in PROGRAMS else "" for tool in TOOLS.values()]
        for job in JOBS.values()
    ]
    assert shown == counted


def test_runnel_is_never_the_longest() -> None:
    for job in JOBS.values():
        lengths = {tool: lines_of(source) for (of, tool), source in PROGRAMS.items() if of == job}
        assert len(lengths) > 1
        assert all(lengths["runnel"] < length for tool, length in lengths.items() if tool != "runnel"), (job, lengths)
