"""`make demo` without Spark: its installation hangs, and all else is there and stops when it is asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.patience import PATIENCE
from tests.project.project import ROOT


class Demo:
    """The demo in a process of its own."""

    def __init__(self, folder: Path) -> None:
        sleeping = f"{sys.executable} -c 'import time; time.sleep(600)'"
        command = [sys.executable, "-m", "tools.demo", "--folder", str(folder), "--http-port", "0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNNEL_")}
        self.process = subprocess.Popen(
            [*command, "--prepare", sleeping], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("The console is at http://"), line
        self.url = line.split()[-1].partition("/#")[0]

    def series(self) -> dict[str, Any]:
        """What the plots show."""
        with urlopen(f"{self.url}/console/analytics?span=minutes", timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def pipelines(self) -> dict[str, str]:
        """The state of each pipeline, as the console has it."""
        with urlopen(f"{self.url}/console/updates?view=analytics", timeout=PATIENCE) as answer:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line, "the updates have ended"
        return {one["name"]: one["state"] for one in json.loads(line[6:])["totals"]["pipelines"]}

    def stop(self) -> str:
        """Ctrl-C; what it said after that."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=PATIENCE)
        return said


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo that is ended with the test."""
    running = Demo(tmp_path)
    yield running
    if running.process.poll() is None:
        running.stop()


def test_the_demo_is_up_at_once_says_that_spark_is_starting_and_stops_with_all_its_processes(demo: Demo) -> None:
    deadline = time.monotonic() + PATIENCE
    while demo.pipelines() != {"archive": "starting", "analytics": "starting"}:
        assert time.monotonic() < deadline
    while not demo.series()["totals"]["delivered"]:
        assert time.monotonic() < deadline
    assert "All has stopped." in demo.stop()
    assert demo.process.returncode == 0
    with pytest.raises(URLError):
        demo.series()
