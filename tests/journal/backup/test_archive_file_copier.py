"""Copying files: whole or not at all, and never into a file that somebody else has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runnel.journal.backup.archive import COPY_BYTES, FileCopier


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    file = tmp_path / "a" / "file"
    file.write_bytes(os.urandom(COPY_BYTES + 5))
    return file


def test_a_file_is_linked_where_it_can_be(source: Path, tmp_path: Path) -> None:
    carrier = FileCopier()
    carrier.carry(source, tmp_path / "b" / "file")
    carrier.carry(source, tmp_path / "b" / "file")  # once more, over itself
    carrier.settle()
    assert source.samefile(tmp_path / "b" / "file")
    assert os.listdir(tmp_path / "b") == ["file"]
    assert (carrier.linked, carrier.copied, carrier.copied_bytes) == (2, 0, 0)
    assert repr(carrier) == "<FileCopier, 2 files linked, 0 copied>"


@pytest.mark.parametrize("why", ["said", "asked", "refused"])
def test_otherwise_it_is_copied(source: Path, tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if why == "refused":
        monkeypatch.setattr(os, "link", refuse)
    told: list[int] = []
    carrier = FileCopier(link=why != "said", carried=told.append)
    target = tmp_path / "b" / "file"
    target.write_bytes(b"something older")
    carrier.carry(source, target, COPY_BYTES + 1, link=why != "asked")
    assert target.read_bytes() == source.read_bytes()[: COPY_BYTES + 1]
    assert (carrier.linked, carrier.copied, carrier.copied_bytes, carrier.bytes) == (
        0,
        1,
        COPY_BYTES + 1,
        COPY_BYTES + 1,
    )
    assert told == [COPY_BYTES, 1]


def test_a_file_grows_by_what_is_new(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b" / "file"
    carrier = FileCopier()
    carrier.carry(source, target, 10, link=False)
    with target.open("ab") as left:
        left.write(b"left by a run that was cut off")
    carrier.extend(source, target, 10, COPY_BYTES)
    assert target.read_bytes()[:COPY_BYTES] == source.read_bytes()[:COPY_BYTES]
    assert carrier.copied_bytes == COPY_BYTES


def test_a_file_that_is_shared_is_replaced_not_written_to(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b" / "file"
    os.link(source, target)
    FileCopier().extend(source, target, 10, 20)
    assert target.stat().st_nlink == source.stat().st_nlink == 1
    assert target.read_bytes() == source.read_bytes()[:20]


def test_a_file_that_is_not_there_is_not_made(source: Path, tmp_path: Path) -> None:
    for link in (True, False):
        with pytest.raises(FileNotFoundError):
            FileCopier(link=link).carry(source.with_name("nosuch"), tmp_path / "b" / "file", 5)
    assert os.listdir(tmp_path / "b") == []


@pytest.mark.parametrize("link", [True, False])
def test_what_does_not_pass_its_check_does_not_come_in_the_place_of_what_is_there(
    source: Path, tmp_path: Path, link: bool
) -> None:
    target = tmp_path / "b" / "file"
    target.write_bytes(b"good")

    def check(came: Path) -> None:
        assert came.read_bytes()[:5] == source.read_bytes()[:5]
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        FileCopier(link=link).carry(source, target, 5, check=check)
    assert target.read_bytes() == b"good"
    assert os.listdir(tmp_path / "b") == ["file"]


def test_of_a_shared_file_what_is_there_already_is_kept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b" / "file"
    target.write_bytes(b"0123456789")
    os.link(target, tmp_path / "b" / "shared")
    carrier = FileCopier()
    carrier.extend(source, target, 10, 20)
    assert target.read_bytes() == b"0123456789" + source.read_bytes()[10:20]
    assert (tmp_path / "b" / "shared").read_bytes() == b"0123456789"
    assert carrier.bytes == 10
