"""Scanning all of a journal, entry by entry: damage, the records lost by it, and whether the tail is torn.

Changes nothing. `verify` reports a scan, and `repair` acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from runnel.core.batch_format import UnpackedBatch, pack_columns, read_batch_header, unpack
from runnel.core.errors import BadBatch, FormatUnknown, JournalDamaged, NotSupported
from runnel.journal.check.salvage import (
    DamagedSpot,
    blocks_commit_of,
    check_part,
    is_newer_format,
    load_index,
    manifest_from_files,
    stage_commit_of,
    walk_segment,
)
from runnel.journal.format import checkpoint, entry, manifest, segment, staged_block, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import HOLDS_RECORDS, HOLDS_STAGED, STAGE_TOPIC, Entry, Part, PartKind
from runnel.journal.format.index import (
    CleanedIndexBuilder,
    IndexBuilder,
    IndexFile,
    block_start,
    end_sequence,
    known_runs,
)
from runnel.journal.format.ledger import BlockStageState, Ledger
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.offset_sets import RangeSet
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.format.staged_block import BlockTopic
from runnel.journal.format.watermark import Watermark
from runnel.journal.read.segment_reader import BlocksCommit, StageCommit, index_entry
from runnel.journal.storage import Storage
from runnel.journal.write.journal import SKIPPED_OFFSETS


class LossTracker:
    """Follows every topic from offset to offset through a journal that is read from end to end."""

    def __init__(self) -> None:
        self._expected: dict[int, int] = {}  # the next offset of a topic
        self._breaks = 0  # ranges with unknown contents
        self._looked: dict[int, int] = {}  # how many of them when a topic was last met
        self._lost: dict[int, RangeSet] = {}

    def __repr__(self) -> str:
        return f"<LossTracker of {len(self._lost)} topics>"

    def __iter__(self) -> Iterator[tuple[int, RangeSet]]:
        return iter(self._lost.items())

    def expected(self, topic: int, first: int) -> int:
        """The next offset of a topic, which begins at `first`."""
        return self._expected.get(topic, first)

    def begin(self, topic: int, first: int) -> None:
        """A topic begins there, if it is new: records below were removed by retention, and are not missing."""
        self._expected.setdefault(topic, first)

    def broke(self) -> None:
        """There were bytes whose contents are unknown."""
        self._breaks += 1

    def meet(self, topic: int, base: int, end: int | None = None) -> None:
        """It continues at `base`, up to `end`. Records missing before it are lost if damage was found meanwhile."""
        expected = self._expected.get(topic, 0)
        if end is None and base < expected:
            return  # it was there before: that says nothing of what broke since
        if expected < base < expected + SKIPPED_OFFSETS and self._looked.get(topic, 0) < self._breaks:
            self._lost.setdefault(topic, RangeSet()).add(expected, base)
        self._expected[topic] = max(expected, base if end is None else end)
        self._looked[topic] = self._breaks

    def lose(self, topic: int, first: int, end: int) -> None:
        """These offsets cannot be read."""
        self._lost.setdefault(topic, RangeSet()).add(first, end)
        self._expected[topic] = max(self._expected.get(topic, 0), end)


# -- Stages: is everything that was staged and committed still there? ------------------------------------
# Noted while a journal is read, asked at the end: a commit and its batches may lie in different segments.


class ScannedCommit(NamedTuple):
    """A commit of a stage, and where it lies."""

    info: SegmentInfo
    position: int
    staged: StageCommit | BlocksCommit


class _StagedBlocks:
    """The blocks of a stage that can be read, if only in part: where they lie, and what they hold of which topics.

    `records` are those of whole blocks.
    """

    def __init__(self) -> None:
        self.places: dict[int, tuple[SegmentInfo, int]] = {}  # by the first record
        self.records = RangeSet()
        self.topics: dict[int, RangeSet] = {}
        self.is_damaged = False  # whether one of them can be read in part only


class StageScan:
    """The staged batches that can be read, and the commits that name them."""

    def __init__(self) -> None:
        self._blocks: dict[int, _StagedBlocks] = {}  # by stage
        self._staged: dict[int, dict[int, tuple[SegmentInfo, int, int]]] = {}  # by stage and ordinal: where, how many
        self._commits: list[ScannedCommit] = []
        self._read: tuple[str, bytes] = ("", b"")  # the segment that was looked into last

    def __repr__(self) -> str:
        return f"<StageScan, {len(self._staged)} stages, {len(self._commits)} commits>"

    def note_staged(self, part: Part, info: SegmentInfo, position: int) -> None:
        """A staged batch can be read."""
        if part.kind == PartKind.STAGED_BLOCK:
            self._note_block(part, info, position)
            return
        try:
            count = read_batch_header(part.body).count
        except BadBatch:
            return
        self._staged.setdefault(part.topic, {})[part.base] = (info, position, count)

    def _note_block(self, part: Part, info: SegmentInfo, position: int) -> None:
        self._note_topics(part, info, position, staged_block.directory_of(part.body).topics.values())
        self._of(part.topic).records.add(part.base, part.last + 1)

    def note_damaged_block(self, part: Part, info: SegmentInfo, position: int) -> None:
        """A staged block is damaged: the records of some of its topics may be proven all the same."""
        try:
            directory = staged_block.directory_of(part.body)
        except BadBatch:
            return
        if (directory.first, directory.end) == (part.base, part.last + 1):
            proven = [topic for topic, _, _ in staged_block.proven_contents_of(directory, part.body)]
            self._note_topics(part, info, position, proven)
            self._of(part.topic).is_damaged = True

    def _note_topics(self, part: Part, info: SegmentInfo, position: int, topics: Iterable[BlockTopic]) -> None:
        blocks = self._blocks.setdefault(part.topic, _StagedBlocks())
        blocks.places[part.base] = (info, position)
        for one in topics:
            blocks.topics.setdefault(one.topic, RangeSet()).add(one.before, one.before + one.records)

    def note_commit(self, staged: StageCommit | BlocksCommit, info: SegmentInfo, position: int) -> None:
        """A commit can be read."""
        self._commits.append(ScannedCommit(info, position, staged))

    def broken(self, ledger: Ledger) -> Iterator[tuple[ScannedCommit, list[tuple[int, int]]]]:
        """Commits of which something is missing that their topics still want, and which offsets that is.

        A repair drops damaged blocks, so all commits of their stages are among them, also where nothing is missing.
        """
        for commit in self._commits:
            topic = ledger.topics.get(commit.staged.topic)
            if topic is None:
                continue
            missing = []
            is_hurt = False
            if isinstance(commit.staged, BlocksCommit):
                missing = self._missing(commit.staged, topic.first)
                is_hurt = self._of(commit.staged.stage).is_damaged and topic.first <= commit.staged.last
            for ordinal, first, end in placed_batches(commit.staged):
                if end > topic.first and self._count(commit.staged.stage, ordinal) != end - first:
                    missing.append((first, end))
            if missing or is_hurt:
                yield commit, missing

    def torn(self, ledger: Ledger) -> list[int]:
        """Open stages that lack some of their staged records."""
        return [
            stage.id
            for stage in ledger.stages.values()
            if any(self._count(stage.id, ordinal) != count for ordinal, count in enumerate(stage.counts))
            or (isinstance(stage, BlockStageState) and _gaps(self._of(stage.id).records, 0, stage.total))
        ]

    def _of(self, stage: int) -> _StagedBlocks:
        return self._blocks.get(stage) or _StagedBlocks()

    def _missing(self, staged: BlocksCommit, first: int) -> list[tuple[int, int]]:
        """The offsets of the one topic of `staged` that are in no block, from `first` on."""
        held, base = self._of(staged.stage).topics.get(staged.topic, RangeSet()), staged.base
        gaps = _gaps(held, max(0, first - base), staged.last + 1 - base)
        return [(base + low, base + high) for low, high in gaps]

    def records_of(self, stage: int, storage: Storage, topic: int | None = None) -> Iterator[Part]:
        """The remaining blocks of a committed stage, as separate batches, in the order of sequences.

        Of all topics, or of one. For a repair: each run of records becomes a batch.
        """
        shares: dict[int, BlocksCommit] = {}
        for commit in self._commits:
            if isinstance(commit.staged, BlocksCommit) and commit.staged.stage == stage:
                shares[commit.staged.topic] = commit.staged
        blocks = self._of(stage)
        for first in sorted(blocks.places):
            found: list[Part] = []
            body = self._body(stage, first, storage)
            for held, runs, batch in staged_block.proven_contents_of(staged_block.directory_of(body), body):
                if held.topic in shares and topic in (None, held.topic):
                    found += _batches_of_runs(shares[held.topic], runs, unpack(bytes(batch), verify=False))
            yield from sorted(found, key=lambda part: part.sequence)

    def batches_of(self, staged: StageCommit, storage: Storage) -> Iterator[Part]:
        """The remaining records of a commit, as separate batches."""
        for ordinal, first, end in placed_batches(staged):
            if self._count(staged.stage, ordinal) == end - first:
                body = self._body(staged.stage, ordinal, storage)
                crc, sequence = int.from_bytes(body[:4], "little"), staged.sequence + first - staged.base
                yield Part(PartKind.BATCH, body, crc, staged.topic, first, end - 1, sequence, staged.time)

    def _count(self, stage: int, ordinal: int) -> int:
        found = self._staged.get(stage, {}).get(ordinal)
        return 0 if found is None else found[2]

    def _body(self, stage: int, ordinal: int, storage: Storage) -> bytes:
        if (block := self._of(stage).places.get(ordinal)) is not None:
            info, position = block
        else:
            info, position, _ = self._staged[stage][ordinal]
        if self._read[0] != info.name:
            self._read = (info.name, read_whole(storage, info.name))
        data = self._read[1]
        head = entry.read_head(data, position, info.id, position)
        assert head is not None, "it was read before"
        at = position + head.bodies
        for kind, _, _, length, _, topic, base, *_ in head.table:
            if kind in HOLDS_STAGED and (topic, base) == (stage, ordinal):
                return data[at : at + length]
            at += length
        raise AssertionError("it was there before")


def _gaps(held: RangeSet, first: int, end: int) -> list[tuple[int, int]]:
    """The parts of [first, end) that are not held."""
    gaps: list[tuple[int, int]] = []
    for start, behind in held:
        if start > first and first < end:
            gaps.append((first, min(start, end)))
        first = max(first, behind)
    return [*gaps, (first, end)] if first < end else gaps


def _batches_of_runs(staged: BlocksCommit, runs: Sequence[RecordRun], batch: UnpackedBatch) -> Iterator[Part]:
    """The runs of one topic in a block, each as a batch."""
    header, at = batch.header, 0
    columns = (batch.values, batch.keys, batch.headers, None, batch.due, batch.expires, batch.priorities)
    for run in runs:
        body = pack_columns(
            [None if column is None else column[at : at + run.count] for column in columns],
            compression=header.compression,
            content_type=header.content_type,
            schema=header.schema,
        )
        at += run.count
        first, sequence = staged.base + run.offset, staged.sequence + run.sequence
        crc, last = int.from_bytes(body[:4], "little"), first + run.count - 1
        yield Part(PartKind.BATCH, body, crc, staged.topic, first, last, sequence, staged.time)


def placed_batches(staged: StageCommit | BlocksCommit) -> Iterator[tuple[int, int, int]]:
    """The batches of a committed stage: their ordinals, first offsets and ends. One in blocks has none."""
    if isinstance(staged, BlocksCommit):
        return
    first = staged.base
    for ordinal, count in enumerate(staged.counts):
        yield ordinal, first, first + count
        first += count


# -- The scan --------------------------------------------------------------------------------------------


Progress = Callable[[int, int], None]  # bytes done, bytes in all

MISSING = "it is missing"
PROGRESS_STEP = 1024 * 1024  # bytes between two calls of a Progress


class Damage(msgspec.Struct, frozen=True):
    """Bytes of a file that changed since they were written."""

    file: str
    position: int
    why: str


class LostTopicRange(msgspec.Struct, frozen=True):
    """Offsets [first, end) of a topic that cannot be read any more."""

    topic: str
    epoch: int
    first: int
    end: int


class TornTail(msgspec.Struct, frozen=True):
    """Bytes behind the last commit, of a write that was cut off: no damage, the next opening cuts them."""

    file: str
    position: int
    bytes: int


class JournalScan:
    """The findings of a read of a journal from end to end. `run` reads."""

    def __init__(self, storage: Storage, *, up_to_watermark: bool = False, progress: Progress | None = None) -> None:
        self.storage = storage
        self.damages: list[Damage] = []
        self.torn: TornTail | None = None
        self.notes: list[str] = []
        self.manifest = Manifest("", [], [])
        self.ledger = Ledger()
        self.entries = self.records = 0
        self.manifest_lost = False
        self.bad_checkpoints: list[int] = []
        self.bad_indexes: list[SegmentInfo] = []  # of segments that are whole
        self.bad_segments: list[SegmentInfo] = []
        self.guessed = False  # whether the ledger had to do without unreadable entries
        self.stages = StageScan()
        self.torn_stages: list[int] = []  # open, and not all that was staged is there
        self.names: dict[int, tuple[str, int]] = {}  # names and epochs of topics, from cleaned segments
        self._up_to_mark, self._progress = up_to_watermark, progress
        self._done = self._total = self._told = 0
        self._losses = LossTracker()
        self._orphans: dict[int, list[int]] = {}  # first and end of batches, by topic
        self._deleted: set[int] = set()
        self._numbered, self._there = 1, frozenset[int]()  # the next topic id, from checkpoints, and the known ids
        self._state_lost = False  # a change of state that is stored nowhere else
        self._skipped: set[str] = set()  # compressions that cannot be looked into here

    def run(self) -> JournalScan:
        """Read everything."""
        self._load_manifest()
        found = self.manifest
        self._total = sum(map(self._size, found.files()))
        good = self._check_checkpoints()
        waiting = [number for number in found.checkpoints if number in good]
        if found.checkpoints and found.checkpoints[0] not in good:
            self.guessed = self.guessed or not self._has_all_segments()
        for info in found.segments:
            while waiting and waiting[0] <= info.number:
                self._restore(waiting.pop(0))
            self._check_segment(info, covered=bool(waiting))
        while waiting:
            self._restore(waiting.pop(0))
        self.ledger.forget_placed(found.placed)
        self._compare()
        self._tell(self._total)
        return self

    @property
    def size(self) -> int:
        """How many there were to read."""
        return self._total

    @property
    def lost(self) -> list[LostTopicRange]:
        """The lost records of existing topics, by topic and offset."""
        found = []
        for topic, ranges in self._losses:
            known = self.ledger.topics.get(topic)
            if known is None and topic not in self.orphans:
                continue  # deleted since
            name, epoch, low = (known.name, known.epoch, known.first) if known else (f"topic {topic}", 0, 0)
            low = max(low, self.orphans.get(topic, (0, 0))[0])
            found += [LostTopicRange(name, epoch, max(first, low), end) for first, end in ranges if end > low]
        return sorted(found, key=lambda one: (one.topic, one.first))

    @property
    def orphans(self) -> dict[int, tuple[int, int]]:
        """Topics whose records are there and whose names are not: first offset and end, by id."""
        if not self.guessed and not self._state_lost:
            return {}  # all the state is known: a topic that is not in it was deleted
        return {
            topic: (first, end)
            for topic, (first, end) in self._orphans.items()
            if topic not in self.ledger.topics and not self._was_deleted(topic)
        }

    def _was_deleted(self, topic: int) -> bool:
        """Whether an entry says so, or a checkpoint that should know it: the cleaner takes such entries away."""
        return topic in self._deleted or (topic < self._numbered and topic not in self._there)

    # -- manifest and checkpoints -------------------------------------------------------------------------------

    def _load_manifest(self) -> None:
        try:
            found = manifest.load(self.storage)
            if found is not None:
                self.manifest = found
                return
            raise JournalDamaged(manifest.NAME, 0, "it is missing")
        except (JournalDamaged, FormatUnknown, msgspec.MsgspecError) as error:
            if isinstance(error, FormatUnknown) and is_newer_format(error):
                raise
            position, why = (error.position, error.why) if isinstance(error, JournalDamaged) else (0, str(error))
            self._damaged(manifest.NAME, position, why)
        self.manifest_lost = self.guessed = True
        self.manifest, hopeless = manifest_from_files(self.storage, "")
        for damage in hopeless:
            self._damaged(damage.file, damage.position, damage.why)

    def _check_checkpoints(self) -> set[int]:
        good: set[int] = set()
        before, told = 0, Ledger()
        for number in self.manifest.checkpoints:
            try:
                checkpoint.load(self.storage, number, before, Ledger() if self.bad_checkpoints else told)
                good.add(number)
            except (JournalDamaged, FormatUnknown) as error:
                self.bad_checkpoints.append(number)
                position, why = (error.position, error.why) if isinstance(error, JournalDamaged) else (8, str(error))
                self._damaged(checkpoint.name_of(number), position, why)
            self._advance(self._size(checkpoint.name_of(number)))
            before = number
        self._numbered, self._there = told.next_topic, frozenset(told.topics)
        return good

    def _restore(self, number: int) -> None:
        chain = self.manifest.checkpoints
        at = chain.index(number)
        if at == 0:
            self.ledger = Ledger()  # a full one holds everything that counts
        checkpoint.load(self.storage, number, chain[at - 1] if at else 0, self.ledger)
        for topic in self.ledger.topics.values():
            self._losses.begin(topic.id, topic.first)

    def _has_all_segments(self) -> bool:
        numbers = sorted(info.number for info in self.manifest.segments if not info.generation)  # those hold no state
        return numbers == list(range(1, self.manifest.next_number))

    # -- segments -----------------------------------------------------------------------------------------------

    def _check_segment(self, info: SegmentInfo, *, covered: bool) -> None:
        """Read one; `covered` says that a later checkpoint holds the state that its entries lead to."""
        before = len(self.damages)
        published = None if info.sealed else watermark.read(self.storage)  # first: an owner writes meanwhile
        try:
            data = read_whole(self.storage, info.name)
        except FileNotFoundError:
            self._damaged(info.name, 0, MISSING)
            data = b""
        if data:
            self._check_header(data, info)
            data, torn_from = self._bounds(data, info, published)
            builder = self._walk(data, info, torn_from, covered=covered)
        else:
            builder = None
            self.guessed = self.guessed or not covered
        if len(self.damages) > before:
            self.bad_segments.append(info)
        if info.sealed:
            self._check_index(info, builder, whole=len(self.damages) == before)
        self._advance(self._size(info.index_name) if info.sealed else 0)

    def _check_header(self, data: bytes, info: SegmentInfo) -> None:
        try:
            segment.check_header(data, info)
        except JournalDamaged as error:
            self._damaged(info.name, error.position, error.why, known=True)

    def _bounds(self, data: bytes, info: SegmentInfo, published: Watermark | None) -> tuple[bytes, int]:
        """The bytes of a segment that count, and from where on bad ones are a torn tail and no damage."""
        if info.sealed:
            return data[: info.end], info.end
        proven = published.position if published is not None and published.id == info.id else START
        if self._up_to_mark:
            return data[:proven], proven
        for found in walk_segment(data, info):
            if isinstance(found, Entry):
                proven = max(proven, found.synced)
        return data, proven

    def _walk(self, data: bytes, info: SegmentInfo, torn_from: int, *, covered: bool) -> IndexBuilder:
        builder, blocks = IndexBuilder(), CleanedIndexBuilder()
        position = START
        for found in walk_segment(data, info):
            if isinstance(found, Entry):
                self.entries += 1
                self._take(found.parts, found.time, info, found.position)
                if info.generation:
                    for part in found.parts:
                        runs = known_runs(part.body, part.crc) if part.kind == PartKind.MERGED else None
                        blocks.add(found.position, block_start(found), part, runs)
                else:
                    index_entry(builder, found)
            elif found.position >= torn_from and found.end >= len(data.rstrip(b"\0")):
                self.torn = TornTail(info.name, found.position, len(data.rstrip(b"\0")) - found.position)
            else:
                if info.sealed and found.end == len(data):
                    found = found._replace(end=info.end)  # the index was cut off with the rest
                self._take_damage(found, info, covered=covered)
            self._advance(found.end - position)
            position = found.end
        if not info.sealed and position < torn_from and self.torn is None:
            self._damaged(info.name, position, f"the journal was synced up to {torn_from}")
            self.guessed = self.guessed or not covered
        if info.sealed and position < info.end:
            cut = DamagedSpot(position, info.end, f"the segment was sealed with {info.end} bytes")
            self._take_damage(cut, info, covered=covered)
            self._advance(info.end - position)
        elif not info.sealed:  # reserved bytes do not count
            self._total -= self._size(info.name) - len(data.rstrip(b"\0"))
        return blocks.finish(info) if info.generation else builder

    def _take_damage(self, spot: DamagedSpot, info: SegmentInfo, *, covered: bool) -> None:
        known = not spot.headless or self._lost_by_index(spot, info)
        self._damaged(info.name, spot.position, spot.why, known=known)
        self._take_around(spot, info, covered=covered)

    def _lost_by_index(self, spot: DamagedSpot, info: SegmentInfo) -> bool:
        """Whether the index can say what some bytes of a cleaned segment held; then that is lost."""
        if not info.generation:
            return False
        try:
            known: IndexFile = load_index(self.storage, info)
        except (JournalDamaged, FormatUnknown):
            return False
        for topic, found in known.topics():
            first = known.base_behind(topic, spot.position)
            following = known.base_behind(topic, spot.end)
            if topic < STAGE_TOPIC and first is not None and first != following:
                end = found.end if following is None else following
                self._losses.lose(topic, first, end)
        return True

    def _take_around(self, spot: DamagedSpot, info: SegmentInfo, *, covered: bool) -> None:
        for part in spot.lost:
            if part.kind in HOLDS_RECORDS:
                runs = known_runs(part.body, part.crc) if part.kind == PartKind.MERGED else None
                for run in runs or (RecordRun(part.base, part.sequence, part.time, part.count),):
                    self._losses.lose(part.topic, run.offset, run.offset + run.count)
                self.ledger.sequence = max(self.ledger.sequence, end_sequence(part))
                if (topic := self.ledger.topics.get(part.topic)) is not None:
                    topic.end = max(topic.end, part.last + 1)
            elif part.kind == PartKind.STAGED_BLOCK:
                self.stages.note_damaged_block(part, info, spot.position)
            elif not covered and part.kind not in HOLDS_STAGED and part.kind < PartKind.OPTIONAL:
                self._state_lost = True
                what = "a change of state was lost; cursors and groups may stand further back"
                self.notes.append(f"{info.name} at {spot.position}: {what}")
        self._take(spot.kept, spot.time, info, spot.position)
        self._note_torn_commit(spot, info)
        if spot.headless and not covered:
            self.guessed = True

    def _note_torn_commit(self, spot: DamagedSpot, info: SegmentInfo) -> None:
        """Tell of a commit of which some topics' records are lost and others' are not: a transaction may be torn.

        Entries do not say which of their parts are one transaction; its markers, if it has any, name it.
        """
        lost, kept = (sorted(map(self._name_of, _topics_of(parts))) for parts in (spot.lost, spot.kept))
        if lost and kept and not info.generation:
            marks = [msgspec.msgpack.decode(part.body)[0] for part in spot.kept if part.kind == PartKind.MARK]
            marked = f" (marked {', '.join(map(repr, marks))})" if marks else ""
            self.notes.append(
                f"{info.name} at {spot.position}: of one commit the records of {', '.join(kept)} are still read and "
                f"those of {', '.join(lost)} are lost; a transaction over them{marked} is seen in part"
            )

    def _name_of(self, topic: int) -> str:
        known = self.ledger.topics.get(topic)
        return repr(known.name if known is not None else self.names.get(topic, (f"topic {topic}", 0))[0])

    def _take(self, parts: Sequence[Part], time: int, info: SegmentInfo, position: int) -> None:
        for part in parts:
            if part.kind in HOLDS_RECORDS:
                self._take_batch(part, info, position)
            elif part.kind in HOLDS_STAGED:
                if self._is_sound(part, info, position, f"a staged batch of stage {part.topic}"):
                    self.stages.note_staged(part, info, position)
            elif part.kind == PartKind.TRIM and part.last:  # most say where a topic begins, and not where it ends
                self._losses.meet(part.topic, part.last)
            elif part.kind == PartKind.TOPIC_DELETED:
                self._deleted.add(part.topic)
            elif part.kind == PartKind.NAMES:
                self.names.update((topic, (name, epoch)) for topic, name, epoch in msgspec.msgpack.decode(part.body))
        if not info.generation:
            self.ledger.apply(parts, time)
            return
        for part in parts:  # a cleaned segment holds no state, and older checkpoints may know less than it does
            if part.kind in HOLDS_RECORDS:
                self.ledger.sequence = max(self.ledger.sequence, end_sequence(part))
                if (topic := self.ledger.topics.get(part.topic)) is not None:
                    topic.end = max(topic.end, part.last + 1)

    def _take_batch(self, part: Part, info: SegmentInfo, position: int) -> None:
        runs = known_runs(part.body, part.crc) if part.kind == PartKind.MERGED else None
        self.records += part.count if runs is None else sum(run.count for run in runs)
        self._losses.meet(part.topic, part.base, part.last + 1)
        if part.topic not in self.ledger.topics:
            bounds = self._orphans.setdefault(part.topic, [part.base, part.last + 1])
            bounds[1] = max(bounds[1], part.last + 1)
        if not self._is_sound(part, info, position, f"a batch of topic {part.topic} at offset {part.base}"):
            for run in runs or (RecordRun(part.base, part.sequence, part.time, part.count),):
                self._losses.lose(part.topic, run.offset, run.offset + run.count)
        elif part.kind == PartKind.STAGE_COMMIT:
            staged = stage_commit_of(part)
            assert staged is not None, "it is sound"
            self.stages.note_commit(staged, info, position)
        elif part.kind == PartKind.BLOCKS_COMMIT:
            commit = blocks_commit_of(part)
            assert commit is not None, "it is sound"
            self.stages.note_commit(commit, info, position)

    def _is_sound(self, part: Part, info: SegmentInfo, position: int, what: str) -> bool:
        """Whether readers can use a part; if not, that is reported."""
        try:
            check_part(part)
        except BadBatch as error:
            self._damaged(info.name, position, f"{what}: {error.why}", known=True)
            return False
        except NotSupported as error:
            if (missing := error.what) not in self._skipped:
                self._skipped.add(missing)
                self.notes.append(f"batches with {missing} were checked by crc only: {error.why}")
        return True

    def _check_index(self, info: SegmentInfo, builder: IndexBuilder | None, *, whole: bool) -> None:
        try:
            known = load_index(self.storage, info)
        except (JournalDamaged, FormatUnknown) as error:
            position, why = (error.position, error.why) if isinstance(error, JournalDamaged) else (8, str(error))
            self._damaged(info.index_name, position, why)
            if whole:
                self.bad_indexes.append(info)
            return
        if whole and builder is not None:
            if builder.encode(info) != read_whole(self.storage, info.index_name):
                self._damaged(info.index_name, 0, "it does not say what the segment holds")
                self.bad_indexes.append(info)
        else:
            # The segment is damaged, and its index knows what it held.
            for topic, found in known.topics():
                if topic < STAGE_TOPIC:
                    self._losses.begin(topic, found.first)
                    self._losses.meet(topic, found.end)

    def _compare(self) -> None:
        """Hold the ledger against what the segments were seen to hold."""
        for topic in self.ledger.topics.values():
            expected = self._losses.expected(topic.id, topic.first)
            if expected > topic.end:
                self._damaged(
                    manifest.NAME,
                    0,
                    f"topic {topic.name!r} ends at {topic.end}, and the segments hold up to {expected}",
                )
                topic.end = expected
            self._losses.meet(topic.id, topic.end)
        for commit, missing in self.stages.broken(self.ledger):
            staged = commit.staged
            what = "is not all there" if missing else "lies in a damaged block"
            why = f"what was staged for topic {staged.topic} at offset {staged.base} {what}"
            self._damaged(commit.info.name, commit.position, why, known=True)
            if commit.info not in self.bad_segments:
                self.bad_segments.append(commit.info)
            for first, end in missing:
                self._losses.lose(staged.topic, first, end)
        self.torn_stages = self.stages.torn(self.ledger)
        self.notes += [f"stage {stage} is not whole any more: it cannot be committed" for stage in self.torn_stages]

    # -- telling ------------------------------------------------------------------------------------------------

    def _damaged(self, file: str, position: int, why: str, *, known: bool = False) -> None:
        """Record the damage. Unless its contents are `known`, records missing behind it were lost with it."""
        self.damages.append(Damage(file, position, why))
        if file.endswith(".seg") and not known:
            self._losses.broke()

    def _size(self, name: str) -> int:
        try:
            file = self.storage.open(name)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _advance(self, size: int) -> None:
        self._done += size
        if self._done - self._told >= PROGRESS_STEP:
            self._tell(self._done)

    def _tell(self, done: int) -> None:
        self._told = done
        if self._progress is not None:
            self._progress(min(done, self._total), self._total)


def _topics_of(parts: Sequence[Part]) -> set[int]:
    return {part.topic for part in parts if part.kind in HOLDS_RECORDS}
