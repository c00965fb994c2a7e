"""Staged blocks: records come back in the order they were staged in, and nothing is believed that is not proven."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import unpack
from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch
from runnel.journal.format import staged_block
from runnel.journal.format.entry import PartKind, body_crc
from runnel.journal.format.ledger import BlockStageState, Ledger, TopicState, stage_part, topic_part
from runnel.journal.format.staged_block import (
    BlocksShare,
    blocks_commit_part,
    contents_of,
    directory_for,
    directory_of,
    runs_in,
    share_of,
    staged_block_part,
)
from tests.journal.blocks import block, contents
from tests.nightly import examples

turns = st.lists(st.integers(1, 9), min_size=1, max_size=40)


def order(body: bytes) -> list[tuple[int, int, bytes]]:
    """Topic, number in the topic, and value of all records, in order."""
    found = {}
    for topic, runs, batch in contents_of(body):
        values = iter(unpack(bytes(batch)).values)
        for run in runs:
            for at in range(run.count):
                found[run.sequence + at] = (topic.topic, run.offset + at, next(values))
    return [found[number] for number in sorted(found)]


@given(turns, st.integers(0, 2**40), st.dictionaries(st.integers(1, 9), st.integers(0, 2**40)))
@examples(60, 1000)
def test_records_come_back_in_their_order(given: list[int], first: int, before: dict[int, int]) -> None:
    body, counted = block(given, first, dict(before)), dict(before)
    expected = []
    for number, topic in enumerate(given, first):
        expected.append((topic, counted.get(topic, 0), b"%d" % number))
        counted[topic] = counted.get(topic, 0) + 1
    assert order(body) == expected
    directory = directory_of(body)
    assert (directory.first, directory.end) == (first, first + len(given))
    assert {one.topic: (one.before, one.records) for one in directory.topics.values()} == {
        topic: (before.get(topic, 0), given.count(topic)) for topic in set(given)
    }
    assert body_crc(PartKind.STAGED_BLOCK, body) == int.from_bytes(body[:4], "little")


@given(turns, st.integers(0, 11))
def test_one_topic_is_found_without_the_others(given: list[int], topic: int) -> None:
    body = block(given)
    whole, alone = directory_of(body), directory_for(body, topic)
    assert (alone.first, alone.records) == (whole.first, whole.records)
    assert alone.topics == ({topic: whole.topics[topic]} if topic in given else {})
    for one in alone.topics.values():
        assert sum(run.count for run in runs_in(alone, one, body[one.start : one.start + one.length])) == one.records


def test_whatever_bit_is_wrong_no_part_of_it_is_believed() -> None:
    body = block([1, 2, 1, 3, 2, 2])
    directory = directory_of(body)
    for position in range(4, len(body)):
        for bit in (0, 7):
            bad = bytearray(body)
            bad[position] ^= 1 << bit
            assert body_crc(PartKind.STAGED_BLOCK, bytes(bad)) != int.from_bytes(body[:4], "little")
            try:
                found = directory_of(bytes(bad))
            except BadBatch:
                assert position < directory.topics[1].start
                continue
            assert found == directory
            hurt = 0
            for topic in directory.topics.values():
                try:
                    runs_in(directory, topic, bytes(bad[topic.start : topic.start + topic.length]))
                except BadBatch:
                    hurt += 1
            assert hurt == 1, position


def test_bytes_that_end_too_early_are_no_block() -> None:
    body = block([1, 2, 1])
    for end in range(len(body)):
        with pytest.raises(BadBatch):
            list(contents_of(body[:end]))


def resealed(body: bytes) -> bytes:
    """With crcs that fit, as if it had been written so."""
    size = staged_block.directory_size(body)
    after = crc_of(body[8:size]).to_bytes(4, "little") + body[8:]
    return crc_of(after).to_bytes(4, "little") + after


@pytest.mark.parametrize(
    ("at", "to"),
    [
        (8, (1).to_bytes(4, "little")),  # topics
        (8, (0).to_bytes(4, "little")),
        (12, (9).to_bytes(4, "little")),  # records
        (16, (1).to_bytes(8, "little")),  # the first
        (24, (2).to_bytes(4, "little")),  # the id of the first topic is that of the second
        (28, (99).to_bytes(4, "little")),  # where its batch begins
        (32, (3).to_bytes(4, "little")),  # how long it is
        (36, (1).to_bytes(4, "little")),  # its records
        (40, (5).to_bytes(8, "little")),  # those before
    ],
)
def test_a_directory_that_says_what_is_not_there_is_refused(at: int, to: bytes) -> None:
    body = block([1, 2, 1, 2])
    bad = resealed(body[:at] + to + body[at + len(to) :])
    with pytest.raises(BadBatch):
        list(contents_of(bad))


def test_two_topics_cannot_have_the_same_place() -> None:
    one, two = contents([1, 2, 1], 0, {})
    with pytest.raises(BadBatch, match="belongs to no topic, or to two"):
        list(contents_of(staged_block.encode(0, [one, two._replace(runs=[two.runs[0]._replace(sequence=0)])])))


def test_a_commit_says_what_was_staged() -> None:
    share = BlocksShare(7, 2**40, 2**41, 99)
    part = blocks_commit_part(share, 3, 10, 12, 50, 8)
    assert share_of(part.body) == share
    assert (part.topic, part.base, part.last, part.sequence, part.time) == (3, 10, 12, 50, 8)
    assert share_of(part.body[:-1]) is share_of(part.body + b"x") is None


def stored(ledger: Ledger, *, everything: bool = True) -> Any:
    """What a checkpoint says."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(ledger.changes(everything=everything)), strict=False)


def test_the_ledger_knows_a_stage_from_its_entries_and_from_a_checkpoint() -> None:
    ledger = Ledger()
    ledger.apply([topic_part(TopicState(number, name, number, {})) for number, name in ((1, "a"), (2, "b"))], 1)
    ledger.apply([stage_part(BlockStageState(5, "w", 1, 2, 3, 0, 1))], 1)
    body = block([1, 2, 1])
    ledger.apply([staged_block_part(5, body, 7), staged_block_part(5, body, 9)], 9)  # the second is not the next one
    state = ledger.stages[5]
    assert isinstance(state, BlockStageState)
    assert (state.records, state.bytes, state.time, state.key) == (3, len(body), 7, ("w", 1, 2, 3))
    restored = Ledger()
    restored.restore(stored(ledger))
    assert restored.stages == ledger.stages
    size = sum(held for _, held in state.topics.values())
    shares = {topic: BlocksShare(5, 3, size, held) for topic, (_, held) in state.topics.items()}
    ledger.apply([blocks_commit_part(shares[1], 1, 0, 1, 40, 9), blocks_commit_part(shares[2], 2, 0, 0, 40, 9)], 9)
    assert (ledger.sequence, ledger.topics[1].end, ledger.topics[2].end) == (43, 2, 1)
    assert (ledger.stages, ledger.is_read(5), ledger.stages_in_use()) == ({}, True, {5})
    for everything in (True, False):
        again = Ledger()
        again.restore(stored(restored))
        again.restore(stored(ledger, everything=everything))
        assert again.blocks == ledger.blocks
        assert again.stages == {}
    assert sum(one.bytes for one in ledger.committed_shares()) == size == ledger.blocks[5].bytes
    ledger.forget_placed([5])
    assert not ledger.is_read(5)
    again.restore(stored(ledger, everything=False))
    assert not again.is_read(5)
