"""`runnel doctor`: the parts on this machine that runnel can use, and how to get missing ones."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import runnel
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.output import Elapsed, print_document, print_table
from runnel.cli.server_address import add_token, server_url
from runnel.observe.checkup import MISSING, OK, WRONG, Finding, clock, folder_findings, open_files, skew, stored

EXAMPLE = """\
examples:
  runnel doctor                 Python, packages, Java for Spark, limits, clock
  runnel doctor --data data/    and that folder: speed and file system of its disk, who may read it, how its journal
                                syncs, backups that hold it, its part in a warm standby; also while a server has it
  runnel doctor --server runnel://10.0.0.7:7788
                                that server examines itself: disk, journal, fsync, certificates, tokens, limits,
                                clock, what slots of relays make PostgreSQL keep. Needs the console role operator
  runnel doctor --server nats://a,b,c
                                a cluster: whether it answers, syncs every write, and its replicas are in step
  runnel doctor --json

What is `missing` is needed for one thing only, which is named, and can be left out. What is `wrong` keeps something
from working: then the exit code is 1, and the last column says what to do.
"""

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


def add_to(commands: Commands) -> None:
    """Make `runnel doctor` known."""
    parser = add_command(
        commands,
        "doctor",
        "what is wrong with this machine, a folder or a server, and what to do",
        EXAMPLE,
        run,
        "Looks at Python, at the packages that are installed, at Java for Spark and at limits of the system;\n"
        "or at what a folder or a running server needs.",
    )
    parser.add_argument("--server", metavar="URL", help="a server, which examines itself, or a cluster")
    add_token(parser)
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder whose disk is tried, too")
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Print the findings."""
    if chosen.server and chosen.data:
        raise CommandError("usage_error", "say one of them: --server, which looks at its own folder, or --data", USAGE)
    with Elapsed("examining"):
        found = server_findings(server_url(chosen.server, chosen)) if chosen.server else [*findings(chosen.data)]
    if chosen.json:
        print_document([one._asdict() for one in found])
    else:
        print_table(("WHAT", "STATE", "SEEN", "WHAT TO DO"), found)
    return FOUND if any(one.state == WRONG for one in found) else FINE


def server_findings(url: str) -> list[Finding]:
    """A server's own findings, and its clock and response time as seen from here."""
    if url.startswith(("nats://", "tls://")):
        return asyncio.run(cluster_findings(url))

    async def ask() -> tuple[dict[str, Any], float, float]:
        async with runnel.open(url, operator=True) as broker:  # a standby, and a primary without its own, answer, too
            said = await broker.backend.administer("doctor", {})
            before = time.perf_counter()
            await broker.info()
            return said, broker.backend.link.skew(), time.perf_counter() - before

    said, ahead, took = asyncio.run(ask())
    found = [Finding(*one) for one in said["findings"]]
    return [Finding("answers", OK, f"in {took * 1000:.1f} ms"), skew(ahead, took / 2), *found]


async def cluster_findings(url: str) -> list[Finding]:
    """A cluster's facts about the stream that holds the topics."""
    async with runnel.open(url) as broker:  # what it warns of is a finding
        js, before = broker.backend.js, time.perf_counter()
        stream = await js.api(f"STREAM.INFO.{js.stream}")
        took = time.perf_counter() - before
        synced = broker.backend.fsync
        server = broker.connection.server
    replicas, peers = stream["config"]["num_replicas"], stream.get("cluster", {}).get("replicas") or ()
    behind = [one["name"] for one in peers if one.get("offline") or not one.get("current")]
    always = "set `sync_interval: always` in the jetstream block of every server"
    syncs = {
        "commit": (OK, "yes"),
        "interval": (WRONG, "no: a power cut loses acknowledged records", always),
        None: (MISSING, "not known: no monitoring port was reached", f"{always}; ?monitor=http://host:8222 checks it"),
    }
    in_step = (OK, f"{replicas}, all in step")
    lagging = (WRONG, f"{replicas}, and behind or away: {', '.join(behind)}", "look whether these servers run")
    return [
        Finding("answers", OK, f"{server}, in {took * 1000:.1f} ms"),
        Finding("every write synced", *syncs[synced]),
        Finding("replicas", *(lagging if behind else in_step)),
    ]


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
    yield open_files()
    yield clock()
    if data is not None:
        yield from folder_findings(data)
        if data.is_dir():
            yield from stored(data, time.time())


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The Python that runs this."""
    seen = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] >= OLDEST:
        return Finding("Python", OK, seen)
    return Finding("Python", WRONG, seen, f"install Python {'.'.join(map(str, OLDEST))} or newer")


def extras(has: Callable[[str], bool] = lambda name: find_spec(name) is not None) -> Iterator[Finding]:
    """The optional packages that are installed."""
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
