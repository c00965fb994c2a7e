"""The state folder of a pipeline: its process, its progress, and its checkpoints.

One process at a time holds the lock. The status file is replaced as a whole, so a reader never sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import msgspec

from runnel.core.errors import PipelineNotRunning, PipelineRunning
from runnel.core.statistics import PipelineStatistics

IN_LAKE, ELSEWHERE = "pipelines", ".runnel/pipelines"
"""The folder of all states: in a lake that is a folder, or else where the pipeline is started."""


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pipeline is, as it wrote it down itself a moment ago.

    - `statistics`: its figures; the state "died" is that of a process that is gone and did not say so.
    - `pid`: the process that runs it, or ran it last.
    - `broker`, `lake`: what it reads, and where it writes.
    - `started`, `updated`: when it was started, and when this was written, in seconds since 1970.
    - `queries`: the figures of each query, if there are several.
    - `checks`: by name, what the last one found.
    """

    statistics: PipelineStatistics
    pid: int
    broker: str
    lake: str
    started: float
    updated: float
    queries: tuple[PipelineStatistics, ...] = ()
    checks: dict[str, str] = {}


class StateFolder:
    """The state of one pipeline: `StateFolder("lake/pipelines/archive")`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"<StateFolder {str(self.folder)!r}>"

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.folder.name

    def checkpoint(self, query: str) -> str:
        """Where a query's checkpoint is, unless another place was chosen."""
        return str((self.folder / "checkpoints" / query).absolute())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one process that runs the pipeline; `PipelineRunning` if there is another."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                status = self.read()
                raise PipelineRunning(self.name, 0 if status is None else status.pid) from None
            yield

    def is_held(self) -> bool:
        """Whether a process runs the pipeline now."""
        try:
            with (self.folder / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def write(self, status: PipelineStatus) -> None:
        """Replace the status file."""
        new = self.folder / f".status.{os.getpid()}"
        new.write_bytes(msgspec.json.encode(status))
        new.replace(self.folder / "status.json")

    def read(self) -> PipelineStatus | None:
        """The status, with "died" as the state of a process that has ended; None: it was never run here."""
        try:
            found = msgspec.json.decode((self.folder / "status.json").read_bytes(), type=PipelineStatus)
        except FileNotFoundError:
            return None
        if found.statistics.state in ("failed", "stopped") or self.is_held():
            return found
        died = msgspec.structs.replace(found.statistics, state="died", records_per_second=0.0)
        return msgspec.structs.replace(found, statistics=died)

    def stop(self, seconds: float) -> bool:
        """Have the process that runs it stop when its batch has ended; False if it takes longer than that."""
        status = self.read()
        if status is None or not self.is_held():
            raise PipelineNotRunning(self.name, str(self.folder))
        os.kill(status.pid, signal.SIGTERM)
        late = monotonic() + seconds
        while self.is_held():
            if monotonic() > late:
                return False
            sleep(0.05)
        return True


def states_folder(lake: str) -> Path:
    """Where the states of pipelines on a lake are: in it, if it is a folder."""
    return Path(ELSEWHERE) if "://" in lake else Path(lake) / IN_LAKE


def all_states(folder: Path) -> list[StateFolder]:
    """The state of every pipeline that was run there, by name."""
    return [StateFolder(file.parent) for file in sorted(folder.glob("*/status.json"))]
