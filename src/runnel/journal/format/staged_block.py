"""Staged blocks: records of many topics, staged together, and the order that they have among each other.

A stage of many topics is a sequence of blocks. A block holds one merged batch for each of its topics. The offsets of
its runs count the records of the topic in the stage, from 0 on; the sequences count all records of the stage. A commit
gives them an offset of each topic, and one sequence, to be added.

    0   u32  crc          crc32c of everything behind this field
    4   u32  crc          of the directory: the next three fields, and the topics
    8   u32  topics       how many, at least 1
    12  u32  records      of all topics
    16  u64  first        how many records of the stage lie before it
    24  24 bytes a topic  its id (u32), where its merged batch begins in the body and how long it is (u32 each),
                          records (u32), and how many records of it lie in earlier blocks (u64); by rising ids
    ..  merged batches    of the topics, one behind the other, in the same order; their times are 0

The directory can be read, and proven, without the rest; and so can each merged batch. Nothing that is read is trusted:
bytes that break any of this raise `BadBatch`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from runnel.core.checksum import crc_behind, crc_of
from runnel.core.errors import BadBatch
from runnel.journal.format import merged_batch
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.merged_batch import RecordRun

HEAD = Struct("<IIIIQ")
_TOPIC = Struct("<IIIIQ")
_TOPIC_ID = Struct("<I")
_COMMIT = Struct("<QQQQ")  # stage; records and bytes of all topics; bytes of this one
_DIRECTORY_AT = 8
MAX_RECORDS = 1 << 31


class BlockTopic(NamedTuple):
    """The part of a block for one topic: the bytes [start, start + length) of its body."""

    topic: int
    start: int
    length: int
    records: int
    before: int  # records of the topic that lie in earlier blocks

    @property
    def size(self) -> int:
        """How many bytes the block takes for it."""
        return self.length + _TOPIC.size


class BlockDirectory(NamedTuple):
    """The header of a block: its records are those of the stage from `first` on."""

    first: int
    records: int
    topics: dict[int, BlockTopic]

    @property
    def end(self) -> int:
        """Behind its last record."""
        return self.first + self.records


class TopicRuns(NamedTuple):
    """The part of a block for one topic: the place of its records, and their packed batch."""

    topic: int
    runs: Sequence[RecordRun]
    batch: bytes


def encode(first: int, contents: Sequence[TopicRuns]) -> bytes:
    """The body of a block whose records are those of its stage from `first` on."""
    records, start = 0, HEAD.size + len(contents) * _TOPIC.size
    table: list[bytes] = []
    bodies: list[bytes] = []
    for topic, runs, batch in sorted(contents, key=itemgetter(0)):
        body = merged_batch.encode(runs, batch)
        count = sum(run.count for run in runs)
        table.append(_TOPIC.pack(topic, start, len(body), count, runs[0].offset))
        bodies.append(body)
        records, start = records + count, start + len(body)
    covered = b"".join((HEAD.pack(0, 0, len(contents), records, first)[_DIRECTORY_AT:], *table))
    after = b"".join((crc_of(covered).to_bytes(4, "little"), covered, *bodies))
    return crc_of(after).to_bytes(4, "little") + after


def directory_size(data: bytes | memoryview) -> int:
    """How many bytes it takes to read the directory of a block that begins with `data`: its `HEAD` at least."""
    if len(data) < HEAD.size:
        raise BadBatch(f"it ends after {len(data)} bytes, before its directory")
    return int(HEAD.size + HEAD.unpack_from(data)[2] * _TOPIC.size)


def directory_of(data: bytes | memoryview) -> BlockDirectory:
    """The directory at the beginning of a block, proven by its own crc."""
    size, records, first = _proven(data)
    topics: dict[int, BlockTopic] = {}
    following, total, last = size, 0, -1
    for topic, start, length, held, before in _TOPIC.iter_unpack(data[HEAD.size : size]):
        if topic <= last or not held or start != following:
            raise BadBatch(f"what its directory says of topic {topic} cannot be")
        topics[topic] = BlockTopic(topic, start, length, held, before)
        following, total, last = start + length, total + held, topic
    if not total or total != records or records > MAX_RECORDS:
        raise BadBatch(f"its topics hold {total:,} records, and it has {records:,}")
    return BlockDirectory(first, records, topics)


def directory_for(data: bytes | memoryview, topic: int) -> BlockDirectory:
    """The same with one topic only, if it is there: in a directory of thousands, the others are not looked at."""
    size, records, first = _proven(data)
    every = range((size - HEAD.size) // _TOPIC.size)
    at = bisect_left(every, topic, key=lambda at: _TOPIC_ID.unpack_from(data, HEAD.size + at * _TOPIC.size)[0])
    topics: dict[int, BlockTopic] = {}
    if at < len(every):
        found = BlockTopic._make(_TOPIC.unpack_from(data, HEAD.size + at * _TOPIC.size))
        topics = {topic: found} if found.topic == topic else {}
    return BlockDirectory(first, records, topics)


def _proven(data: bytes | memoryview) -> tuple[int, int, int]:
    """The size of a directory whose crc is right, and the number of records and the first one that it names."""
    size = directory_size(data)
    if size > len(data):
        raise BadBatch(f"it ends after {len(data)} bytes, before its directory does")
    _, crc, _, records, first = HEAD.unpack_from(data)
    if crc_of(bytes(data[_DIRECTORY_AT:size])) != crc:
        raise BadBatch("the crc of its directory is wrong")
    return size, records, first


def runs_in(directory: BlockDirectory, topic: BlockTopic, body: bytes | memoryview) -> list[RecordRun]:
    """Where the records of the merged batch `body` belong in their stage, if that is what the directory says."""
    data = bytes(body)
    if len(data) != topic.length or data[:4] != crc_behind(data).to_bytes(4, "little"):
        raise BadBatch(f"the crc of the records of topic {topic.topic} is wrong")
    runs = merged_batch.runs_of(data)
    offset = topic.before
    for run in runs:
        if run.offset != offset or run.sequence < directory.first:
            raise BadBatch(f"the records of topic {topic.topic} are not those that its directory names")
        offset += run.count
    if offset != topic.before + topic.records or runs[-1].sequence + runs[-1].count > directory.end:
        raise BadBatch(f"the records of topic {topic.topic} are not those that its directory names")
    return runs


def contents_of(body: bytes | memoryview) -> Iterator[tuple[BlockTopic, list[RecordRun], memoryview]]:
    """Everything in a whole block: topics, where their records belong in the stage, and the packed batches."""
    directory, data = directory_of(body), memoryview(body)
    seen: list[tuple[int, int]] = []
    for topic in directory.topics.values():
        merged = data[topic.start : topic.start + topic.length]
        runs = runs_in(directory, topic, merged)
        seen += [(run.sequence, run.count) for run in runs]
        yield topic, runs, merged_batch.batch_of(merged)
    following = directory.first
    for sequence, count in sorted(seen):
        if sequence != following:
            raise BadBatch(f"its record {following} belongs to no topic, or to two")
        following += count


def proven_contents_of(
    directory: BlockDirectory, body: bytes | memoryview
) -> Iterator[tuple[BlockTopic, list[RecordRun], memoryview]]:
    """The same of a block that may be damaged: the topics whose records are proven to be right."""
    data = memoryview(body)
    for topic in directory.topics.values():
        merged = data[topic.start : topic.start + topic.length]
        try:
            runs = runs_in(directory, topic, merged)
        except BadBatch:
            continue
        yield topic, runs, merged_batch.batch_of(merged)


# -- The parts of an entry -------------------------------------------------------------------------------


class BlocksShare(NamedTuple):
    """The part of a commit of a stage of many topics for one of them."""

    stage: int
    records: int  # of all topics
    total: int  # bytes of all topics
    bytes: int  # of this topic


def staged_block_part(stage: int, body: bytes, time: int) -> Part:
    """A block is staged. Its `base` and `last` say which records of its stage it holds."""
    _, _, _, records, first = HEAD.unpack_from(body)
    crc = int.from_bytes(body[:4], "little")
    return Part(PartKind.STAGED_BLOCK, body, crc, stage, first, first + records - 1, 0, time)


def blocks_commit_part(share: BlocksShare, topic: int, base: int, last: int, sequence: int, time: int) -> Part:
    """The records of one topic are visible. `sequence` is that of the first record of the stage, of any topic."""
    body = _COMMIT.pack(*share)
    return Part(PartKind.BLOCKS_COMMIT, body, crc_of(body), topic, base, last, sequence, time)


def share_of(body: bytes | memoryview) -> BlocksShare | None:
    """The contents of the body of a commit; None if it is invalid."""
    return BlocksShare._make(_COMMIT.unpack(body)) if len(body) == _COMMIT.size else None
