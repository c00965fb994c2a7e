"""Records as JSON: text as text, other bytes in base64, nothing that means nothing."""

import base64
import json
from datetime import UTC, datetime

from runnel.core.record import NO_HEADERS, Gap, Record
from runnel.server.http.record_json import encode_json, gap_as_json, record_as_json

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def told(value: bytes, key: bytes | None = None, headers: dict[str, str] | None = None) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        encode_json(record_as_json(Record("t", 1, 2, 3, key, value, headers or NO_HEADERS, NOW)))
    )
    return found


def test_text_is_text_and_what_is_not_there_is_left_out() -> None:
    assert told(b"caf\xc3\xa9") == {
        "topic": "t",
        "offset": 1,
        "sequence": 2,
        "epoch": 3,
        "time": "2026-11-15T12:00:00Z",
        "value": "café",
    }


def test_other_bytes_are_in_base64_and_say_so() -> None:
    found = told(b"\xff\x00", b"\xfe", {"a": "b"})
    assert (found["value"], found["encoding"]) == (base64.b64encode(b"\xff\x00").decode(), "base64")
    assert (found["key"], found["key_encoding"]) == (base64.b64encode(b"\xfe").decode(), "base64")
    assert found["headers"] == {"a": "b"}


def test_a_gap_of_unknown_size_has_no_count() -> None:
    assert gap_as_json(Gap("t", 1, 3, 2, "gone")).count == 2
    assert gap_as_json(Gap("t", 1, 3, 0, "gone")).count is None
