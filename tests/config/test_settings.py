"""Flags win over the environment, the environment over the file, the file over defaults; values know their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.config.errors import InvalidConfig
from runnel.config.keys import keys
from runnel.config.settings import load


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(*arguments: object, **more: object) -> list[str]:
    with pytest.raises(InvalidConfig) as refused:
        load(*arguments, **more)  # type: ignore[arg-type]
    return [str(one) for one in refused.value.problems]


def test_the_nearer_one_wins_and_says_so(here: Path) -> None:
    (here / "runnel.toml").write_text("[serve]\nport = 1\nping = 1\ncredit = 1\n")
    settings = load({"serve.port": "3"}, {"RUNNEL_SERVE_PORT": "2", "RUNNEL_SERVE_PING": "2s"})
    server = settings.server
    assert (server.port, server.ping, server.credit, server.host) == (3, 2.0, 1, "127.0.0.1")
    sources = [settings.where(f"serve.{name}") for name in ("port", "ping", "credit", "host")]
    assert sources == ["--port", "RUNNEL_SERVE_PING", "runnel.toml:4", "default"]


def test_nothing_said_is_every_default() -> None:
    settings = load()
    assert settings.given == {}
    assert settings.file is None
    assert (settings.general.data, settings.serving.deadline, settings.server.port) == ("data", 10.0, 7788)


def test_the_file_is_the_one_that_is_named_or_the_one_that_lies_here(here: Path) -> None:
    for name, port in (("runnel.toml", 1), ("env.toml", 2), ("flag.toml", 3)):
        (here / name).write_text(f"[serve]\nport = {port}\n")
    assert load().server.port == 1
    assert load({}, {"RUNNEL_CONFIG": "env.toml"}).server.port == 2
    assert load({}, {"RUNNEL_CONFIG": "env.toml"}, "flag.toml").server.port == 3
    assert load({}, {}, "flag.toml").file == Path("flag.toml")


def test_a_file_that_was_named_must_be_there_and_be_text(here: Path) -> None:
    assert problems({}, {}, "none.toml") == ["none.toml: cannot be read: No such file or directory"]
    (here / "raw.toml").write_bytes(b"\xff")
    assert problems({}, {}, "raw.toml") == ["raw.toml: is no text in UTF-8"]


def test_a_value_that_a_struct_refuses_is_reported_with_its_place(here: Path) -> None:
    (here / "runnel.toml").write_text("[journal]\nsegment_bytes = 5\n\n[serve]\nport = 99999\n")
    assert problems() == [
        "runnel.toml:5: serve.port is 99999: a port is a whole number from 0 (any) to 65535",
        "runnel.toml:2: journal.segment_bytes is 5: a segment has at least 4,096 bytes",
    ]
    assert problems({"serve.ping": "0s"}, {}, "/dev/null") == ["--ping: serve.ping is 0.0: expected a number above 0"]


def test_all_problems_of_all_places_are_reported_at_once(here: Path) -> None:
    (here / "runnel.toml").write_text("[serve]\nprot = 1\n")
    found = problems({"serve.port": "x", "serve.host": None}, {"RUNNEL_SERVE_PIN": "1"})
    assert [one.split(": ")[0] for one in found] == ["runnel.toml:2", "RUNNEL_SERVE_PIN", "--port"]


def test_a_command_that_only_asks_for_its_server_does_not_judge_the_environment() -> None:
    odd = {"RUNNEL_NONSENSE": "1", "RUNNEL_SERVER": "runnel://host:1"}
    assert load(environment=odd, strict=False).general.server == "runnel://host:1"
    (problem,) = problems({}, odd)
    assert problem.startswith("RUNNEL_NONSENSE: there is no such setting")


def test_addresses_of_databases_are_read_by_others() -> None:
    names = ("RUNNEL_RELAY_DSN", "RUNNEL_ARCHIVE_DSN", "RUNNEL_HISTORY_DSN")
    assert load(environment=dict.fromkeys(names, "postgresql://db/app")).given == {}


def test_a_certificate_and_its_key_go_together() -> None:
    tls = load({"serve.tls_cert": "c.pem", "serve.tls_key": "k.pem"}).server.ssl
    assert tls is not None
    assert (tls.cert, tls.key, tls.client_ca) == (Path("c.pem"), Path("k.pem"), None)
    (problem,) = problems({"serve.tls_cert": "c.pem"})
    assert problem == "--tls-cert: a certificate and its key go together: tls_cert and tls_key"
    assert load().server.ssl is None


def test_a_value_is_what_acts_even_where_it_was_worked_out() -> None:
    settings = load({"journal.segment_bytes": "1GiB", "serve.tls_cert": "c", "serve.tls_key": "k"})
    value = {dotted: settings.value(key) for dotted, key in keys().items()}
    assert value["journal.min_free"] == 2 << 30
    assert value["serve.tls_key"] == Path("k")
    assert value["serve.tls_client_ca"] is None
    assert value["data"] == "data"
    assert load().value(keys()["serve.tls_key"]) is None


def test_a_socket_s_path_is_a_path_and_the_folder_stays_as_it_was_said() -> None:
    settings = load({"serve.unix": "run/x.sock", "data": "store/"})
    assert settings.server.unix == Path("run/x.sock")
    assert settings.general.data == "store/"
