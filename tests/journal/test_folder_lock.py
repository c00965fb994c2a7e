"""Who may use a folder: one owner at a time, in this process, in another, or across a fork."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnel.core.errors import FolderInUse, FolderUnusable
from runnel.journal import folder_lock
from runnel.journal.folder_lock import (
    FolderClaim,
    FolderLock,
    FolderOwner,
    ReadersLease,
    file_system,
    is_claimed,
    recorded_owner,
)
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def _impatient() -> Iterator[None]:
    """Waiting for a lock has no end of its own."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("a lock was waited for, for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[FolderLock]:
    lock = FolderLock(tmp_path / "data")
    lock.take()
    yield lock
    lock.release()


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE)


TAKE = """
import sys
from pathlib import Path
from runnel.journal.folder_lock import FolderLock, FolderInUse
try:
    FolderLock(Path(sys.argv[1])).take()
except FolderInUse as error:
    print("in use by", error.pid)
else:
    print("taken")
"""


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "a" / "b")
    lock.take()
    assert (tmp_path / "a" / "b" / "LOCK").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_second_owner_in_this_process_is_refused_with_the_pid(owner: FolderLock) -> None:
    with pytest.raises(FolderInUse) as raised:
        FolderLock(owner.folder).take()
    assert (raised.value.pid, raised.value.folder) == (os.getpid(), str(owner.folder))


def test_a_second_owner_in_another_process_is_refused_with_the_pid(owner: FolderLock) -> None:
    assert python(TAKE, str(owner.folder)).stdout == f"in use by {os.getpid()}\n"


def test_a_refusal_takes_nothing_from_the_owner(owner: FolderLock) -> None:
    for _ in range(3):
        with pytest.raises(FolderInUse):
            FolderLock(owner.folder).take()
    assert (owner.folder / "LOCK").read_text() == f"{os.getpid()}\n"


def test_a_released_folder_can_be_taken(owner: FolderLock) -> None:
    owner.release()
    owner.release()
    assert python(TAKE, str(owner.folder)).stdout == "taken\n"
    owner.take()
    assert (owner.folder / "LOCK").read_text() == f"{os.getpid()}\n"


def test_the_folder_of_a_dead_process_can_be_taken(tmp_path: Path) -> None:
    assert python(TAKE, str(tmp_path)).stdout == "taken\n"
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()


def test_nothing_is_left_of_the_pid_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("123456789012345\n")
    lock = FolderLock(tmp_path)
    lock.take()
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_an_owner_that_does_not_identify_itself_is_reported_as_unknown(owner: FolderLock) -> None:
    (owner.folder / "LOCK").write_text("")
    with pytest.raises(FolderInUse) as raised:
        FolderLock(owner.folder).take()
    assert raised.value.pid is None


FORK = """
import os, sys
from pathlib import Path
from runnel.journal.folder_lock import FolderLock, FolderInUse
lock = FolderLock(Path(sys.argv[1]))
lock.take()
child = os.fork()
if child == 0:
    if sys.argv[2] == "release":
        lock.release()
    os._exit(0)
os.waitpid(child, 0)
try:
    FolderLock(Path(sys.argv[1])).take()
except FolderInUse as error:
    print("still owned by the parent:", error.pid == os.getpid())
"""


@pytest.mark.parametrize("how", ["exit", "release"])
def test_a_child_of_a_fork_that_ends_does_not_release_the_folder(tmp_path: Path, how: str) -> None:
    done = python(FORK, str(tmp_path), how)
    assert done.stdout == "still owned by the parent: True\n", done.stderr


def test_a_folder_where_a_file_is_cannot_hold_a_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable) as raised:
        FolderLock(tmp_path / "file").take()
    assert raised.value.why == "it is a file, not a folder"


def test_a_reader_keeps_files_from_being_removed_while_it_looks(owner: FolderLock) -> None:
    assert not owner.has_readers()
    first, second = ReadersLease(owner.folder), ReadersLease(owner.folder)
    assert owner.has_readers()
    first.release()
    first.release()
    assert owner.has_readers()
    second.release()
    assert not owner.has_readers()


