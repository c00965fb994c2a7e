"""What an untyped topic carries, and which headers it takes."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, InvalidValue, TooLarge
from runnel.core.payload import checked_headers, key_bytes, value_bytes

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@given(st.binary())
def test_bytes_stay_as_they_are(data: bytes) -> None:
    assert value_bytes("t", data) is data
    assert key_bytes("t", data) == data


@given(st.text(st.characters(codec="utf-8")))
def test_text_is_utf_8(text: str) -> None:
    assert value_bytes("t", text) == text.encode()
    assert key_bytes("t", text) == text.encode()


def test_a_buffer_that_may_still_change_is_copied() -> None:
    buffer = bytearray(b"abc")
    seen = value_bytes("t", buffer), value_bytes("t", memoryview(buffer))
    buffer[0] = ord("z")
    assert seen == (b"abc", b"abc")


@pytest.mark.parametrize("value", [None, 1, 1.5, {"a": 1}, ["a"], object()])
def test_any_other_value_is_refused_and_a_type_suggested(value: object) -> None:
    with pytest.raises(InvalidValue, match="give the topic a type") as caught:
        value_bytes("orders", value)
    error = caught.value
    assert (error.topic, error.what, error.got) == ("orders", "value", type(value).__name__)


def test_a_key_is_bytes_or_text_or_absent() -> None:
    assert key_bytes("t", None) is None
    with pytest.raises(InvalidValue, match="a key is bytes or str"):
        key_bytes("t", 42)


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff"])
def test_text_that_is_not_unicode_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="not valid Unicode"):
        value_bytes("t", text)
    with pytest.raises(InvalidValue, match="not valid Unicode"):
        key_bytes("t", text)
    with pytest.raises(InvalidOption, match="one line of Unicode"):
        checked_headers("t", {"note": text})


def test_headers_are_a_copy_and_weighed() -> None:
    given_headers = {"a": "1", "bc": "23"}
    headers = checked_headers("t", given_headers)
    given_headers["a"] = "2"
    assert headers == ({"a": "1", "bc": "23"}, 6)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "é", "a\0", "(a)"])
def test_a_header_name_that_could_forge_another_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="a header's name is"):
        checked_headers("t", {name: "x"})


@pytest.mark.parametrize("value", ["a\nb: c", "a\r", "\n", "a\0b"])
def test_a_header_value_that_could_forge_a_line_is_refused(value: str) -> None:
    with pytest.raises(InvalidOption, match="one line of Unicode, without NUL") as caught:
        checked_headers("t", {"note": value})
    assert "note" in caught.value.option


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"x"}, {"a": None}])
def test_headers_that_are_not_text_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match="str to str"):
        checked_headers("t", headers)


@pytest.mark.parametrize("headers", [[("a", "b")], "a=b", 5])
def test_headers_that_are_no_mapping_are_refused(headers: Mapping[str, str]) -> None:
    with pytest.raises(InvalidValue, match="a mapping of str to str"):
        checked_headers("t", headers)


def test_a_traceparent_must_be_well_formed() -> None:
    assert checked_headers("t", {"traceparent": TRACE})[0] == {"traceparent": TRACE}
    with pytest.raises(InvalidOption, match="W3C form"):
        checked_headers("t", {"traceparent": TRACE.upper()})


def test_a_record_has_a_bounded_number_of_headers() -> None:
    assert len(checked_headers("t", {f"h{n}": "x" for n in range(256)})[0]) == 256
    with pytest.raises(TooLarge, match="max_headers=256"):
        checked_headers("t", {f"h{n}": "x" for n in range(257)})
