"""What a URL says: parameters, starts and numbers, and nothing else."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from runnel.core.errors import InvalidName, InvalidOption
from runnel.server.http.requests import (
    MAX_PARAMETERS,
    integer_parameter,
    parameters,
    parse_start,
    single_parameter,
    topic_of_request,
)


def asked(query: bytes) -> dict[str, list[str]]:
    return parameters({"query_string": query})


def test_parameters_keep_all_their_values() -> None:
    assert asked(b"topic=a&topic=b%2Ec&x=&y=%C3%A9") == {"topic": ["a", "b.c"], "x": [""], "y": ["é"]}
    assert single_parameter({"a": ["1"]}, "a") == "1"
    assert single_parameter({}, "a") is None


@pytest.mark.parametrize("query", [b"a=%FF", b"a=\xff", b"&".join([b"a=1"] * (MAX_PARAMETERS + 1))])
def test_bad_parameters_are_refused(query: bytes) -> None:
    with pytest.raises(InvalidOption):
        asked(query)


@given(st.binary(max_size=60))
def test_any_query_is_read_or_refused(query: bytes) -> None:
    try:
        asked(query)
    except InvalidOption:
        pass


def test_a_start_is_a_word_an_offset_or_a_time() -> None:
    assert [parse_start("from", text) for text in (None, "earliest", "latest", "12", "-3")] == [
        None,
        "earliest",
        "latest",
        12,
        -3,
    ]
    assert parse_start("from", "2026-11-15T12:00:00Z") == datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--1", "2026-11-15T12:00:00", "9" * 19, "\u0661"])
def test_any_other_start_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="from"):
        parse_start("from", text)


@pytest.mark.parametrize("text", ["0", "11", "x", "", "-1", "1" * 12])
def test_a_number_is_within_its_bounds(text: str) -> None:
    assert integer_parameter({"limit": ["10"]}, "limit", 5, 10) == 10
    assert integer_parameter({}, "limit", 5, 10) == 5
    with pytest.raises(InvalidOption, match="from 1 to 10"):
        integer_parameter({"limit": [text]}, "limit", 5, 10)


def test_a_topic_is_taken_from_bytes_that_are_text() -> None:
    def named(raw: bytes, topic: str) -> str:
        return topic_of_request(
            Request({"type": "http", "path": "/", "raw_path": raw, "path_params": {"topic": topic}})
        )

    assert named(b"/topics/caf%C3%A9", "café") == "café"
    with pytest.raises(InvalidName, match="UTF-8"):
        named(b"/topics/%FF", "\ufffd")
