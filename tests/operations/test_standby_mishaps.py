"""Who is the primary after mishaps, and what a standby does about files that are not as they should be."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.cli.doctor import server_findings
from runnel.cli.main import main
from runnel.cli.standby_process import without_token
from runnel.core.checksum import crc_of
from runnel.core.errors import NotSupported, PromotionRefused, StandbyRefused
from runnel.core.replication import FollowRequest, Generation, JournalPlace
from runnel.journal.backup import promotion
from runnel.journal.check.verify import verify
from runnel.journal.format import lineage, manifest
from runnel.journal.storage import OsFile, OsStorage
from runnel.journal.write.journal import PublishedManifest
from runnel.standby import announcing
from runnel.standby.announcing import newer_generation, stop_old_primary
from tests.operations.standby_pair import Primary, Standby, check_same_files, until
from tests.patience import PATIENCE


async def values(broker: runnel.Broker, count: int) -> list[bytes]:
    async with broker.subscribe("orders", start="earliest") as records:
        return [(await anext(records)).value for _ in range(count)]


def stored(folder: Path) -> lineage.Lineage:
    found = lineage.load(OsStorage(folder))
    assert found is not None
    return found


def segments(folder: Path) -> set[str]:
    return {one.name for one in folder.glob("*.seg")}


# -- which of the two is the primary ----------------------------------------------------------------------------


async def test_a_promoted_folder_is_not_given_up_for_an_old_primary(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await primary.broker.publish("orders", b"both")
        await standby.caught_up(primary)
        async with await standby.promote(primary_is_down=True) as promoted:
            await promoted.broker.publish("orders", b"only the new one")
        again = await Standby(tmp_path / "b", primary.url, rejoin=True).__aenter__()  # as its unit says
        await until(again.replication.failed.done)
        assert isinstance(again.replication.failed.result(), StandbyRefused)
        await again.leave()
    async with runnel.open(tmp_path / "b", share=False) as broker:
        assert await values(broker, 2) == [b"both", b"only the new one"]


async def test_a_folder_that_rejoins_is_what_it_was_until_the_primary_answers(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "a", share=False) as broker:
        await broker.publish("orders", b"1")
    async with Standby(tmp_path / "a", "runnel://127.0.0.1:1", rejoin=True) as standby:
        await until(lambda: standby.follower._primary.link.connection.attempts)
    async with runnel.open(tmp_path / "a", share=False) as broker:
        assert await values(broker, 1) == [b"1"]


async def test_two_servers_find_out_which_of_them_was_promoted_last(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await standby.caught_up(primary)
        async with await standby.promote(primary_is_down=True) as promoted:
            old, new = (stored(tmp_path / name) for name in "ab")
            newer = await newer_generation(old, promoted.url)
            assert newer is not None
            assert newer.number == 1
            assert primary.figures.role == "primary"
            assert await newer_generation(new, primary.url) is None
            assert primary.figures.role == "superseded"  # it was shown the newer one by that
            assert await newer_generation(new, "runnel://127.0.0.1:1") is None


async def test_an_old_primary_is_notified_until_it_is_a_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "PAUSE", 0.01)
    monkeypatch.setattr(announcing, "LONGEST", 0.01)
    async with Primary(tmp_path / "a") as primary:
        port = primary.port
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await standby.caught_up(primary)
        write, failures = lineage.write, 2

        def failing(storage: Any, found: lineage.Lineage) -> None:
            nonlocal failures
            if found.superseded and failures:
                failures -= 1
                raise OSError(errno.ENOSPC, "no space left on device")
            write(storage, found)

        monkeypatch.setattr(lineage, "write", failing)
        async with await standby.promote(primary_is_down=True) as promoted:
            telling = asyncio.ensure_future(stop_old_primary(promoted.replication))
            await until(lambda: stored(tmp_path / "a").superseded == 1)
            assert failures == 0
            assert not telling.done()
            await primary.__aexit__()
            async with Standby(tmp_path / "a", promoted.url, rejoin=True) as rejoined:
                await rejoined.caught_up(promoted)
                await rejoined.server.close(0.0)
                rejoined.server = runnel.server.Server(
                    rejoined.broker, runnel.server.ServerOptions(port=port, json_port=None)
                )
                await rejoined.server.__aenter__()
                await telling
            assert promoted.replication.old_primary is None


async def test_the_command_of_a_standby_that_was_promoted_serves_after_a_restart(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        url = primary.url
        standby = await Standby(tmp_path / "b", url).__aenter__()
        await primary.broker.publish("orders", b"1")
        await standby.caught_up(primary)
    await standby.replication.promote(primary_is_down=True)
    await standby.leave()
    config = tmp_path / "runnel.toml"
    config.write_text('[serve]\nlog_level = "error"\n')
    said = ["--from", url, "--data", str(tmp_path / "b"), "--port", "0", "--json-port", "off", "--http-port", "off"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runnel", "standby", *said, "--config", str(config), "--json"),
        stdout=PIPE,
        stderr=PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("RUNNEL")},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            ready = json.loads(await process.stdout.readline())
            assert ready["event"] == "ready"
            async with runnel.open(f"runnel://127.0.0.1:{ready['listeners'][0]['port']}") as client:
                assert await values(client, 1) == [b"1"]
                config.write_text('[serve]\nlog_level = "warning"\ndeadline = "7s"\n')
                process.send_signal(signal.SIGHUP)
                while b"these changed" not in (line := await process.stderr.readline()):  # it reads its file again
                    assert line
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_the_address_of_the_primary_is_kept_without_its_token() -> None:
    assert without_token("runnels://a?ca=/x.pem&token_file=env%3AT&server_hostname=a") == (
        "runnels://a?ca=/x.pem&server_hostname=a"
    )
    assert without_token("runnel://a?token_file=t") == "runnel://a"
    assert lineage.Lineage(id="x", primary="runnels://a?ca=/x.pem").shown_primary == "runnels://a"


# -- what counts as confirmed -----------------------------------------------------------------------------------


async def test_a_place_in_another_segment_confirms_nothing(tmp_path: Path) -> None:
    """A primary whose disk was set back to a snapshot has other segments of the same numbers."""
    async with Primary(tmp_path / "a") as primary:
        await primary.broker.publish("orders", b"1")
        end = primary.replication._end()
        assert primary.replication._confirmed(end) == (end.number, end.position)
        assert primary.replication._confirmed(JournalPlace(end.number, end.id ^ 1, 1 << 30)) == (0, 0)
        assert primary.replication._confirmed(JournalPlace(end.number + 1, end.id, 1 << 30)) == (0, 0)
        assert primary.replication._confirmed(None) == (0, 0)


async def test_a_standby_is_relied_on_only_once_that_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = lineage.write, True

    def failing(storage: Any, found: lineage.Lineage) -> None:
        if found.standby and full:
            raise OSError(errno.ENOSPC, "no space left on device")
        write(storage, found)

    monkeypatch.setattr(lineage, "write", failing)
    async with Primary(tmp_path / "a", standby="sync") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await until(lambda: standby.figures.errors)
        assert primary.figures.mode == "async"
        assert standby.figures.mode == "async"
        await primary.broker.publish("orders", b"1")
        full = False
        await until(lambda: standby.figures.mode == "sync")


async def test_what_was_written_before_a_manifest_comes_before_it(tmp_path: Path) -> None:
    """Retention drops the old for the new: a standby that is promoted in between must not lack both."""
    async with Primary(tmp_path / "a") as primary:
        follow, journal = primary.replication.follow, primary.broker.backend.store.journal
        request = FollowRequest(id="x")
        first = await follow(request)
        request.manifest = crc_of(first.manifest)
        request.at = JournalPlace(first.end.number, first.end.id, 64)
        await primary.broker.publish("orders", b"the new")
        smaller = msgspec.structs.replace(manifest.decode(first.manifest), full_bytes=12345)
        journal.published = PublishedManifest(manifest.encode(smaller), journal.published.segments)
        said = await follow(request)
        assert (said.manifest, bool(said.data)) == (b"", True)
        request.at = said.end
        said = await follow(request)
        assert said.manifest == journal.published.data


# -- files ------------------------------------------------------------------------------------------------------


async def test_a_file_that_an_operator_removed_comes_again(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        for _ in range(200):
            await primary.broker.publish("orders", b"x" * 1000)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
        first = tmp_path / "b" / "000000000001.seg"
        first.write_bytes(first.read_bytes()[:-1] + b"?")
        assert not verify(tmp_path / "b").whole
        first.unlink()
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(first.exists)
            await standby.caught_up(primary)
            assert standby.figures.verified < 150_000
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_promotion_that_was_cut_off_leaves_a_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: standby.figures.mode == "sync")
            await primary.broker.publish("orders", b"1")
            with monkeypatch.context() as patch:
                patch.setattr(lineage, "write", _out_of_space)
                with pytest.raises(OSError, match="no space"):
                    await standby.replication.promote(primary_is_down=False)
        async with Standby(tmp_path / "b", primary.url) as standby:
            assert standby.replica.lineage.is_standby
            await standby.caught_up(primary)
            await until(lambda: standby.figures.mode == "sync" and not primary.figures.holding)
            found = manifest.load(OsStorage(tmp_path / "b"))
            assert found is not None
            assert found.journal == primary.broker.id
            await primary.broker.publish("orders", b"2")
            check_same_files(tmp_path / "a", tmp_path / "b")
        async with Standby(tmp_path / "b", primary.url) as standby:
            async with await standby.promote() as promoted:
                assert await values(promoted.broker, 2) == [b"1", b"2"]


async def test_of_two_promotions_at_once_one_is_refused_and_a_primary_is_promoted_no_more(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await standby.caught_up(primary)
        both = [standby.replication.promote(primary_is_down=True) for _ in range(2)]
        done, refused = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(done, Generation)
        assert done.number == 1
        assert isinstance(refused, PromotionRefused)
        await standby.leave()
        async with Primary(tmp_path / "b") as promoted:
            with pytest.raises(NotSupported, match="primary already"):
                await promoted.replication.promote(primary_is_down=True)
            assert promoted.figures.generation == 1


def _out_of_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


async def test_a_sync_that_failed_is_made_again_with_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await standby.caught_up(primary)
        mine, real, failures = f"{tmp_path}/b/0", OsFile.sync, 1

        def sync(file: OsFile) -> None:
            nonlocal failures
            if failures and os.readlink(f"/proc/self/fd/{file._fd}").startswith(mine):
                failures -= 1
                raise OSError(errno.EDQUOT, "disk quota exceeded")
            real(file)

        monkeypatch.setattr(OsFile, "sync", sync)
        for number in range(5):
            await primary.broker.publish("orders", b"%d" % number)
        await standby.caught_up(primary)
        assert failures == 0
        check_same_files(tmp_path / "a", tmp_path / "b")


async def test_what_the_cleaner_offers_and_a_manifest_names_is_copied_once_at_a_time(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby_patience=0.01) as primary:
        real, swapped, offered = primary.replication.read_file, asyncio.Event(), 0

        async def read_file(name: str, offset: int, size: int) -> bytes:
            nonlocal offered
            if "-" in name and not swapped.is_set():
                offered += 1
                await swapped.wait()  # the offer ends while it is being copied
            found: bytes = await real(name, offset, size)
            return found

        primary.replication.read_file = read_file
        gone = primary.broker.topic("gone", retention_count=10)
        async with Standby(tmp_path / "b", primary.url) as standby:
            for number in range(300):
                await gone.publish(b"x" * 1000)
                if number % 20 == 0:
                    await primary.broker.publish("kept", b"k" * 1000)
            journal = primary.broker.backend.store.journal
            await until(lambda: any(info.generation for info in journal.manifest.segments))
            await until(lambda: offered > 1)  # once as an offer, and once because the manifest names it
            swapped.set()
            await primary.broker.publish("kept", b"last")
            await standby.caught_up(primary)
            assert not standby.replication.failed.done()
            await until(lambda: segments(tmp_path / "a") == segments(tmp_path / "b"))
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_file_that_the_primary_lacks_is_not_asked_for_without_rest(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        for _ in range(200):
            await primary.broker.publish("orders", b"x" * 1000)
        (tmp_path / "a" / "000000000001.idx").unlink()
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: standby.figures.errors)
            assert "000000000001.idx" in standby.figures.last_error


# -- operators --------------------------------------------------------------------------------------------------


async def test_a_standby_and_a_primary_that_waits_for_it_examine_themselves(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: standby.figures.mode == "sync")
            found = {one.what: one for one in await asyncio.to_thread(server_findings, standby.url)}
            assert "following, sync" in found["standby"].seen
            assert "journal" not in found  # it does not serve from memory
        await until(lambda: primary.figures.holding)
        found = {one.what: one for one in await asyncio.to_thread(server_findings, primary.url)}
        assert "runnel standby release" in found["primary"].advice


async def test_a_backup_of_a_standby_is_one_of_its_primary_and_holds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        for _ in range(150):
            await primary.broker.publish("orders", b"x" * 1000)
        await standby.caught_up(primary)
        back_up = ["backup", str(tmp_path / "b"), str(tmp_path / "archive"), "--copy"]
        assert await asyncio.to_thread(main, [*back_up, "--hold"]) == 1
        assert "hold at the primary" in capsys.readouterr().err
        assert await asyncio.to_thread(main, back_up) == 0
        for _ in range(150):
            await primary.broker.publish("orders", b"y" * 1000)
        await standby.caught_up(primary)
        assert await asyncio.to_thread(main, back_up) == 0
    assert main(["restore", str(tmp_path / "archive"), str(tmp_path / "c")]) == 0
    async with runnel.open(tmp_path / "c", share=False) as broker:
        assert await values(broker, 300) == [b"x" * 1000] * 150 + [b"y" * 1000] * 150
    with pytest.raises(PromotionRefused):
        promotion.check_promotable(lineage.Lineage(id="c"), primary_is_down=True)
