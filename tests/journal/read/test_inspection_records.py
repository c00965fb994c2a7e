"""Records read from segments: decoded, in order, and nothing left out in silence."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from runnel.core.batch_format import pack, unpack
from runnel.core.checksum import crc_of
from runnel.core.clock import micros
from runnel.core.record import Gap, Record
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import TopicState, stage_commit_part, staged_part
from runnel.journal.format.removed_offsets import RemovalReason, RemovedRange
from runnel.journal.read.inspection import RecordExtract, decode_records
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import FoundBatch, SegmentReader
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.cleaned_segments import stage
from tests.journal.folders import Writer, publish_numbered
from tests.journal.written_journal import flip

TOPIC = TopicState(1, "t", 7, {}, None, 0, 100)


def test_offsets_and_sequences_follow_the_deltas_of_a_batch() -> None:
    body = pack([b"a", b"b", b"c"], deltas=[0, 2, 5])
    found = FoundBatch(1, 10, 15, 40, 1_000_000, body)
    records = list(decode_records(found, unpack(body), TOPIC))
    assert [(record.offset, record.sequence) for record in records] == [(10, 40), (12, 42), (15, 45)]
    assert {record.time for record in records} == {datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}


def test_a_record_s_own_time_comes_before_the_batch_s() -> None:
    body = pack([b"a", b"b"], times=[5, None])
    first, second = decode_records(FoundBatch(1, 0, 1, 0, 9, body), unpack(body), TOPIC)
    assert (micros(first.time), micros(second.time)) == (5, 9)


@pytest.mark.parametrize("by_sequence", [True, False])
def test_a_batch_that_does_not_decode_is_a_gap(by_sequence: bool) -> None:
    with Writer(MemoryStorage()) as writer:
        publish_numbered(writer, 0, 1, ["t"])
        body = bytes(44) + b"not a batch at all"
        body = crc_of(body).to_bytes(4, "little") + body  # its crc is right, for all that helps
        writer.write(writer.batch("t", body, 2))
        publish_numbered(writer, 1, 2, ["t"])
        history, topic = writer.journal.history, writer.topic("t")
        found = list(RecordExtract(history, [topic], "t", by_sequence=by_sequence).read())
    assert [one.offset if isinstance(one, Record) else (one.first, one.end) for one in found] == [
        0,
        1,
        2,
        (3, 5),
        5,
        6,
        7,
    ]
    (gap,) = (one for one in found if isinstance(one, Gap))
    assert "version" in gap.reason


def test_state_between_records_and_other_topics_are_passed_over() -> None:
    with Writer(MemoryStorage()) as writer:
        for number in range(4):
            publish_numbered(writer, number, number + 1, ["a", "b"])
            writer.write(Part(PartKind.OPTIONAL + 1, b"of a later version", crc_of(b"of a later version")))
        one = RecordExtract(writer.journal.history, [writer.topic("b")], "b", by_sequence=False)
        assert [record.offset for record in one.read() if isinstance(record, Record)] == list(range(6))
    assert repr(one) == "<RecordExtract of 'b', 1 topics>"


def test_without_topics_there_is_nothing() -> None:
    with Writer(MemoryStorage()) as writer:
        publish_numbered(writer, 0, 1)
        for by_sequence in (True, False):
            for time in (None, 0):
                assert (
                    list(RecordExtract(writer.journal.history, [], ">", by_sequence=by_sequence).read(time=time)) == []
                )


@pytest.mark.parametrize("by_sequence", [True, False])
def test_staged_batches_that_are_gone_are_a_gap_unless_their_topic_let_go_of_them(by_sequence: bool) -> None:
    with Writer(MemoryStorage()) as writer:
        stage(writer, "t", [[b"a", b"b"], [b"c"]], commit=False)
        writer.journal._roll(0, writer.time)
        ledger, topic = writer.journal.ledger, writer.topic("t")
        writer.write(stage_commit_part(ledger.stages[1], topic.end, ledger.sequence, writer.time))
        writer.publish("t", [b"d"])
        for first, told in ((0, [(0, 3), 3]), (3, [3])):
            topic.first = first
            history = JournalReader(writer.journal.history.sources[1:])
            found = list(RecordExtract(history, [topic], "t", by_sequence=by_sequence).read())
            assert [one.offset if isinstance(one, Record) else (one.first, one.end) for one in found] == told


def test_of_a_commit_that_is_partly_let_go_of_the_rest_comes_and_nothing_is_missed() -> None:
    with Writer(MemoryStorage()) as writer:
        stage(writer, "t", [[b"a", b"b"]], commit=False)
        writer.journal._roll(0, writer.time)
        ledger, topic = writer.journal.ledger, writer.topic("t")
        writer.write(staged_part(1, 1, pack([b"c"]), writer.time))
        writer.write(stage_commit_part(ledger.stages[1], topic.end, ledger.sequence, writer.time))
        topic.first = 2
        history = JournalReader(writer.journal.history.sources[1:])  # what was let go of is cleaned away
        for by_sequence in (True, False):
            found = list(RecordExtract(history, [topic], "t", by_sequence=by_sequence).read())
            assert [one.value for one in found if isinstance(one, Record)] == [b"c"]
            assert len(found) == 1


def test_the_last_offset_of_a_damaged_segment_without_an_index_is_reported() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 3, ["t", "u"])
        last = writer.journal.history.sources[-1].written
        publish_numbered(writer, 3, 4, ["t"])
        topics = writer.topic("t"), writer.topic("u")
    (info,) = writer.journal.manifest.segments
    storage.remove(info.index_name)
    flip(storage, info.name, last)  # the head of the last batch of t
    for topic, left, told in ((topics[0], 6, [(6, 9)]), (topics[1], 3, [])):
        for gone in ([], [RemovedRange(topic.end, topic.end + 7, RemovalReason.SKIPPED)]):  # those were never given
            state = msgspec.structs.replace(topic, end=topic.end + 7 * len(gone), gone=gone)
            found = list(
                RecordExtract(JournalReader([SegmentReader(storage, info)]), [state], "t", by_sequence=False).read()
            )
            assert [one.offset for one in found if isinstance(one, Record)] == list(range(left))
            assert [(one.first, one.end) for one in found if isinstance(one, Gap)] == told
