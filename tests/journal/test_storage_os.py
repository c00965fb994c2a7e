"""The system's files: what only they can do wrong."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from runnel.journal.storage import MAX_PIECES, OsStorage

Pieces = Sequence[bytes | memoryview]


def write_parts(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> list[int]:
    """Let pwritev write no more than these sizes, one for each call, and everything after that. What it wrote."""
    wrote: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, pieces: Pieces, offset: int) -> int:
        data = b"".join(pieces)
        if len(wrote) < len(sizes):
            data = data[: sizes[len(wrote)]]
        wrote.append(real(fd, [data], offset) if data else 0)
        return wrote[-1]

    monkeypatch.setattr(os, "pwritev", pwritev)
    return wrote


@pytest.mark.parametrize("count", [MAX_PIECES - 1, MAX_PIECES, MAX_PIECES + 1, 3 * MAX_PIECES + 7])
def test_any_number_of_pieces_is_written(tmp_path: Path, count: int) -> None:
    pieces = [b"%d," % number for number in range(count)]
    file = OsStorage(tmp_path).create("a")
    file.write(2, pieces)
    assert file.read(0, 1 << 20) == b"\0\0" + b"".join(pieces)
    file.close()


@pytest.mark.parametrize("first", range(1, 12))
@pytest.mark.parametrize("second", [1, 4, 100])
def test_what_the_system_left_out_of_a_write_is_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int
) -> None:
    file = OsStorage(tmp_path).create("a")
    wrote = write_parts(monkeypatch, [first, second])
    file.write(1, [b"one", b"", memoryview(b"two"), b"", bytearray(b"three"), b""])
    assert file.read(0, 100) == b"\0onetwothree"
    assert sum(wrote) == 11
    file.close()


def test_parts_of_writes_add_up_over_more_pieces_than_the_system_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"%04d" % number for number in range(2 * MAX_PIECES)]
    file = OsStorage(tmp_path).create("a")
    write_parts(monkeypatch, [4 * MAX_PIECES - 1, 3, 2, 4 * MAX_PIECES])
    file.write(0, pieces)
    assert file.read(0, 1 << 20) == b"".join(pieces)
    file.close()


def test_a_write_that_makes_no_progress_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsStorage(tmp_path).create("a")
    write_parts(monkeypatch, [2, 0])
    with pytest.raises(OSError, match="nothing more could be written") as caught:
        file.write(0, [b"abc"])
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "a")
    assert file.read(0, 100) == b"ab"
    file.close()


def test_a_read_that_the_system_cuts_short_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsStorage(tmp_path).create("a")
    file.write(0, [b"abcdefgh"])
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 3), offset))
    assert [file.read(0, 8), file.read(1, 5), file.read(2, 100)] == [b"abcdefgh", b"bcdef", b"cdefgh"]
    file.close()


def test_closing_twice_closes_no_file_that_came_after(tmp_path: Path) -> None:
    storage = OsStorage(tmp_path)
    first = storage.create("a")
    first.close()
    second = storage.create("b")  # which the system gives the same number
    first.close()
    second.write(0, [b"x"])
    assert second.size() == 1
    second.close()


def test_allocating_reserves_the_space(tmp_path: Path) -> None:
    file = OsStorage(tmp_path).create("a")
    file.allocate(1 << 20)
    assert os.stat(tmp_path / "a").st_blocks * 512 >= 1 << 20
    file.close()


def test_folders_and_links_are_no_files(tmp_path: Path) -> None:
    storage = OsStorage(tmp_path)
    storage.create("a").close()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert storage.names() == ["a"]


def test_others_may_not_read_what_is_stored(tmp_path: Path) -> None:
    OsStorage(tmp_path).create("a").close()
    assert not stat.S_IMODE(os.stat(tmp_path / "a").st_mode) & 0o007


def test_syncs_reach_the_file_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda fd: synced.append(os.fstat(fd).st_ino))
    storage = OsStorage(tmp_path)
    file = storage.create("a")
    file.sync()
    storage.sync_names()
    assert synced == [os.stat(tmp_path / "a").st_ino, os.stat(tmp_path).st_ino]
    file.close()


def test_they_say_what_they_are(tmp_path: Path) -> None:
    storage = OsStorage(tmp_path)
    file = storage.create("a")
    assert repr(storage) == f"<OsStorage {str(tmp_path)!r}>"
    assert repr(file) == "<OsFile 'a'>"
    file.close()
    assert repr(file) == "<OsFile 'a', closed>"
