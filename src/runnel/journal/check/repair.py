"""Repair: drop exactly the unreadable records, and report them. Afterwards the folder opens.

New files come first and the swap of the manifest last, so a crash on the way leaves the folder unchanged. No file is
changed in place: a snapshot may share it. Damaged originals are kept under `damaged/`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from runnel.core.errors import BadBatch, NotSupported
from runnel.journal.check.salvage import blocks_commit_of, check_part, stage_commit_of, walk_segment
from runnel.journal.check.scan import MISSING, Damage, JournalScan, LostTopicRange, Progress
from runnel.journal.clean import key_compaction
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import read_whole, replace_file
from runnel.journal.format.entry import HOLDS_RECORDS, Entry, Part, PartKind, encode, read_head, size_of
from runnel.journal.format.index import CleanedIndexBuilder, IndexBuilder, block_start, end_sequence, known_runs
from runnel.journal.format.ledger import Ledger, TopicState
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import START, TEMPORARY, SegmentInfo, encode_header
from runnel.journal.read.inspection import check_folder
from runnel.journal.read.segment_reader import BlocksCommit, index_part, rebuild_index
from runnel.journal.storage import File, OsStorage, Storage
from runnel.journal.write.journal import SKIPPED_OFFSETS

WRITE_BYTES = 1024 * 1024  # bytes written at a time


def copy_whole_entries(survey: JournalScan, info: SegmentInfo, number: int) -> SegmentInfo | None:
    """All whole entries of a segment in a new one, with an index, durable but for their names; None: there are none."""
    storage = survey.storage
    try:
        data = read_whole(storage, info.name)
    except FileNotFoundError:
        return None
    made = SegmentInfo(
        number,
        secrets.randbits(63),
        0,
        info.first_sequence,
        max(info.first_sequence, info.end_sequence),  # never below: readers look for segments by it
        info.first_time,
        info.last_time,
        info.generation,
    )
    file = storage.create(made.name + TEMPORARY)
    try:
        file.write(0, [encode_header(made, info.first_time)])
        copy = _SegmentCopy(file, made)
        for time, block, parts in _kept(survey, data[: info.end] if info.sealed else data, info):
            copy.write(parts, time, block)
        copy.flush()
        file.sync()
    finally:
        file.close()
    if copy.end == START:
        storage.remove(made.name + TEMPORARY)
        return None
    storage.rename(made.name + TEMPORARY, made.name)
    made.end = copy.end
    replace_file(storage, made.index_name, [copy.index().encode(made)])
    return made


class _SegmentCopy:
    """A segment that is being written, entry by entry, with its index."""

    def __init__(self, file: File, made: SegmentInfo) -> None:
        self.end = START
        self._file, self._made = file, made
        self._written = START
        self._pieces: list[bytes] = []
        self._builder, self._blocks = IndexBuilder(), CleanedIndexBuilder()
        self._begun: dict[int, int] = {}  # where blocks begin, by where they began

    def write(self, parts: Sequence[Part], time: int, block: int) -> None:
        """One entry; in a cleaned segment, of the block that began at `block`."""
        made, position = self._made, self.end
        if made.generation:
            begun = self._begun.setdefault(block, position)
            self._pieces += encode(parts, made.id, position, begun, time)
        else:
            self._pieces += encode(parts, made.id, position, START, time)
            made.last_time = max(made.last_time, time)
        for part in parts:
            if made.generation:
                runs = known_runs(part.body, part.crc) if part.kind == PartKind.MERGED else None
                self._blocks.add(position, begun, part, runs)
            else:
                index_part(self._builder, position, part)
            if part.kind in HOLDS_RECORDS:
                made.end_sequence = max(made.end_sequence, end_sequence(part))
        self.end += size_of(parts)
        if self.end - self._written > WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected items to the file."""
        self._file.write(self._written, self._pieces)
        self._written, self._pieces = self.end, []

    def index(self) -> IndexBuilder:
        """The index, when everything is written."""
        return self._blocks.finish(self._made) if self._made.generation else self._builder


