"""Shell, JSON and TOML blocks of a Markdown page, and how to run those of the shell.

`<!-- no-run: reason -->` above a shell block: it is not run, and says why; `<!-- run-by: tests/….py -->`: that test
runs it. The commands of both are checked against the parser all the same. The other blocks of a page run in order, in
one folder. `pip install` does nothing there. `runnel serve` runs beside, with the options of the page and free ports;
from then on the default ports in addresses mean those. It is stopped when a later block starts another; servers of one
block run beside each other. What runs until it is stopped is stopped when it is ready, or after a while. Commands of
runnel run in this process, unless the shell has something to do; the rest is run by bash. In between run the Python
blocks with the comment `<!-- server -->`, each in a process of its own; one whose first line is `# NAME.py` is written
to that file instead. `uvicorn app:app` runs the Python block before it; from then on port 8000 in addresses means that
application, and a refused request of curl is an error. What a page takes for granted, such as a machine of the
reader's, `tests.docs.given` makes.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import runnel
from runnel.cli.main import main
from tests.cli.conftest import Served
from tests.docs.blocks import Block as PythonBlock
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.project.project import ROOT

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>sh|json|toml)$")
_MARK = re.compile(r"<!-- *(?P<word>no-run|run-by): *(?P<reason>.+?) *-->")
_SHELL = set("|&;<>()`$*?")
_ENDLESS = re.compile(r"runnel (sub|top|relay run|reply|bridge|mirror|bench)\b|runnel backup .*--follow")
_FILE = re.compile(r"# (?P<name>\w+\.py)\n")
# netcat, as far as the pages use it, for machines that have none.
NC = "nc() { exec 3<>/dev/tcp/${@: -2:1}/${@: -1}; cat >&3; timeout 1 cat <&3 || true; exec 3>&-; }"
DEFAULT_PORTS = {"native": 7788, "json": 7789, "http": 7780, "nats": 4222}
PYTHON = """\
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "a block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
found = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(found):
    asyncio.run(found)
