"""The storage port: one contract, kept by the system's folder and by the storages made for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.storage import File, OsFile, OsStorage, Storage
from runnel.testing import FaultyStorage, MemoryStorage


class TidyFolder(OsStorage):
    """The system's folder, closing after each test what the test left open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened: list[OsFile] = []

    def create(self, name: str) -> OsFile:
        self.opened.append(super().create(name))
        return self.opened[-1]

    def open(self, name: str, *, writable: bool = False) -> OsFile:
        self.opened.append(super().open(name, writable=writable))
        return self.opened[-1]


PLACES: dict[str, Callable[[Path], Storage]] = {
    "folder": TidyFolder,
    "memory": lambda folder: MemoryStorage(page=64),
    "around another": lambda folder: FaultyStorage(MemoryStorage()),
}


@pytest.fixture(params=PLACES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    storage = PLACES[request.param](tmp_path)
    yield storage
    for file in storage.opened if isinstance(storage, TidyFolder) else ():
        file.close()


@pytest.fixture
def file(storage: Storage) -> File:
    return storage.create("a")


def test_a_new_file_is_empty_and_has_its_name(storage: Storage) -> None:
    file = storage.create("a")
    assert (file.name, file.size(), file.read(0, 10)) == ("a", 0, b"")
    assert storage.names() == ["a"]


def test_pieces_are_written_one_behind_the_other(file: File) -> None:
    file.write(0, [b"one", bytearray(b"two"), b"", memoryview(b"three")])
    assert file.read(0, 100) == b"onetwothree"
    assert file.size() == 11


def test_writing_nothing_changes_nothing(file: File) -> None:
    file.write(5, [])
    file.write(5, [b"", b""])
    assert file.size() == 0


def test_a_write_goes_where_asked(file: File) -> None:
    file.write(0, [b"abcdef"])
    file.write(2, [b"XY"])
    assert file.read(0, 100) == b"abXYef"


def test_a_write_behind_the_end_leaves_zeros_in_between(file: File) -> None:
    file.write(3, [b"x"])
    assert file.read(0, 100) == b"\0\0\0x"


@pytest.mark.parametrize(
    ("offset", "size", "found"), [(0, 3, b"abc"), (2, 2, b"cd"), (4, 10, b"ef"), (6, 1, b""), (60, 1, b""), (0, 0, b"")]
)
def test_a_read_stops_at_the_end_of_the_file(file: File, offset: int, size: int, found: bytes) -> None:
    file.write(0, [b"abcdef"])
    assert file.read(offset, size) == found


def test_allocating_makes_a_file_longer_with_zeros_and_never_shorter(file: File) -> None:
    file.write(0, [b"abc"])
    file.allocate(6)
    assert file.read(0, 100) == b"abc\0\0\0"
    file.allocate(2)
    assert file.size() == 6


def test_truncating_cuts_and_what_was_cut_does_not_come_back(file: File) -> None:
    file.write(0, [b"abcdef"])
    file.truncate(2)
    assert file.read(0, 100) == b"ab"
    file.truncate(4)
    assert file.read(0, 100) == b"ab\0\0"


def test_what_was_written_is_there_when_it_is_opened_again(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    file.sync()
    storage.sync_names()
    file.close()
    assert storage.open("a").read(0, 100) == b"abc"


def test_a_file_opened_for_writing_can_be_written_and_keeps_what_it_has(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    again = storage.open("a", writable=True)
    again.write(3, [b"def"])
    assert file.read(0, 100) == b"abcdef"  # the same file


@pytest.mark.parametrize(
    "change", [lambda file: file.write(0, [b"x"]), lambda file: file.truncate(0), lambda file: file.allocate(9)]
)
def test_a_file_opened_for_reading_cannot_be_changed(
    storage: Storage, file: File, change: Callable[[File], None]
) -> None:
    file.write(0, [b"abc"])
    reading = storage.open("a")
    with pytest.raises(OSError):  # noqa: PT011 - EBADF or EINVAL, as the system likes
        change(reading)
    reading.sync()  # which changes nothing
    assert file.read(0, 100) == b"abc"


def test_creating_a_file_that_is_there_empties_it_for_all_who_have_it_open(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    again = storage.create("a")
    assert file.size() == again.size() == 0
    again.write(0, [b"x"])
    assert file.read(0, 100) == b"x"


@pytest.mark.parametrize(
    "ask",
    [
        lambda storage: storage.open("none"),
        lambda storage: storage.open("none", writable=True),
        lambda storage: storage.remove("none"),
        lambda storage: storage.rename("none", "a"),
    ],
)
def test_a_file_that_is_not_there_is_an_error(storage: Storage, file: File, ask: Callable[[Storage], object]) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        ask(storage)
    assert storage.names() == ["a"]


def test_names_are_sorted(storage: Storage) -> None:
    for name in ("b", "a.tmp", "a", "c"):
        storage.create(name)
    assert storage.names() == ["a", "a.tmp", "b", "c"]


def test_a_renamed_file_is_found_under_its_new_name_only(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    storage.rename("a", "b")
    assert storage.names() == ["b"]
    assert storage.open("b").read(0, 100) == b"abc"
    file.write(3, [b"d"])  # those who have it open go on
    assert storage.open("b").size() == 4


def test_a_rename_takes_the_place_of_another_file(storage: Storage, file: File) -> None:
    file.write(0, [b"new"])
    old = storage.create("b")
    old.write(0, [b"older"])
    storage.rename("a", "b")
    assert storage.names() == ["b"]
    assert storage.open("b").read(0, 100) == b"new"
    assert old.read(0, 100) == b"older"  # for those who have it open


def test_renaming_a_file_to_its_own_name_changes_nothing(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    storage.rename("a", "a")
    assert storage.open("a").read(0, 100) == b"abc"


def test_a_removed_file_is_gone_but_not_for_those_who_have_it_open(storage: Storage, file: File) -> None:
    file.write(0, [b"abc"])
    storage.remove("a")
    assert storage.names() == []
    assert file.read(0, 100) == b"abc"
    assert storage.create("a").size() == 0  # another file


@pytest.mark.parametrize("content", [b"", b"abc", bytes(range(256)) * 40])
def test_a_map_shows_the_whole_file_and_cannot_be_written(file: File, content: bytes) -> None:
    file.write(0, [content])
    view = file.map()
    assert view.readonly
    assert bytes(view) == content
    file.close()
    assert bytes(view) == content  # as long as the view is held


def test_closing_twice_is_harmless_and_a_closed_file_is_an_error(file: File) -> None:
    file.close()
    file.close()
    for ask in (lambda: file.read(0, 1), lambda: file.write(0, [b"x"]), file.size, file.sync, file.map):
        with pytest.raises(OSError, match="file descriptor"):
            ask()


@pytest.mark.parametrize("ask", [lambda file: file.read(-1, 1), lambda file: file.truncate(-1)])
def test_there_is_nothing_before_the_beginning(file: File, ask: Callable[[File], object]) -> None:
    file.write(0, [b"abc"])
    with pytest.raises(OSError, match="Invalid argument"):
        ask(file)
    assert file.read(0, 100) == b"abc"


def test_there_is_room_on_the_disk(storage: Storage) -> None:
    assert storage.free() > 0


NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(0, 200)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("write"), NAMES, SIZES, st.binary(max_size=100)),
        st.tuples(st.just("truncate"), NAMES, SIZES),
        st.tuples(st.just("allocate"), NAMES, SIZES),
        st.tuples(st.just("sync"), NAMES),
        st.tuples(st.just("sync_names")),
    ),
    max_size=15,
)


def take(storage: Storage, operation: str, *facts: object) -> str:
    """Carry out one step; what came of it."""
    try:
        if operation == "create":
            storage.create(str(facts[0])).close()
        elif operation in ("remove", "rename", "sync_names"):
            getattr(storage, operation)(*facts)
        else:
            file = storage.open(str(facts[0]), writable=True)
            getattr(file, operation)(*([facts[1], [facts[2]]] if operation == "write" else facts[1:]))
            file.close()
    except FileNotFoundError:
        return "not there"
    return "done"


@given(steps=STEPS)
def test_in_memory_all_is_as_it_is_in_a_folder(steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, memory = OsStorage(folder), MemoryStorage(page=64)
        for step in steps:
            assert take(memory, *step) == take(real, *step)
            assert memory.names() == real.names()
        for name in real.names():
            found = real.open(name)
            assert memory.open(name).read(0, 1000) == found.read(0, 1000)
            found.close()
