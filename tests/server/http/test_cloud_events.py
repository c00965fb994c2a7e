"""CloudEvents in JSON: attributes become headers, data the value, whatever it is."""

import json
from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.server.http.cloud_events import batched, check_binary, structured

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "paid"}


def body(**more: Any) -> bytes:
    return json.dumps(EVENT | more).encode()


def test_attributes_are_headers_and_json_stays_as_it_was_written() -> None:
    event = structured(
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","n":3,"ok":true,"x":null,"data": {"a": 1.50}}'
    )
    assert event.value == b'{"a": 1.50}'
    assert event.headers == {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/s",
        "ce-type": "t",
        "ce-n": "3",
        "ce-ok": "true",
        "content-type": "application/json",
    }
    assert event.key is None


@pytest.mark.parametrize(
    ("more", "value", "kind"),
    [
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text", "text/plain"),
        ({"data": "x", "datacontenttype": "application/vnd.a+json; charset=utf-8"}, b'"x"', None),
        ({"data_base64": "/wA="}, b"\xff\x00", "application/json"),
        ({}, b"", None),
    ],
)
def test_data_is_the_value(more: dict[str, Any], value: bytes, kind: str | None) -> None:
    event = structured(body(**more))
    assert event.value == value
    if kind is not None:
        assert event.headers["content-type"] == kind


def test_a_partition_key_is_the_key() -> None:
    assert structured(body(partitionkey="42")).key == "42"
    assert check_binary({f"ce-{name}": value for name, value in (EVENT | {"partitionkey": "7"}).items()}) == "7"


def test_a_batch_is_many() -> None:
    assert [event.headers["ce-id"] for event in batched(b"[" + body(id="a") + b"," + body(id="b") + b"]")] == ["a", "b"]


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type"])
def test_what_an_event_must_have_is_asked_for_by_name(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"ce-{name}"):
        structured(body(**{name: ""}))
    with pytest.raises(InvalidOption, match=f"ce-{name}"):
        check_binary({f"ce-{one}": value for one, value in EVENT.items() if one != name})


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"specversion":1}',
        body(specversion="0.3"),
        body(Upper="x"),
        body(**{"a-b": "x"}),
        body(nested={"a": 1}),
        body(data_base64="!"),
        body(data_base64="\x84AAA"),
        body(type=False),
        body(id=7),
        body(data_base64=1),
    ],
)
def test_what_is_no_event_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidOption):
        structured(wrong)


@pytest.mark.parametrize("wrong", [b"[]", b"{}", b"[1]", b"[" + body() + b",{}]"])
def test_what_is_no_batch_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidOption):
        batched(wrong)
