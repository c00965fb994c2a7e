from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import JSON, pack, pack_body, read_batch_header, unpack
from runnel.core.errors import BadBatch
from runnel.core.record import Meta
from runnel.journal.clean import cleaning_job
from runnel.journal.clean.cleaning_job import BlockBuilder, BlockItem, LivePiece, joined_runs, runs_of_batch
from runnel.journal.format import merged_batch
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.merged_batch import RecordRun
from tests.carried import columns_of


def part_of(body: bytes, base: int = 0, sequence: int = 0, time: int = 1, span: int | None = None) -> Part:
    count = read_batch_header(body).count if span is None else span
    return Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), 1, base, base + count - 1, sequence, time)


def item(body: bytes, base: int, sequence: int, time: int = 1, topic: int = 1) -> BlockItem:
    header = read_batch_header(body)
    piece = LivePiece(runs_of_batch(part_of(body, base, sequence, time), header), header, body)
    return BlockItem(topic, sequence, time, piece.raw, piece)


def merge(*items: BlockItem) -> list[Part]:
    block = BlockBuilder()
    for one in items:
        block.add(one)
    return [part for part, _ in block.parts()]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 65_535, 65_536, 70_000])
def test_values_are_put_together_as_if_they_had_been_packed_at_once(count: int) -> None:
    values = [b"%d" % number for number in range(count)]
    half = (count + 1) // 2
    halves = [values[:half], values[half:]] if count > 1 else [values]
    (part,) = merge(*[item(pack(some), at * half, at * half) for at, some in enumerate(halves)])
    assert bytes(merged_batch.batch_of(part.body)) == pack(values)
    assert merged_batch.runs_of(part.body) == [RecordRun(0, 0, 1, count)]


def test_topics_lie_one_behind_the_other_and_each_in_its_own_order() -> None:
    parts = merge(
        item(pack([b"a"]), 0, 0, 5, topic=2),
        item(pack([b"b", b"c"]), 10, 1, 6, topic=1),
        item(pack([b"d"]), 4, 3, 7, topic=2),
    )
    assert [(part.topic, part.base, part.last, part.sequence, part.time) for part in parts] == [
        (1, 10, 11, 1, 6),
        (2, 0, 4, 0, 5),
    ]
    assert merged_batch.runs_of(parts[1].body) == [RecordRun(0, 0, 5, 1), RecordRun(4, 3, 7, 1)]
    assert unpack(merged_batch.batch_of(parts[1].body)).values == (b"a", b"d")
    assert all(part.crc == int.from_bytes(part.body[:4], "little") for part in parts)


def test_a_block_knows_its_bounds_and_is_empty_when_it_was_written() -> None:
    block = BlockBuilder()
    assert not block
    block.add(item(pack([b"a"] * 3), 0, 7, 50))
    block.add(item(pack([b"b"]), 0, 3, 40, topic=2))
    assert (block.sequence, block.time, block.end_sequence, block.end_time) == (3, 40, 10, 50)
    assert repr(block) == f"<BlockBuilder of 2 topics, {block.size} bytes>"
    assert len(list(block.parts())) == 2
    assert not block
    assert block.size == 0
    block.add(item(pack([b"c"]), 9, 90, 60))
    assert (block.sequence, block.time, block.end_sequence, block.end_time) == (90, 60, 91, 60)


@pytest.mark.parametrize(
    "other",
    [
        pack([b"x" * 100], content_type=JSON),
        pack([b"x" * 100], schema=3),
        pack([b"x" * 100], compression="zstd"),
    ],
)
def test_batches_of_different_kinds_are_not_merged(other: bytes) -> None:
    plain = pack([b"x" * 100])
    parts = merge(item(plain, 0, 0), item(other, 1, 1), item(plain, 2, 2), item(plain, 3, 3))
    assert [(part.base, part.last) for part in parts] == [(0, 0), (1, 1), (2, 3)]
    kept, given_header = read_batch_header(merged_batch.batch_of(parts[1].body)), read_batch_header(other)
    assert (kept.content_type, kept.schema, kept.flags) == (
        given_header.content_type,
        given_header.schema,
        given_header.flags,
    )


def test_compressed_batches_become_one_that_is_compressed() -> None:
    parts = merge(*[item(pack([b"x" * 500], compression="zstd"), at, at) for at in range(10)])
    batch = unpack(merged_batch.batch_of(parts[0].body))
    assert len(parts) == 1
    assert batch.header.compression == "zstd"
    assert batch.values == (b"x" * 500,) * 10


