"""`runnel token`: where it goes, what it writes, and secrets that are not shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runnel.client.options import ClientOptions
from runnel.core.errors import InvalidOption
from runnel.server.access.files import AuthFiles
from tests.cli.conftest import Command, Served

SECRET = "rnl_0123456789abcdef_" + "ab" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with an empty auth.toml."""
    monkeypatch.chdir(tmp_path)
    for name in ("RUNNEL_SERVER", "RUNNEL_DATA", "RUNNEL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "auth.toml").write_text("")
    return tmp_path


def test_tokens_are_listed_and_revoked_at_the_running_server_of_the_folder(folder: Path, runnel: Command) -> None:
    assert runnel("token", "create", "web", "--auth", "auth.toml", "--output", "web.token").status == 0
    assert (folder / "web.token").stat().st_mode & 0o777 == 0o600
    assert runnel("token", "create", "root", "--role", "admin", "--auth", "auth.toml", "--output", "root").status == 0
    server = Served(folder, "--auth", "auth.toml")
    try:
        assert [one["name"] for one in runnel("token", "list", "--json").json()] == ["web", "root"]
        assert runnel("token", "list").out == runnel("token", "list", "--data", "data").out
        assert runnel("token", "revoke", "web").status == 0
        assert [one["name"] for one in runnel("token", "list", "--json", "--auth", "auth.toml").json()] == ["root"]
        there = ("--server", server.url, "--token-file", "root")
        assert [one["name"] for one in runnel("token", "list", "--json", *there).json()] == ["root"]
        assert runnel("token", "list", "--server", server.url).status != 0, "over TCP there must be a token"
    finally:
        server.stop()
    assert "no server runs in the folder 'data': name the file of its --auth" in runnel("token", "list").err


def test_an_environment_that_names_a_server_counts_for_tokens_too(
    folder: Path, runnel: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_SERVER", "runnel+unix:///nowhere/socket?wait=0")
    assert "/nowhere/socket" in runnel("token", "list").err
    assert runnel("token", "list", "--auth", str(folder / "auth.toml")).status == 0


def test_a_token_is_not_written_over_a_file(folder: Path, runnel: Command) -> None:
    (folder / "there").write_text("kept")
    done = runnel("token", "create", "web", "--auth", "auth.toml", "--output", "there")
    assert (done.status, (folder / "there").read_text()) == (2, "kept")
    assert len(AuthFiles(folder / "auth.toml").read_tokens()) == 0
    assert runnel("token", "create", "web", "--role", "no", "--auth", "auth.toml", "--output", "new").status == 2
    assert not (folder / "new").exists()


@pytest.mark.usefixtures("folder")
def test_a_token_in_place_of_its_file_is_not_shown(runnel: Command) -> None:
    done = runnel("pub", "a", "b", "--server", "runnel://127.0.0.1:1", "--token-file", SECRET)
    assert done.status == 2
    assert "rnl_…" in done.err
    assert SECRET[4:20] not in done.err
    with pytest.raises(InvalidOption) as refused:
        ClientOptions(token_file=SECRET).current_token()
    assert SECRET not in str(refused.value)


def test_a_token_file_that_others_may_read_is_warned_of_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = folder / "web.token"
    file.write_text(SECRET)
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING, "runnel"):
        assert ClientOptions(token_file=str(file)).current_token() == SECRET
        assert caplog.text == ""
        file.chmod(0o644)
        for _ in range(2):
            ClientOptions(token_file=str(file)).current_token()
    assert caplog.text.count("other users may read the token file") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[roles.shop]\nalow = []", "auth.toml:2': roles.shop.alow: there is no such key; did you mean 'allow'?"),
        ('[roles.shop]\nallow = ["publsh:a"]', "auth.toml:2': roles.shop.allow is 'publsh:a': expected ACTION:PATTERN"),
        ('[roles.shop]\nallow = "publish:a"', "auth.toml:2': roles.shop.allow: Expected `array`"),
        ("[role.a]", "auth.toml:1': role: there is no such key; did you mean 'roles'?"),
        ("[roles.shop.limits]\ntopic = 1", "auth.toml:2': roles.shop.limits.topic: there is no such key"),
        ('[principals.bob]\nconsole = "ops"', "auth.toml:2': principals.bob.console is 'ops': expected viewer"),
        ('[jwt]\nissuer = "i"\nsecret = "hidden"', "auth.toml:3': jwt.secret: there is no such key"),
        ("roles = 1", "auth.toml:1': roles: expected a table"),
    ],
)
def test_a_wrong_file_of_rules_is_named_with_the_place_and_a_suggestion(
    folder: Path, runnel: Command, text: str, said: str
) -> None:
    (folder / "auth.toml").write_text(text)
    done = runnel("token", "list", "--auth", "auth.toml")
    assert done.status == 2
    assert said in done.err
    assert "hidden" not in done.err