LEASE = """
import sys
from pathlib import Path
from runnel.journal.folder_lock import ReadersLease
lease = ReadersLease(Path(sys.argv[1]))
print("looking", flush=True)
sys.stdin.readline()
"""


def test_a_reader_in_another_process_counts_until_it_ends(owner: FolderLock) -> None:
    command = [sys.executable, "-c", LEASE, str(owner.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "looking\n"
        assert owner.has_readers()
        reader.stdin.close()
        assert reader.wait(PATIENCE) == 0
    assert not owner.has_readers()


def test_a_reader_does_not_prevent_owning_the_folder(owner: FolderLock) -> None:
    lease = ReadersLease(owner.folder)
    owner.release()
    assert python(TAKE, str(owner.folder)).stdout == "taken\n"
    lease.release()


def test_a_copy_that_never_had_an_owner_needs_no_lease(tmp_path: Path) -> None:
    ReadersLease(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the mounts are read from /proc")
def test_linux_says_what_file_system_a_folder_lies_on(tmp_path: Path) -> None:
    assert file_system(tmp_path)
    assert file_system(Path("/proc")) == "proc"


def test_other_systems_do_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert file_system(tmp_path) == ""


@pytest.mark.parametrize(("kind", "warned"), [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("ext4", False)])
def test_a_network_file_system_is_warned_about(
    kind: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_lock, "file_system", lambda _: kind)
    lock = FolderLock(tmp_path)
    with caplog.at_level(logging.WARNING, "runnel"):
        lock.take()
    lock.release()
    assert [f"({kind})" in record.getMessage() for record in caplog.records] == [True] * warned


def test_an_owner_that_shares_says_so(tmp_path: Path) -> None:
    assert recorded_owner(tmp_path) == FolderOwner(None)
    for shares in (True, False):
        lock = FolderLock(tmp_path, shares=shares)
        lock.take()
        lock.take()  # it has it
        assert recorded_owner(tmp_path) == FolderOwner(os.getpid(), shares)
        with pytest.raises(FolderInUse) as raised:
            FolderLock(tmp_path, tries=0).take()
        assert raised.value.pid == os.getpid()
        lock.release()
    (tmp_path / "LOCK").write_text("nonsense")
    assert recorded_owner(tmp_path) == FolderOwner(None)


def test_one_that_tries_once_does_not_wait(owner: FolderLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(FolderInUse):
        FolderLock(owner.folder, tries=0).take()


def test_a_refusal_names_the_command_of_the_owner(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from runnel.journal.folder_lock import FolderLock; "
    code += "FolderLock(Path(sys.argv[1])).take(); print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(FolderInUse) as raised:
            FolderLock(tmp_path).take()
        other.kill()
    assert (raised.value.pid, raised.value.shares) == (other.pid, False)
    if sys.platform == "linux":
        assert raised.value.command is not None
        assert raised.value.command.startswith(sys.executable)
    (tmp_path / "LOCK").write_text("1\n")  # a pid of another container: that process has the file not open
    with (tmp_path / "LOCK").open() as lock:
        assert folder_lock.command_of_owner(lock.fileno()) is None


def test_a_claim_is_one_process_s_and_ends_with_it(tmp_path: Path) -> None:
    first, second = FolderClaim(tmp_path), FolderClaim(tmp_path)
    assert not is_claimed(tmp_path)
    first.hold()
    second.hold()
    assert is_claimed(tmp_path)
    second.release()  # it did not get it
    assert is_claimed(tmp_path)
    first.release()
    first.release()
    assert not is_claimed(tmp_path)
    (tmp_path / "CLAIM").touch()  # of a process that was killed
    assert not is_claimed(tmp_path)
    second.hold()
    assert is_claimed(tmp_path)
    second.release()
    FolderClaim(tmp_path / "missing").hold()
