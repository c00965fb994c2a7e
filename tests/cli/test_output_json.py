"""JSON for programs: text where it is text, base64 where it is not, and always said which."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime

import pytest

from runnel.cli.output import iso, of_gap, of_record, print_document, print_line
from runnel.core.record import Gap, Record

TIME = datetime(2026, 5, 1, 12, tzinfo=UTC)


def record(key: bytes | None, value: bytes) -> Record[bytes]:
    return Record("t", 5, 9, 7, key, value, {"h": "1"}, TIME)


def test_a_record_of_text() -> None:
    assert of_record(record(b"k", "hällo".encode())) == {
        "topic": "t",
        "offset": 5,
        "sequence": 9,
        "epoch": 7,
        "time": "2026-05-01T12:00:00.000000Z",
        "key": "k",
        "headers": {"h": "1"},
        "value": "hällo",
    }


def test_bytes_that_are_no_text_are_base64_and_named_so() -> None:
    found = of_record(record(b"\xff", b"\xfe"))
    assert "key" not in found
    assert "value" not in found
    assert base64.b64decode(found["key_base64"]) == b"\xff"
    assert base64.b64decode(found["value_base64"]) == b"\xfe"
    assert of_record(record(None, b""))["key"] is None


def test_a_gap() -> None:
    gap = of_gap(Gap("t", 1, 3, 2, "damaged"))
    assert gap == {"gap": {"topic": "t", "first": 1, "end": 3, "count": 2, "reason": "damaged"}}


def test_a_document_is_indented_and_a_line_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"a": [1]})
    assert json.loads(out := capsys.readouterr().out) == {"a": [1]}
    assert out.count("\n") > 1
    paper = io.StringIO()
    print_line({"a": "x\ny"}, paper)
    assert paper.getvalue() == '{"a":"x\\ny"}\n'


@pytest.mark.parametrize(
    ("encoding", "escaped"), [("utf-8", False), ("UTF8", False), ("ascii", True), ("cp1252", True)]
)
def test_json_is_json_in_every_encoding(encoding: str, escaped: bool) -> None:
    written = io.BytesIO()
    paper = io.TextIOWrapper(written, encoding=encoding)
    print_line({"a": "hä 🎉"}, paper)
    paper.flush()
    assert json.loads(written.getvalue().decode(encoding)) == {"a": "hä 🎉"}
    assert written.getvalue().isascii() is escaped


def test_times_are_in_utc_to_the_microsecond() -> None:
    assert iso(TIME) == "2026-05-01T12:00:00.000000Z"
