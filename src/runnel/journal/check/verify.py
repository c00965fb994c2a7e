"""Verify: check that a folder still holds the written bytes. Reads every byte that counts; changes nothing.

Works beside a running owner, up to the durable watermark.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from runnel.journal.check.scan import Damage, JournalScan, LostTopicRange, Progress, TornTail
from runnel.journal.folder_lock import ReadersLease
from runnel.journal.read.inspection import check_folder, owner_of
from runnel.journal.storage import OsStorage


class Verification(msgspec.Struct, frozen=True):
    """The bytes read, and the errors found."""

    segments: int
    entries: int
    records: int
    bytes: int
    damages: list[Damage]
    lost: list[LostTopicRange]
    torn: TornTail | None
    notes: list[str]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged. A torn tail is not damage."""
        return not self.damages


def verify(folder: str | Path, progress: Progress | None = None) -> Verification:
    """Read everything in a folder. `progress` is called with the bytes done and the bytes in all."""
    path = Path(folder)
    check_folder(path)
    lease = ReadersLease(path)
    try:
        return report_of(_scan_consistent(path, progress))
    finally:
        lease.release()


def report_of(survey: JournalScan) -> Verification:
    """A survey as a report."""
    return Verification(
        len(survey.manifest.segments),
        survey.entries,
        survey.records,
        survey.size,
        survey.damages,
        survey.lost,
        survey.torn,
        survey.notes,
    )


def _scan_consistent(folder: Path, progress: Progress | None) -> JournalScan:
    """A survey of the journal as one manifest describes it."""
    storage = OsStorage(folder)
    while True:
        owned = owner_of(folder) is not None
        survey = JournalScan(storage, up_to_watermark=owned, progress=progress).run()
        # Apparent damage may be a file that the owner has just sealed, emptied or removed.
        if not survey.damages or not owned or not _moved(storage, survey):
            return survey


def _moved(storage: OsStorage, survey: JournalScan) -> bool:
    now = JournalScan(storage)
    now._load_manifest()
    return now.manifest.segments[-1:] != survey.manifest.segments[-1:]
