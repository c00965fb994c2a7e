"""A long write to a stage, in batches: none too large, none lost, in order."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runnel.broker.broker import Broker
from runnel.broker.tx.stage import SMALL_STAGE_BATCH_BYTES, STAGE_BATCH_BYTES, StageWrite
from runnel.core.errors import InvalidOption, InvalidValue, TooLarge, ValidationFailed
from runnel.core.publishing import MAX_RECORD_BYTES
from runnel.core.schema import Codec
from tests.broker.durable_broker import Disk, log_of, open_on


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(Disk(), tmp_path) as opened:
        await opened.topic("t").declare()
        yield opened


def cut(broker: Broker, values: Any, keys: Any = None, **options: Any) -> StageWrite:
    chosen = {"headers": None, "delay": None, "expires": None, "priority": 0} | options
    return StageWrite(broker.backend, log_of(broker, "t"), None, values, keys, **chosen)


@pytest.mark.parametrize(
    "sizes",
    [
        [10] * 300_000,
        [5_000] * 1_000,
        [STAGE_BATCH_BYTES - 1, 2, 1, STAGE_BATCH_BYTES + 1, 10, STAGE_BATCH_BYTES],
        [10] * 5_000 + [400_000] * 8 + [10] * 5_000,
        [],
        [0, 0],
    ],
)
async def test_every_value_comes_once_and_no_piece_is_too_large(broker: Broker, sizes: list[int]) -> None:
    values = [bytes(size) for size in sizes]
    pieces = list(cut(broker, values))
    assert [value for piece in pieces for value in piece.values] == values
    assert all(piece.weight <= STAGE_BATCH_BYTES or piece.count == 1 for piece in pieces)
    assert len(pieces) <= 2 + 3 * sum(sizes) // STAGE_BATCH_BYTES + sum(size > STAGE_BATCH_BYTES // 2 for size in sizes)


async def test_it_begins_where_it_is_told_and_pieces_may_become_smaller(broker: Broker) -> None:
    values = [b"%07d" % number for number in range(200_000)]
    one = cut(broker, values)
    one.at = 50_000
    found: list[bytes] = []
    for number, piece in enumerate(one):
        found += piece.values
        one.piece = SMALL_STAGE_BATCH_BYTES
        assert number == 0 or piece.weight <= SMALL_STAGE_BATCH_BYTES
    assert found == values[50_000:]


async def test_keys_and_all_else_that_a_record_carries_count_too(broker: Broker) -> None:
    values, keys = [b"v"] * 5_000, [b"%04d" % number * 200 for number in range(5_000)]
    pieces = list(cut(broker, values, keys, headers={"h": "1"}, priority=3))
    metas = [meta for piece in pieces for meta in piece.metas or ()]
    assert [meta.key for meta in metas if meta is not None] == keys
    assert {(meta.priority, meta.headers["h"]) for meta in metas if meta is not None} == {(3, "1")}
    assert all(piece.weight <= STAGE_BATCH_BYTES for piece in pieces)
    assert len(pieces) >= 4


async def test_what_cannot_be_published_cannot_be_staged(broker: Broker) -> None:
    with pytest.raises(TooLarge, match="max_record_bytes"):
        list(cut(broker, [b"x"] * 5_000 + [bytes(MAX_RECORD_BYTES + 1)]))
    large = [b"x"] * 2_000 + [bytes(MAX_RECORD_BYTES)] * 5
    assert sum(piece.count for piece in cut(broker, large)) == 2_005, "one by one they may be as large as that"
    for wrong in (b"bytes", "text", {b"a"}, 7):
        with pytest.raises(InvalidValue, match="a stage takes a sequence"):
            cut(broker, wrong)
    with pytest.raises(InvalidOption, match="there are 2 values"):
        cut(broker, [b"a", b"b"], [b"k"])
    with pytest.raises(InvalidValue):
        list(cut(broker, [b"a", 7]))


async def test_what_comes_without_a_type_is_held_against_that_of_the_topic(broker: Broker) -> None:
    log_of(broker, "t").codec = Codec(int, "json")
    assert [piece.values for piece in cut(broker, [b"1", b"2"])] == [[b"1", b"2"]]
    with pytest.raises(ValidationFailed):
        list(cut(broker, [b"1", b"no number"]))
