"""A Delta table to which each record is added once, keyed by (topic, epoch, offset).

A commit stores the next offset of every topic beside the files, in the same log entry, and is made from the snapshot
whose next offsets it was planned with: rows below them are left out, and a commit of another process in between fails
it, so that it is planned again. A commit counts when it is in the log, synced and read back.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.errors import InvalidOption, LakeBusy, LakeDamaged, LakeFileExpired, UnknownLake
from runnel.lake.delta_log import LOG, ApplicationVersions, application_of, entry_path, read_entry, topic_of
from runnel.lake.files import LakeFile
from runnel.lake.storage import LakeStorage, need

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 20
"""How often a commit is planned again because another process committed in between."""

COMMIT_AGE = 24 * 3600.0
"""Seconds after which a file that no commit named is not committed any more. Maintenance removes such files later."""

CHECKPOINT_EVERY = 20
"""Log entries between two checkpoints of the log."""

TopicEpoch = tuple[str, int]


class LakeCommit(msgspec.Struct, frozen=True):
    """The result of a commit. It is on disk, and was read back.

    - `version`: of the table; with `files == 0` the one that had everything already.
    - `rows`, `files`: that it added. `repeated`: rows that the lake had, and that were left out.
    - `next_offsets`: by topic and epoch, the offset behind the last record in the lake, of the topics that it names.
    """

    version: int
    rows: int
    files: int
    repeated: int
    next_offsets: dict[TopicEpoch, int]


class ExactTable:
    """A Delta table in a folder or in object storage; a class below says which columns it has."""

    partitions: list[str]
    scope = ""
    """Of its next offsets: tables that share one Delta table keep theirs apart."""

    def __init__(self, storage: LakeStorage, location: str) -> None:
        self.records, self._location = storage, location
        self._lock = threading.Lock()
        self._table: Any = None
        self._applications = ApplicationVersions(self.records)

    def _opened_first(self, table: Any) -> None:
        """The table was opened: look whether it is one of this kind."""

    def _columns(self) -> pa.Schema:
        """The columns that the table has now, and its partitions."""
        raise AssertionError("each kind has its own")

    def _action(self, file: LakeFile, *, data_change: bool = True) -> Any:
        """A file, as the Delta log names it."""
        raise AssertionError("each kind has its own")

    def _above(self, file: LakeFile, known: Mapping[TopicEpoch, int]) -> LakeFile | None:
        """A file without the rows that the table has: itself, another one, or None if it has all of them."""
        raise AssertionError("each kind has its own")

    # -- the table ----------------------------------------------------------------------------------------------

    def _create_table(self, name: str, configuration: Mapping[str, str]) -> None:
        """Create it, if there is none."""
        deltalake, errors = need("deltalake"), need("deltalake.exceptions")
        try:
            self._opened()
            return
        except UnknownLake:
            pass
        if self.records.folder is not None:
            self.records.folder.mkdir(parents=True, exist_ok=True)
        try:
            deltalake.DeltaTable.create(
                self.records.uri,
                self._columns(),
                mode="error",
                partition_by=self.partitions,
                name=name,
                description="Records of runnel topics, each once",
                configuration=dict(configuration),
                storage_options=self.records.options,
                raise_if_key_not_exists=False,
            )
            self.records.sync(entry_path(0))
        except (errors.CommitFailedError, errors.DeltaError) as error:
            try:
                self._opened()  # another process created it meanwhile
            except UnknownLake:
                raise OSError(f"the table {self.records.uri} cannot be created: {error}") from error
        else:
            self._opened()

    @property
    def exists(self) -> bool:
        """Whether the table was created."""
        try:
            self._opened()
        except UnknownLake:
            return False
        return True

    @property
    def version(self) -> int:
        """The newest version of the table."""
        with self._lock:
            return int(self._fresh().version())

    def _opened(self) -> Any:
        if self._table is None:
            deltalake, errors = need("deltalake"), need("deltalake.exceptions")
            try:
                table = deltalake.DeltaTable(self.records.uri, storage_options=self.records.options)
            except errors.TableNotFoundError:
                raise UnknownLake(self._location) from None
            except (errors.DeltaError, OSError) as error:
                raise OSError(f"the table {self.records.uri} cannot be opened: {error}") from error
            self._opened_first(table)
            self._table = table
        return self._table

    def _fresh(self) -> Any:
        """A current snapshot of the table."""
        table, errors = self._opened(), need("deltalake.exceptions")
        try:
            table.update_incremental()
        except (errors.DeltaError, OSError) as error:
            self._table = None  # the next call opens it anew
            raise OSError(f"the log of the table {self.records.uri} cannot be read: {error}") from error
        return table

    # -- next offsets -------------------------------------------------------------------------------------------

    def next_offsets(self, topics: Collection[str] | None = None) -> dict[TopicEpoch, int]:
        """By topic and epoch, the offset after the last record that the newest snapshot holds; None: of all topics.

        A topic that the lake does not hold is left out.
        """
        with self._lock:
            return self._next_offsets(self._fresh(), topics)

    def _next_offsets(self, table: Any, topics: Collection[str] | None = None) -> dict[TopicEpoch, int]:
        wanted = None if topics is None else set(topics)
        known = self._applications.at(table.version())
        found = ((topic_of(application, self.scope), version) for application, version in known.items())
        return {key: end for key, end in found if key is not None and (wanted is None or key[0] in wanted)}

    def application_version(self, application: str) -> int | None:
        """The version that the last commit of an application had; None: there was none."""
        with self._lock:
            return self._applications.at(self._fresh().version()).get(application)

    # -- committing ---------------------------------------------------------------------------------------------

    def commit(
        self,
        files: Iterable[LakeFile],
        *,
        application: str,
        version: int,
        ends: Mapping[TopicEpoch, int] | None = None,
    ) -> LakeCommit:
        """Add files in one commit, and move the next offsets of their topics behind them. On the driver.

        What the lake holds already is left out, row by row: to commit the same files, or the same rows in other files,
        again is harmless, whatever `version` says. When it returns, the commit is synced and was read back. After an
        error the caller may commit the same files again.

        - `application`, `version`: who commits, and its own number; `application_version` returns the last one.
        - `ends`: by topic and epoch, up to which offset everything was read; it may lie behind the last row, where
          records were compacted away or have expired.
        """
        if application.startswith("runnel"):
            raise InvalidOption("application", application, "names that begin with 'runnel' are taken")
        waiting = list(files)
        _check_once(waiting)
        with self._lock:
            return self._commit(waiting, application, version, ends or {})

    def _commit(
        self, waiting: list[LakeFile], application: str, version: int, ends: Mapping[TopicEpoch, int]
    ) -> LakeCommit:
        errors = need("deltalake.exceptions")
        named = {one.key for file in waiting for one in file.ranges} | set(ends)
        total = sum(file.rows for file in waiting)
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            table = self._fresh()
            known = self._next_offsets(table)
            # Also after an error: it may have been committed all the same, or another process may have added these
            # rows. Next offsets, not the application's version, show the stored rows.
            waiting = [kept for file in waiting if (kept := self._above(file, known)) is not None]
            moved = {key: end for key, end in _ends(waiting, ends).items() if end > known.get(key, 0)}
            if not waiting and not moved:
                self._sync_log(table.version(), table.version())
                return LakeCommit(table.version(), 0, 0, total, {key: known[key] for key in named if key in known})
            _check_age(waiting)
            applications = {**self._moved(moved), application: version}
            base = table.version()
            try:
                self._write_entry(table, [self._action(file) for file in waiting], applications)
            except errors.CommitFailedError as error:
                failure = error
                continue
            except (errors.DeltaError, OSError) as error:
                self._table = None
                failure = error
                continue
            at = self._confirm(base, waiting, applications)
            self._checkpoint(at)
            rows = sum(file.rows for file in waiting)
            held = {**{key: known[key] for key in named if key in known}, **moved}
            return LakeCommit(at, rows, len(waiting), total - rows, held)
        raise LakeBusy(self._location, ATTEMPTS, str(failure))

    def _moved(self, next_offsets: Mapping[TopicEpoch, int]) -> dict[str, int]:
        """Next offsets, as the log keeps them."""
        return {application_of(*key, self.scope): end for key, end in next_offsets.items()}

    def _write_entry(
        self, table: Any, actions: list[Any], applications: Mapping[str, int], retries: int | None = None
    ) -> None:
        """One log entry, made from the snapshot that `table` is. Fails if one of the applications moved since.

        With `retries=0` it fails if there is any newer entry.
        """
        deltalake, transaction = need("deltalake"), need("deltalake.transaction")
        table.create_write_transaction(
            actions,
            "append",
            self._columns(),
            self.partitions,
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(name, version) for name, version in applications.items()],
                max_commit_retries=retries,
            ),
            # Both are done here: Delta does not sync a checkpoint, and entries that it would remove may be needed.
            post_commithook_properties=transaction.PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )

    def _confirm(self, base: int, files: list[LakeFile], applications: Mapping[str, int]) -> int:
        """Find the log entry of a commit, have it on disk, and read back what it names. Its version.

        `base`: the version that it was made from; entries of other processes may lie in between.
        """
        table = self._fresh()
        wanted = {file.path for file in files}
        for version in range(base + 1, table.version() + 1):
            actions = list(read_entry(self.records, version))
            added = {action["add"]["path"] for action in actions if "add" in action}
            moved = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
            if wanted <= added and applications.items() <= moved.items():
                break
        else:
            raise LakeDamaged(entry_path(base + 1), "a commit was made, and no entry behind it holds it")
        self._sync_log(base + 1, version)
        for file in files:
            if (size := self.records.size(file.path)) != file.size:
                raise LakeDamaged(file.path, f"it has {size} bytes, and {file.size} were written")
        return version

    def _sync_log(self, first: int, last: int) -> None:
        """Have the log entries [first, last] on disk: an entry is worth nothing without those before it."""
        self.records.sync(*(entry_path(version) for version in range(first, last + 1)))

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint of the log from time to time, so that a reader does not read every entry."""
        if version % CHECKPOINT_EVERY == 0:
            table = self._fresh()
            table.create_checkpoint()
            self._sync_checkpoint(table.version())

    def _sync_checkpoint(self, version: int) -> None:
        self.records.sync(f"{LOG}/{version:020}.checkpoint.parquet", f"{LOG}/_last_checkpoint")


