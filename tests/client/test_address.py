"""Where servers are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.address import ServerAddress, parse_url
from runnel.core.errors import BadAddress


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("runnel://localhost", [ServerAddress("localhost", 7788)]),
        ("runnel://127.0.0.1:1", [ServerAddress("127.0.0.1", 1)]),
        ("runnel://127.0.0.1:65535/", [ServerAddress("127.0.0.1", 65535)]),
        ("runnels://example.org:99", [ServerAddress("example.org", 99, tls=True)]),
        ("runnel://a:1,b:2,c", [ServerAddress("a", 1), ServerAddress("b", 2), ServerAddress("c", 7788)]),
        ("runnel://[::1]:5", [ServerAddress("::1", 5)]),
        ("runnel://[::1]", [ServerAddress("::1", 7788)]),
        ("runnel+unix:///tmp/a%20b", [ServerAddress("", 0, "/tmp/a b")]),
    ],
)
def test_a_url_names_its_servers_in_order(url: str, addresses: list[ServerAddress]) -> None:
    assert parse_url(url) == (tuple(addresses), {})


def test_options_stand_behind_a_question_mark() -> None:
    assert parse_url("runnel://a?timeout=3&name=x%20y").options == {"timeout": "3", "name": "x y"}
    assert parse_url("runnel+unix:///s?linger=0").options == {"linger": "0"}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a", "none of the ways"),
        ("localhost:7788", "no '://'"),
        ("runnel://", "host is missing"),
        ("runnel://a,,b", "host is missing"),
        ("runnel://a b", "host is missing"),
        ("runnel://a:0", "not a port"),
        ("runnel://a:65536", "not a port"),
        ("runnel://a:", "not a port"),
        ("runnel://a:x", "not a port"),
        ("runnel://a:٣", "not a port"),
        ("runnel://::1", "brackets"),
        ("runnel://[::1", "brackets"),
        ("runnel://[::1]7", "brackets"),
        ("runnel://a/b", "no path"),
        ("runnel://me:secret@a", "no name or password"),
        ("runnel+unix://tmp/s", "begins with '/'"),
        ("runnel://a?timeout", "name=value"),
        ("runnel://a?timeout=1&timeout=2", "twice"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why):
        parse_url(url)


@given(
    st.builds(
        ServerAddress,
        st.sampled_from(["a", "localhost", "10.0.0.1", "::1", "fe80::1"]),
        st.integers(1, 65535),
        st.just(""),
        st.booleans(),
    )
)
def test_an_address_is_written_as_it_is_read(address: ServerAddress) -> None:
    assert parse_url(str(address)).addresses == (address,)


def test_a_socket_is_written_as_it_is_read() -> None:
    socket = ServerAddress("", 0, "/run/a b?.sock")
    assert parse_url(str(socket)).addresses == (socket,)
