"""Names that a server answers to: addresses, localhost, those it was given; never a name that others point at it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.server.http.cross_origin import CACHED_HOSTS, AllowedHosts

OWN = ["127.0.0.1", "127.0.0.1:7780", "[::1]", "[::1]:7780", "10.0.0.7:80", "localhost", "LOCALHOST:7780", "localhost."]


@pytest.mark.parametrize("host", [*OWN, "app.localhost", "a.b.localhost:1", "[::ffff:127.0.0.1]:80"])
def test_addresses_and_localhost_count(host: str) -> None:
    assert host in AllowedHosts(())


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example:7780",
        "localhost:80:80",
        "localhost evil.example",
        "localhost\n",
        "127.1",
        "0x7f000001",
        "[::1",
        "::1",
        "",
        "[evil.example]",
        ".localhost:80/",
    ],
)
def test_everything_else_does_not(host: str) -> None:
    assert host not in AllowedHosts(())
    assert host not in AllowedHosts(["app.example"])


def test_names_that_were_given_count_with_any_port_and_in_any_case() -> None:
    hosts = AllowedHosts(["App.example", "*.inner.example"])
    for host in ("app.example", "APP.example:8443", "a.inner.example", "a.b.inner.example:80", *OWN):
        assert host in hosts, host
    for host in ("x.app.example", "inner.example", "evilinner.example", "app.example.evil"):
        assert host not in hosts, host
    assert "whatever.example" in AllowedHosts(["*"])


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1), st.integers(0, 65535))
def test_no_name_of_a_stranger_ever_counts(name: str, port: int) -> None:
    assert f"{name}.example:{port}" not in AllowedHosts(["app.localhost"])


def test_many_names_are_told_apart_and_not_all_remembered() -> None:
    hosts = AllowedHosts(())
    for number in range(CACHED_HOSTS * 2):
        assert f"{number}.example" not in hosts
        assert f"{number}.localhost" in hosts
    assert len(hosts._known) == CACHED_HOSTS
