"""Giving up what cannot be read, exactly that, and saying what it was. Afterwards the folder opens.

New files come first and the swap of the manifest last, so a crash on the way leaves the folder as it
was. No file is ever changed in place: a snapshot may share it. Damaged originals are kept under `damaged/`.
Below: survey, rescue, checkpoint, folder. Above: cli.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from runnel.journal import checkpoint, key_note, manifest
from runnel.journal.folder import FolderLock
from runnel.journal.inspection import check_folder
from runnel.journal.journal import SKIPPED
from runnel.journal.ledger import Ledger, TopicState
from runnel.journal.manifest import Manifest
from runnel.journal.os_storage import OsStorage
from runnel.journal.rescue import rescued
from runnel.journal.segment import SegmentInfo
from runnel.journal.source import rebuilt
from runnel.journal.storage import Storage
from runnel.journal.survey import MISSING, Damage, LostRange, Progress, Survey
from runnel.journal.swap import write_new

DAMAGED = "damaged"  # the folder in the folder


class Step(msgspec.Struct, frozen=True):
    """One thing that a repair does: `what` to which `file`."""

    what: str
    file: str


class Repair(msgspec.Struct, frozen=True):
    """What was done, or with `done=False` would be; what was damaged, and what is lost."""

    done: bool
    steps: list[Step]
    damages: list[Damage]
    lost: list[LostRange]
    notes: list[str]
    originals: str | None = None  # where they were put

    @property
    def needed(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.steps)


def repair(
    folder: str | Path, *, dry_run: bool = False, keep_originals: bool = True, progress: Progress | None = None
) -> Repair:
    """Mend a folder that nobody has open. FolderInUse names who has."""
    path = Path(folder)
    check_folder(path)
    lock = FolderLock(path)
    lock.take()
    try:
        survey = Survey(OsStorage(path), progress=progress).run()
        steps = planned(survey)
        found = Repair(False, steps, survey.damages, survey.lost, [*survey.notes, *_warnings(survey)])
        if dry_run or not steps:
            return found
        kept = _put_aside(path, survey, found) if keep_originals else None
        mend(survey)
        if not lock.has_readers():
            _remove_superseded(survey)
        return msgspec.structs.replace(found, done=True, originals=None if kept is None else str(kept))
    finally:
        lock.release()


# -- deciding ---------------------------------------------------------------------------------------------------


def planned(survey: Survey) -> list[Step]:
    """What has to be done; nothing where nothing is damaged, for a torn tail is cut at the next opening."""
    if not survey.damages:
        return []
    steps = [Step("make the index again", info.index_name) for info in survey.bad_indexes]
    if _only_indexes(survey):
        return steps
    missing = {damage.file for damage in survey.damages if damage.why == MISSING}
    for info in survey.manifest.segments:
        if info.name in missing:
            steps.append(Step("leave it out, it is missing", info.name))
        elif info in survey.bad_segments or not info.sealed:
            steps.append(Step("copy what is whole into a new segment", info.name))
    bad = [checkpoint.name_of(number) for number in survey.bad_checkpoints]
    steps += [Step("write all that is known into a new checkpoint, instead of", name) for name in bad]
    steps += [
        Step(f"give records without a topic the topic {_orphan_name(survey, topic)[0]!r}", manifest.NAME)
        for topic in survey.orphans
    ]
    return [*steps, Step("make it again from the files" if survey.manifest_lost else "swap", manifest.NAME)]


def _fresh(old: Manifest) -> int:
    """A number that no file has which counts: a clean close has used the next one for its checkpoint."""
    return max(old.next_number, *(number + 1 for number in old.checkpoints), 1)


def _only_indexes(survey: Survey) -> bool:
    indexes = {info.index_name for info in survey.bad_indexes}
    return not survey.manifest_lost and all(damage.file in indexes for damage in survey.damages)


def _warnings(survey: Survey) -> list[str]:
    found = []
    if survey.manifest_lost:
        found.append("the journal's id was in the manifest: it gets a new one")
    if survey.guessed and survey.damages:
        found.append(
            "nobody can say how many records the damaged bytes held: offsets and sequences go on "
            f"{SKIPPED:,} higher, so that none is ever given twice; state may be older than it was"
        )
    return found


def _orphan_name(survey: Survey, topic: int) -> tuple[str, int]:
    """What a topic is called that nobody knows any more, and its epoch; 0: it gets a new one."""
    name, epoch = survey.names.get(topic, ("", 0))
    if name and all(known.name != name for known in survey.ledger.topics.values()):
        return name, epoch
    return f"recovered.{topic}", 0


# -- acting -----------------------------------------------------------------------------------------------------


def _put_aside(folder: Path, survey: Survey, found: Repair) -> Path:
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


def mend(survey: Survey) -> None:
    """Do what is planned. Until the manifest is swapped the folder is what it was, and then it is whole."""
    if _only_indexes(survey):
        _rebuild_indexes(survey.storage, survey)
    else:
        _rebuild(survey)


def _rebuild_indexes(storage: Storage, survey: Survey) -> None:
    for info in survey.bad_indexes:
        write_new(storage, info.index_name, [rebuilt(storage, info)[0].encode(info)])
    storage.sync_names()


def _rebuild(survey: Survey) -> None:
    """The folder as a clean close would have left it, out of what can be read."""
    storage, old, ledger = survey.storage, survey.manifest, survey.ledger
    number = _fresh(old)
    segments: list[SegmentInfo] = []
    for info in old.segments:
        if info not in survey.bad_segments and info.sealed:
            if info in survey.bad_indexes:
                write_new(storage, info.index_name, [rebuilt(storage, info)[0].encode(info)])
            segments.append(info)
            continue
        copied = rescued(survey, info, number)
        if copied is not None:
            segments.append(copied)
            number += 1
    _go_on_safely(survey, ledger)
    size = checkpoint.write(storage, number, 0, ledger)
    journal = old.journal or secrets.token_hex(8)
    with suppress(FileNotFoundError):
        storage.remove(key_note.NAME)  # what superseded a record may be lost
    storage.sync_names()  # whatever the manifest names must be there before it is
    manifest.write(storage, Manifest(journal, segments, [number], number, old.fsync, 0, size))


def _go_on_safely(survey: Survey, ledger: Ledger) -> None:
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
        ledger.committed.pop(commit.staged.stage, None)  # what is left of it are batches of their own now
    ledger.sequence = max(ledger.sequence, ledger.reserved)
    if survey.guessed or (not survey.manifest.clean and survey.manifest.fsync != "commit"):
        ledger.sequence += SKIPPED
        for known in ledger.topics.values():
            known.end += SKIPPED


def _remove_superseded(survey: Survey) -> None:
    """Remove what the new manifest does not name. What is left here, the next opening removes."""
    storage = survey.storage
    found = manifest.load(storage)
    assert found is not None, "it was written just now"
    for name in (survey.manifest.files() - found.files()).intersection(storage.names()):
        storage.remove(name)
