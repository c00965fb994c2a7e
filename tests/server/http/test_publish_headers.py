"""What headers ask for, and what is refused of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption
from runnel.server.http.publish import read_publish_headers

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_each_header_is_an_option() -> None:
    found = read_publish_headers(
        [
            (b"runnel-key", b"k%00%ff"),
            (b"Runnel-Delay", b"1.5"),
            (b"runnel-expires", b"60"),
            (b"runnel-priority", b"9"),
            (b"runnel-expected-offset", b"0"),
            (b"idempotency-key", b'"abc"'),
            (b"runnel-header-x-name", b"caf%C3%A9 100%"),
            (b"ce-type", b"made"),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"traceparent", TRACE),
            (b"accept", b"*/*"),
        ]
    )
    assert found.options == {
        "key": b"k\x00\xff",
        "delay": 1.5,
        "expires": 60.0,
        "priority": 9,
        "expected_offset": 0,
        "message_id": "abc",
    }
    assert found.headers == {"x-name": "café 100%", "ce-type": "made", "traceparent": TRACE.decode()}
    assert found.content_type == "text/plain; charset=utf-8"


def test_a_malformed_trace_is_none_at_all() -> None:
    assert read_publish_headers([(b"traceparent", b"nonsense")]).headers == {}


@pytest.mark.parametrize(
    "header",
    [
        (b"runnel-delay", b"soon"),
        (b"runnel-delay", b"nan"),
        (b"runnel-delay", b"-1"),
        (b"runnel-delay", b"1e9"),
        (b"runnel-expires", b""),
        (b"runnel-priority", b"1_0"),
        (b"runnel-priority", b"\xd9\xa1"),
        (b"runnel-expected-offset", b"9" * 30),
        (b"idempotency-key", b"a\rb"),
        (b"idempotency-key", b"\xff"),
        (b"runnel-header-x", b"%ff"),
        (b"ce-id", b"\xff"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_publish_headers([header])
    assert caught.value.option.lower() == header[0].decode()


@pytest.mark.parametrize("name", [b"runnel-key", b"idempotency-key", b"runnel-header-a", b"ce-id"])
def test_what_is_there_twice_is_refused(name: bytes) -> None:
    with pytest.raises(InvalidOption, match="twice"):
        read_publish_headers([(name, b"1"), (name.upper(), b"1")])


@given(st.lists(st.tuples(st.sampled_from([b"runnel-key", b"runnel-delay", b"runnel-header-x", b"ce-a"]), st.binary())))
def test_whatever_bytes_come_it_is_wishes_or_a_refusal(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        read_publish_headers(headers)
    except InvalidOption:
        pass
