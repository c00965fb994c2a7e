"""What a client can be told."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from runnel.client.options import ClientOptions
from runnel.core.errors import InvalidOption


def test_nothing_said_is_the_defaults() -> None:
    options = ClientOptions.of({})
    assert options == ClientOptions()
    assert (options.timeout, options.linger, options.reconnect, options.verify) == (30.0, 0.0, True, True)


def test_what_is_given_counts_more_than_what_the_url_says() -> None:
    options = ClientOptions.of({"timeout": 1}, {"timeout": "2", "linger": "0.5", "name": "me"})
    assert (options.timeout, options.linger, options.name) == (1.0, 0.5, "me")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("3", 3)],
)
def test_a_url_can_say_how_often_to_connect_again(text: str, value: object) -> None:
    assert ClientOptions.of({}, {"reconnect": text}).reconnect is value or value == 3


def test_a_url_can_take_the_limit_off() -> None:
    assert ClientOptions.of({}, {"timeout": "none"}).timeout is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"timeout": 0}, "above 0"),
        ({"timeout": True}, "above 0"),
        ({"connect_timeout": "5"}, "above 0"),
        ({"connect_timeout": None}, "above 0"),
        ({"linger": -1}, "0 or more"),
        ({"wait": float("nan")}, "0 or more"),
        ({"max_pending_bytes": 0}, "above 0"),
        ({"credit": 1.5}, "above 0"),
        ({"reconnect": 0}, "above 0"),
        ({"verify": 1}, "True or False"),
        ({"name": ""}, "expected text"),
        ({"name": 3}, "expected text"),
        ({"ssl": True}, "SSLContext"),
        ({"key": "k"}, "give cert too"),
        ({"backoff_min": 2, "backoff_max": 1}, "below backoff_min"),
        ({"time_out": 3}, "did you mean 'timeout'"),
        ({"zzz": 3}, "there are timeout"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        ClientOptions.of(given)


@pytest.mark.parametrize(
    ("written", "why"),
    [({"timeout": "soon"}, "a number"), ({"ssl": "x"}, "written in a url"), ({"tls": "x"}, "no such option")],
)
def test_what_a_url_cannot_say_is_refused_by_name(written: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        ClientOptions.of({}, written)


def test_tls_trusts_no_certificate_unless_asked() -> None:
    context = ClientOptions().ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_tls_trusts_any_certificate_when_asked() -> None:
    context = ClientOptions(verify=False).ssl_context()
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_a_context_of_ones_own_is_taken_as_it_is() -> None:
    own = ssl.create_default_context()
    assert ClientOptions.of({"ssl": own}).ssl_context() is own


@pytest.mark.parametrize("option", ["ca", "cert"])
def test_a_file_that_cannot_be_loaded_is_named(option: str, tmp_path: Path) -> None:
    options = ClientOptions.of({option: tmp_path / "nothing.pem"})
    with pytest.raises(InvalidOption, match=f"{option}=.*nothing.pem"):
        options.ssl_context()
