"""A server's life: it says when it is ready, stops properly when asked, at once when asked twice."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel as package
from runnel.cli import server_process
from runnel.cli.process_settings import process_settings
from runnel.cli.serve import GC_THRESHOLDS
from runnel.config.settings import load
from runnel.core.errors import NotSupported
from runnel.server import http
from tests.cli.conftest import Command, Served, Terminal
from tests.patience import PATIENCE
from tests.ports import free_port


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_properly_when_it_is_asked_and_what_was_published_is_there(
    tmp_path: Path, runnel: Command, number: signal.Signals
) -> None:
    served = Served(tmp_path, "--data", "data")
    assert runnel("pub", "orders", "paid", "--server", served.url).status == 0
    assert served.stop(number) == 0
    assert f"{number.name}: stopping; calls in progress have" in served.told()
    assert "Traceback" not in served.told()
    assert "state        closed\n" in runnel("info", "data").out
    assert "paid" in runnel("log", "cat", "data", "orders").out


def test_a_second_signal_goes_at_once_and_loses_nothing_that_was_acknowledged(tmp_path: Path, runnel: Command) -> None:
    served = Served(tmp_path, "--data", "data", "--deadline", "1h")
    with package.blocking.open(served.url) as broker:
        broker.publish("orders", b"paid")
        # A peer that sends half a frame and stays keeps the server from being done.
        with socket.create_connection((served.listeners["native"]["host"], served.listeners["native"]["port"])) as peer:
            peer.sendall(b"RNL\x01\xff\x00\x00\x00")
            served.process.send_signal(signal.SIGTERM)
            served.process.send_signal(signal.SIGTERM)
            code = served.end()
    assert code in (0, 128 + signal.SIGTERM)  # it may have been done before the second one came
    assert "paid" in runnel("log", "cat", "data", "orders").out


def test_the_second_signal_is_what_ends_a_server_that_cannot_stop(tmp_path: Path) -> None:
    code = """
import asyncio, logging, os, signal
from runnel.cli import server_process
from runnel.config.settings import load
class Stuck:
    def __init__(self, *_, **named): self.listeners = []
    async def __aenter__(self): return self
    async def __aexit__(self, *_): pass
    async def close(self, deadline):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(3600)
server_process.Server = Stuck
server_process.announcement = lambda *_: "ready"
life = server_process.ServerProcess(load({"serve.memory": "true"}))
async def go():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
    return await life._live()
asyncio.run(go())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "ready\n")