def _kept(survey: JournalScan, data: bytes, info: SegmentInfo) -> Iterator[tuple[int, int, list[Part]]]:
    """The entries that a segment is to have: their times, where their blocks began, and their parts."""
    commits = [commit for commit, _ in survey.stages.broken(survey.ledger) if commit.info is info]
    broken = {(commit.position, commit.staged.base) for commit in commits}
    broken_stages = {commit.staged.stage for commit in commits if isinstance(commit.staged, BlocksCommit)}
    replaced: set[int] = set()  # those of them whose records are in the copy
    for found in walk_segment(data, info):
        parts: list[Part] = []
        block = _block_of(data, found.position, info)
        for part in found.parts if isinstance(found, Entry) else found.kept:
            if part.kind == PartKind.STAGE_COMMIT and (found.position, part.base) in broken:
                if parts:
                    yield found.time, block, parts
                    parts = []
                staged = stage_commit_of(part)
                assert staged is not None, "it was read before"
                for batch in survey.stages.batches_of(staged, survey.storage):
                    yield found.time, block, [batch]
            elif (commit := _broken_commit(part, broken_stages)) is not None:
                if parts:
                    yield found.time, block, parts
                    parts = []
                # In a cleaned segment the records of a topic stay with the others of that topic.
                topic = part.topic if info.generation else None
                if topic is not None or commit.stage not in replaced:
                    replaced.add(commit.stage)
                    for batch in survey.stages.records_of(commit.stage, survey.storage, topic):
                        yield found.time, block, [batch]
            elif _is_sound(part):
                parts.append(part)
        if parts:
            yield found.time, block, parts


def _broken_commit(part: Part, broken: set[int]) -> BlocksCommit | None:
    """A commit of blocks, if records of its stage are missing: of this topic or of another one."""
    commit = blocks_commit_of(part) if part.kind == PartKind.BLOCKS_COMMIT else None
    return commit if commit is not None and commit.stage in broken else None


def _block_of(data: bytes, position: int, info: SegmentInfo) -> int:
    head = read_head(data, position, info.id, position) if info.generation else None
    return position if head is None else block_start(head)


def _is_sound(part: Part) -> bool:
    """Whether readers can do something with it: its crc is right, and so is what it covers."""
    try:
        check_part(part)
    except NotSupported:
        return True  # it cannot be looked into here, and its crc is right
    except BadBatch:
        return False
    return True


# -- Deciding and repairing ------------------------------------------------------------------------------


DAMAGED = "damaged"  # the folder in the folder


class RepairStep(msgspec.Struct, frozen=True):
    """One thing that a repair does: `what` to which `file`."""

    what: str
    file: str


class Repair(msgspec.Struct, frozen=True):
    """The steps done, or with `done=False` planned; the damage, and the lost records."""

    done: bool
    steps: list[RepairStep]
    damages: list[Damage]
    lost: list[LostTopicRange]
    notes: list[str]
    originals: str | None = None  # where they were put

    @property
    def needed(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.steps)


def repair(
    folder: str | Path, *, dry_run: bool = False, keep_originals: bool = True, progress: Progress | None = None
) -> Repair:
    """Repair a folder that no process has open; else FolderInUse names the owner."""
    path = Path(folder)
    check_folder(path)
    lock = FolderLock(path)
    lock.take()
    try:
        survey = JournalScan(OsStorage(path), progress=progress).run()
        steps = plan_repair(survey)
        found = Repair(False, steps, survey.damages, survey.lost, [*survey.notes, *_warnings(survey)])
        if dry_run or not steps:
            return found
        kept = _put_aside(path, survey, found) if keep_originals else None
        apply_repair(survey)
        if not lock.has_readers():
            _remove_superseded(survey)
        return msgspec.structs.replace(found, done=True, originals=None if kept is None else str(kept))
    finally:
        lock.release()


# -- deciding ---------------------------------------------------------------------------------------------------


def plan_repair(survey: JournalScan) -> list[RepairStep]:
    """The steps of the repair; none without damage, since a torn tail is cut at the next opening."""
    if not survey.damages:
        return []
    steps = [RepairStep("make the index again", info.index_name) for info in survey.bad_indexes]
    if _only_indexes(survey):
        return steps
    missing = {damage.file for damage in survey.damages if damage.why == MISSING}
    for info in survey.manifest.segments:
        if info.name in missing:
            steps.append(RepairStep("leave it out, it is missing", info.name))
        elif info in survey.bad_segments or not info.sealed:
            steps.append(RepairStep("copy what is whole into a new segment", info.name))
    bad = [checkpoint.name_of(number) for number in survey.bad_checkpoints]
    steps += [RepairStep("write all that is known into a new checkpoint, instead of", name) for name in bad]
    steps += [
        RepairStep(f"give records without a topic the topic {_orphan_name(survey, topic)[0]!r}", manifest.NAME)
        for topic in survey.orphans
    ]
    return [*steps, RepairStep("make it again from the files" if survey.manifest_lost else "swap", manifest.NAME)]


def _fresh(old: Manifest) -> int:
    """A number that no file has which counts: a clean close has used the next one for its checkpoint."""
    return max(old.next_number, *(number + 1 for number in old.checkpoints), 1)


