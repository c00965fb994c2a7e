"""Trials that kill programs and PostgreSQL while rows are written, for `relay_kills` and `archive_kills`."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE
from tests.ports import free_port
from tools.postgres import PostgresServer, installations

ROOT = Path(__file__).parents[2]


class Program:
    """A process of runnel that is killed and started again."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        command = [sys.executable, "-m", "runnel", *self._arguments]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=self._log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()[-5000:]


class KillTrial:
    """One PostgreSQL, one folder, one seed; `run` returns it with what was `broken`."""

    def __init__(self, seed: int, kills: int, folder: Path, *, version: int) -> None:
        self.seed, self.kills, self.folder, self._version = seed, kills, folder, version
        self._rng = random.Random(seed)
        self.broken: list[str] = []
        self.killed: Counter[str] = Counter()
        self.rows = 0

    def run(self) -> KillTrial:
        self.folder.mkdir(parents=True, exist_ok=True)
        with PostgresServer(installations()[self._version], port=free_port()) as postgres:
            self._run(postgres)
        return self

    def _run(self, postgres: PostgresServer) -> None:
        raise NotImplementedError

    def _kill_one(self, postgres: PostgresServer, programs: dict[str, Program], of: list[str], most: float) -> None:
        """Kill one of these after a pause of at most so many seconds, and start it again."""
        time.sleep(self._rng.uniform(0.0, most))
        victim = self._rng.choice(of)
        self.killed[victim] += 1
        if victim == "postgres":
            postgres.kill()
            postgres.start()
        else:
            programs[victim].kill()

    def _stop(self, programs: dict[str, Program], *fine: int) -> None:
        """Stop the programs; another exit code than these is a promise that was not kept."""
        for name, program in reversed(programs.items()):
            if (status := program.stop()) not in fine:
                self.broken.append(f"the {name} ended with {status}:\n{program.log}")

    def _expect_in_time(self, deadline: float, missing: str, programs: dict[str, Program]) -> None:
        if time.monotonic() > deadline:
            logs = "\n".join(f"{name}:\n{program.log}" for name, program in programs.items())
            raise AssertionError(f"seed {self.seed}: {missing}\n{logs}")
        time.sleep(0.02)


def run_trials(
    description: str | None, kills: int, each: int, trial_of: Callable[[int, int, Path, int], KillTrial]
) -> int:
    """Trials with one seed after another, on one version of PostgreSQL after another; the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--each", type=int, default=each, help="kills of one trial")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    done, found, seed, versions = 0, 0, chosen.seed, sorted(installations())
    while done < chosen.kills:
        with tempfile.TemporaryDirectory() as folder:
            trial = trial_of(seed, chosen.each, Path(folder), versions[seed // 2 % len(versions)]).run()
        done, seed = done + chosen.each, seed + 1
        found += bool(trial.broken)
        victims = ", ".join(f"{times} x {name}" for name, times in sorted(trial.killed.items()))
        print(f"seed {trial.seed}: {victims}; {trial.rows} rows, {len(trial.broken)} broken", flush=True)  # noqa: T201
        for sentence in trial.broken[:20]:
            print("  ", sentence)  # noqa: T201
    return 1 if found else 0
