"""Small journals with a bit of everything, the same bytes every time: tests/golden/folders holds what version 1 wrote.

`version-1-early` is the first of them, as it was written before entries and checkpoints said as much as they do now.
`python -m tests.journal.golden_journals` writes the others again. That is right only together with additions to the
format, and then the old folder stays, under another name: what was written once must be readable for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runnel.core.batch_format import JSON, pack
from runnel.core.record import Meta
from runnel.journal.clean import cleaning_job
from runnel.journal.clean.key_compaction import Compaction
from runnel.journal.clean.planning import LiveShares, choose_segments
from runnel.journal.format.entry import Draft, Part, PartKind, state_part
from runnel.journal.format.ledger import (
    CursorState,
    DeliveryFailure,
    GroupState,
    StageState,
    TopicState,
    cursor_forgotten_part,
    cursor_part,
    group_part,
    ids_part,
    marker_part,
    progress_part,
    stage_commit_part,
    stage_part,
    staged_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.read.segment_reader import FoundBatch
from runnel.journal.storage import Storage
from runnel.journal.write import journal
from runnel.testing import MemoryStorage
from tests.carried import columns_of
from tests.journal.written_journal import SMALL, Writer, batch, contents

FOLDERS = Path(__file__).parents[1] / "golden" / "folders"
GOLDEN = FOLDERS / "version-1" / "data"
EARLY = FOLDERS / "version-1-early" / "data"
CLEANED = FOLDERS / "version-1-cleaned" / "data"
NOW = 1_700_000_000_000_000

METAS = [
    Meta(key=b"key", headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
    None,
    Meta(due=1_700_000_100.5, expires=1_700_000_200.25, priority=7),
]


class Fixed:
    """In place of the module `secrets`: the ids that a journal draws, the same ones every time."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def token_hex(self, size: int) -> str:
        return self._random.randbytes(size).hex()

    def randbits(self, bits: int) -> int:
        return self._random.getrandbits(bits)


