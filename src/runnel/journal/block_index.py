"""The index of a cleaned segment: a window for every entry, and one for every block.

An entry of a cleaned segment says in its header, where others say how far was synced, at which position
its block begins. So the blocks are found again whatever else cannot be read.
Below: entry, index, merged. Above: source, cleaner, survey.
"""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.errors import BadBatch
from runnel.journal import entry, merged
from runnel.journal.entry import HOLDS_RECORDS, STAGE_TOPIC, Kind, Part, body_crc
from runnel.journal.index import IndexBuilder
from runnel.journal.merged import Run
from runnel.journal.segment import START, SegmentInfo


class _Block:
    """What is known of one: the lowest sequence and time in it, and the end of its sequences."""

    __slots__ = ("end", "first", "position", "time")

    def __init__(self, position: int) -> None:
        self.position = position
        self.first = self.time = -1  # it holds no records, or none that could be read
        self.end = 0


class BlockIndex:
    """Makes the index of a cleaned segment from its parts, in the order that they lie in."""

    def __init__(self) -> None:
        self.builder = IndexBuilder()
        self._blocks: list[_Block] = []
        self._spots: list[tuple[int, int]] = []  # positions where nobody can say what was there

    def add(self, position: int, block: int, part: Part, runs: Sequence[Run] | None = None) -> None:
        """A part in the entry at `position`, in the block that begins at `block`; of a merged one also its runs."""
        if part.kind != Kind.STAGED and part.kind not in HOLDS_RECORDS:
            return
        if not self._blocks or block > self._blocks[-1].position:
            self._blocks.append(_Block(block))
        if part.kind == Kind.STAGED:
            topic = STAGE_TOPIC | part.topic
            self.builder.add(position, topic, part.base, part.last, 0, part.time, len(part.body), apart=True)
        else:
            records = part.count if runs is None else sum(run.count for run in runs)
            size = len(part.body)
            self.builder.add(
                position, part.topic, part.base, part.last, part.sequence, part.time, size, records, apart=True
            )
            found = self._blocks[-1]
            if found.first < 0 or part.sequence < found.first:
                found.first, found.time = part.sequence, part.time
            found.end = max(found.end, part.sequence + part.count if runs is None else _end(runs))

    def skip(self, position: int, end: int) -> None:
        """Nobody can say what lies between these positions."""
        self._spots.append((position, end))

    def finish(self, info: SegmentInfo) -> IndexBuilder:
        """The index, when everything is in it.

        A block begins with the lowest sequence in it; one without records where the next one does. Where
        something cannot be read, it begins where the one before ends: what is missing lies in it.
        """
        blocks = self._blocks
        if self._spots and (not blocks or blocks[0].position > START):
            blocks.insert(0, _Block(START))
        windows: list[tuple[int, int, int]] = []
        before, since = info.first_sequence, info.first_time
        for at, block in enumerate(blocks):
            behind = blocks[at + 1].position if at + 1 < len(blocks) else info.end
            if any(first < behind and end > block.position for first, end in self._spots):
                windows.append((block.position, before, since))
            else:
                windows.append((block.position, block.first, block.time))
            before, since = max(before, block.end), max(since, block.time)
        following = (info.end_sequence, info.last_time)
        for at in range(len(windows) - 1, -1, -1):
            if windows[at][1] < 0:
                windows[at] = (windows[at][0], *following)
            following = windows[at][1:]
        for window in windows:
            self.builder.begin_block(*window)
        return self.builder


def rebuilt(data: bytes, info: SegmentInfo) -> tuple[IndexBuilder, bool]:
    """The index of a cleaned segment, from the heads of its entries; and whether all of them are whole."""
    made = BlockIndex()
    position, whole = START, True
    while position < info.end:
        head = entry.read_head(data, position, info.id, position)
        if head is None or head.end > info.end:
            whole = False
            following = next_head(data, position + 1, info, position + 1)
            until = info.end if following is None else following.position
            made.skip(position, until)
            position = until
            continue
        add_head(made, data, head)
        position = head.end
    return made.finish(info), whole


def add_head(made: BlockIndex, data: bytes, head: entry.Head) -> None:
    """Note the parts of an entry in the bytes of its segment. Their bodies need not be whole."""
    at = head.position + head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        runs = known_runs(body, crc) if kind == Kind.MERGED else None
        made.add(head.position, block_of(head), Part(kind, body, crc, topic, base, last, sequence, time), runs)


def block_of(head: entry.Head | entry.Entry) -> int:
    """Where the block of an entry begins."""
    return head.synced if START <= head.synced <= head.position else head.position


def next_head(data: bytes, start: int, info: SegmentInfo, position: int) -> entry.Head | None:
    """The next entry with a whole head in `data[start:]`, which begins at `position` of a segment."""
    at = data.find(entry.MAGIC, start)
    while at >= 0:
        head = entry.read_head(data, at, info.id, position + at - start)
        if head is not None and head.end <= info.end:
            return head
        at = data.find(entry.MAGIC, at + 1)
    return None


def known_runs(body: bytes, crc: int) -> list[Run] | None:
    """The runs of a merged part that should have `crc`; None where they cannot be known."""
    if body_crc(Kind.MERGED, body) != crc:
        return merged.runs_in_spite(body, crc)
    try:
        return merged.runs_of(body)
    except BadBatch:
        return None


def _end(runs: Sequence[Run]) -> int:
    return runs[-1].sequence + runs[-1].count
