"""Object storage (S3, Google Cloud Storage, Azure) as a place for backups.

An object is there whole or not at all. One that was written is read back and compared with its file before anything
counts on it. Credentials come from the environment, as the tools of each provider know them, never from the address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from runnel.core.errors import BackupStoreFailed, InvalidOption, NotSupported

COMPARE_BYTES = 4 << 20  # read back at a time
RETRIES, RETRY_SECONDS = 5, 60.0
_ADDRESS = re.compile(r"(?:s3|s3a|gs|az|azure|abfs|abfss|adl)://")


def is_store(target: str) -> bool:
    """Whether `target` is the address of object storage, and no folder."""
    return _ADDRESS.match(target) is not None


class ObjectChanged(Exception):
    """An object is not the one that was read before."""


class ObjectStore:
    """The objects below one address."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if "@" in url.partition("://")[2].partition("/")[0] and not url.startswith(("abfs", "az", "adl")):
            why = "credentials come from the environment (AWS_ACCESS_KEY_ID, …), not from the address"
            raise InvalidOption("target", f"{url.partition('://')[0]}://…", why)
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise NotSupported(
                "a backup in object storage", "obstore is not installed: pip install 'runnel-mq[backup]'"
            ) from None
        self._library: Any = obstore
        with self._reported():
            self._store: Any = from_url(
                self.url,
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )

    def __repr__(self) -> str:
        return f"<ObjectStore {self.url}>"

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Errors of the library as one of ours: its first line, which names the request and the answer."""
        errors = self._library.exceptions
        try:
            yield
        except FileNotFoundError:
            raise
        except errors.PreconditionError:
            raise ObjectChanged from None
        except errors.AlreadyExistsError:
            raise ObjectChanged from None
        except (errors.BaseError, OSError, ValueError) as error:
            raise BackupStoreFailed(self.url, (str(error).splitlines() or [type(error).__name__])[0][:300]) from None

    def read(self, name: str) -> tuple[bytes, str | None]:
        """A small object, and its version. `FileNotFoundError` if there is none."""
        with self._reported():
            found = self._library.get(self._store, name)
            return bytes(found.bytes()), found.meta.get("e_tag")

    def stream(self, name: str) -> Iterator[bytes]:
        """A large one, some bytes at a time."""
        with self._reported():
            for piece in self._library.get(self._store, name).stream(min_chunk_size=COMPARE_BYTES):
                yield bytes(piece)

    def fetch(self, name: str, target: Path) -> None:
        """A large one as a file."""
        with target.open("wb") as file:
            for piece in self.stream(name):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # it may be linked into a folder that has to last

    def write(self, name: str, file: Path, told: Callable[[int], None] = lambda size: None) -> None:
        """Write a file as an object, and read it back; `BackupStoreFailed` if the two differ."""
        with self._reported():
            self._library.put(self._store, name, file)
        with file.open("rb") as opened:
            for piece in self.stream(name):
                if opened.read(len(piece)) != piece:
                    raise BackupStoreFailed(self.url, f"{name} does not hold what was written to it")
                told(len(piece))
            if opened.read(1):
                raise BackupStoreFailed(self.url, f"{name} is shorter than what was written to it")

    def swap(self, name: str, data: bytes, before: str | None) -> str | None:
        """Write a small object in the place of the version that was read before; None: there was none.

        `ObjectChanged` if another process was quicker. Returns the new version.
        """
        mode: Any = "create" if before is None else {"e_tag": before}
        try:
            with self._reported():
                made: str | None = self._library.put(self._store, name, data, mode=mode)["e_tag"]
        except ObjectChanged:
            now, version = self.read(name)
            if now != data:
                raise
            return version  # the answer to a first attempt was lost, and the library tried again
        if self.read(name)[0] != data:
            raise BackupStoreFailed(self.url, f"{name} does not hold what was written to it")
        return made

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._reported():
            try:
                self._library.delete(self._store, name)
            except FileNotFoundError:
                pass
