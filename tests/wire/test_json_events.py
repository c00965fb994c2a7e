"""What a server says is one line of JSON each, from which everything can be had back."""

import base64
import json
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import BadCommand, UnknownTopic, ValidationFailed
from runnel.core.record import Gap, Record
from runnel.wire import json_events as events
from runnel.wire.json_commands import COMMANDS, parse

TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(value: bytes = b"100", key: bytes | None = None, headers: dict[str, str] | None = None) -> Record[bytes]:
    return Record("test", 3, 9, 5, key, value, MappingProxyType(headers or {}), TIME)


def test_a_message_tells_the_record_and_nothing_that_it_does_not_have() -> None:
    assert events.message(record()) == (
        b'{"event":"message","topic":"test","offset":3,"payload":"100","sequence":9,"epoch":5,'
        b'"time":"2026-03-01T12:00:00Z"}\n'
    )


def test_a_message_tells_key_headers_and_what_a_delivery_has() -> None:
    told = json.loads(events.message(record(key=b"k", headers={"a": "b"}), "mine", 7, 2))
    assert (told["key"], told["headers"], told["id"], told["delivery"], told["attempt"]) == (
        "k",
        {"a": "b"},
        "mine",
        7,
        2,
    )


@given(st.binary() | st.text(st.characters(codec="utf-8")).map(str.encode), st.none() | st.binary())
def test_any_value_and_key_come_back_from_one_line(value: bytes, key: bytes | None) -> None:
    line = events.message(record(value, key))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    told = json.loads(line)
    assert _back(told["payload"], told.get("encoding")) == value
    assert (None if key is None else _back(told["key"], told.get("key_encoding"))) == key


def _back(text: str, encoding: str | None) -> bytes:
    return base64.b64decode(text) if encoding == "base64" else text.encode()


def test_text_is_not_encoded() -> None:
    assert events.as_text("né".encode()) == ("né", None)
    assert events.as_text(b"\xff\x00") == ("/wA=", "base64")


@pytest.mark.parametrize("count", [3, None])
def test_a_gap_is_reported(count: int | None) -> None:
    assert json.loads(events.gap(Gap("t", 1, 4, count, "too slow"), 5)) == {
        "event": "gap",
        "topic": "t",
        "first": 1,
        "end": 4,
        "count": count,
        "reason": "too slow",
        "id": 5,
    }


def test_an_error_has_the_code_that_it_has_everywhere() -> None:
    told = json.loads(events.error(UnknownTopic("t"), "PUB", 1))
    assert told == {
        "event": "error",
        "code": "unknown_topic",
        "message": str(UnknownTopic("t")),
        "command": "PUB",
        "id": 1,
    }


def test_an_error_names_its_field_if_it_has_one() -> None:
    assert json.loads(events.error(BadCommand("no", field="topic")))["field"] == "topic"
    assert json.loads(events.error(ValidationFailed("t", "Order", "$.id", "no int")))["field"] == "$.id"


def test_help_is_a_line_for_each_command_with_an_example_that_works() -> None:
    lines = [json.loads(line) for line in events.help_lines("h").splitlines()]
    assert [line["command"] for line in lines] == list(COMMANDS)
    for line in lines:
        assert type(parse(json.dumps(line["example"]).encode())) is COMMANDS[line["command"]]
        assert line["about"]
        assert line["id"] == "h"
