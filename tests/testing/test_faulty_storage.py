"""The storage whose calls fail: each in turn, once or for good, and with nothing done that was not to be done."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.storage import OsStorage
from runnel.testing import FaultyStorage, MemoryStorage, PowerLost, power_loss
from runnel.testing.faulty_storage import CHANGING, READING


def work(storage: FaultyStorage) -> None:
    """A little of everything: nine calls that change something, and four that read."""
    file = storage.create("a.tmp")
    file.allocate(8)
    file.write(0, [b"abc", b"def"])
    file.truncate(6)
    file.sync()
    storage.rename("a.tmp", "a")
    storage.create("b")
    storage.remove("b")
    storage.sync_names()
    storage.open("a").read(0, 6)
    file.size()
    file.map().release()
    file.close()


CALLS, READS = 9, 4


def content(storage: MemoryStorage, name: str) -> bytes:
    return storage.open(name).read(0, 1 << 20)


def test_without_a_fault_it_is_the_storage_it_wraps() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner)
    work(storage)
    assert (storage.calls, storage.failed) == (inner.calls, 0)
    assert storage.trace == inner.trace
    assert storage.names() == inner.names() == ["a"]
    assert storage.free() == inner.free()
    assert content(inner, "a") == b"abcdef"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_any_call_can_fail_and_then_nothing_of_it_was_done(call: int, error: int) -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, fail_at=call, error=error)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at below
        work(storage)
    assert caught.value.errno == error
    assert caught.value.filename == storage.trace[-1][1]
    assert (storage.calls, storage.failed) == (call, 1)
    assert inner.trace == storage.trace[:-1]


@pytest.mark.parametrize("call", range(1, READS + 1))
def test_reading_fails_only_when_it_is_asked_to(call: int) -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=call, kinds=READING)
    with pytest.raises(OSError, match="Input/output error"):
        work(storage)
    assert [operation for operation, _ in storage.trace] == ["open", "read", "size", "map"][:call]


def test_names_can_fail_to_be_listed() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        FaultyStorage(MemoryStorage(), fail_at=1, kinds={"names"}).names()


def test_only_the_chosen_calls_are_counted() -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=2, kinds={"create"})
    with pytest.raises(OSError, match="Input/output error") as caught:
        work(storage)
    assert caught.value.filename == "b"
    assert storage.trace == [("create", "a.tmp"), ("create", "b")]


def test_a_call_that_there_is_not_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match=r"no calls \['fsync'\]"):
        FaultyStorage(MemoryStorage(), kinds={"fsync"})
    assert len({*CHANGING, *READING}) == 13


def test_after_one_failure_all_is_well_again() -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=2)
    file = storage.create("a")
    with pytest.raises(OSError, match="Input/output error"):
        file.write(0, [b"abc"])
    file.write(0, [b"abc"])
    assert file.read(0, 10) == b"abc"


def test_a_lasting_failure_lasts_until_it_is_lifted() -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=2, lasting=True, error=errno.ENOSPC, kinds={"write", "allocate"})
    file = storage.create("a")
    file.write(0, [b"abc"])
    ask: Callable[[], None]
    for ask in (lambda: file.write(3, [b"d"]), lambda: file.allocate(9), lambda: file.write(0, [b"A"])):
        with pytest.raises(OSError, match="No space left"):
            ask()
    assert (storage.failed, file.read(0, 10)) == (3, b"abc")
    storage.fail_at = None
    file.write(3, [b"d"])
    assert file.read(0, 10) == b"abcd"


@pytest.mark.parametrize(
    ("short", "written"), [(0, b""), (1, b"a"), (4, b"abcd"), (0.5, b"abc"), (0.99, b"abcde"), (1.0, b"abcdef")]
)
def test_a_failing_write_may_have_written_a_part(short: float, written: bytes) -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=1, kinds={"write"}, short=short)
    file = storage.create("a")
    with pytest.raises(OSError, match="Input/output error"):
        file.write(3, [b"abc", b"def"])
    assert file.read(3, 10) == written
    assert file.size() == (3 + len(written) if written else 0)


def test_a_failed_sync_is_not_made_good_by_the_next_one() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, fail_at=2, kinds={"sync"})
    file = storage.create("a")
    storage.sync_names()
    file.write(0, [b"one"])
    file.sync()
    file.write(3, [b"two"])
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()  # says that all is well
    assert file.read(0, 10) == b"onetwo"
    assert content(inner.after_power_loss(power_loss.keep_everything), "a") == b"one"


def test_a_failed_sync_may_have_written_some_of_it() -> None:
    inner = MemoryStorage(page=4)
    storage = FaultyStorage(inner, fail_at=2, kinds={"sync"})
    file = storage.create("a")
    storage.sync_names()
    file.write(0, [b"aaaabbbb"])
    file.sync()
    file.write(0, [b"cccc"])
    storage.fate = power_loss.keep_after(inner.calls)
    file.write(4, [b"dddd"])
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    assert content(inner.after_power_loss(power_loss.keep_everything), "a") == b"aaaadddd"


def test_a_failed_sync_of_names_is_not_made_good_by_the_next_one() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, fail_at=1, kinds={"sync_names"})
    storage.create("a")
    with pytest.raises(OSError, match="Input/output error"):
        storage.sync_names()
    storage.create("b")
    storage.sync_names()
    assert storage.names() == ["a", "b"]
    assert inner.after_power_loss(power_loss.keep_everything).names() == ["b"]


def test_it_wraps_a_folder_of_the_system_as_well(tmp_path: Path) -> None:
    storage = FaultyStorage(OsStorage(tmp_path), fail_at=5, short=2)
    file = storage.create("a")
    file.write(0, [b"abc"])
    file.sync()
    storage.sync_names()
    with pytest.raises(OSError, match="Input/output error"):
        file.write(0, [b"ABC"])
    file.close()
    assert (tmp_path / "a").read_bytes() == b"ABc"
    again = FaultyStorage(OsStorage(tmp_path), fail_at=1)
    with pytest.raises(OSError, match="Input/output error"):
        again.sync_names()
    again.fail_at = 2
    file = again.open("a", writable=True)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.close()


def test_the_power_may_go_as_well() -> None:
    storage = FaultyStorage(MemoryStorage(crash_at=3), fail_at=4)
    with pytest.raises(PowerLost):
        work(storage)


@given(random=st.randoms(use_true_random=False), fail_at=st.integers(1, 6), size=st.integers(1, 20))
def test_what_a_sync_without_failure_saved_before_survives_any_failure_after(
    random: Random, fail_at: int, size: int
) -> None:
    inner = MemoryStorage(page=8, sector=4)
    storage = FaultyStorage(
        inner, fail_at=fail_at, kinds={"sync"}, fate=lambda kind, calls: random.randrange(len(calls))
    )
    file = storage.create("a")
    storage.sync_names()
    saved = b""
    for number in range(1, 7):
        file.write((number - 1) * size, [bytes([number]) * size])
        try:
            file.sync()
        except OSError:
            break
        saved += bytes([number]) * size
    assert storage.failed == 1
    assert content(inner.after_power_loss(random), "a")[: len(saved)] == saved


def test_they_say_what_they_are() -> None:
    storage = FaultyStorage(MemoryStorage(), fail_at=2)
    file = storage.create("a")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    assert repr(storage) == "<FaultyStorage around <MemoryStorage of 1 files after 1 calls>, 1 of 2 calls failed>"
    assert repr(file) == "<FaultyFile around <MemoryFile 'a', 0 bytes>>"
