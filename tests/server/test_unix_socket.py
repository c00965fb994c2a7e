"""Socket files: bound, guarded, taken away again."""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runnel.core.errors import AddressInUse, InvalidOption
from runnel.server.unix_socket import MAX_PATH, UnixSocket, socket_address


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def listening(path: Path) -> Iterator[UnixSocket]:
    made = UnixSocket(path, 5)
    yield made
    made.close()


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, socket_address(path) as address:
        return client.connect_ex(address) == 0


def test_only_its_owner_may_connect(listening: UnixSocket) -> None:
    assert stat.S_IMODE(listening.path.stat().st_mode) == 0o600
    assert connects(listening.path)


def test_the_file_goes_with_the_socket(path: Path) -> None:
    UnixSocket(path, 5).close()
    assert not path.exists()


def test_what_a_dead_server_left_is_replaced(path: Path) -> None:
    dead = UnixSocket(path, 5)
    dead.socket.close()  # killed: the file stays
    assert path.exists()
    assert not connects(path)
    heir = UnixSocket(path, 5)
    assert connects(path)
    heir.close()


def test_a_socket_in_use_is_left_alone(listening: UnixSocket) -> None:
    with pytest.raises(AddressInUse) as refused:
        UnixSocket(listening.path, 5)
    assert refused.value.address == str(listening.path)
    assert connects(listening.path)


def test_a_file_that_is_no_socket_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(InvalidOption, match="not a socket"):
        UnixSocket(path, 5)
    assert path.read_text() == "precious"


def test_closing_leaves_the_file_of_a_successor_alone(path: Path) -> None:
    old = UnixSocket(path, 5)
    path.unlink()
    heir = UnixSocket(path, 5)
    old.close()
    assert connects(path)
    heir.close()


@pytest.mark.parametrize("extra", [0, 1, 200])
def test_a_path_of_any_length_can_be_bound_and_reached(tmp_path: Path, extra: int) -> None:
    folder = tmp_path
    while len(str(folder)) < MAX_PATH - 60 + extra:
        folder = folder / ("d" * 50)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("s" * max(1, MAX_PATH + extra - len(str(folder)) - 1))
    path = path if len(path.name) <= 60 else folder / "s"
    made = UnixSocket(path, 5)
    assert connects(path)
    assert path.is_socket()
    made.close()
    assert not path.exists()


def test_a_name_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="at most"):
        UnixSocket(tmp_path / ("s" * 120), 5)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="No such file"):
        UnixSocket(tmp_path / "nowhere" / "s", 5)
    with pytest.raises(InvalidOption, match="No such file"):
        UnixSocket(tmp_path / ("d" * 150) / "s", 5)


def test_one_who_knows_that_a_socket_is_of_no_use_replaces_it(listening: UnixSocket, path: Path) -> None:
    made = UnixSocket(path, 5, replace=True)
    listening.close()
    assert connects(path), "closing the old one leaves the new one's file"
    made.close()
    path.write_text("precious")
    with pytest.raises(InvalidOption, match="not a socket"):
        UnixSocket(path, 5, replace=True)


def test_of_many_that_start_at_once_one_has_the_path_and_is_reached(path: Path) -> None:
    for _ in range(20):  # each time there is one that has died
        dead = UnixSocket(path, 5)
        dead.socket.close()
        with ThreadPoolExecutor(8) as threads:
            started = [one for one in threads.map(lambda _: start(path), range(8)) if one is not None]
        assert len(started) == 1
        assert connects(path)
        started[0].close()
        assert list(path.parent.iterdir()) == []


def start(path: Path) -> UnixSocket | None:
    try:
        return UnixSocket(path, 100)  # those who look whether it lives wait in the backlog, too
    except AddressInUse:
        return None


def test_a_folder_that_is_locked_for_another_reason_is_used_all_the_same(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    made = UnixSocket(path, 5)
    assert connects(path)
    made.close()
    os.close(folder)
