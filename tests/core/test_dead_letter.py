"""A dead letter is the record as it was, and how it failed, in headers."""

from datetime import UTC, datetime
from typing import Any

import pytest

from runnel.core import dead_letter
from runnel.core.payload import checked_headers
from runnel.core.record import Record

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(**headers: str) -> Record[bytes]:
    return Record("orders", 7, 9, 3, b"k", b"v", headers, datetime.now(UTC))


def test_the_story_tells_why_where_and_what_else_there_is_to_say() -> None:
    told = dead_letter.dead_letter_headers(
        record(colour="red", traceparent=TRACE), "too big", attempts="3", group="billing"
    )
    assert told == {
        "colour": "red",
        "traceparent": TRACE,
        dead_letter.REASON: "too big",
        dead_letter.TOPIC: "orders",
        dead_letter.POSITION: "3:7",
        dead_letter.ATTEMPTS: "3",
        dead_letter.GROUP: "billing",
    }


def test_a_record_without_a_trace_gets_the_one_that_all_its_readers_see() -> None:
    original = record()
    assert dead_letter.dead_letter_headers(original, "x")["traceparent"] == original.traceparent


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("two\nlines \r\n and\ttabs", "two lines and tabs"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
        ("nul\0byte", "nul?byte"),
        ("half a \ud83d character", "half a ? character"),
        ("x" * 5000, "x" * 1000),
        (ValueError("not even text"), "not even text"),
    ],
)
def test_any_reason_makes_a_proper_header(reason: Any, told: str) -> None:
    story = dead_letter.dead_letter_headers(record(), reason)
    assert story[dead_letter.REASON] == told
    assert checked_headers("t", story)[0][dead_letter.REASON] == told


def test_the_story_of_a_second_death_replaces_that_of_the_first() -> None:
    first = dead_letter.dead_letter_headers(record(colour="red"), "first", attempts="3", subscriber="s")
    second = dead_letter.dead_letter_headers(record(**first), "second", group="g")
    assert second[dead_letter.REASON] == "second"
    assert dead_letter.ATTEMPTS not in second
    assert dead_letter.SUBSCRIBER not in second
    assert second["colour"] == "red"


def test_a_dead_letter_is_known_by_its_reason() -> None:
    assert not dead_letter.is_dead_letter(record(colour="red"))
    assert dead_letter.is_dead_letter(record(**dead_letter.dead_letter_headers(record(), "x")))
