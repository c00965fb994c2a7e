"""A file and the environment: what they say, where, and what they cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.config.settings import GivenValue, from_environment, from_file

FILE = Path("runnel.toml")

WHOLE = """\
# a comment
data = "store"
server = "runnel://host:1"

[serve]
port = 9000
ping = "3s"
  json_port = "off"

[journal]
fsync = "interval"
"""


def test_a_file_says_values_and_their_lines() -> None:
    found, problems = from_file(FILE, WHOLE)
    assert problems == []
    assert found == {
        "data": GivenValue("store", "runnel.toml:2"),
        "server": GivenValue("runnel://host:1", "runnel.toml:3"),
        "serve.port": GivenValue(9000, "runnel.toml:6"),
        "serve.ping": GivenValue(3.0, "runnel.toml:7"),
        "serve.json_port": GivenValue(None, "runnel.toml:8"),
        "journal.fsync": GivenValue("interval", "runnel.toml:11"),
    }


@pytest.mark.parametrize(
    "text", ["serve.port = 1", '"serve" . "port" = 1', "serve = { port = 1 }", '["serve"]\nport = 1']
)
def test_toml_has_several_ways_to_say_it_and_the_line_is_found(text: str) -> None:
    found, problems = from_file(FILE, f"\n{text}\n")
    assert problems == []
    assert found["serve.port"] == GivenValue(1, f"runnel.toml:{3 if '[' in text else 2}")


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("[serve]\nprot = 1", "runnel.toml:2", "there is no key 'serve.prot'; did you mean 'port'?"),
        ("port = 1", "runnel.toml:1", "there is no key 'port'; did you mean 'serve.port'?"),
        ("[journal]\nport = 1", "runnel.toml:2", "there is no key 'journal.port'; did you mean 'serve.port'?"),
        ("[sevre]\nport = 1", "runnel.toml:1", "there is no table [sevre]; did you mean 'serve'?"),
        ("[nonsense]\nx = 1", "runnel.toml:1", "there is no table [nonsense]"),
        ("serve = 5", "runnel.toml:1", "'serve' is a table: write [serve], and its keys below"),
        ("zzz = 1", "runnel.toml:1", "there is no key 'zzz'"),
        (
            '[serve]\n\nmax_calls = "many"',
            "runnel.toml:3",
            "serve.max_calls is 'many': expected a whole number, not text in quotes",
        ),
        ("[serve]\nping = 'soon'", "runnel.toml:2", "serve.ping is 'soon': expected a duration"),
        ("[serve\nport = 1", "runnel.toml:1", "this is no TOML: Expected ']'"),
        ("[serve]\nport = 1\nhost = x\n", "runnel.toml:3", "this is no TOML: Invalid value"),
    ],
)
def test_an_error_is_reported_with_its_line_and_the_right_name(text: str, where: str, said: str) -> None:
    _, (problem,) = from_file(FILE, text)
    assert problem.where == where
    assert problem.message.startswith(said)


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    found, problems = from_file(FILE, "[serve]\nprot = 1\nport = 2\nhots = 3\n")
    assert [one.where for one in problems] == ["runnel.toml:2", "runnel.toml:4"]
    assert found == {"serve.port": GivenValue(2, "runnel.toml:3")}


def test_the_environment_says_values_and_an_empty_one_says_nothing() -> None:
    found, problems = from_environment(
        {
            "RUNNEL_SERVE_PORT": "9000",
            "RUNNEL_DATA": "store",
            "RUNNEL_SERVE_HOST": "",
            "PATH": "/bin",
            "RUNNEL_CONFIG": "f",
        }
    )
    assert problems == []
    assert found == {"data": GivenValue("store", "RUNNEL_DATA"), "serve.port": GivenValue(9000, "RUNNEL_SERVE_PORT")}


def test_an_unknown_variable_is_reported_with_the_right_one() -> None:
    _, (problem,) = from_environment({"RUNNEL_SERVE_PROT": "1"})
    assert str(problem) == "RUNNEL_SERVE_PROT: there is no such setting; did you mean 'RUNNEL_SERVE_PORT'?"
    _, (problem,) = from_environment({"RUNNEL_SERVE_MAX_CALLS": "many"})
    assert str(problem) == "RUNNEL_SERVE_MAX_CALLS: 'many': expected a whole number"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RUNNEL_SERVICE_HOST", "10.0.0.1"),
        ("RUNNEL_SERVICE_PORT", "7788"),
        ("RUNNEL_SERVICE_PORT_NATIVE", "7788"),
        ("RUNNEL_PORT", "tcp://10.0.0.1:7788"),
        ("RUNNEL_PORT_7788_TCP", "tcp://10.0.0.1:7788"),
        ("RUNNEL_PORT_7788_TCP_ADDR", "10.0.0.1"),
        ("RUNNEL_PORT_7788_TCP_PORT", "7788"),
        ("RUNNEL_SERVE_PORT", "tcp://10.0.0.1:7788"),
    ],
)
def test_variables_that_kubernetes_sets_for_a_service_of_that_name_are_no_settings(name: str, text: str) -> None:
    assert from_environment({name: text}) == ({}, [])
