"""Addresses and options of a cluster: what they say, and how wrong ones are refused without showing a password."""

import pytest

from runnel import BadAddress, InvalidOption
from runnel.cluster.options import ClusterOptions, NatsAddress, parse_url


def test_an_address_names_servers_user_and_options() -> None:
    found = parse_url("nats://me:p%40ss@a,b:4333,[::1]:4222?stream=ORDERS&timeout=5&verify=false")
    assert found.servers == (NatsAddress("a", 4222), NatsAddress("b", 4333), NatsAddress("::1", 4222))
    assert found.options == {"user": "me", "password": "p@ss", "stream": "ORDERS", "timeout": 5, "verify": False}
    assert parse_url("tls://token@a").options == {"tls": True, "token": "token"}


@pytest.mark.parametrize(
    "url", ["http://a", "nats://", "nats://a:0", "nats://a:x", "nats://u:secret@a,v:secret@b", "nats://u:secret@?x"]
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises((BadAddress, InvalidOption)) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 200},
        {"timeout": 0},
        {"replicas": 2},
        {"stream": "a b"},
        {"user": "u", "token": "t"},
        {"key": "k"},
        {"stremm": "x"},
        {"backoff_min": 5.0},
        {"creds": "/nowhere/at/all"},
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption) as caught:
        ClusterOptions.of(options).credentials("nonce")
    assert any(name in str(caught.value) for name in options)
