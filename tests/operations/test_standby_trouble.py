"""What goes wrong between a primary and its standby: kills, partitions, full disks, rights, commands."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.cli.main import main
from runnel.client.address import parse_url
from runnel.client.connection import connect
from runnel.client.options import ClientOptions
from runnel.core.errors import (
    JournalFailed,
    NotAuthenticated,
    NotAuthorized,
    NotPrimary,
    OutcomeUnknown,
    StandbyMissing,
    Superseded,
)
from runnel.core.replication import FollowReply, FollowRequest, Generation
from runnel.journal.check.verify import verify
from runnel.journal.storage import OsFile
from runnel.server import Server, ServerOptions
from tests.chaos.proxy import Proxy
from tests.operations.standby_kills import trial
from tests.operations.standby_pair import Primary, Standby, check_same_files, opened, until

# -- processes that are killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_primary_is_killed_under_load(tmp_path: Path, mode: str) -> None:
    found = await trial(tmp_path, mode, 1, 3, lease=0.5, publishers=4)
    assert not found.wrong, found.shown()
    assert found.acked > 10


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_primaries_and_standbys_are_killed_under_load_again_and_again(tmp_path: Path, mode: str) -> None:
    found = await trial(tmp_path, mode, 30, 1, others=50)
    assert not found.wrong, found.shown()


# -- a network that is cut --------------------------------------------------------------------------------------


async def test_a_partition_in_sync_mode_loses_nothing_on_either_side(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary, Proxy(primary.port, random.Random(1)) as between:
        standby = await Standby(tmp_path / "b", f"runnel://127.0.0.1:{between.port}").__aenter__()
        await until(lambda: standby.figures.mode == "sync")
        await primary.broker.publish("orders", b"both have it")
        between.black_hole = True
        for line in list(between.lines):
            for gate in line.gates:
                gate.clear()
        waiting = asyncio.ensure_future(primary.broker.publish("orders", b"only the primary has it"))
        promoted = await standby.promote()  # it waits for the lease
        assert primary.figures.holding
        assert not waiting.done()
        async with promoted:
            with pytest.raises(StandbyMissing):
                await runnel.open(primary.url).__aenter__()
            async with opened(promoted.url) as client:
                after = await client.publish("orders", b"after")
                generation = promoted.replication.generation
            primary.replication.seen(generation)  # the partition ends
            with pytest.raises((OutcomeUnknown, JournalFailed)):
                await waiting
            async with promoted.broker.subscribe("orders", start="earliest") as records:
                values = [(await anext(records)).value, (await anext(records)).value]
            assert values == [b"both have it", b"after"]
            assert after.offset > 2**31


async def test_clients_of_a_primary_that_lost_its_standby_are_sent_away(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await until(lambda: standby.figures.mode == "sync")
        async with opened(f"{primary.url},127.0.0.1:{standby.port}") as client:
            await client.publish("orders", b"1")
            async with await standby.promote():
                assert (await client.publish("orders", b"2")).offset > 2**31  # it went over by itself


async def test_a_connection_that_is_torn_is_made_again(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary, Proxy(primary.port, random.Random(1)) as between:
        async with Standby(tmp_path / "b", f"runnel://127.0.0.1:{between.port}") as standby:
            for number in range(60):
                await primary.broker.publish("orders", b"x" * 4000)
                if number % 10 == 5:
                    await until(lambda: between.lines)
                    for line in list(between.lines):
                        line.tear = 2500
            await standby.caught_up(primary)
            check_same_files(tmp_path / "a", tmp_path / "b")


# -- bytes that are wrong, disks that are full ------------------------------------------------------------------


async def test_bytes_that_are_not_what_the_primary_wrote_are_not_stored(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        real, spoilt = primary.replication.follow, 0

        async def follow(request: FollowRequest) -> FollowReply:
            nonlocal spoilt
            said: FollowReply = await real(request)
            if len(said.data) > 500 and not spoilt:
                spoilt += 1
                said.data = said.data[:400] + bytes([said.data[400] ^ 1]) + said.data[401:]
            return said

        primary.replication.follow = follow
        async with Standby(tmp_path / "b", primary.url) as standby:
            await primary.broker.publish("orders", b"x" * 1000)
            await standby.caught_up(primary)
            assert spoilt == 1
            assert "crc" in standby.figures.last_error
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_full_disk_of_the_standby_is_reported_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await until(lambda: standby.figures.mode == "sync")
        await primary.broker.publish("orders", b"1")
        mine, real, full = f"{tmp_path}/b/", OsFile.write, True

        def write(file: OsFile, offset: int, pieces: Sequence[Any]) -> None:
            if full and os.readlink(f"/proc/self/fd/{file._fd}").startswith(mine):
                raise OSError(errno.ENOSPC, "no space left on device")
            real(file, offset, pieces)

        monkeypatch.setattr(OsFile, "write", write)
        waiting = asyncio.ensure_future(primary.broker.publish("orders", b"2"))
        await until(lambda: standby.figures.state == "disk full")
        await until(lambda: primary.figures.followers[0].state == "disk full")
        assert not waiting.done()
        assert primary.figures.holding
        full = False
        await waiting
        await standby.caught_up(primary)
        check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_large_first_copy_shows_how_far_it_is_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", segment_bytes=1 << 20) as primary:
        for _ in range(60):
            await primary.broker.publish("orders", random.Random(1).randbytes(100_000))
        shown: list[tuple[int, int]] = []
        standby = Standby(tmp_path / "b", primary.url, segment_bytes=1 << 20)
        await standby.__aenter__()
        standby.follower._progress = lambda done, total: shown.append((done, total))
        await until(lambda: shown and shown[-1][0] > 2_000_000)
        await standby.leave()
        copied = standby.replica.verified
        assert not standby.replica.lineage.whole
        async with Standby(tmp_path / "b", primary.url, segment_bytes=1 << 20) as again:
            await again.caught_up(primary)
            assert (
                again.replica.verified < sum(one.stat().st_size for one in (tmp_path / "a").glob("*.seg")) - copied / 2
            )
            check_same_files(tmp_path / "a", tmp_path / "b")


# -- rights, listeners, commands --------------------------------------------------------------------------------

AUTH = """\
[roles.admin]
console = "admin"
allow = ["publish:>", "subscribe:>", "create:>", "group:>", "admin:>"]
[roles.reader]
allow = ["subscribe:>"]
"""


async def test_following_is_for_administrators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auth = tmp_path / "auth.toml"
    auth.write_text(AUTH)
    tokens = {}
    for role in ("admin", "reader"):
        assert await asyncio.to_thread(main, ["token", "create", role, "--role", role, "--auth", str(auth)]) == 0
        tokens[role] = capsys.readouterr().out.split()[-1]
    async with runnel.open(tmp_path / "a", share=False) as broker:
        options = ServerOptions(port=0, json_port=None, auth=auth)
        async with Server(broker, options) as server:
            url = server.listeners[0].url
            request = FollowRequest(id="x")
            async with runnel.open(url, token=tokens["reader"], operator=True) as reader:
                for method, args in (
                    ("follow", {"request": request}),
                    ("read_file", {"name": "MANIFEST", "offset": 0, "size": 1}),
                    ("promote", {}),
                    ("release_standby", {}),
                ):
                    with pytest.raises(NotAuthorized):
                        await reader.backend.administer(method, args)
            async with runnel.open(url, token=tokens["admin"], operator=True) as admin:
                said = await admin.backend.administer("follow", {"request": request})
                assert said["manifest"]
            # A promoted standby has no token here: its generation proves itself, before any login.
            [address], _ = parse_url(url)
            promoted = Generation.made(said["origin"], 1, said["key"])
            forged = Generation(said["origin"], 1, "0" * 32)
            with pytest.raises(NotAuthenticated):
                await connect(address, ClientOptions(), lambda *frame: None, forged)
            with pytest.raises(Superseded):
                await connect(address, ClientOptions(), lambda *frame: None, promoted)


async def test_a_promotion_by_command_fences_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Primary(tmp_path / "a") as primary:
        async with Standby(tmp_path / "b", primary.url) as standby:
            await primary.broker.publish("orders", b"1")
            await standby.caught_up(primary)

    async def promote(*options: str) -> int:
        return await asyncio.to_thread(main, ["promote", "--data", str(tmp_path / "b"), *options])

    assert await promote() == 1
    assert "promotion_refused" in capsys.readouterr().err
    assert await promote("--fence", "false") == 1
    assert "fence_failed" in capsys.readouterr().err
    assert await promote("--fence", "true") == 0
    assert "generation 1" in capsys.readouterr().out
    assert await promote("--primary-is-down") == 1
    assert verify(tmp_path / "b").whole
    async with (
        runnel.open(tmp_path / "b", share=False) as broker,
        broker.subscribe("orders", start="earliest") as found,
    ):
        assert (await anext(found)).value == b"1"
        assert (await broker.publish("orders", b"2")).offset > 2**31


async def test_a_standby_answers_health_checks_and_metrics_and_refuses_the_rest(tmp_path: Path) -> None:

    async def get(port: int, path: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        return int(answer.split()[1]), answer

    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await standby.caught_up(primary)
        async with Server(standby.broker, ServerOptions(port=None, json_port=0, http_port=0)) as server:
            http = next(one.port for one in server.listeners if one.name == "http")
            assert (await get(http, "/healthz"))[0] == 200
            status, body = await get(http, "/readyz")
            assert (status, "standby" in body) == (503, True)
            status, body = await get(http, "/metrics")
            assert status == 200
            assert "runnel_standby_lag_bytes 0" in body
            status, body = await get(http, "/topics/orders/records")
            assert (status, NotPrimary.code in body) == (503, True)
            lines = next(one.port for one in server.listeners if one.name == "json")
            reader, writer = await asyncio.open_connection("127.0.0.1", lines)
            assert NotPrimary.code.encode() in await reader.readline()
            writer.close()
