"""What a server says when it is ready: its listeners, who may connect, and commands that can be copied."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from runnel.cli.server_process import announcement, command_name, commands_to_try, ready_facts
from runnel.config.settings import load
from runnel.server.served_broker import ListenerAddress

NATIVE = ListenerAddress("native", "runnel://127.0.0.1:7788", "127.0.0.1", 7788)
LINES = ListenerAddress("json", "tcp://127.0.0.1:7789", "127.0.0.1", 7789)
UNIX = ListenerAddress("unix", "runnel+unix:///run/x.sock", "/run/x.sock", 0)


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/runnel")


def test_a_person_reads_the_listeners_and_that_authentication_is_off() -> None:
    text = announcement([NATIVE, UNIX, LINES], load({}), "1.2.3")
    assert text.startswith("runnel 1.2.3 serves the folder 'data', fsync 'commit' (process ")
    assert "  native       runnel://127.0.0.1:7788\n" in text
    assert "  Unix socket  runnel+unix:///run/x.sock\n" in text
    assert "  JSON lines   tcp://127.0.0.1:7789\n" in text
    assert "it listens on this machine only (127.0.0.1)" in text
    assert "\n\nWithout HTTP.\nAuthentication" in announcement([NATIVE], load({}), "1.2.3", "Without HTTP.")
    assert "serves from memory" in announcement([NATIVE], load({"serve.memory": "true"}), "1.2.3")
    other = announcement([NATIVE], load({"serve.backend": "runnel://there"}), "1.2.3")
    assert other.startswith("runnel 1.2.3 serves the topics of runnel://there (process ")
    public = announcement([NATIVE], load({"serve.insecure_public": "true"}), "1.2.3")
    assert "anyone who reaches these listeners may read and write everything" in public
    assert "TLS is off" in public
    assert "TLS" not in text


def test_there_are_three_commands_and_the_default_port_need_not_be_said() -> None:
    sub, pub, line = commands_to_try([NATIVE, LINES])
    assert (sub, pub) == ("runnel sub 'greetings.>'", "runnel pub greetings.world hello")
    assert line.endswith("| nc -w 1 127.0.0.1 7789")
    assert '{"command": "PUB", "topic": "greetings.world", "payload": "100"}' in shlex.split(line)


def test_another_port_is_said_and_what_listens_everywhere_is_reached_here() -> None:
    sub, _, top = commands_to_try(
        [
            ListenerAddress("native", "runnels://0.0.0.0:1", "0.0.0.0", 1),
            ListenerAddress("json", "tls://0.0.0.0:2", "0.0.0.0", 2),
        ]
    )
    assert sub == "runnel sub 'greetings.>' --server 'runnels://127.0.0.1:1?ca=ca.pem'"
    assert top == "runnel top --server 'runnels://127.0.0.1:1?ca=ca.pem'"
    assert commands_to_try([ListenerAddress("native", "runnel://[::]:1", "::", 1)])[1].endswith(
        " --server 'runnel://[::1]:1'"
    )


def test_with_tls_the_commands_name_the_files_that_a_client_needs() -> None:
    secure = [ListenerAddress("native", "runnels://0.0.0.0:1", "0.0.0.0", 1)]
    assert "terminal (ca.pem is your file; leave out ca for a public authority):" in announcement(
        secure, load({}), "1.2.3"
    )
    mutual = announcement(
        secure,
        load({"serve.tls_cert": "a.pem", "serve.tls_key": "a.key", "serve.tls_client_ca": "clients.pem"}),
        "1.2.3",
    )
    assert "--server 'runnels://127.0.0.1:1?ca=ca.pem&cert=client.pem&key=client.key'" in mutual
    assert "TLS is on, and clients need a certificate of 'clients.pem'; the Unix socket needs none." in mutual
    assert "Try, in another terminal:" in announcement([NATIVE], load({}), "1.2.3")


def test_what_is_not_open_is_not_suggested() -> None:
    assert commands_to_try([UNIX])[0] == "runnel sub 'greetings.>' --server runnel+unix:///run/x.sock"
    (line,) = commands_to_try([LINES])
    assert line.endswith("| nc -w 1 127.0.0.1 7789")


def test_the_command_is_named_as_it_can_be_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command_name() == "runnel"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    script = tmp_path / "my env" / "bin" / "runnel"
    script.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    assert command_name() == f"'{script.parent}/python' -m runnel"
    script.touch()
    assert command_name() == f"'{script}'"
    monkeypatch.chdir(tmp_path)
    assert command_name() == "'my env/bin/runnel'"


def test_a_program_reads_one_object() -> None:
    found = ready_facts([NATIVE], load({}))
    assert (found["event"], found["data"], found["fsync"]) == ("ready", "data", "commit")
    assert found["listeners"] == [{"name": "native", "url": NATIVE.url, "host": "127.0.0.1", "port": 7788}]
    assert ready_facts([], load({"serve.memory": "true"}))["data"] is None
