"""Where a lake lies: a folder, or object storage. Files are written whole, synced, and read at random places.

On a local path a file is on disk, with its name, when `LakeStorage.write` returns. In object storage it is when the
store has accepted it. Delta and Arrow are loaded when the first file is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from runnel.core.errors import InvalidOption, NotSupported


def need(name: str) -> Any:
    """A module of the packages that a lake needs; `NotSupported` says how to install them."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotSupported("a lake", f"{error}; install it with `pip install 'runnel-mq[lake]'`") from error


class StoredFile(NamedTuple):
    """A file of a table: its path below the table, its bytes, and when it was written, in seconds."""

    path: str
    size: int
    modified: float


class LakeStorage:
    """The files below one location. It travels to executors as the location and the options."""

    def __init__(self, location: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        where = os.fspath(location)
        scheme, found, _ = where.partition("://")
        if not where:
            raise InvalidOption("lake", where, "expected a folder, or a URL such as 's3://bucket/lake'")
        self.folder: Path | None = None
        if found and scheme != "file":
            self.uri = where.rstrip("/")
        else:
            self.folder = Path(where.removeprefix("file://")).absolute()
            self.uri = str(self.folder)
        self.options = {name: str(value) for name, value in (options or {}).items()}

    def __repr__(self) -> str:
        return f"<LakeStorage {self.uri}>"  # options hold secrets

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_remote"}

    def below(self, name: str) -> LakeStorage:
        """The storage of a folder in this one."""
        return LakeStorage(f"{self.uri}/{name}", self.options)

    @cached_property
    def _remote(self) -> Any:
        """The store as a file system of Arrow, with paths below the location."""
        fs = need("pyarrow.fs")
        scheme, _, place = self.uri.partition("://")
        if scheme in ("s3", "s3a"):
            # Arrow's own: Delta's holds the interpreter's lock while it waits for the network.
            return fs.SubTreeFileSystem(place, fs.S3FileSystem(**_s3_arguments(self.options)))
        return fs.PyFileSystem(need("deltalake.fs").DeltaStorageHandler(self.uri, self.options))

    # -- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def write(self, path: str) -> Iterator[Any]:
        """A new file for Arrow to write to; on disk when the block ends."""
        if self.folder is None:
            with self._remote.open_output_stream(path) as stream:
                yield stream
            return
        target = self.folder / path
        made = _make_folders(target.parent, self.folder)
        with need("pyarrow").OSFile(str(target), "wb") as stream:
            yield stream
        sync_file(target)
        for folder in [target.parent, *made]:
            sync_folder(folder)

    def sync(self, *paths: str) -> None:
        """Have files that Delta wrote on disk, with their names. Nothing to do in object storage."""
        if self.folder is not None:
            for path in paths:
                sync_file(self.folder / path)
            for folder in {(self.folder / path).parent for path in paths}:
                sync_folder(folder)

    def delete(self, path: str) -> None:
        """Remove a file; harmless if it does not exist."""
        try:
            if self.folder is None:
                self._remote.delete_file(path)
            else:
                (self.folder / path).unlink()
        except FileNotFoundError:
            pass

    # -- reading ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> Any:
        """A file, to read at random places. `FileNotFoundError` if it does not exist."""
        if self.folder is None:
            return self._remote.open_input_file(path)
        return need("pyarrow").OSFile(str(self.folder / path), "rb")

    def read(self, path: str) -> bytes:
        """A whole small file."""
        if self.folder is not None:
            return (self.folder / path).read_bytes()
        with self._remote.open_input_file(path) as stream:
            found: bytes = stream.read()
        return found

    def size(self, path: str) -> int | None:
        """The bytes of a file; None: there is none."""
        if self.folder is not None:
            try:
                return (self.folder / path).stat().st_size
            except FileNotFoundError:
                return None
        (found,) = self._remote.get_file_info([path])
        return None if found.size is None else int(found.size)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, sorted; none, if there is no such folder."""
        if self.folder is not None:
            top = self.folder / folder
            return sorted(one.name for one in top.iterdir() if one.is_dir()) if top.is_dir() else []
        fs = need("pyarrow.fs")
        found = self._remote.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)

    def files(self, folder: str = "", wanted: Callable[[str], bool] = bool) -> Iterator[StoredFile]:
        """All files below a folder whose paths are `wanted`."""
        if self.folder is not None:
            top = self.folder / folder
            for place, _, names in os.walk(top):
                for name in names:
                    path = Path(place, name)
                    if wanted(short := path.relative_to(self.folder).as_posix()):
                        try:
                            known = path.stat()
                        except FileNotFoundError:
                            continue
                        yield StoredFile(short, known.st_size, known.st_mtime)
            return
        fs = need("pyarrow.fs")
        for one in self._remote.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True)):
            if one.type == fs.FileType.File and wanted(one.path):
                yield StoredFile(one.path, one.size, one.mtime.timestamp())


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Arrow's names for the options of Delta. Missing ones come from the environment, as for Delta."""
    said = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    endpoint = said.get("endpoint_url") or said.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")
    found: dict[str, Any] = {
        "access_key": said.get("access_key_id"),
        "secret_key": said.get("secret_access_key"),
        "session_token": said.get("session_token"),
        "region": said.get("region") or said.get("default_region") or os.environ.get("AWS_REGION"),
        "anonymous": said.get("skip_signature", "").lower() == "true",
    }
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        found |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    return {name: value for name, value in found.items() if value}


def _make_folders(folder: Path, top: Path) -> list[Path]:
    """Create missing folders, down from `top`; the folders whose entries changed."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
    return [one.parent for one in missing if one.parent != top.parent] if missing else []


def sync_file(path: Path) -> None:
    """Have the bytes of a file on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
