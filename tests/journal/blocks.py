"""Staged blocks for tests: records of topics in a given order, and journals that hold them."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.batch_format import pack
from runnel.journal.clean.cleaning_job import joined_runs
from runnel.journal.format import staged_block
from runnel.journal.format.ledger import BlockStageState, stage_part
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.staged_block import BlocksShare, TopicRuns, blocks_commit_part, staged_block_part
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.folders import Writer


def contents(turns: Sequence[int], first: int, before: dict[int, int]) -> list[TopicRuns]:
    """Records of these topics, in that order; `before` is counted on. The value of a record is its number."""
    found = []
    for topic in dict.fromkeys(turns):
        offset, runs, values = before.get(topic, 0), list[RecordRun](), list[bytes]()
        for number, one in enumerate(turns, first):
            if one == topic:
                runs.append(RecordRun(offset, number, 0, 1))
                values.append(b"%d" % number)
                offset += 1
        before[topic] = offset
        found.append(TopicRuns(topic, joined_runs(runs), pack(values)))
    return found


def block(turns: Sequence[int], first: int = 0, before: dict[int, int] | None = None) -> bytes:
    """The body of a block."""
    return staged_block.encode(first, contents(turns, first, {} if before is None else before))


class BlockWriter(Writer):
    """A journal to which stages of many topics can be written."""

    def stage(self, *blocks: Sequence[int], roll: bool = False) -> BlockStageState:
        """An open stage of these blocks, each in an entry of its own; with `roll` in a segment of its own."""
        state = BlockStageState(self.journal.ledger.next_stage, "w", 1, 0, 0, 0, self.time)
        self.write(stage_part(state))
        first, before = 0, dict[int, int]()
        for turns in blocks:
            self.write(staged_block_part(state.id, block(turns, first, before), self.time))
            first += len(turns)
            if roll:
                self.journal._roll(0, self.time)
        found = self.journal.ledger.stages[state.id]
        assert isinstance(found, BlockStageState)
        return found

    def commit(self, stage: BlockStageState) -> None:
        """Make a stage visible."""
        ledger = self.journal.ledger
        size = sum(held for _, held in stage.topics.values())
        parts = []
        for topic, (records, held) in stage.topics.items():
            share, base = BlocksShare(stage.id, stage.total, size, held), ledger.topics[topic].end
            parts.append(blocks_commit_part(share, topic, base, base + records - 1, ledger.sequence, self.time))
        self.write(*parts)


def journal_with_blocks(*, close: bool = True, roll: bool = True) -> MemoryStorage:
    """Topics a, b and c: some records, a stage of 23 records in four blocks, and some records behind it."""
    storage = MemoryStorage()
    writer = BlockWriter(storage)
    for name in "abc":
        writer.publish(name, [b"before"])
    stage = writer.stage([1, 2, 1, 2, 3], [2, 2, 2, 1], [1, 2, 3] * 4, [3, 1], roll=roll)
    writer.publish("b", [b"between"])
    writer.commit(stage)
    writer.publish("c", [b"after", b"after all"])
    if close:
        writer.journal.close()
    return storage
