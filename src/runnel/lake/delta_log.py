"""One snapshot of a Delta table: its version, its files, and the application versions that its log keeps.

Delta keeps for each application a version in the state of the table. The lake stores there, for each topic and epoch,
the offset after the last record that it holds: `runnel/EPOCH/TOPIC`. `deltalake` looks up one application at a time and
reads the log again for each; with thousands of topics that takes seconds, so the log is read here once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from runnel.core.errors import LakeDamaged
from runnel.lake.storage import LakeStorage, need

LOG = "_delta_log"
_APPLICATION = "runnel"
_CHECKPOINT = re.compile(r"_delta_log/(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")


def application_of(topic: str, epoch: int, scope: str = "") -> str:
    """The application under which the next offset of a topic is kept. A table may keep several, by `scope`."""
    return f"{_APPLICATION}{scope}/{epoch}/{topic}"


def topic_of(application: str, scope: str = "") -> tuple[str, int] | None:
    """The topic and epoch whose next offset an application keeps; None: it is another's."""
    begin = f"{_APPLICATION}{scope}/"
    if not application.startswith(begin):
        return None
    epoch, found, topic = application.removeprefix(begin).partition("/")
    return (topic, int(epoch)) if found and epoch.isdigit() else None


def entry_path(version: int) -> str:
    """The log entry of a version."""
    return f"{LOG}/{version:020}.json"


class ApplicationVersions:
    """The versions of all applications, at one version of the table. Following ones are read from the log entries."""

    def __init__(self, storage: LakeStorage) -> None:
        self._storage = storage
        self._versions: dict[str, int] = {}
        self._at = -1  # the version of the table that they are of

    def __repr__(self) -> str:
        return f"<ApplicationVersions, {len(self._versions)} at version {self._at}>"

    def at(self, version: int) -> dict[str, int]:
        """By application, its version in this version of the table."""
        if version < self._at:
            self._versions, self._at = {}, -1
        try:
            if self._at < 0:
                self._load(version)
            self._follow(version)
        except FileNotFoundError:  # entries were cleaned up behind a newer checkpoint
            self._versions, self._at = {}, -1
            self._load(version)
            self._follow(version)
        return self._versions

    def _load(self, version: int) -> None:
        """Begin at the newest checkpoint that is not behind `version`."""
        found: dict[int, list[str]] = {}
        for file in self._storage.files(LOG, lambda path: _CHECKPOINT.fullmatch(path) is not None):
            match = _CHECKPOINT.fullmatch(file.path)
            if match is not None and int(match[1]) <= version:
                found.setdefault(int(match[1]), []).append(file.path)
        if not found:
            return
        at = max(found)
        pq = need("pyarrow.parquet")
        for path in found[at]:
            with self._storage.open(path) as stream:
                checkpoint = pq.ParquetFile(stream)
                for batch in checkpoint.iter_batches(columns=["txn.appId", "txn.version"]):
                    for one in batch.column("txn").drop_null().to_pylist():
                        if one["appId"] is not None:
                            self._versions[one["appId"]] = one["version"]
        self._at = at

    def _follow(self, version: int) -> None:
        for at in range(self._at + 1, version + 1):
            for action in read_entry(self._storage, at):
                if "txn" in action:
                    self._versions[action["txn"]["appId"]] = action["txn"]["version"]
            self._at = at


def read_entry(storage: LakeStorage, version: int) -> Iterator[dict[str, Any]]:
    """The actions of one log entry."""
    path = entry_path(version)
    for line in storage.read(path).splitlines():
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise LakeDamaged(path, f"it is no JSON ({error})") from None
