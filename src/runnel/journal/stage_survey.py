"""Whether all that was staged and committed is still there: noted while a journal is read, asked at the end.

A commit and its staged batches may lie in different segments, in any order once the cleaner was there.
Below: entry, found, ledger. Above: survey, repair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runnel.core.errors import BadBatch
from runnel.core.packing import read_header
from runnel.journal import entry
from runnel.journal.entry import Kind, Part
from runnel.journal.found import Staged
from runnel.journal.ledger import Ledger
from runnel.journal.segment import SegmentInfo
from runnel.journal.storage import Storage
from runnel.journal.swap import read_whole


class Commit(NamedTuple):
    """A commit of a stage, and where it lies."""

    info: SegmentInfo
    position: int
    staged: Staged


class StageSurvey:
    """The staged batches that can be read, and the commits that name them."""

    def __init__(self) -> None:
        self._staged: dict[int, dict[int, tuple[SegmentInfo, int, int]]] = {}  # by stage and ordinal: where, how many
        self._commits: list[Commit] = []
        self._read: tuple[str, bytes] = ("", b"")  # the segment that was looked into last

    def __repr__(self) -> str:
        return f"<StageSurvey, {len(self._staged)} stages, {len(self._commits)} commits>"

    def note_staged(self, part: Part, info: SegmentInfo, position: int) -> None:
        """A staged batch can be read."""
        try:
            count = read_header(part.body).count
        except BadBatch:
            return
        self._staged.setdefault(part.topic, {})[part.base] = (info, position, count)

    def note_commit(self, staged: Staged, info: SegmentInfo, position: int) -> None:
        """A commit can be read."""
        self._commits.append(Commit(info, position, staged))

    def broken(self, ledger: Ledger) -> Iterator[tuple[Commit, list[tuple[int, int]]]]:
        """Commits of which something is missing that their topics still want, and which offsets that is."""
        for commit in self._commits:
            topic = ledger.topics.get(commit.staged.topic)
            if topic is None:
                continue
            missing = []
            for ordinal, first, end in placed(commit.staged):
                if end > topic.first and self._count(commit.staged.stage, ordinal) != end - first:
                    missing.append((first, end))
            if missing:
                yield commit, missing

    def torn(self, ledger: Ledger) -> list[int]:
        """Open stages that lack some of what was staged in them."""
        return [
            stage.id
            for stage in ledger.stages.values()
            if any(self._count(stage.id, ordinal) != count for ordinal, count in enumerate(stage.counts))
        ]

    def batches_of(self, staged: Staged, storage: Storage) -> Iterator[Part]:
        """What is left of a commit, as batches of their own."""
        for ordinal, first, end in placed(staged):
            if self._count(staged.stage, ordinal) == end - first:
                body = self._body(staged.stage, ordinal, storage)
                crc, sequence = int.from_bytes(body[:4], "little"), staged.sequence + first - staged.base
                yield Part(Kind.BATCH, body, crc, staged.topic, first, end - 1, sequence, staged.time)

    def _count(self, stage: int, ordinal: int) -> int:
        found = self._staged.get(stage, {}).get(ordinal)
        return 0 if found is None else found[2]

    def _body(self, stage: int, ordinal: int, storage: Storage) -> bytes:
        info, position, _ = self._staged[stage][ordinal]
        if self._read[0] != info.name:
            self._read = (info.name, read_whole(storage, info.name))
        data = self._read[1]
        head = entry.read_head(data, position, info.id, position)
        assert head is not None, "it was read before"
        at = position + head.bodies
        for kind, _, _, length, _, topic, base, *_ in head.table:
            if (kind, topic, base) == (Kind.STAGED, stage, ordinal):
                return data[at : at + length]
            at += length
        raise AssertionError("it was there before")


def placed(staged: Staged) -> Iterator[tuple[int, int, int]]:
    """The batches of a committed stage: their ordinals, first offsets and ends."""
    first = staged.base
    for ordinal, count in enumerate(staged.counts):
        yield ordinal, first, first + count
        first += count