def write_all(storage: Storage) -> list[FoundBatch]:
    """Two lives: one that ends in good order, one that is cut off. The batches of the topics that are left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "secrets", Fixed())
        writer = Writer(storage, SMALL, NOW)
        a = writer.topic("orders.eu", retention_count=1000)
        b = writer.topic("orders.us")
        gone = writer.topic("gone")
        writer.write([group_part(GroupState(1, "billing", "orders.eu", {"ack_wait": 30.0}, 0))])
        writer.write([group_part(GroupState(2, "audit", "orders.>", {}, 0))])
        writer.write([group_part(GroupState(3, "lost", "gone", {}, 0))])
        writer.write(
            [group_part(GroupState(4, "dropped", "orders.us", {}, 0)), state_part(PartKind.GROUP_DELETED, topic=4)]
        )
        for number in range(9):
            writer.publish(a, *(b"eu %d %d " % (number, at) * 20 for at in range(3)))
            writer.publish_together((b, [b"us %d" % number] * 2), (gone, [b"gone"]))
            writer.write([progress_part(1, [3 * number, 3 * number + 2], [(3 * number + 2, 1, 1.7e9, "ValueError")])])
        writer.write([cursor_part(CursorState("reader", "orders.eu", 1, 4))])
        writer.write([state_part(PartKind.TOPIC_DELETED, topic=gone)])
        writer.journal.close()

        writer.reopen()
        body = pack(
            [b"{}", b'{"n":1}', b"[]"],
            columns_of(METAS),
            content_type=JSON,
            times=[NOW, None, NOW + 5],
            deltas=[0, 1, 4],
        )
        ledger = writer.journal.ledger
        at = (a, ledger.topics[a].end, ledger.topics[a].end + 4, ledger.sequence, writer.now + 1)
        writer.write([Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), *at), trim_part(b, 2, 0)])
        writer.written.append(FoundBatch(*at, body))
        for number in range(9, 12):
            writer.publish(b, b"us %d " % number * 100)
        writer.write([topic_part(TopicState(a, "orders.eu", 1, {"retention_count": 5}, {"encoding": "json"}))])
        writer.write(
            [cursor_part(CursorState("everything", "orders.>", 0, 12)), state_part(PartKind.OPTIONAL, b"of later")]
        )
        writer.write([progress_part(1, [2, 3], []), progress_part(2, [0, 10, 12, 13], [])])
        # The last entry is written and never synced.
        last = batch(b, ledger.topics[b].end, ledger.sequence, writer.now + 1, [b"not acknowledged"])
        writer.journal._append([Draft([last], writer.now + 1)])
        writer.written.append(FoundBatch(b, last.base, last.last, last.sequence, last.time, last.body))
        return [found for found in writer.written if found.topic != gone]


def write_cleaned(storage: Storage) -> None:
    """What is published once, staged, marked, compacted and cleaned. The last stage is open, the journal cut off."""
    with pytest.MonkeyPatch.context() as patch:
        fixed = Fixed()
        patch.setattr(journal, "secrets", fixed)
        patch.setattr(cleaning_job, "secrets", fixed)
        writer = Writer(storage, SMALL, NOW)
        plain, keyed, gone = writer.topic("plain"), writer.topic("keyed", compact=True), writer.topic("gone")
        ledger = writer.journal.ledger
        for number in range(12):
            writer.publish(plain, b"plain %d " % number * 9)
            writer.publish(gone, b"gone %d " % number * 30)
            body = pack(
                [b"value %d" % number],
                columns_of([Meta(key=b"key %d" % (number % 2))]),
                producer=7,
                producer_sequence=number,
            )
            at = (keyed, ledger.topics[keyed].end, ledger.topics[keyed].end, ledger.sequence, writer.now + 1)
            writer.write(
                [
                    Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), *at),
                    ids_part(keyed, [f"id {number}"], [at[1]], writer.now + 1),
                    marker_part("numbers", number),
                ]
            )
        stage = StageState(1, "writer", 5, 0, 1, plain, writer.now + 1)
        for ordinal in range(2):
            opened = [stage_part(stage)] if not ordinal else []
            writer.write([*opened, staged_part(1, ordinal, pack([b"staged %d" % ordinal] * 3), writer.now + 1)])
        end, sequence = ledger.topics[plain].end, ledger.sequence
        writer.write([stage_commit_part(ledger.stages[1], end, sequence, writer.now + 1), marker_part("job", b"done")])
        writer.write([state_part(PartKind.TOPIC_DELETED, topic=gone), cursor_part(CursorState("gone", "gone", 3, 1))])
        writer.write([cursor_forgotten_part("gone"), trim_part(plain, 2, 0, RemovalReason.ASKED, writer.now + 1)])
        writer.journal.close()

        writer.reopen()
        _clean(writer)
        other = StageState(2, "writer", 6, 0, 0, plain, writer.now + 1)
        writer.write([stage_part(other), staged_part(2, 0, pack([b"not yet"]), writer.now + 1)])
        writer.publish(plain, b"last")


def _clean(writer: Writer) -> None:
    """Take the older records of each key, and write the segments that are half dead again."""
    journal_now, now = writer.journal, writer.now + 1
    keys = Compaction(journal_now.history)
    living = journal_now.living()
    while (look := keys.due(living, {}, now)) is not None:
        while not look.done:
            look.step()
        if (part := keys.over(look, now)) is not None:
            writer.write([part])
    living.taken = keys.taken({})
    shares = LiveShares()
    for _ in shares.look(tuple(journal_now.history.sources), living):
        pass
    chosen = choose_segments(shares.now, SMALL.segment_bytes, 0.1, 1 << 30)
    job = journal_now.clean(chosen, living)
    while not job.done:
        job.step()
    assert journal_now.replace(job)
    writer.write(keys.replaced(job, now))


TOPICS: list[dict[str, Any]] = [
    {"id": 1, "name": "orders.eu", "epoch": 1, "options": {"retention_count": 5}, "first": 0, "end": 32},
    {"id": 2, "name": "orders.us", "epoch": 2, "options": {}, "first": 2, "end": 22},
]
CURSORS = {
    "reader": CursorState("reader", "orders.eu", 1, 4),
    "everything": CursorState("everything", "orders.>", 0, 12),
}
FAILED = {place: DeliveryFailure(1, 1.7e9, "ValueError") for place in range(5, 27, 3)}


WRITTEN: dict[Path, Callable[[Storage], object]] = {GOLDEN: write_all, CLEANED: write_cleaned}


def main() -> None:
    """Write the golden folders of version 1 again."""
    for folder, write in WRITTEN.items():
        storage = MemoryStorage()
        write(storage)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, data in contents(storage).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
