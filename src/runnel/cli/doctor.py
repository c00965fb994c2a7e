"""`runnel doctor`: what this machine has of what runnel can use, and what to do about what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND
from runnel.cli.output import print_document, table

EXAMPLE = """\
examples:
  runnel doctor                 Python, packages, Java for Spark, limits
  runnel doctor --data data/    and how long the disk of that folder takes to sync
  runnel doctor --json

What is `missing` is needed for one thing only, which is named, and can be left out. What is `wrong` keeps something
from working: then the exit code is 1, and the last column says what to do.
"""

OK, MISSING, WRONG = "ok", "missing", "wrong"

EXTRAS = {
    "server": (
        "the HTTP listener, and a quicker event loop",
        ("starlette", "uvicorn", "httptools", "uvloop", "websockets"),
    ),
    "spark": ("the format `runnel` of Spark", ("pyspark", "pyarrow", "pandas")),
    "compression": ("zstd and lz4", ("zstandard", "lz4")),
    "otel": ("traces", ("opentelemetry",)),
}
"""The extras of the package: what they are for, and the modules that show whether they are there."""

SPARK = ("4.2", "4.3")
OLDEST = (3, 11)
FILES = 1024  # fewer than these, and a server is soon at its end
SLOW = 0.020  # seconds: a sync that takes longer is also reported when a folder is opened
SYNCS = 20


class Finding(NamedTuple):
    """One thing that was looked at: what, how it stands, what was seen, and the way out of what is not well."""

    what: str
    state: str
    seen: str
    advice: str = ""


def add_to(commands: Commands) -> None:
    """Make `runnel doctor` known."""
    parser = add_command(
        commands,
        "doctor",
        "what this machine has of what runnel can use",
        EXAMPLE,
        run,
        "Looks at Python, at the packages that are installed, at Java for Spark and at limits of the system.",
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder whose disk is tried, too")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Print what was found."""
    found = list(findings(chosen.data))
    if chosen.json:
        print_document([one._asdict() for one in found])
    else:
        print(table(("WHAT", "STATE", "SEEN", "WHAT TO DO"), found))
    return FOUND if any(one.state == WRONG for one in found) else FINE


def findings(data: Path | None = None) -> Iterator[Finding]:
    """All that is looked at."""
    yield python()
    yield Finding("platform", OK, f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("runnel", OK, metadata.version("runnel-mq"))
    yield from extras()
    if find_spec("pyspark") is not None:
        yield spark(metadata.version("pyspark"))
        yield java()
        yield tasks()
    yield files()
    if data is not None:
        yield disk(data)


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The Python that runs this."""
    seen = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] >= OLDEST:
        return Finding("Python", OK, seen)
    return Finding("Python", WRONG, seen, f"install Python {'.'.join(map(str, OLDEST))} or newer")


def extras(has: Callable[[str], bool] = lambda name: find_spec(name) is not None) -> Iterator[Finding]:
    """What was installed beside the package itself."""
    for name, (purpose, modules) in EXTRAS.items():
        lacking = [module for module in modules if not has(module) and not (module == "uvloop" and os.name == "nt")]
        if not lacking:
            yield Finding(f"runnel-mq[{name}]", OK, _versions(modules))
        else:
            seen = f"not here: {', '.join(lacking)}; it is for {purpose}"
            yield Finding(f"runnel-mq[{name}]", MISSING, seen, f"pip install 'runnel-mq[{name}]', if you want that")


def _versions(modules: Iterable[str]) -> str:
    known = metadata.packages_distributions()
    return ", ".join(
        f"{module} {metadata.version(min(known[module], key=len))}" for module in modules if known.get(module)
    )


def spark(version: str) -> Finding:
    """Whether this is a pyspark that the format was tested with."""
    if version.startswith(tuple(f"{one}." for one in SPARK)):
        return Finding("pyspark", OK, f"{version}, which is supported")
    return Finding(
        "pyspark", WRONG, f"{version}; supported are {' and '.join(SPARK)}", "pip install 'runnel-mq[spark]'"
    )


def java() -> Finding:
    """The Java that Spark would run on."""
    from runnel.core.errors import NotSupported
    from runnel.spark.java import find_java

    try:
        found = find_java()
    except NotSupported as error:
        return Finding("Java", WRONG, "none that Spark can use", error.why)
    return Finding("Java", OK, f"{found.version} at {found.home} (from {found.whence})")


def tasks() -> Finding:
    """The Python that tasks run under in sessions that `runnel.spark.session` does not make.

    Without runnel in it, Spark only says that it failed to find the data source: no code of ours runs then.
    """
    from runnel.spark.session import has_runnel

    python = os.environ.get("PYSPARK_PYTHON", "python3")
    if has_runnel(python):
        return Finding("Python of Spark's tasks", OK, f"{python} has runnel")
    why = f"{python} has no runnel; it is for sessions that runnel.spark.session does not make"
    return Finding("Python of Spark's tasks", MISSING, why, f"set PYSPARK_PYTHON={sys.executable}")


def files() -> Finding:
    """How many files and connections this process may have open."""
    try:
        import resource
    except ImportError:
        return Finding("open files", OK, "this system has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    seen = f"{'no limit' if soft == resource.RLIM_INFINITY else f'{soft:,} at a time'}, {most} at most"
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return Finding("open files", OK, seen)
    return Finding("open files", WRONG, seen, f"ulimit -n {FILES * 64}: each connection is one")


def disk(folder: Path, sync: Callable[[Path], float] | None = None) -> Finding:
    """How long the disk of a folder takes to sync; the folder need not be there yet."""
    what = f"disk of {folder}"
    here = next((one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir()), Path("/"))
    try:
        seconds = (sync or median_sync)(here)
    except OSError as error:
        return Finding(what, WRONG, f"nothing can be written in {here}: {error.strerror}", "choose another folder")
    seen = f"a sync takes {seconds * 1000:.2f} ms"
    if seconds <= SLOW:
        return Finding(what, OK, seen)
    advice = "a local disk is quicker; or open the folder with fsync='interval', which may lose the last moments"
    return Finding(what, WRONG, f"{seen}, and a publish waits for one", advice)


def median_sync(folder: Path) -> float:
    """What a sync behind a small append takes there, in seconds. Leaves nothing behind."""
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(512))
            before = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - before)
    return sorted(taken)[len(taken) // 2]