"""


class Block(NamedTuple):
    """One block: the line of its fence, its text, and why it is not run, or which test runs it."""

    language: str
    line: int
    text: str
    no_run: str | None = None
    run_by: str | None = None

    @property
    def is_run_here(self) -> bool:
        """Whether the page runs it, and not another test or none."""
        return self.no_run is None and self.run_by is None

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, each on one line, without comments at their ends."""
        joined = self.text.replace("\\\n", " ")
        lines = (re.sub(r"\s{2,}#( .*)?$", "", one).strip() for one in joined.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks_of(page: str) -> list[Block]:
    """The shell, JSON and TOML blocks of a page, in order."""
    lines, found, at = page.splitlines(), [], 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        at += 1
        if fence is None:
            continue
        start = at
        while lines[at] != f"{fence['indent']}```":
            at += 1
        mark = _MARK.fullmatch(lines[start - 2].strip()) if start > 1 else None
        text = "".join(f"{line.removeprefix(fence['indent'])}\n" for line in lines[start:at])
        marks = {mark["word"].replace("-", "_"): mark["reason"]} if mark else {}
        found.append(Block(fence["language"], start, text, **marks))
        at += 1
    return found


def words_of_runnel(command: str) -> Iterator[list[str]]:
    """The arguments of each call of `runnel` in a line of the shell."""
    if command.startswith("eval "):
        return
    lexer = shlex.shlex(command, posix=False, punctuation_chars="|&;<>")  # it keeps quotes: '>' is a word
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>") and word:
            if words and Path(words[0]).name == "runnel":
                yield words[1:]
            words = []
        else:
            words += shlex.split(word)


@contextmanager
def reader(folder: Path) -> Iterator[Shell]:
    """A folder with what the pages assume: `data/` with a topic, a group on it, and a place for backups."""
    with chdir(folder):
        with runnel.blocking.open("data/") as broker:
            broker.topic("orders").publish_many(["tea", "coffee", "cocoa"])
            with broker.subscribe("orders", group="billing") as deliveries:
                next(iter(deliveries)).ack()
        (folder / "backups").mkdir()
        found = Shell(folder)
        with found.given:
            try:
                yield found
            finally:
                found.close()


class Shell:
    """A folder in which the blocks of a page are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: Served | None = None
        self._application: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.names: dict[str, str] = {}  # what the page says, and what that is here
        self.prelude = ""  # what Python blocks find
        self.given = ExitStack()
        self.before_close = ExitStack()
        self._beside: list[Served] = []
        self._addresses: dict[str, str] = {}  # of servers that run beside each other
        self._files: dict[str, str] = {}

    def close(self) -> None:
        """Stop the servers and the application, after what needs them."""
        self.before_close.close()
        if self._application is not None:
            self._application.terminate()
            self._application.wait(PATIENCE)
            self._application = None
        while self._beside:
            server = self._beside.pop()
            assert server.stop() == 0, server.told()
        self.server = None
        self._addresses.clear()

    def run_block(self, block: Block) -> None:
        """Run the commands of a block."""
        if any(command.startswith("runnel serve") for command in block.commands):
            self.close()
        for command in block.commands:
            self.run(command)

    def write(self, name: str, text: str) -> None:
        """Write a file of the page, with the names and ports that are true here."""
        self._files[name] = text
        (self.folder / name).write_text(self._named(text))

    def run(self, command: str) -> None:
        """Run one command; what fails raises."""
        command = self.adapted(command)
        if re.match(r"(\S*/)?(pip|python3? -m venv)\b", command):
            return
        if command.startswith("runnel serve"):
            self._serve(shlex.split(command)[2:])
            return
        if command == "uvicorn app:app":
            self._start_application()
            return
        if self._application is not None:
            command = command.replace("curl ", "curl --fail-with-body ")
        if command.startswith("python3 -m http.server"):
            self._until_it_listens(["-m", "http.server", str(port := free_port())], port)
            return
        if example := re.match(r"python (examples/\S+)", command):
            self._until_it_listens(
                [str(ROOT / example[1]), "--port", str(port := free_port()), "--native-port", "0"], port
            )
            return
        if command.startswith("runnel worker"):
            self._until_it_says_something(f"{command} --json")
            return
        if "--follow" in command:  # what comes next on the page needs the first run, however long it takes
            self.run(re.sub(r" --follow( \d+)?", "", command))
        if self._is_endless(command):
            program = f"timeout -s INT 3 {shlex.quote(sys.executable)} -m runnel"
            command = f"{command.replace('runnel', program, 1)} || [ $? = 124 ] || [ $? = 130 ]"
        elif command.startswith("runnel ") and not _SHELL & set(re.sub(r"'[^']*'", "", command)):
            status = main(shlex.split(command)[1:])
            assert status == 0, f"{command}: exit code {status}"
            return
        program = shlex.quote(sys.executable)
        prelude = f'runnel() {{ {program} -m runnel "$@"; }}; {NC}; export -f runnel; set -euo pipefail; '
        done = subprocess.run(
            ["bash", "-c", prelude + command], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def write_application(self, block: PythonBlock) -> None:
        """Save a block as `app.py`, or under the name that its first line has."""
        named = _FILE.match(block.source)
        (self.folder / (named["name"] if named else "app.py")).write_text(block.source)

    def _start_application(self) -> None:
        self.close()
        self._port = free_port()
        command = [sys.executable, "-m", "uvicorn", "app:app", "--log-level", "warning", "--port", str(self._port)]
        self._application = subprocess.Popen(command, cwd=self.folder)
        until = time.monotonic() + PATIENCE
        while True:
            assert self._application.poll() is None, "the application ended; its error stream says why"
            assert time.monotonic() < until, "the application does not start"
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.02)

    def run_python(self, block: PythonBlock, until: Callable[[], object] | None = None) -> None:
        """Run a block after those that it continues; one that does not end is stopped when it has done something."""
        if file := _FILE.match(block.source):
            self.write(file["name"], block.source)
            return
        source = self.adapted("\n".join([self.prelude, *(part.source for part in block.chain())]))
        if until is not None:
            self._stop_when(["-c", PYTHON], until, source)
            return
        is_endless = "async for" in source and "break" not in source
        try:
            done = subprocess.run(
                [sys.executable, "-c", PYTHON],
                input=source,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=3 if is_endless else PATIENCE,
            )
        except subprocess.TimeoutExpired:
            assert is_endless, f"line {block.line} does not end"
        else:
            assert done.returncode == 0, done.stderr
            assert not is_endless, f"line {block.line} ended by itself"

    def _is_endless(self, command: str) -> bool:
        return _ENDLESS.match(command) is not None and "--once" not in command and "--count" not in command

    def adapted(self, command: str) -> str:
        """A command, or the source of a block, with the names and ports that are true here."""
        command = (
            command.removeprefix("$ ").replace("venv/bin/runnel", "runnel").replace("curl -N", "curl -N --max-time 1")
        )
        if command.startswith("curl -N"):
            command += " || [ $? = 28 ]"  # the time is over: it follows
        command = command.replace("/backup/", "backup/").replace("/srv/app/data", "data").replace(" -w 1 ", " -q 1 ")
        command = command.replace("--nats-port 4222", "--nats-port 0")
        if self._application is not None:
            command = command.replace(":8000/", f":{self._port}/")
        if self.server is not None and self.server.url.startswith("runnels") and "runnel://127" in command:
            self.close()  # the page means one without TLS
        for name, here in self.names.items():
            command = command.replace(name, here)
        if self.server is None and any(f":{port}" in command for port in DEFAULT_PORTS.values()):
            self._serve([])
        return self._named(command)

    def _named(self, text: str) -> str:
        for name, here in (self.names | self._addresses).items():
            text = text.replace(name, here)
        if self.server is not None:
            for name, listener in self.server.listeners.items():
                if name in DEFAULT_PORTS:
                    text = text.replace(str(DEFAULT_PORTS[name]), str(listener["port"]))
        return text

    def _serve(self, arguments: list[str]) -> None:
        self.server = Served(self.folder, "--http-port", "0", *arguments)
        self._beside.append(self.server)
        host = self.server.url.rpartition("/")[2]
        self._addresses[f"{host.partition(':')[0]}:{DEFAULT_PORTS['native']}"] = host
        for name, text in self._files.items():
            self.write(name, text)

    def _until_it_listens(self, arguments: list[str], port: int) -> None:
        def listens() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        self._stop_when(arguments, listens)

    def _stop_when(self, arguments: list[str], is_done: Callable[[], object], said: str = "") -> None:
        """Run Python until this is so, and stop it."""
        with subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(said)
            process.stdin.close()
            try:
                end = time.monotonic() + PATIENCE
                while not is_done():
                    assert process.poll() is None, process.stderr.read()
                    assert time.monotonic() < end, f"{arguments} has done nothing"
                    time.sleep(0.05)
            finally:
                process.terminate()

    def _until_it_says_something(self, command: str) -> None:
        words = [sys.executable, "-m", *shlex.split(command)]
        with subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline(), f"{command} says nothing"
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0, command


def parsed_json(text: str) -> list[Any]:
    """The JSON of a block: one document, or one a line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line]
