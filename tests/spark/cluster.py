"""A standalone cluster on loopback, from what pip installed: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

import pyspark

from runnel.spark.java import find_java
from tests.patience import PATIENCE
from tests.spark.driver import ROOT, without_coverage

HOME = Path(pyspark.__file__).parent
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def executors(sessions: Collection[int]) -> list[int]:
    """The processes of the executors that were started by the leaders of these sessions."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            said = (entry / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in said and os.getsid(int(entry.name)) in sessions:
                found.append(int(entry.name))
        except OSError:
            pass  # it is gone meanwhile
    return sorted(found)


class Cluster:
    """A master and some workers of one core each. Its pages and its REST port are off, or on ports that were free."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.environ = {
            **without_coverage(os.environ),
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": f"-Dspark.master.rest.enabled=false {SMALL}",
            "SPARK_WORKER_OPTS": SMALL,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def __enter__(self) -> Cluster:
        try:
            host, port = self.url.removeprefix("spark://").split(":")
            self._start("master", "master.Master", "--host", host, "--port", port, "--webui-port", "0")
            for number in range(self._workers):
                folder = str(self._folder / f"worker-{number}")
                limits = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
                self._start(f"worker-{number}", "worker.Worker", "--host", host, "--webui-port", "0", *limits, self.url)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, name: str, what: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait(self) -> None:
        """Until all workers are known to the master."""
        late = monotonic() + PATIENCE
        log = self._folder / "master.log"
        while log.read_text(errors="replace").count("Registering worker") < self._workers:
            assert monotonic() < late, log.read_text(errors="replace")[-2000:]
            sleep(0.05)

    def executors(self) -> list[int]:
        """The processes of the executors that the workers have started."""
        return executors({process.pid for process in self._processes[1:]})

    def submit(self, log: Path, script: Path, *arguments: object, **conf: object) -> subprocess.Popen[bytes]:
        """`spark-submit` of a program."""
        settings = [f"--conf=spark.{name.replace('_', '.')}={value}" for name, value in conf.items()]
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.url, *settings, str(script)]
        with log.open("wb") as written:
            return subprocess.Popen(
                [*command, *map(str, arguments)],
                env={**self.environ, "DRIVER_MASTER": "submitted"},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it, and whatever it started."""
        for process in self._processes:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
