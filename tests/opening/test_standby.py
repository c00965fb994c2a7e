"""The standby that takes over: under load, with kill -9, nothing acknowledged is lost, twice there or out of order."""

from pathlib import Path

import pytest

from runnel.client.address import ServerAddress
from runnel.core.errors import JournalDamaged
from runnel.journal.folder_lock import FolderLock, recorded_owner
from runnel.journal.options import JournalOptions
from runnel.opening.standby import StandbyOwner
from runnel.runtime.clock import SystemClock
from tests.nightly import nightly_beyond
from tests.opening.kill_workers import chaos, redelivered

NOWHERE = ServerAddress("", 0, "nowhere")


def an_heir(folder: Path) -> StandbyOwner:
    return StandbyOwner(folder, JournalOptions(segment_bytes=1 << 20), SystemClock(), auto_create=True)


@pytest.mark.parametrize("kills", nightly_beyond(1, [3, 5]))
async def test_workers_that_are_killed_lose_nothing_and_are_followed_at_once(tmp_path: Path, kills: int) -> None:
    crew = chaos(tmp_path / "data", tmp_path / "notes", kills=kills, pause=0.1)
    told = await crew.judged()
    told.check().raise_if_any()
    worked = crew.worked()
    assert redelivered(worked) == []
    assert any(one.what == "acked" for one in worked)
    assert len(crew.takeovers(told)) >= (kills + 1) // 2  # each was seen to come


async def test_it_takes_free_records_and_leaves_leased_ones(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, shares=True)
    lock.take()
    heir = an_heir(tmp_path)
    assert await heir.look(NOWHERE) == ServerAddress("", 0, str(tmp_path / "socket"))
    assert not heir.is_owner
    lock.release()
    await heir.look(NOWHERE)
    assert heir.is_owner
    assert (tmp_path / "socket").is_socket()
    assert recorded_owner(tmp_path).shares
    other = an_heir(tmp_path)
    await other.look(NOWHERE)
    assert not other.is_owner
    await heir.look(NOWHERE)  # it looks again after every lost connection
    await heir.leave()
    assert not heir.is_owner
    await other.look(NOWHERE)
    assert other.is_owner
    other.drop()
    other.drop()


async def test_a_folder_that_cannot_be_opened_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST").write_bytes(b"nonsense")
    heir = an_heir(tmp_path)
    for _ in range(2):
        with pytest.raises(JournalDamaged):
            await heir.look(NOWHERE)
        assert not heir.is_owner
    FolderLock(tmp_path).take()


async def test_a_folder_whose_listener_cannot_open_is_released(tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("precious")
    heir = an_heir(tmp_path)
    with pytest.raises(Exception, match="not a socket"):
        await heir.look(NOWHERE)
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()
