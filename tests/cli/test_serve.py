"""`runnel serve`: its options are the keys of the configuration, and what makes no sense is told before it starts."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.serve import add_keys, settings_of
from runnel.config.keys import keys
from tests.cli.conftest import Command, Served
from tests.journal.folders import other_owner
from tests.patience import PATIENCE
from tests.server.certificates import Authority


def chosen(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_keys(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_topics_are_created_first_if_the_server_says_so(runnel: Command, here: Path) -> None:
    served = Served(here, "--data", "data", "--auto-create", "false")
    try:
        refused = runnel("pub", "orders", "tea", "--server", served.url)
        assert (refused.status, refused.err.endswith("(unknown_topic)\n")) == (1, True)
        assert runnel("topic", "create", "orders", "--server", served.url).status == 0
        assert runnel("pub", "orders", "tea", "--server", served.url).out == "orders  0\n"
    finally:
        assert served.stop() == 0


def test_every_key_is_an_option() -> None:
    said = vars(chosen())
    assert set(keys()) - {"server"} == set(said) - {"config"}
    assert set(said.values()) == {None}


def test_options_win_and_know_where_they_came_from(here: Path) -> None:
    (here / "other.toml").write_text("[serve]\nport = 1\nmax_connections = 5\n")
    settings = settings_of(chosen("--config", "other.toml", "--port", "0", "--fsync", "os", "--insecure-public"))
    assert (settings.server.port, settings.server.max_connections) == (0, 5)
    assert (settings.journal.fsync, settings.server.insecure_public) == ("os", True)
    assert settings.where("serve.port") == "--port"
    assert settings_of(chosen("--journal-fsync", "interval")).journal.fsync == "interval"


def test_a_switch_can_be_switched_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_SERVE_MEMORY", "true")
    assert settings_of(chosen()).serving.memory is True
    assert settings_of(chosen("--memory", "false", "--data", "x")).serving.memory is False
    with pytest.raises(CommandError, match="RUNNEL_SERVE_MEMORY means to store nothing: say --memory false"):
        settings_of(chosen("--data", "x"))


def test_a_folder_and_none_is_one_too_many() -> None:
    with pytest.raises(CommandError, match="say one of them"):
        settings_of(chosen("--memory", "--data", "x"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--memory",), "--memory says how to keep them here"),
        (("--data", "x"), "--data says how to keep them here"),
        (("--fsync", "os"), "--fsync says how to keep them here"),
        (("--journal-min-free", "1GiB"), "--journal-min-free says how to keep them here"),
    ],
)
def test_topics_that_another_server_keeps_are_not_kept_here(arguments: tuple[str, ...], told: str) -> None:
    assert settings_of(chosen("--backend", "runnel://there")).serving.backend == "runnel://there"
    with pytest.raises(CommandError, match=f"--backend names the server that keeps the topics, and {told}: say one"):
        settings_of(chosen("--backend", "runnel://there", *arguments))


def test_a_folder_in_the_environment_is_for_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_DATA", "x")
    assert settings_of(chosen("--backend", "runnel://there")).serving.backend == "runnel://there"
    monkeypatch.setenv("RUNNEL_SERVE_MEMORY", "true")
    with pytest.raises(CommandError, match="RUNNEL_SERVE_MEMORY says how to keep them here"):
        settings_of(chosen("--backend", "runnel://there"))


def test_the_environment_names_the_folder_and_memory_wins_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_DATA", "x")
    assert settings_of(chosen("--memory")).serving.memory is True


@pytest.mark.parametrize(
    "arguments", [("--port", "high"), ("--ping", "soon"), ("--fsync", "never"), ("--config", "none.toml")]
)
def test_settings_that_make_no_sense_are_one_line_and_exit_code_2(runnel: Command, arguments: tuple[str, ...]) -> None:
    done = runnel("serve", *arguments)
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("runnel: ")
    assert line.endswith("(invalid_config)")


# In a process of its own: a server that has opened its broker ends its process when its deadline has passed.
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--memory", "--host", "0.0.0.0", "--port", "0"), "public_bind_refused"),
        (("--backend", "http://there"), "bad_address"),
    ],
)
def test_an_address_that_makes_no_sense_is_one_line_and_exit_code_2(
    here: Path, arguments: tuple[str, ...], code: str
) -> None:
    command = [sys.executable, "-m", "runnel", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("runnel: ")
    assert line.endswith(f"({code})")


def test_a_port_that_is_taken_is_reported(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "runnel", "serve", "--memory", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    line = next(line for line in done.stderr.splitlines() if line.startswith("runnel: "))
    assert port in line
    assert line.endswith("(address_in_use)")
    assert "Traceback" not in done.stderr


def test_a_folder_that_has_an_owner_is_reported(here: Path) -> None:
    with other_owner(here / "data") as owner:
        command = [sys.executable, "-m", "runnel", "serve", "--port", "0", "--json-port", "off"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"in use by process {owner.pid}" in done.stderr


def test_a_file_configures_it_whole(here: Path, runnel: Command) -> None:
    (here / "runnel.toml").write_text(
        'data = "store"\n[serve]\nunix = "run.sock"\nlog_format = "json"\n[journal]\nfsync = "os"\n'
    )
    served = Served(here)
    try:
        assert (served.ready["data"], served.ready["fsync"]) == ("store", "os")
        assert set(served.listeners) == {"native", "json", "unix"}
        assert runnel("pub", "t", "hello", "--server", served.listeners["unix"]["url"]).status == 0
    finally:
        assert served.stop() == 0
    assert (here / "store").is_dir()
    assert '"level":"info"' in served.told()


def test_tls_and_certificates_of_clients(here: Path, runnel: Command) -> None:
    authority = Authority(here / "keys")
    cert, key = authority.issue("server")
    tls = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority.cert)
    served = Served(here, "--memory", *tls)
    try:
        assert served.url.startswith("runnels://")
        ours, secret = authority.issue("client")
        known = f"{served.url}?ca={authority.cert}&cert={ours}&key={secret}"
        assert runnel("pub", "t", "hello", "--server", known).out == "t  0\n"
        stranger = runnel("pub", "t", "hello", "--server", f"{served.url}?ca={authority.cert}")
        assert (stranger.status, stranger.out) == (1, "")
    finally:
        assert served.stop() == 0
