"""Shell, JSON and TOML blocks of a Markdown page, and how to run those of the shell.

`<!-- no-run: reason -->` above a shell block: it is not run, and says why. Its commands are checked against the parser
all the same. The other blocks of a page run in order, in one folder. `pip install` does nothing there. `runnel serve`
runs beside, with the options of the page and free ports; from then on the default ports in addresses mean those.
Commands of runnel run in this process, unless the shell has something to do; the rest is run by bash. In between run
the Python blocks with the comment `<!-- server -->`, each in a process of its own. `uvicorn app:app` runs the Python
block before it; from then on port 8000 in addresses means that application, and a refused request of curl is an error.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runnel.cli.main import main
from tests.cli.conftest import Served
from tests.docs.blocks import Block as PythonBlock
from tests.patience import PATIENCE
from tests.ports import free_port

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>sh|json|toml)$")
_NO_RUN = re.compile(r"<!-- *no-run: *(?P<reason>.+?) *-->")
_SHELL = set("|&;<>()`$*?")
_ENDLESS = re.compile(r"runnel (sub|top|worker|relay run|reply|bridge|bench)\b|runnel backup .*--follow")
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
    """One block: the line of its fence, its text, and why it is not run."""

    language: str
    line: int
    text: str
    no_run: str | None

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
        mark = _NO_RUN.fullmatch(lines[start - 2].strip()) if start > 1 else None
        text = "".join(f"{line.removeprefix(fence['indent'])}\n" for line in lines[start:at])
        found.append(Block(fence["language"], start, text, mark["reason"] if mark else None))
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


class Shell:
    """A folder in which the blocks of a page are run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server: Served | None = None
        self._application: subprocess.Popen[bytes] | None = None
        self._port = 0

    def close(self) -> None:
        """Stop the server and the application."""
        if self._application is not None:
            self._application.terminate()
            self._application.wait(PATIENCE)
            self._application = None
        if self.server is not None:
            assert self.server.stop() == 0, self.server.told()
            self.server = None

    def run(self, command: str) -> None:
        """Run one command; what fails raises."""
        command = self._adapted(command)
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
            ["bash", "-c", prelude + command], cwd=self._folder, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def write_application(self, block: PythonBlock) -> None:
        """Save a block as `app.py`, or under the name that its first line has."""
        named = re.match(r"# (\w+\.py)\n", block.source)
        (self._folder / (named[1] if named else "app.py")).write_text(block.source)

    def _start_application(self) -> None:
        self.close()
        self._port = free_port()
        command = [sys.executable, "-m", "uvicorn", "app:app", "--log-level", "warning", "--port", str(self._port)]
        self._application = subprocess.Popen(command, cwd=self._folder)
        until = time.monotonic() + PATIENCE
        while True:
            assert self._application.poll() is None, "the application ended; its error stream says why"
            assert time.monotonic() < until, "the application does not start"
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.02)

    def run_python(self, block: PythonBlock) -> None:
        """Run a block after those that it continues; one that reads without end is stopped after a while."""
        source = self._adapted("\n".join(part.source for part in block.chain()))
        is_endless = "async for" in source and "break" not in source
        try:
            done = subprocess.run(
                [sys.executable, "-c", PYTHON],
                input=source,
                cwd=self._folder,
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

    def _adapted(self, command: str) -> str:
        command = (
            command.removeprefix("$ ").replace("venv/bin/runnel", "runnel").replace("curl -N", "curl -N --max-time 1")
        )
        if command.startswith("curl -N"):
            command += " || [ $? = 28 ]"  # the time is over: it follows
        command = command.replace("/backup/", "backup/").replace("/srv/app/data", "data").replace(" -w 1 ", " -q 1 ")
        command = command.replace("--nats-port 4222", "--nats-port 0")
        if self._application is not None:
            command = command.replace(":8000/", f":{self._port}/")
        if self.server is None and any(f":{port}" in command for port in DEFAULT_PORTS.values()):
            self._serve([])
        if self.server is not None:
            for name, listener in self.server.listeners.items():
                if name in DEFAULT_PORTS:
                    command = command.replace(str(DEFAULT_PORTS[name]), str(listener["port"]))
        return command

    def _serve(self, arguments: list[str]) -> None:
        self.close()
        self.server = Served(self._folder, "--http-port", "0", *arguments)


def parsed_json(text: str) -> list[Any]:
    """The JSON of a block: one document, or one a line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line]
