"""Every line is a command, or a refusal that names the field and shows the right form."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import BadCommand
from runnel.core.position import Position
from runnel.wire import json_commands as commands
from runnel.wire.json_commands import COMMANDS, FORMS, Command, Pub, Refusal, Sub, parse


def said(**fields: Any) -> Command | Refusal:
    return parse(json.dumps(fields).encode())


def pub(**fields: Any) -> Pub:
    command = said(command="PUB", **{"topic": "t", "payload": "", **fields})
    assert isinstance(command, Pub), command
    return command


def sub(**fields: Any) -> Sub:
    command = said(command="SUB", **{"topic": "t", **fields})
    assert isinstance(command, Sub), command
    return command


def refusal(line: bytes | dict[str, Any]) -> Refusal:
    found = parse(line if isinstance(line, bytes) else json.dumps(line).encode())
    assert isinstance(found, Refusal), found
    return found


# -- what is understood -----------------------------------------------------------------------------------------


def test_the_two_lines_that_a_user_tries_first() -> None:
    first = parse(b'{"command": "SUB", "topic": "test"}')
    assert isinstance(first, Sub)
    assert (first.topic, first.where(), first.group) == ("test", None, None)
    second = parse(b'{"command": "PUB", "topic": "test", "payload": "100"}')
    assert isinstance(second, Pub)
    assert (second.topic, second.value(), second.key_bytes()) == ("test", b"100", None)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_form_that_is_shown_for_a_command_is_one(name: str) -> None:
    command = parse(FORMS[name].encode())
    assert type(command) is COMMANDS[name]
    assert command.verb == name


def test_every_command_has_a_form() -> None:
    assert list(FORMS) == list(COMMANDS)


@pytest.mark.parametrize("name", ["ping", "Ping", "PING"])
def test_capitals_do_not_matter(name: str) -> None:
    found = said(command=name, id="x")
    assert isinstance(found, commands.Ping)
    assert (found.verb, found.id) == ("PING", "x")


def test_the_names_of_the_other_interfaces_are_taken() -> None:
    said = parse(b'{"command":"PUB","topic":"t","value":{"a": 1.50},"key":"k"}')
    assert isinstance(said, Pub)
    assert (said.value(), said.key) == (b'{"a": 1.50}', "k")
    said = parse(b'{"start":"earliest","command":"SUB","topic":"t"}')
    assert isinstance(said, Sub)
    assert said.where() == "earliest"


def test_every_field_of_a_publish() -> None:
    command = pub(
        key="k", headers={"a": "b"}, delay=1, expires=2.5, priority=9, message_id="m", expected_offset=7, id=3
    )
    assert command.key_bytes() == b"k"
    assert (command.headers, command.delay, command.expires) == ({"a": "b"}, 1.0, 2.5)
    assert (command.priority, command.message_id, command.expected_offset, command.id) == (9, "m", 7, 3)


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b'"text"', b"text"),
        (b'"\\u00e9\\n"', "é\n".encode()),
        (b"100", b"100"),
        (b"1.50", b"1.50"),
        (b"12345678901234567890123", b"12345678901234567890123"),
        (b'{"a": [1,  2]}', b'{"a": [1,  2]}'),
        (b"[ ]", b"[ ]"),
        (b"null", b"null"),
        (b"true", b"true"),
    ],
)
def test_a_string_is_stored_as_its_text_and_other_json_as_it_was_written(payload: bytes, value: bytes) -> None:
    command = parse(b'{"command": "PUB", "topic": "t", "payload": ' + payload + b"}")
    assert isinstance(command, Pub)
    assert command.value() == value


@given(st.binary(), st.binary())
def test_any_bytes_travel_as_base64(value: bytes, key: bytes) -> None:
    command = pub(
        payload=base64.b64encode(value).decode(),
        encoding="base64",
        key=base64.b64encode(key).decode(),
        key_encoding="base64",
    )
    assert (command.value(), command.key_bytes()) == (value, key)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_travels_as_itself(text: str) -> None:
    assert pub(payload=text).value() == text.encode()


@pytest.mark.parametrize(
    ("start", "where"),
    [
        (None, None),
        ("earliest", "earliest"),
        ("latest", "latest"),
        (0, 0),
        (12, 12),
        ({"epoch": 5, "offset": 7}, Position(5, 7)),
        ("5:7", Position(5, 7)),
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T13:00:00+01:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ],
)
def test_where_a_subscription_starts(start: Any, where: Any) -> None:
    assert sub(**{"from": start}).where() == where


# -- what is not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"help", "not JSON"),
        (b'{"command": "PING"', "not JSON"),
        (b'{"command": "PING"} {}', "not JSON"),
        (b"[]", "no object"),
        (b'"SUB"', "no object"),
        (b"{}", '"command" is missing'),
        (b'{"command": 1}', '"command" is not a string'),
        (b'{"command": "\xff"}', "not UTF-8"),
        (b'{"command": "PUB", "topic": "t", "payload": "\xc3"}', "not UTF-8"),
        (b'{"command": "PUB", "topic": "t", "payload": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_command_is_refused_with_an_example(line: bytes, why: str) -> None:
    found = refusal(line)
    assert why in str(found.error)
    assert '{"command": "' in str(found.error)


@pytest.mark.parametrize(
    ("wrong", "right"), [("SUBB", "SUB"), ("subscribe", "SUB"), ("PUBLISH", "PUB"), ("exit", "QUIT"), ("pong", "PING")]
)
def test_an_unknown_command_suggests_the_nearest_one(wrong: str, right: str) -> None:
    assert f'did you mean "{right}"?' in str(refusal({"command": wrong}).error)


def test_an_unknown_command_lists_all_commands() -> None:
    message = str(refusal({"command": "x" * 1_000}).error)
    assert all(name in message for name in COMMANDS)
    assert len(message) < 300


@pytest.mark.parametrize(
    ("line", "field", "why"),
    [
        ({"command": "PUB", "topic": "t", "paylod": ""}, "paylod", 'did you mean "payload"?'),
        ({"command": "PUB", "topic": "t", "payload": "", "value": 1}, "value", 'the same as "payload"'),
        ({"command": "PUB", "topic": "t", "value": "", "paylode": 1}, "paylode", 'did you mean "payload"?'),
        ({"command": "SUB", "topic": "t", "from": 1, "start": 1}, "start", 'the same as "from"'),
        ({"command": "PUB", "topic": "t", "vlaue": ""}, "vlaue", 'did you mean "value"?'),
        ({"command": "SUB", "pattern": "t"}, "pattern", 'did you mean "topic"?'),
        ({"command": "PUB", "topic": "t"}, "payload", "it is missing"),
        ({"command": "SUB"}, "topic", "it is missing"),
        ({"command": "SUB", "topic": 1}, "topic", "it is a string"),
        ({"command": "SUB", "topic": "t", "from": -1}, "from", '"earliest"'),
        ({"command": "SUB", "topic": "t", "from": 1.5}, "from", '"earliest"'),
        ({"command": "SUB", "topic": "t", "from": {"epoch": 1}}, "from", '"earliest"'),
        ({"command": "PUB", "topic": "t", "payload": "", "headers": {"a": 1}}, "headers", "strings by name"),
        ({"command": "PUB", "topic": "t", "payload": "", "delay": -1}, "delay", "seconds"),
        ({"command": "PUB", "topic": "t", "payload": "", "expected_offset": 2**63}, "expected_offset", "whole number"),
        ({"command": "ACK", "delivery": "1"}, "delivery", "number that came with the message"),
        ({"command": "EXTEND", "delivery": 1}, "seconds", "it is missing"),
        ({"command": "PING", "id": []}, "id", "string or a whole number"),
        ({"command": "PING", "topic": "t"}, "topic", "no such field"),
    ],
)
def test_a_wrong_field_is_named_and_the_right_form_shown(line: dict[str, Any], field: str, why: str) -> None:
    found = refusal(line)
    assert found.command == line["command"]
    assert found.error.field == field
    assert why in str(found.error)
    assert FORMS[line["command"]] in str(found.error)


def test_a_refusal_keeps_the_id_if_it_is_one() -> None:
    assert refusal({"command": "PUB", "id": 7}).id == 7
    assert refusal({"command": "NOPE", "id": "a"}).id == "a"
    assert refusal({"command": "PUB", "id": True}).id is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"payload": "!", "encoding": "base64"}, "payload"),
        ({"payload": "YQ", "encoding": "base64"}, "payload"),
        ({"payload": 1, "encoding": "base64"}, "payload"),
        ({"payload": "é", "encoding": "base64"}, "payload"),
        ({"payload": "", "encoding": "hex"}, "encoding"),
    ],
)
def test_a_payload_that_is_not_in_its_encoding_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadCommand) as caught:
        pub(**fields).value()
    assert caught.value.field == field


def test_a_key_that_is_not_in_its_encoding_is_refused() -> None:
    with pytest.raises(BadCommand, match='"key"'):
        pub(key="!", key_encoding="base64").key_bytes()


@pytest.mark.parametrize("start", ["", "now", "2026-03-01T12:00:00", "5:", "1:2:3", "٣:٤"])
def test_a_start_that_means_nothing_is_refused_with_those_that_do(start: str) -> None:
    with pytest.raises(BadCommand, match="2026-03-01T12:00:00Z") as caught:
        sub(**{"from": start}).where()
    assert caught.value.field == "from"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(
    [*{name for kind in COMMANDS.values() for name in kind.__struct_encode_fields__}, "paylod", "start", ""]
)


@given(st.sampled_from([*COMMANDS, "NOPE"]), st.dictionaries(fields, json_values, max_size=8))
def test_whatever_fields_come_there_is_a_command_or_a_refusal(name: str, found: dict[str, Any]) -> None:
    result = said(**{**found, "command": name})
    assert isinstance(result, Command | Refusal)
    if isinstance(result, Pub):
        _ok_or_refused(result.value)
        _ok_or_refused(result.key_bytes)
    if isinstance(result, Sub):
        _ok_or_refused(result.where)


def _ok_or_refused(ask: Any) -> None:
    try:
        ask()
    except BadCommand as refused:
        found = refused
    else:
        return
    assert found.form in FORMS.values()


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_never_raises(line: bytes) -> None:
    assert isinstance(parse(line), Command | Refusal)
