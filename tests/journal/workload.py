"""A small journal with a bit of everything, the same bytes every time: golden/ is what version 1 made of it.

`python -m tests.journal.workload` writes golden/ again. That is right only together with a new version of the
format, and then the old folder stays, under another name: what was written once must be readable for ever.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from runnel.core.packing import JSON, pack
from runnel.core.record import Meta
from runnel.journal import journal
from runnel.journal.draft import Draft
from runnel.journal.entry import Kind, Part, state
from runnel.journal.group_state import Failure, GroupState
from runnel.journal.history import Found
from runnel.journal.ledger import (
    CursorState,
    TopicState,
    cursor_part,
    group_part,
    progress_part,
    topic_part,
    trim_part,
)
from runnel.journal.storage import Storage
from runnel.testing import MemoryStorage
from tests.journal.rig import SMALL, Writer, batch, contents

GOLDEN = Path(__file__).parent / "golden" / "version-1"
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


def write_all(storage: Storage) -> list[Found]:
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
        writer.write([group_part(GroupState(4, "dropped", "orders.us", {}, 0)), state(Kind.GROUP_DELETED, topic=4)])
        for number in range(9):
            writer.publish(a, *(b"eu %d %d " % (number, at) * 20 for at in range(3)))
            writer.publish_together((b, [b"us %d" % number] * 2), (gone, [b"gone"]))
            writer.write([progress_part(1, [3 * number, 3 * number + 2], [(3 * number + 2, 1, 1.7e9, "ValueError")])])
        writer.write([cursor_part(CursorState("reader", "orders.eu", 1, 4))])
        writer.write([state(Kind.TOPIC_DELETED, topic=gone)])
        writer.journal.close()

        writer.reopen()
        body = pack([b"{}", b'{"n":1}', b"[]"], METAS, content_type=JSON, times=[NOW, None, NOW + 5], deltas=[0, 1, 4])
        ledger = writer.journal.ledger
        at = (a, ledger.topics[a].end, ledger.topics[a].end + 4, ledger.sequence, writer.now + 1)
        writer.write([Part(Kind.BATCH, body, int.from_bytes(body[:4], "little"), *at), trim_part(b, 2, 0)])
        writer.written.append(Found(*at, body))
        for number in range(9, 12):
            writer.publish(b, b"us %d " % number * 100)
        writer.write([topic_part(TopicState(a, "orders.eu", 1, {"retention_count": 5}, {"encoding": "json"}))])
        writer.write([cursor_part(CursorState("everything", "orders.>", 0, 12)), state(Kind.OPTIONAL, b"of later")])
        writer.write([progress_part(1, [2, 3], []), progress_part(2, [0, 10, 12, 13], [])])
        # The last entry is written and never synced.
        last = batch(b, ledger.topics[b].end, ledger.sequence, writer.now + 1, [b"not acknowledged"])
        writer.journal._append([Draft([last], writer.now + 1)])
        writer.written.append(Found(b, last.base, last.last, last.sequence, last.time, last.body))
        return [found for found in writer.written if found.topic != gone]


TOPICS: list[dict[str, Any]] = [
    {"id": 1, "name": "orders.eu", "epoch": 1, "options": {"retention_count": 5}, "first": 0, "end": 32},
    {"id": 2, "name": "orders.us", "epoch": 2, "options": {}, "first": 2, "end": 22},
]
CURSORS = {
    "reader": CursorState("reader", "orders.eu", 1, 4),
    "everything": CursorState("everything", "orders.>", 0, 12),
}
FAILED = {place: Failure(1, 1.7e9, "ValueError") for place in range(5, 27, 3)}


def main() -> None:
    """Write golden/ again."""
    storage = MemoryStorage()
    write_all(storage)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for name, data in contents(storage).items():
        (GOLDEN / name).write_bytes(data)


if __name__ == "__main__":
    main()
