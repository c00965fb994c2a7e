"""The manifest: which files make up the journal. Swapped atomically; a file that it does not name does not count."""

from __future__ import annotations

import errno
from collections.abc import Iterable

import msgspec

from runnel.journal.format.atomic_file import decode_value, encode_value, read_whole, replace_file
from runnel.journal.format.segment import TEMPORARY, SegmentInfo
from runnel.journal.storage import Storage

VERSION = 1
MAGIC = b"runnel/m"
NAME = "MANIFEST"


class ManifestNotDurable(OSError):
    """A manifest was swapped, and it is not known whether the swap is durable."""


class Manifest(msgspec.Struct):
    """The journal's id, its segments in order (the last may be open), and its chain of checkpoints."""

    journal: str
    segments: list[SegmentInfo]
    checkpoints: list[int]  # numbers, the full one first; the last is that of the last segment, or of none yet
    next_number: int = 1
    fsync: str = "commit"
    chain_bytes: int = 0  # of the links after the full checkpoint
    full_bytes: int = 0
    placed: list[int] = []  # stages that the checkpoints have as committed, and whose records lie in their topics now

    @property
    def clean(self) -> bool:
        """Whether the journal was closed, not cut off."""
        return not self.segments or self.segments[-1].sealed

    def files(self) -> set[str]:
        """The names of the files that count."""
        from runnel.journal.format import checkpoint

        names = {NAME, *(checkpoint.name_of(number) for number in self.checkpoints)}
        for info in self.segments:
            names.add(info.name)
            if info.sealed:
                names.add(info.index_name)
        return names

    def unnamed(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are files of a journal, and not of this one: left behind by a crash."""
        named = self.files()
        return [name for name in names if name.endswith((TEMPORARY, ".seg", ".idx", ".ckpt")) and name not in named]


def encode(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    fields = msgspec.structs.asdict(manifest)
    if not manifest.placed:
        del fields["placed"]  # the value of older manifests
    return encode_value(MAGIC, VERSION, fields)


def write(storage: Storage, manifest: Manifest) -> bytes:
    """Swap the manifest; durable when this returns its bytes. The files that it names must be durable before."""
    data = encode(manifest)
    replace_file(storage, NAME, [data])
    try:
        storage.sync_names()
    except OSError as error:
        # Either manifest may be found now. Whatever the reason, the journal must not continue as if with the old one.
        raise ManifestNotDurable(errno.EIO, f"the manifest's name could not be synced: {error}") from error
    return data


def load(storage: Storage) -> Manifest | None:
    """The manifest; None where there is none."""
    try:
        data = read_whole(storage, NAME)
    except FileNotFoundError:
        return None
    return decode(data)


def decode(data: bytes) -> Manifest:
    """The manifest in the bytes of a file."""
    return decode_value(data, MAGIC, VERSION, Manifest, NAME, "this is not a manifest")
