"""The lake: a Delta table of records, to which each record is added once.

Exactly once is keyed by (topic, epoch, offset). A commit stores the next offset of every topic beside the files, in the
same log entry, and is made from the snapshot whose next offsets it was planned with: rows below them are left out, and
a commit of another process in between fails it, so that it is planned again. A deleted checkpoint, a repeated batch, or
a second archive repeats nothing. A commit counts when it is in the log, synced and read back.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.errors import InvalidOption, LakeBusy, LakeDamaged, LakeFileExpired, LakeMismatch, UnknownLake
from runnel.lake import maintenance
from runnel.lake.delta_log import LOG, ApplicationVersions, application_of, entry_path, read_entry, topic_of
from runnel.lake.files import FileWriter, LakeFile, read_groups, write_file
from runnel.lake.layout import (
    BUCKETS,
    BUCKETS_KEY,
    JOURNAL_KEY,
    PARTITIONS,
    partition_values,
    table_schema,
    without_known,
)
from runnel.lake.snapshot import LakeSnapshot, TableFile
from runnel.lake.storage import LakeStorage, need

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 20
"""How often a commit is planned again because another process committed in between."""

COMMIT_AGE = 24 * 3600.0
"""Seconds after which a file that no commit named is not committed any more. Maintenance removes such files later."""

CHECKPOINT_EVERY = 20
"""Log entries between two checkpoints of the log."""

MAINTENANCE = "runnel maintenance"
"""The application of commits that replace files. Its version is the one of the table that they were made from."""

TopicEpoch = tuple[str, int]


class LakeCommit(msgspec.Struct, frozen=True):
    """What a commit did. It is on disk, and was read back.

    - `version`: of the table; with `files == 0` the one that had everything already.
    - `rows`, `files`: that it added. `repeated`: rows that the lake had, and that were left out.
    - `next_offsets`: by topic and epoch, the offset behind the last record in the lake, of the topics that it names.
    """

    version: int
    rows: int
    files: int
    repeated: int
    next_offsets: dict[TopicEpoch, int]


class Lake:
    """A lake in a folder, or in object storage; `records` below it is a Delta table that any reader of Delta opens.

    - `storage_options`: of object storage, as `deltalake` takes them (`AWS_REGION`, `AWS_ENDPOINT_URL`, …).
    - `buckets`: of a new lake, into how many folders a day is split by topic.

    It can be pickled: executors get the location and the options. A driver commits with one `Lake` at a time; several
    drivers may commit at once, and each record is still added once.

    >>> lake = Lake("lake/")
    >>> lake.create()
    >>> files = lake.write(batches, behind=lake.next_offsets(["orders"]))
    >>> lake.commit(files, application="archive", version=1).next_offsets
    {('orders', 1): 1000}
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        buckets: int = BUCKETS,
    ) -> None:
        if not 1 <= buckets <= 1024:
            raise InvalidOption("buckets", buckets, "expected a number from 1 to 1024")
        self.storage = LakeStorage(location, storage_options)
        self.records = self.storage.below("records")
        self._new_buckets = buckets
        self._lock = threading.Lock()
        self._table: Any = None
        self._buckets = 0
        self._applications = ApplicationVersions(self.records)

    def __repr__(self) -> str:
        return f"<Lake {self.storage.uri}>"

    def __getstate__(self) -> tuple[LakeStorage, int, int]:
        return self.storage, self._new_buckets, self._buckets

    def __setstate__(self, state: tuple[LakeStorage, int, int]) -> None:
        storage, buckets, known = state
        self.__init__(storage.uri, storage.options, buckets=buckets)  # type: ignore[misc]
        self._buckets = known  # so that an executor does not read the log

    # -- the table ----------------------------------------------------------------------------------------------

    def create(self, journal: str | None = None) -> None:
        """Create the table, if there is none. Harmless if there is one.

        `journal`: the id of the journal whose records it holds. Epochs, offsets and sequences of another one name other
        records, so a lake that holds those raises `LakeMismatch`.
        """
        with self._lock:
            self._create(journal)
            self._check_journal(journal)

    def _create(self, journal: str | None) -> None:
        deltalake, errors = need("deltalake"), need("deltalake.exceptions")
        try:
            self._opened()
            return
        except UnknownLake:
            pass
        configuration = {BUCKETS_KEY: str(self._new_buckets)}
        if journal is not None:
            configuration[JOURNAL_KEY] = journal
        if self.records.folder is not None:
            self.records.folder.mkdir(parents=True, exist_ok=True)
        try:
            deltalake.DeltaTable.create(
                self.records.uri,
                table_schema(),
                mode="error",
                partition_by=PARTITIONS,
                name="runnel records",
                description="Records of runnel topics, each once",
                configuration=configuration,
                storage_options=self.records.options,
                raise_if_key_not_exists=False,
            )
            self.records.sync(entry_path(0))
        except (errors.CommitFailedError, errors.DeltaError) as error:
            try:
                self._opened()  # another process created it meanwhile
            except UnknownLake:
                raise OSError(f"the lake {self.storage.uri} cannot be created: {error}") from error
        else:
            self._opened()

    def _check_journal(self, journal: str | None) -> None:
        """Raise unless the lake holds records of this journal; one that does not know its journal learns it."""
        if journal is None:
            return
        table = self._fresh()
        known = table.metadata().configuration.get(JOURNAL_KEY)
        if known is None:
            table.alter.set_table_properties({JOURNAL_KEY: journal}, raise_if_not_exists=False)
            base = table.version()
            self._sync_log(base, self._fresh().version())
        elif known != journal:
            raise LakeMismatch(self.storage.uri, f"it holds records of the journal {known}, and these are of {journal}")

    @property
    def journal(self) -> str | None:
        """The id of the journal whose records it holds; None: no archive said it."""
        with self._lock:
            found: str | None = self._fresh().metadata().configuration.get(JOURNAL_KEY)
            return found

    @property
    def exists(self) -> bool:
        """Whether the table was created."""
        try:
            self._opened()
        except UnknownLake:
            return False
        return True

    @property
    def buckets(self) -> int:
        """Into how many folders a day is split."""
        if not self._buckets:
            self._opened()
        return self._buckets

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
                raise UnknownLake(self.storage.uri) from None
            except (errors.DeltaError, OSError) as error:
                raise OSError(f"the lake {self.storage.uri} cannot be opened: {error}") from error
            self._buckets = _checked_buckets(table, self.storage.uri)
            self._table = table
        return self._table

    def _fresh(self) -> Any:
        """The table as it is now."""
        table, errors = self._opened(), need("deltalake.exceptions")
        try:
            table.update_incremental()
        except (errors.DeltaError, OSError) as error:
            self._table = None  # the next call opens it anew
            raise OSError(f"the log of the lake {self.storage.uri} cannot be read: {error}") from error
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
        found = ((topic_of(application), version) for application, version in known.items())
        return {key: end for key, end in found if key is not None and (wanted is None or key[0] in wanted)}

    def snapshot(self, known: LakeSnapshot | None = None) -> LakeSnapshot:
        """The newest snapshot; `known` itself, if nothing was committed since."""
        with self._lock:
            table = self._fresh()
            if known is not None and known.version == table.version():
                return known
            actions = need("pyarrow").table(table.get_add_actions(flatten=True))
            return LakeSnapshot(table.version(), actions, self._next_offsets(table))

    def application_version(self, application: str) -> int | None:
        """The version that the last commit of an application had; None: there was none."""
        with self._lock:
            return self._applications.at(self._fresh().version()).get(application)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(
        self, batches: Iterable[pa.RecordBatch], behind: Mapping[TopicEpoch, int] | None = None
    ) -> list[LakeFile]:
        """Write rows as Parquet files, which no reader sees before they are committed. On an executor, say.

        Rows have the columns of the Spark source, or of `runnel.arrow`: topic, epoch, offset, sequence, time, value,
        and key, headers, due, expires and priority where there are any. `behind`: next offsets; rows below them are
        left out. Memory is bounded, and the files are on disk when it returns.
        """
        writer = FileWriter(self.records, self.buckets, behind)
        files: list[LakeFile] = []
        for batch in batches:
            files += writer.add(batch)
        files += writer.finish()
        return files

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
        if topic_of(application) is not None:
            raise InvalidOption("application", application, "names that begin with 'runnel/' and a number are taken")
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
            # rows. Next offsets, not the application's version, say what is there.
            waiting = [kept for file in waiting if (kept := self._above(file, known)) is not None]
            moved = {key: end for key, end in _ends(waiting, ends).items() if end > known.get(key, 0)}
            if not waiting and not moved:
                self._sync_log(table.version(), table.version())
                return LakeCommit(table.version(), 0, 0, total, {key: known[key] for key in named if key in known})
            _check_age(waiting)
            applications = {**_applications(moved), application: version}
            base = table.version()
            try:
                self._write_entry(table, [add_action(file) for file in waiting], applications)
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
        raise LakeBusy(self.storage.uri, ATTEMPTS, str(failure))

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
            table_schema(),
            PARTITIONS,
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

    def _above(self, file: LakeFile, known: Mapping[TopicEpoch, int]) -> LakeFile | None:
        """A file without the rows that the lake has: itself, another one, or None if it has all of them."""
        below = [one for one in file.ranges if one.first < known.get(one.key, 0)]
        if not below:
            return file
        if all(one.last < known.get(one.key, 0) for one in file.ranges):
            return None
        kept: list[Any] = []
        for table in read_groups(self.records, file.path):
            left = (without_known(batch, known) for batch in table.to_batches())
            kept += [rows for rows in left if rows.num_rows]
        return write_file(self.records, file.day, file.bucket, kept) if kept else None

    # -- maintenance --------------------------------------------------------------------------------------------

    @property
    def commit_age(self) -> float:
        """Seconds after which a file that was written is not committed any more."""
        return COMMIT_AGE

    def maintain(
        self,
        gone: Mapping[TopicEpoch, int] | None = None,
        *,
        min_files: int = maintenance.MIN_FILES,
        safe_age: float = maintenance.SAFE_AGE,
        progress: maintenance.Progress | None = None,
    ) -> maintenance.MaintenanceReport:
        """Compact small files, erase what is gone, and remove files that nothing needs. Safe beside writers.

        - `gone`: by topic and epoch, the offset below which no record may be kept: it was trimmed, or its topic
          deleted (then any offset behind its end). Next offsets stay, so it is not archived again.
        - `min_files`: small files of one day and bucket from which on they are made one.
        - `safe_age`: seconds for which files are kept that no snapshot names any more: readers of older snapshots
          need them. Files that failed writers left are removed after that time, too.
        - `progress`: is called with what is done now, how much of it is done, and how much there is.
        """
        return maintenance.maintain(self, gone, min_files=min_files, safe_age=safe_age, progress=progress)

    def replace(self, files: Sequence[TableFile], made: Sequence[LakeFile], *, data_change: bool) -> bool:
        """Have the table name `made` in place of `files`, in one commit; False: one of them is not there any more.

        Delta accepts two commits that remove the same file, so this one is made only if no other came in between.
        """
        errors = need("deltalake.exceptions")
        old, new = {file.path for file in files}, {file.path for file in made}
        actions = [maintenance.remove_action(file, data_change=data_change) for file in files]
        actions += [add_action(file, data_change=data_change) for file in made]
        failure: Exception | None = None
        with self._lock:
            for _ in range(ATTEMPTS):
                table = self._fresh()
                live = set(need("pyarrow").table(table.get_add_actions(flatten=True))["path"].to_pylist())
                if not old <= live:
                    return bool(new) and new <= live  # after an error: it was committed all the same
                base = table.version()
                applications = {MAINTENANCE: base}
                try:
                    self._write_entry(table, actions, applications, retries=0)
                except (errors.DeltaError, OSError) as error:
                    if not isinstance(error, errors.CommitFailedError):
                        self._table = None
                    failure = error
                    continue
                self._checkpoint(self._confirm(base, list(made), applications))
                return True
        raise LakeBusy(self.storage.uri, ATTEMPTS, str(failure))

    def vacuum(self, safe_age: float) -> tuple[set[str], int]:
        """Remove files that were replaced before `safe_age` seconds, and old log entries.

        Every path that the log still knows, and how many files were removed.
        """
        hours = math.ceil(safe_age / 3600)
        with self._lock:
            table = self._fresh()
            table.create_checkpoint()
            self._sync_checkpoint(table.version())
            table.cleanup_metadata()
            known = set(need("pyarrow").table(table.get_add_actions(flatten=True))["path"].to_pylist())
            known |= set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))
            removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=False)
            self._sync_log(table.version(), self._fresh().version())
            return known, len(set(removed))