def test_a_topic_with_much_in_a_block_gets_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_job, "MAX_ENTRY_BYTES", 1000)
    parts = merge(*[item(pack([b"x" * 300]), at, at) for at in range(9)])
    assert [(part.base, part.last) for part in parts] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 8)]


def test_the_commit_of_a_stage_stays_as_it_is_and_nothing_is_merged_across_it() -> None:
    commit = Part(PartKind.STAGE_COMMIT, b"commit", 9, 1, 1, 5, 1, 2)
    parts = merge(
        item(pack([b"a"]), 0, 0),
        BlockItem(1, 1, 2, 6, None, commit),
        item(pack([b"b"]), 6, 6),
        item(pack([b"c"]), 7, 7),
    )
    assert [(part.kind, part.base, part.last) for part in parts] == [
        (PartKind.MERGED, 0, 0),
        (PartKind.STAGE_COMMIT, 1, 5),
        (PartKind.MERGED, 6, 7),
    ]
    assert parts[1] is commit


METAS = st.none() | st.builds(
    Meta,
    st.none() | st.binary(max_size=4),
    st.just({}) | st.just({"a": "b"}),
    st.none() | st.floats(0, 9),
    st.none() | st.floats(0, 9),
    st.integers(0, 9),
)
Carrying = tuple[bytes, Meta | None, int | None, bool]
RECORDS = st.lists(st.tuples(st.binary(max_size=5), METAS, st.none() | st.integers(0, 99), st.booleans()), min_size=1)


@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_whatever_records_carry_they_carry_it_on(
    batches: list[list[tuple[bytes, Meta | None, int | None, bool]]],
) -> None:
    block, expected, offset = BlockBuilder(), [], 0
    for batch in batches:
        values, metas, times, lives = zip(*batch, strict=True)
        if not any(lives):
            continue
        body = pack(values, columns_of(metas), times=times)
        header = read_batch_header(body)
        spans = [(at, at + 1) for at, alive in enumerate(lives) if alive]
        runs = [RecordRun(offset + at, offset + at, 1, 1) for at, _ in spans]
        piece = LivePiece(joined_runs(runs), header, body, None if all(lives) else spans)
        block.add(BlockItem(1, offset, 1, piece.raw, piece))
        expected += [(offset + at, batch[at][:3]) for at, _ in spans]
        offset += len(batch)
    found = []
    for part, runs_now in block.parts():
        batch_now = unpack(merged_batch.batch_of(part.body))
        offsets = [run.offset + at for run in runs_now or () for at in range(run.count)]
        times_now = batch_now.times or (None,) * len(batch_now)
        found += [
            (at, (value, batch_now.metas.get(number), time))
            for number, (at, value, time) in enumerate(zip(offsets, batch_now.values, times_now, strict=True))
        ]
    plain = Meta()
    assert found == [(at, (value, meta if meta != plain else None, time)) for at, (value, meta, time) in expected]


def test_a_batch_with_holes_keeps_them_as_runs() -> None:
    body = pack([b"a", b"b", b"c"], deltas=[0, 1, 5])
    assert runs_of_batch(part_of(body, 10, 20, 3, span=6), read_batch_header(body)) == [
        RecordRun(10, 20, 3, 2),
        RecordRun(15, 25, 3, 1),
    ]
    (part,) = merge(
        BlockItem(
            1,
            20,
            3,
            10,
            LivePiece(
                runs_of_batch(part_of(body, 10, 20, 3, span=6), read_batch_header(body)), read_batch_header(body), body
            ),
        )
    )
    assert unpack(merged_batch.batch_of(part.body)).values == (b"a", b"b", b"c")
    assert (part.base, part.last) == (10, 15)


def test_a_batch_that_does_not_fit_its_offsets_is_refused() -> None:
    plain, holes = pack([b"a", b"b"]), pack([b"a", b"b"], deltas=[0, 3])
    with pytest.raises(BadBatch, match="2 records for 3 offsets"):
        runs_of_batch(part_of(plain, span=3), read_batch_header(plain))
    with pytest.raises(BadBatch, match="spans 4 offsets, not 5"):
        runs_of_batch(part_of(holes, span=5), read_batch_header(holes))


@pytest.mark.parametrize(
    "body", [b"\x91\x91\xc4\x00", b"\x92\x92\xc4\x00\xc4\x00", b"\x91", b"\x91\xdc\x00\x03\xc4\x00\xc4\x00"]
)
def test_values_that_are_not_what_the_header_says_are_refused(body: bytes) -> None:
    bad = pack_body(1, 2, body.ljust(4, b"\xc0"))
    with pytest.raises(BadBatch, match="not an array"):
        merge(item(bad, 0, 0), item(bad, 2, 2))