def _ends(files: Iterable[LakeFile], ends: Mapping[TopicEpoch, int]) -> dict[TopicEpoch, int]:
    """The offsets behind the last committed records, by topic and epoch."""
    found = dict(ends)
    for file in files:
        for one in file.ranges:
            found[one.key] = max(found.get(one.key, 0), one.last + 1)
    return found


def _check_once(files: Iterable[LakeFile]) -> None:
    """Raise if the files hold a record twice, judged by their ranges."""
    counts: dict[TopicEpoch, int] = defaultdict(int)
    bounds: dict[TopicEpoch, tuple[int, int]] = {}
    for file in files:
        for one in file.ranges:
            counts[one.key] += one.count
            first, last = bounds.get(one.key, (one.first, one.last))
            bounds[one.key] = min(first, one.first), max(last, one.last)
    for (topic, epoch), (first, last) in bounds.items():
        if counts[topic, epoch] > last - first + 1:
            why = f"they hold {counts[topic, epoch]} rows for the offsets [{first}, {last + 1}) of topic {topic!r}"
            raise InvalidOption("files", len(counts), f"{why}; commit what each task wrote once")


def _check_age(files: Iterable[LakeFile]) -> None:
    oldest = min((file.written for file in files), default=time.time())
    if time.time() - oldest > COMMIT_AGE:
        path = next(file.path for file in files if file.written == oldest)
        raise LakeFileExpired(path, COMMIT_AGE / 3600)