def add_action(file: LakeFile, *, data_change: bool = True) -> Any:
    """A file, as the Delta log names it."""
    return need("deltalake.transaction").AddAction(
        file.path,
        file.size,
        partition_values(file.day, file.bucket),
        int(file.written * 1000),
        data_change,
        file.stats,
    )


def _applications(next_offsets: Mapping[TopicEpoch, int]) -> dict[str, int]:
    return {application_of(*key): end for key, end in next_offsets.items()}


def _ends(files: Iterable[LakeFile], ends: Mapping[TopicEpoch, int]) -> dict[TopicEpoch, int]:
    """Behind the last of what is committed, by topic and epoch."""
    found = dict(ends)
    for file in files:
        for one in file.ranges:
            found[one.key] = max(found.get(one.key, 0), one.last + 1)
    return found


def _check_once(files: Iterable[LakeFile]) -> None:
    """Raise if the files hold a record twice, as far as their ranges tell."""
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


def _checked_buckets(table: Any, uri: str) -> int:
    """The number of buckets of a table; `LakeMismatch` unless it has the columns of a lake."""
    has = {field.name: field.type for field in need("pyarrow").schema(table.schema())}
    for field in table_schema():
        if field.name not in has:
            raise LakeMismatch(uri, f"it has no column {field.name!r}")
        if has[field.name] != field.type:
            raise LakeMismatch(uri, f"its column {field.name!r} is {has[field.name]}, not {field.type}")
    metadata = table.metadata()
    said = metadata.configuration.get(BUCKETS_KEY, "")
    if list(metadata.partition_columns) != PARTITIONS or not said.isdigit() or int(said) < 1:
        raise LakeMismatch(uri, f"it is not partitioned by {' and '.join(PARTITIONS)} with {BUCKETS_KEY}")
    return int(said)
