"""A long write to a stage, in pieces: none too large, none lost, in order."""

from typing import Any

import pytest

from runnel.api.stage import MAX_PIECE_RECORDS, StageCut
from runnel.core.errors import InvalidOption, InvalidValue, TooLarge
from runnel.core.publishing import MAX_RECORD_BYTES, Append
from runnel.core.schema import Codec
from runnel.core.stages import STAGE_PIECE_BYTES
from runnel.runtime.tracing import Tracing
from tests.carried import metas_of

SMALL = 256 * 1024


class Target:
    """A topic, as far as cutting needs one."""

    topic = "t"
    tracing = Tracing(lambda: None)

    def __init__(self, codec: Codec[Any] | None = None) -> None:
        self.codec = codec

    def now(self) -> float:
        return 0.0

    def has_tombstones(self) -> bool:
        return False


def cut(values: Any, codec: Codec[Any] | None = None, **options: Any) -> StageCut:
    return StageCut(Target(codec), values, options)  # type: ignore[arg-type]


def weight(piece: Append) -> int:
    return piece.size + piece.extra


@pytest.mark.parametrize(
    "sizes",
    [
        [10] * 300_000,
        [5_000] * 1_000,
        [STAGE_PIECE_BYTES - 1, 2, 1, STAGE_PIECE_BYTES + 1, 10, STAGE_PIECE_BYTES],
        [10] * 5_000 + [400_000] * 8 + [10] * 5_000,
        [],
        [0, 0],
    ],
)
def test_every_value_comes_once_and_no_piece_is_too_large(sizes: list[int]) -> None:
    values = [bytes(size) for size in sizes]
    pieces = list(cut(values))
    assert [value for piece in pieces for value in piece.values] == values
    assert all(weight(piece) <= STAGE_PIECE_BYTES or len(piece.values) == 1 for piece in pieces)
    assert len(pieces) <= 2 + 3 * sum(sizes) // STAGE_PIECE_BYTES + sum(size > STAGE_PIECE_BYTES // 2 for size in sizes)


def test_it_begins_where_asked_and_pieces_may_become_smaller() -> None:
    values = [b"%07d" % number for number in range(200_000)]
    one = cut(values)
    one.at = 50_000
    found: list[bytes] = []
    for number, piece in enumerate(one):
        found += piece.values
        one.size = SMALL
        assert number == 0 or weight(piece) <= SMALL
    assert found == values[50_000:]


def test_keys_and_all_else_that_a_record_carries_count_too() -> None:
    values, keys = [b"v"] * 5_000, [b"%04d" % number * 200 for number in range(5_000)]
    pieces = list(cut(values, keys=keys, headers={"h": "1"}, priority=3))
    metas = [meta for piece in pieces for meta in metas_of(piece.columns, len(piece.values))]
    assert [meta.key for meta in metas if meta is not None] == keys
    assert {(meta.priority, meta.headers["h"]) for meta in metas if meta is not None} == {(3, "1")}
    assert all(weight(piece) <= STAGE_PIECE_BYTES for piece in pieces)
    assert len(pieces) >= 4


def test_what_cannot_be_published_cannot_be_staged() -> None:
    with pytest.raises(TooLarge, match="max_record_bytes"):
        list(cut([b"x"] * 5_000 + [bytes(MAX_RECORD_BYTES + 1)]))
    large = [b"x"] * 2_000 + [bytes(MAX_RECORD_BYTES)] * 5
    assert sum(len(piece.values) for piece in cut(large)) == 2_005, "one by one they may be as large as that"
    for wrong in (b"bytes", "text", {b"a"}, 7):
        with pytest.raises(InvalidValue, match="a stage takes a sequence"):
            cut(wrong)
    with pytest.raises(InvalidOption, match="there are 2 values"):
        cut([b"a", b"b"], keys=[b"k"])
    with pytest.raises(InvalidValue):
        list(cut([b"a", 7]))


def test_values_of_a_type_are_encoded_piece_by_piece() -> None:
    (piece,) = cut([1, 2], Codec(int))
    assert (piece.values, piece.checked) == ([b"1", b"2"], True)


def test_records_count_where_they_have_no_bytes() -> None:
    pieces = list(cut([b""] * (MAX_PIECE_RECORDS + 1)))
    assert len(pieces) == 2
    assert sum(len(piece.values) for piece in pieces) == MAX_PIECE_RECORDS + 1
