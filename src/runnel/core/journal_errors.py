"""What can go wrong with a journal: the folder, the disk, the bytes on it.

They hang in the same tree as all others: see `runnel.core.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.errors import Damaged, Ended, NotNow, UsageError


class FolderInUse(NotNow):
    """Another process, or another broker in this one, owns the folder."""

    code = "folder_in_use"

    def __init__(self, folder: str, pid: int | None) -> None:
        self.folder, self.pid = folder, pid
        who = "another broker in this process or another" if pid is None else f"process {pid}"
        super().__init__(
            f"{folder!r} is open in {who}, which does not share it or was not to be joined: close that one, or open it "
            "with share=True in both. `runnel log`, `topic list` and `group list` work meanwhile"
        )


class FolderUnusable(UsageError):
    """A folder that cannot hold a journal."""

    code = "folder_unusable"

    def __init__(self, folder: str, why: str) -> None:
        self.folder, self.why = folder, why
        super().__init__(f"{folder!r} cannot hold a journal: {why}")


class FormatUnknown(UsageError):
    """Files written in a format that this version does not know."""

    code = "format_unknown"

    def __init__(self, file: str, version: int, known: int) -> None:
        self.file, self.version, self.known = file, version, known
        super().__init__(
            f"{file} is written in format {version}, and this version of runnel knows up to {known}; "
            "open it with the version that wrote it, or a later one"
        )


class JournalDamaged(Damaged):
    """Bytes on disk that were durable and have changed. Nothing of them is served."""

    code = "journal_damaged"

    def __init__(self, file: str, position: int, why: str) -> None:
        self.file, self.position, self.why = file, position, why
        super().__init__(
            f"{file} is damaged at {position}: {why}; look with `runnel log verify`, restore the file from a "
            "snapshot, or let `runnel log repair` give up what cannot be read and say what that was"
        )


class JournalFailed(Ended):
    """Writing failed, so the journal takes nothing more until it is reopened. Reading goes on."""

    code = "journal_failed"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"the journal failed and takes no more writes: {why}; see to the disk, then close and open the broker again"
        )


class DiskFull(NotNow):
    """There is no room for more records; nothing was written. Reading, acks and deletes go on."""

    code = "disk_full"

    def __init__(self, free: int, needed: int) -> None:
        self.free, self.needed = free, needed
        super().__init__(
            f"the disk has {free:,} bytes free and the journal needs {needed:,} to go on: a new segment "
            "(segment_bytes) that leaves min_free; make room, delete topics or shorten their retention, "
            "and publish again"
        )


class TopicHeld(NotNow):
    """Records that somebody asked to be taken away, and that a subscription holds."""

    code = "topic_held"

    def __init__(self, topic: str, before: int, holders: Mapping[str, int]) -> None:
        self.topic, self.before, self.holders = topic, before, dict(holders)
        names = ", ".join(f"{name!r} (from offset {offset:,} on)" for name, offset in sorted(holders.items()))
        super().__init__(
            f"topic {topic!r} is held by {names}, so nothing was taken: let that subscription read on, forget it "
            f"(`broker.forget`, `runnel cursor forget`), or take the records before {before:,} all the same "
            "(force=True, --force)"
        )


class UnknownName(UsageError):
    """No named subscription has ever stood anywhere under this name."""

    code = "unknown_name"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no subscription is known by the name {name!r}; `runnel cursor list` shows those there are")


class GroupInUse(UsageError):
    """A group that has members cannot be forgotten."""

    code = "group_in_use"

    def __init__(self, group: str, pattern: str, members: int) -> None:
        self.group, self.pattern, self.members = group, pattern, members
        super().__init__(
            f"group {group!r} on {pattern!r} has {members} members; end their subscriptions first, then forget it"
        )


class NotWritten(NotNow):
    """A publish that was not written when the journal failed. It is safe to publish again."""

    code = "not_written"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"nothing was written: {why}; reopen the broker and publish again")


class OutcomeUnknown(NotNow):
    """Something that was under way when the journal failed or the connection was lost: it may be done, or not."""

    code = "outcome_unknown"

    def __init__(self, why: str, *, committing: bool = False) -> None:
        self.why = why
        if committing:
            super().__init__(
                f"the server was asked to commit a transaction, and nobody knows whether it did: {why}; "
                "do it again if it has a mark, which makes sure that it happens once, or look at what it publishes"
            )
        else:
            super().__init__(
                f"it was being written when the journal failed, and may or may not be there after reopening: {why}; "
                "look at the end of the topic then, or publish it again if twice does no harm"
            )


class NoArchive(UsageError):
    """A folder that was to be restored from, and is no archive."""

    code = "no_archive"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(f"{folder!r} is no archive; name the one that `runnel log archive` was given")


class ArchiveMismatch(UsageError):
    """An archive of another journal, or of another life of this one. Nothing was added to it."""

    code = "archive_mismatch"

    def __init__(self, archive: str, why: str) -> None:
        self.archive, self.why = archive, why
        super().__init__(f"{archive!r} does not fit this journal: {why}; begin another archive in a new folder")


class ArchiveDamaged(Damaged):
    """Bytes of an archive that have changed, or are gone. Nothing was restored."""

    code = "archive_damaged"

    def __init__(self, file: str, position: int, why: str) -> None:
        self.file, self.position, self.why = file, position, why
        super().__init__(
            f"{file} is damaged at {position}: {why}; put the file back from a copy of the archive, restore "
            "another point (--until) or from another base (--base): `runnel log restore ARCHIVE --list` shows them"
        )


class PointNotArchived(UsageError):
    """A point in time that an archive cannot restore: before it, behind it, or where it missed something."""

    code = "point_not_archived"

    def __init__(self, point: str, why: str) -> None:
        self.point, self.why = point, why
        super().__init__(
            f"{point} cannot be restored: {why}; `runnel log restore ARCHIVE --list` shows which points can"
        )


class ArchiveBusy(NotNow):
    """Another run is adding to the archive."""

    code = "archive_busy"

    def __init__(self, archive: str, pid: int | None) -> None:
        self.archive, self.pid = archive, pid
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{who} is adding to {archive!r}; wait for it, or let that one do the work (--follow)")
