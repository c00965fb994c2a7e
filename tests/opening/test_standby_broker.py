"""The broker of a process that joined: like the owner's, also for questions that cannot wait, also once it owns."""

import asyncio
from pathlib import Path

import runnel
from runnel.journal.folder_lock import recorded_owner
from runnel.opening.standby import JoinedBackend
from tests.server.native_client import until


async def test_questions_that_cannot_wait_are_answered_on_the_owners_own_loop(tmp_path: Path) -> None:
    owner = await runnel.open(tmp_path).__aenter__()
    async with runnel.open(tmp_path) as joined:
        for is_owner in (False, True):
            assert isinstance(joined.backend, JoinedBackend)
            assert joined.backend._standby.is_owner is is_owner
            await joined.publish("t", b"x")
            async with joined.subscribe("t", group="g") as member:
                async with await anext(aiter(member)):
                    pass
                group = joined.group("g", "t")
                group.pause()
                assert group.statistics().paused
                group.resume()
                assert joined.statistics().topics["t"].end == 1 + is_owner
                elsewhere = await asyncio.to_thread(joined.statistics)
                assert elsewhere.topics["t"].end == 1 + is_owner
            if not is_owner:
                await owner.__aexit__(None, None, None)
                await until(lambda: joined.backend._standby.is_owner and joined.connection.state == "connected")


async def test_one_that_took_over_lets_the_folder_go_when_it_closes(tmp_path: Path) -> None:
    for how in ("block", "close"):
        owner = await runnel.open(tmp_path).__aenter__()
        joined = runnel.open(tmp_path)
        async with joined:
            owner.close()
            await joined.publish("t", b"x")
            assert "owner by succession" in repr(joined)
            if how == "close":
                joined.close()
                joined.close()
        async with runnel.open(tmp_path, share=False):
            assert not recorded_owner(tmp_path).shares


async def test_one_that_only_joined_leaves_the_owner_as_it_was(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as owner:
        async with runnel.open(tmp_path) as joined:
            assert "joined, connected" in repr(joined)
        await owner.publish("t", b"x")
        assert (tmp_path / "socket").is_socket()