def _only_indexes(survey: JournalScan) -> bool:
    indexes = {info.index_name for info in survey.bad_indexes}
    return not survey.manifest_lost and all(damage.file in indexes for damage in survey.damages)


def _warnings(survey: JournalScan) -> list[str]:
    found = []
    if survey.manifest_lost:
        found.append("the journal's id was in the manifest: it gets a new one")
    if survey.guessed and survey.damages:
        found.append(
            "it is not known how many records the damaged bytes held: offsets and sequences go on "
            f"{SKIPPED_OFFSETS:,} higher, so that none is ever given twice; state may be older than it was"
        )
    return found


def _orphan_name(survey: JournalScan, topic: int) -> tuple[str, int]:
    """The new name of a topic whose name is lost, and its epoch; 0: it gets a new one."""
    name, epoch = survey.names.get(topic, ("", 0))
    if name and all(known.name != name for known in survey.ledger.topics.values()):
        return name, epoch
    return f"recovered.{topic}", 0


# -- acting -----------------------------------------------------------------------------------------------------


def _put_aside(folder: Path, survey: JournalScan, found: Repair) -> Path:
    """Keep the damaged files, and a report, under `damaged/` and the time of day."""
    kept = folder / DAMAGED / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept.mkdir(parents=True)
    for name in sorted({damage.file for damage in found.damages}):
        if (folder / name).exists():
            try:
                os.link(folder / name, kept / name)
            except OSError:  # a file system without links
                shutil.copy2(folder / name, kept / name)
    (kept / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    for place in (kept, kept.parent, folder):
        OsStorage(place).sync_names()
    return kept


def apply_repair(survey: JournalScan) -> None:
    """Run the plan. The folder is unchanged until the manifest is swapped, and whole from then on."""
    if _only_indexes(survey):
        _rebuild_indexes(survey.storage, survey)
    else:
        _rebuild(survey)


def _rebuild_indexes(storage: Storage, survey: JournalScan) -> None:
    for info in survey.bad_indexes:
        replace_file(storage, info.index_name, [rebuild_index(storage, info)[0].encode(info)])
    storage.sync_names()


def _rebuild(survey: JournalScan) -> None:
    """The folder as a clean close would have left it, from the readable records."""
    storage, old, ledger = survey.storage, survey.manifest, survey.ledger
    number = _fresh(old)
    segments: list[SegmentInfo] = []
    for info in old.segments:
        if info not in survey.bad_segments and info.sealed:
            if info in survey.bad_indexes:
                replace_file(storage, info.index_name, [rebuild_index(storage, info)[0].encode(info)])
            segments.append(info)
            continue
        copied = copy_whole_entries(survey, info, number)
        if copied is not None:
            segments.append(copied)
            number += 1
    _go_on_safely(survey, ledger)
    size = checkpoint.write(storage, number, 0, ledger)
    journal = old.journal or secrets.token_hex(8)
    with suppress(FileNotFoundError):
        storage.remove(key_compaction.KEYS_FILE)  # what superseded a record may be lost
    storage.sync_names()  # whatever the manifest names must be there before it is
    manifest.write(storage, Manifest(journal, segments, [number], number, old.fsync, 0, size))


def _go_on_safely(survey: JournalScan, ledger: Ledger) -> None:
    """Let no offset and no sequence be given twice, and no record be without a topic."""
    for topic, (first, end) in survey.orphans.items():
        name, epoch = _orphan_name(survey, topic)
        ledger.epoch = max(ledger.epoch + 1, epoch, time.time_ns() // 1_000_000 << 11)
        ledger.topics[topic] = TopicState(topic, name, epoch or ledger.epoch, {}, None, first, end)
        ledger.next_topic = max(ledger.next_topic, topic + 1)
    if survey.manifest_lost:
        for known in ledger.topics.values():
            known.compacted = 0  # segments may be back in which keys are as they were before they were looked at
    for stage in survey.torn_stages:
        del ledger.stages[stage]
    for commit, _ in list(survey.stages.broken(ledger)):
        ledger.forget_placed([commit.staged.stage])  # the remaining runs are batches of their own now
    ledger.sequence = max(ledger.sequence, ledger.reserved)
    if survey.guessed or (not survey.manifest.clean and survey.manifest.fsync != "commit"):
        ledger.sequence += SKIPPED_OFFSETS
        for known in ledger.topics.values():
            known.end += SKIPPED_OFFSETS


def _remove_superseded(survey: JournalScan) -> None:
    """Remove files that the new manifest does not name. The next opening removes the rest."""
    storage = survey.storage
    found = manifest.load(storage)
    assert found is not None, "it was written just now"
    for name in (survey.manifest.files() - found.files()).intersection(storage.names()):
        storage.remove(name)
