"""Is everything in a folder still what was written? Reads every byte that counts; changes nothing.

Works beside a running owner, up to the durable mark. Below: survey. Above: cli.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from runnel.journal.folder import ReadersLease
from runnel.journal.inspection import check_folder, owner_of
from runnel.journal.os_storage import OsStorage
from runnel.journal.survey import Damage, LostRange, Progress, Survey, TornTail


class Verification(msgspec.Struct, frozen=True):
    """What was read, and what is wrong with it."""

    segments: int
    entries: int
    records: int
    bytes: int
    damages: list[Damage]
    lost: list[LostRange]
    torn: TornTail | None
    notes: list[str]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged. A torn tail is not damage."""
        return not self.damages


def verify(folder: str | Path, progress: Progress | None = None) -> Verification:
    """Read everything in a folder. `progress` is told how many bytes are done, of how many."""
    path = Path(folder)
    check_folder(path)
    lease = ReadersLease(path)
    try:
        return told(_settled(path, progress))
    finally:
        lease.release()


def told(survey: Survey) -> Verification:
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


def _settled(folder: Path, progress: Progress | None) -> Survey:
    """A survey of the journal as one manifest describes it."""
    storage = OsStorage(folder)
    while True:
        owned = owner_of(folder) is not None
        survey = Survey(storage, up_to_mark=owned, progress=progress).run()
        # What looks like damage may be a file that the owner has just sealed, emptied or removed.
        if not survey.damages or not owned or not _moved(storage, survey):
            return survey


def _moved(storage: OsStorage, survey: Survey) -> bool:
    now = Survey(storage)
    now._load_manifest()
    return now.manifest.segments[-1:] != survey.manifest.segments[-1:]
