"""Plays the client side of an exchange against a server, and notes what the server answers.

An exchange is a list of steps. A step sends something on a connection, by its name, and takes a number of answers; it
never waits for time to pass. `send` is what travels, with `{name}` where a step before captured something (an id, say)
that differs from run to run. The answers in the result are masked (masking.py).

Answers of one step that are about different requests may come in any order; they are noted by the id of the request.
At the end of an exchange each connection is asked for a sign of life, so that an answer too many is noted as well.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.golden import command, frames
from tests.golden.frames import Frame
from tests.golden.layout import laid_out
from tests.golden.masking import Masker

PATIENCE = 30.0  # seconds without an answer after which an exchange fails
Steps = list[dict[str, Any]]

NOT_COMPARED = ("date",)  # headers of HTTP
PING = b"the end"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[dict[str, int]]:
    """A server in a process of its own; the ports of its listeners by their names: native, json, http."""
    ports = [word for name in ("port", "json-port", "http-port") for word in (f"--{name}", "0")]
    process = subprocess.Popen(
        [sys.executable, "-m", "runnel", "serve", "--json", *ports, *options],
        cwd=folder,
        env=command.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = process.stdout.readline()
        if not ready:
            raise RuntimeError(f"the server did not start: {process.stderr.read()}")
        yield {str(one["name"]): int(one["port"]) for one in json.loads(ready)["listeners"]}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def play(protocol: str, steps: Steps, ports: dict[str, int]) -> Steps:
    """The same steps with the answers that this server gives."""
    players = {"native": _Native, "lines": _Lines, "http": _Http}
    with ExitStack() as stack:
        player = players[protocol](stack, ports)
        played = []
        for step in steps:
            played.append(player.step(dict(step)))
            if player.late:  # nothing that follows would be the same
                return [*played, {"failed": f"an answer did not come within {PATIENCE:g} s"}]
        return played + player.rest()


class _Player:
    """What the protocols have in common: named connections, captures, and a masker."""

    listener = ""

    def __init__(self, stack: ExitStack, ports: dict[str, int]) -> None:
        self._stack, self._port = stack, ports[self.listener]
        self._masker = Masker()
        self._captured: dict[str, str] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._rest: dict[str, bytes] = {}
        self.late = False  # whether an answer did not come in time

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """Do a step; the same with the present answers."""
        raise NotImplementedError

    def rest(self) -> Steps:
        """Answers that no step took, as further steps."""
        return []

    def _socket(self, name: str) -> socket.socket:
        if name not in self._sockets:
            made = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
            self._sockets[name] = self._stack.enter_context(made)
            self._rest[name] = b""
        return self._sockets[name]

    def _receive(self, name: str) -> bool:
        """Take what comes next; False at the end of the connection."""
        try:
            data = self._socket(name).recv(1 << 16)
        except (ConnectionResetError, TimeoutError) as error:
            data = b""
            self.late = self.late or isinstance(error, TimeoutError)
        self._rest[name] += data
        return bool(data)

    def _filled(self, text: str) -> str:
        for name, value in self._captured.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def _capture(self, step: dict[str, Any], text: str) -> None:
        for name, pattern in step.get("captures", {}).items():
            found = re.findall(pattern, text)
            if not found:
                raise ValueError(f"{pattern!r} is not in the answer: {text}")
            self._captured[name] = found[-1]


def _count(step: dict[str, Any]) -> int:
    """How many answers a step takes: as a scenario says, or as were recorded."""
    return int(step["count"]) if "count" in step else len(step["answers"])


class _Native(_Player):
    """Frames. `send`: hexadecimal, or a call with a captured text in its arguments, which is encoded here."""

    listener = "native"

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        name, count = step["on"], _count(step)
        self._socket(name).sendall(b"".join(map(self._bytes, step["send"])))
        found: list[Frame] = []
        while step.get("closes") or len(found) < count:
            taken, self._rest[name] = frames.split(self._rest[name])
            if step.get("closes"):
                found += taken
            else:
                room = count - len(found)
                found += taken[:room]
                self._rest[name] = b"".join(map(Frame.encode, taken[room:])) + self._rest[name]
            if (step.get("closes") or len(found) < count) and not self._receive(name):
                taken, _ = frames.split(self._rest[name])
                found += taken
                break
        self._capture(step, " ".join(str(_decoded(one)) for one in found))
        found.sort(key=lambda one: one.id)
        step.pop("count", None)
        return step | {"answers": [self._noted(one) for one in found]}

    def _bytes(self, sent: str | dict[str, Any]) -> bytes:
        if isinstance(sent, str):
            return bytes.fromhex(sent)
        arguments = {"reply_to": self._filled(sent["reply_to"]), "batch": bytes.fromhex(sent["batch"])}
        return Frame("CALL", sent["id"], frames.pack([sent["call"], arguments])).encode()

    def _noted(self, frame: Frame) -> dict[str, Any]:
        masked, says = frames.masked(frame, self._masker)
        return {"frame": str(frame), "says": says, "bytes": masked.encode().hex()}

    def rest(self) -> Steps:
        found: Steps = []
        for name, connected in self._sockets.items():
            try:
                connected.sendall(Frame("PING", 0, PING).encode())
            except OSError:
                continue  # the server closed it, as a step said
            seen: list[Frame] = []
            while not any(one.kind == "PONG" and one.payload == PING for one in seen):
                taken, self._rest[name] = frames.split(self._rest[name])
                seen += taken
                if not taken and not self._receive(name):
                    break
            more = [self._noted(one) for one in seen if one.payload != PING]
            if more:
                found.append({"on": name, "send": [], "answers": more, "unexpected": True})
        return found


def _decoded(frame: Frame) -> Any:
    """What a frame says, not masked: for captures."""

    class Nothing(Masker):
        def number(self, value: int) -> int:
            return value

        def value(self, value: Any, name: str = "") -> Any:
            return value

    return frames.masked(frame, Nothing())[1]


class _Lines(_Player):
    """JSON lines. `send`: lines without their ends."""

    listener = "json"

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        name, count = step["on"], _count(step)
        self._socket(name).sendall("".join(self._filled(line) + "\n" for line in step["send"]).encode())
        lines: list[str] = []
        while len(lines) < count or step.get("closes"):
            line, end, rest = self._rest[name].partition(b"\n")
            if end:
                self._rest[name] = rest
                lines.append(line.decode())
            elif not self._receive(name):
                break
        self._capture(step, "\n".join(lines))
        lines.sort(key=lambda line: line.startswith('{"event":"message"'))  # they may come before an answer, too
        step.pop("count", None)
        return step | {"answers": [self._masker.text(line) for line in lines]}

    def rest(self) -> Steps:
        found: Steps = []
        for name, connected in self._sockets.items():
            try:
                connected.sendall(b'{"command": "PING", "id": "the end"}\n')
            except OSError:
                continue
            while b'"id":"the end"' not in self._rest[name] and self._receive(name):
                pass
            more = [line for line in self._rest[name].decode().splitlines() if '"id":"the end"' not in line]
            if more:
                answers = [self._masker.text(line) for line in more]
                found.append({"on": name, "send": [], "answers": answers, "unexpected": True})
        return found


class _Http(_Player):
    """Requests, one connection each. `events`: so many server-sent events are read, and the connection is closed."""

    listener = "http"

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        self._stack.callback(connection.close)
        headers = {name: self._filled(value) for name, value in step.get("headers", {}).items()}
        method, _, path = self._filled(step["send"]).partition(" ")
        connection.request(method, path, step.get("body", "").encode() or None, headers)
        answer = connection.getresponse()
        if "events" in step:
            text = "".join(self._event(answer) for _ in range(step["events"]))
            body = self._masker.events(text)
        else:
            text = answer.read().decode()
            body = self._masker.text(text)
        self._capture(step, text)
        kept = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in NOT_COMPARED}
        if kept.get("content-length") == str(len(text.encode())):
            kept["content-length"] = "<of the body>"
        connection.close()
        noted = {name: self._masker.text(value).replace(str(self._port), "<port>") for name, value in kept.items()}
        shown: Any = body
        if "json" in kept.get("content-type", "") and "\n" not in body:
            shown = _spread(body)
        elif "\n" in body:
            shown = {"lines": body.split("\n")}
        return step | {"status": answer.status, "answer_headers": dict(sorted(noted.items())), "answer": shown}

    @staticmethod
    def _event(answer: http.client.HTTPResponse) -> str:
        lines = []
        while (line := answer.readline().decode()) not in ("\n", ""):
            lines.append(line)
        return "".join(lines) + "\n"


def _spread(body: str) -> Any:
    """A masked JSON text, laid out in lines, so that a difference can be read; its fields keep their order."""
    quoted = re.sub(r"(?<=[:,\[])<epoch \d+>", lambda found: f'"{found[0]}"', body)
    try:
        return {"json": laid_out(json.loads(quoted)).split("\n")}
    except ValueError:
        return body
