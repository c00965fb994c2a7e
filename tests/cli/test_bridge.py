"""`runnel bridge`: what is published in one broker arrives at the other, once, over restarts of the bridge."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runnel as package
from tests.cli.conftest import Command
from tests.patience import PATIENCE


def bridge(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "runnel", "bridge", *map(str, arguments)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert child.stderr is not None
    assert child.stderr.readline().startswith("copying")
    return child


def test_records_are_copied_once_and_the_next_run_continues(
    runnel: Command, server: str, topic: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    with package.blocking.open(there) as broker, broker.subscribe(f"eu.{topic}", start="earliest") as arrived:
        for number, value in enumerate(("a", "b")):
            runnel("pub", topic, value, "--server", server)
            child = bridge(topic, "--server", server, "--to", there, "--into", "eu.{topic}")
            try:
                record = next(iter(arrived))
                assert (record.offset, record.value) == (number, value.encode())
            finally:
                child.send_signal(signal.SIGINT)
                _, said = child.communicate(timeout=PATIENCE)
            assert child.returncode == 130
            assert "1 record copied, 0 missed" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("a..b", "--to", "there"), "invalid_pattern"),
        (("a",), "usage_error"),
        (("a", "--to", "there", "--into", "eu.{name}"), "invalid_option"),
    ],
)
def test_what_makes_no_sense_is_refused(runnel: Command, arguments: tuple[str, ...], code: str) -> None:
    done = runnel("bridge", *arguments, "--data", "data")
    assert done.status == 2
    assert done.err.endswith(f"({code})\n")