def test_the_deadline_ends_a_server_whatever_hangs(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, time
from runnel.cli import server_process
from runnel.config.settings import load
class Stuck:
    def __init__(self, *_, **named): self.listeners = []
    async def __aenter__(self): return self
    async def __aexit__(self, *_): pass
    async def close(self, deadline): time.sleep(3600)  # as a disk that does not answer
server_process.Server = Stuck
server_process.announcement = lambda *_: "ready"
life = server_process.ServerProcess(load({"serve.memory": "true", "serve.deadline": "200ms"}))
async def go():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
    return await life._live()
asyncio.run(go())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 1
    assert "not done within 0.2 s" in done.stderr


def test_topics_of_the_folder_are_left_out_of_collections_and_those_come_seldom(tmp_path: Path) -> None:
    with package.blocking.open(tmp_path / "data") as broker:
        for number in range(1000):
            broker.topic(f"t{number}").publish_nowait(b"")
    code = """
import gc, os, signal
from runnel.cli import server_process
from runnel.cli.main import main
def announced(*_):
    print(gc.get_freeze_count() > 4000, gc.get_threshold())
    os.kill(os.getpid(), signal.SIGTERM)
    return ""
server_process.announcement = announced
main(["serve", "--data", "data", "--port", "0", "--json-port", "0", "--http-port", "0"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == f"True {GC_THRESHOLDS}", done.stderr


def test_the_deadline_holds_while_the_event_loop_is_busy(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, time
from runnel.cli import server_process
from runnel.config.settings import load
def busy():
    os.kill(os.getpid(), signal.SIGTERM)
    while True: pass
server_process.announcement = lambda *_: asyncio.get_running_loop().call_soon(busy) and "ready"
settings = {"serve.memory": "true", "serve.deadline": "200ms", "serve.http_port": "off"}
server_process.ServerProcess(load(settings | {"serve.port": "0", "serve.json_port": "0"})).run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "ready\n")
    assert "not done within 0.2 s" in done.stderr


def test_after_a_server_ended_in_time_its_deadline_ends_nothing(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, threading
from runnel.cli import server_process
from runnel.config.settings import load
stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
server_process.announcement = lambda *_: asyncio.get_running_loop().call_soon(stop) and "ready"
settings = {"serve.memory": "true", "serve.deadline": "20s", "serve.http_port": "off"}
handlers = [signal.getsignal(number) for number in server_process.SIGNALS]
code = server_process.ServerProcess(load(settings | {"serve.port": "0", "serve.json_port": "0"})).run()
assert [signal.getsignal(number) for number in server_process.SIGNALS] == handlers
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(10)  # nothing waits for the time to pass
        assert not thread.is_alive(), thread
print("ended with", code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ready\nended with 0\n"), done.stderr


def test_the_banner_prints_its_listeners_and_the_commands_work_unchanged(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runnel", "serve", "--memory", "--port", "0", "--json-port", "0"]
    command += ["--http-port", "0"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as child:
        assert child.stdout is not None
        lines: list[str] = []
        while (line := child.stdout.readline()) != "Ctrl-C stops it.\n":
            assert line, lines
            lines.append(line)
        try:
            at = lines.index("Try, in another terminal:\n")
            sub, pub, _ = (one.strip() for one in lines[at + 1 : at + 4])
            ran = subprocess.run(pub, shell=True, env=environment, capture_output=True, text=True, cwd=tmp_path)
            assert (ran.returncode, ran.stdout) == (0, "greetings.world  0\n")
            read = f"{sub} --from earliest --count 1 --raw"
            ran = subprocess.run(read, shell=True, env=environment, capture_output=True, text=True, cwd=tmp_path)
            assert (ran.returncode, ran.stdout) == (0, "hello\n")
        finally:
            child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 0


def test_json_lines_are_what_a_user_tries_first(tmp_path: Path) -> None:
    served = Served(tmp_path, "--memory")
    try:
        door = served.listeners["json"]
        with (
            socket.create_connection((door["host"], door["port"]), timeout=PATIENCE) as peer,
            peer.makefile("rw") as lines,
        ):
            lines.write('{"command": "SUB", "topic": "test"}\n{"command": "PUB", "topic": "test", "payload": "100"}\n')
            lines.flush()
            said = [lines.readline() for _ in range(3)]
        assert any('"event":"message"' in line and '"payload":"100"' in line for line in said), said
    finally:
        assert served.stop() == 0


def test_a_server_serves_the_topics_of_another_and_both_stop_when_they_are_asked(
    tmp_path: Path, runnel: Command
) -> None:
    (tmp_path / "front").mkdir()
    behind = Served(tmp_path, "--memory")
    front = Served(tmp_path / "front", "--backend", behind.url)
    assert (front.ready["backend"], front.ready["data"]) == (behind.url, None)
    try:
        assert runnel("pub", "orders", "paid", "--server", front.url).status == 0
        assert "paid" in runnel("sub", "orders", "--from", "earliest", "--count", "1", "--server", behind.url).out
    finally:
        assert (front.stop(), behind.stop()) == (0, 0)
    assert "Traceback" not in front.told()


def test_a_server_whose_backend_is_not_there_starts_refuses_and_stops(tmp_path: Path, runnel: Command) -> None:
    front = Served(tmp_path, "--backend", f"runnel://127.0.0.1:{free_port()}")
    try:
        refused = runnel("pub", "orders", "paid", "--server", front.url)
        assert (refused.status, "(unreachable)" in refused.err) == (1, True)
    finally:
        assert front.stop() == 0
    assert "Traceback" not in front.told()


def test_the_parent_process_need_not_read_the_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runnel", "serve", "--memory", "--port", "0", "--json-port", "off", "--unix", "s"]
    command += ["--http-port", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout is not None
        child.stdout.close()
        try:
            with package.blocking.open(f"runnel+unix://{tmp_path}/s", wait=PATIENCE) as broker:
                broker.publish("t", b"x")
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0


async def test_an_opening_that_takes_long_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "segment").write_bytes(bytes(3 * 1024 * 1024))
    monkeypatch.setattr(server_process, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(server_process, "TELL_EVERY", 0.0)
    caplog.set_level(logging.INFO)
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", stream)
        telling = asyncio.ensure_future(server_process._tell_of_opening(tmp_path))
        while not caplog.messages or (stream.isatty() and "opening" not in stream.getvalue()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        telling.cancel()
        await asyncio.wait([telling])
        if stream.isatty():
            assert f"opening {tmp_path} (3.0 MiB), " in stream.getvalue()
            assert stream.getvalue().endswith("\r")  # gone when it ends
    assert caplog.messages[0].startswith(f"still opening {tmp_path} (3.0 MiB), ")


async def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = server_process.fast_loop()
    assert factory is not None
    assert factory.__module__.startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert server_process.fast_loop() is None


async def test_who_opens_the_folder_comes_in_at_the_server_and_counts_among_its_clients(tmp_path: Path) -> None:
    served = Served(tmp_path, "--data", "data")
    try:
        client: Any = package.open(served.url)
        async with client:
            assert (await client.info())["connections"] == 1
            async with package.open(tmp_path / "data") as joined:
                await joined.publish("t", b"x")
                assert (await client.info())["connections"] == 2
    finally:
        assert served.stop() == 0


def test_it_speaks_http_and_says_where(tmp_path: Path) -> None:
    served = Served(tmp_path, "--memory", "--http-port", "0")
    try:
        door = served.listeners["http"]
        assert door["url"] == f"http://127.0.0.1:{door['port']}"
        answer = httpx.post(f"{door['url']}/topics/t", content=b"hello")
        assert (answer.status_code, answer.json()["offset"]) == (201, 0)
        with httpx.stream("GET", f"{door['url']}/events?topic=t&start=earliest") as events:
            assert "hello" in next(line for line in events.iter_lines() if '"value"' in line)
            assert served.stop() == 0
    finally:
        served.process.kill()  # one that is left over fails a later test
        served.end()
    assert "Traceback" not in served.told()


def test_without_the_packages_http_is_left_out_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_process.server_options(load({})) == (load({}).server, None)
    assert load({}).server.http_port == 7780
    monkeypatch.setattr(http, "find_spec", lambda name: None if name == "uvicorn" else object())
    options, note = server_process.server_options(load({}))
    assert options.http_port is None
    assert note is not None
    assert "uvicorn is not installed: pip install 'runnel-mq[server]'" in note
    assert server_process.server_options(load({"serve.http_port": "off"}))[1] is None
    with pytest.raises(NotSupported, match=r"pip install 'runnel-mq\[server\]'"):
        server_process.server_options(load({"serve.http_port": "7780"}))


# -- Log lines of a server: one line for people, or one JSON object, each with its time and level ------------


def test_text_for_people() -> None:
    stream = io.StringIO()
    with process_settings("info", "text", stream):
        logging.getLogger("runnel.serve").info("ready in %d s", 3)
        logging.getLogger("runnel").debug("not told")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO runnel.serve: ready in 3 s\n", stream.getvalue())


def test_json_for_programs_one_line_each_with_the_error() -> None:
    stream = io.StringIO()
    with process_settings("warning", "json", stream):
        logging.getLogger("runnel").info("not told")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("runnel").exception("it broke")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "runnel", "it broke")
    assert found["error"].endswith("ValueError: two\nlines")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])


def test_a_program_keeps_its_settings_after_a_command_that_it_called() -> None:
    def settings() -> tuple[object, ...]:
        root = logging.getLogger()
        return root.level, tuple(root.handlers), sys.getswitchinterval(), gc.get_threshold()

    before = settings()
    with process_settings("debug", "text", io.StringIO()):
        gc.set_threshold(10_000, 10, 50)
        assert settings() != before
    assert settings() == before
