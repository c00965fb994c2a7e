"""A record for one reader: its value decoded, everything else as it was."""

from datetime import UTC, datetime

import msgspec
import pytest

from runnel.api.subscription import decoded
from runnel.core.errors import ValidationFailed
from runnel.core.record import NO_HEADERS, Gap, Record
from runnel.core.schema import Codec


def record(value: bytes, key: bytes | None = None) -> Record[bytes]:
    return Record("t", 3, 9, 1, key, value, NO_HEADERS, datetime.now(UTC))


def test_the_value_is_decoded_and_the_rest_stays() -> None:
    raw = record(b"[1,2]", b"k")
    found: Record[list[int]] = decoded(Codec(list[int]), None, raw)
    assert found.value == [1, 2]
    kept = [field for field in Record.__struct_fields__ if field != "value"]
    assert [getattr(found, field) for field in kept] == [getattr(raw, field) for field in kept]
    again: Record[list[int]] = decoded(Codec(list[int]), None, raw)
    assert again.value is not found.value


def test_how_it_is_written_may_differ_from_what_the_codec_says() -> None:
    assert decoded(Codec(int), "msgpack", record(msgspec.msgpack.encode(500))).value == 500
    with pytest.raises(ValidationFailed):
        decoded(Codec(int), "json", record(msgspec.msgpack.encode(500)))


def test_a_gap_may_go_with_it() -> None:
    gap = Gap("t", 0, 3, 3, "gone")
    assert decoded(Codec(int), None, record(b"5"), gap).gap is gap


def test_a_tombstone_has_no_value() -> None:
    assert decoded(Codec(int), None, record(b"", b"k")).value is None
