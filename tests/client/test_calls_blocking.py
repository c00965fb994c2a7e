"""Blocking calls: questions that may not be awaited."""

import asyncio
import gc
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.core.errors import NoAnswer, UnknownGroup, Unreachable
from runnel.wire.frames import FrameKind
from tests.client.scripted_server import Joined, Peer, a_peer
from tests.server.certificates import Authority


def asking(peer: Peer, method: str = "info", **options: Any) -> "asyncio.Task[Any]":
    """A question asked by another thread: this one plays the server."""
    side = runnel.open(peer.url, **options).backend.link.blocking_calls
    return asyncio.create_task(asyncio.to_thread(side.call, method, {"a": 1}))


async def test_it_is_a_connection_of_its_own_for_each_question(peer: Peer) -> None:
    for answer in ("one", b"\0" * 1_000_000):
        task = asking(peer)
        caller = await peer.accept()
        asked = await caller.next_call("info")
        assert asked.call == ("info", {"a": 1})
        caller.reply(asked, answer)
        assert await task == answer
        assert (await caller.next()).kind == FrameKind.GOODBYE
        with pytest.raises(EOFError):
            await caller.next()


async def test_the_errors_of_the_server_are_raised(peer: Peer) -> None:
    task = asking(peer)
    caller = await peer.accept()
    caller.refuse(await caller.next(), UnknownGroup("g", "a"))
    with pytest.raises(UnknownGroup):
        await task


async def test_an_answer_that_does_not_come_is_not_waited_for(peer: Peer) -> None:
    with pytest.raises(NoAnswer, match=r"info\(\) within 0\.05 s"):
        await asking(peer, timeout=0.05)


@pytest.mark.parametrize("timeout", [30.0, None])
async def test_a_loop_stands_still_for_a_short_time_only(
    joined: Joined, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined(timeout=timeout) as (broker, _):
        short = msgspec.structs.replace(broker.backend.link.options, connect_timeout=0.1)
        monkeypatch.setattr(broker.backend.link, "options", short)
        with pytest.raises(NoAnswer, match=r"statistics\(\) within 0\.1 s"):
            broker.statistics()


async def test_a_server_that_hangs_up_is_unreachable(peer: Peer) -> None:
    task = asking(peer)
    caller = await peer.accept()
    await caller.next()
    caller.close()
    with pytest.raises(Unreachable, match="before the answer"):
        await task


async def test_a_missing_responder_is_reported() -> None:
    with pytest.raises(Unreachable, match="refused"):
        runnel.open("runnel://127.0.0.1:1").backend.link.blocking_calls.call("info", {})


async def test_where_no_socket_is_it_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no such file"):
        runnel.open(f"runnel+unix://{tmp_path}/s").backend.link.blocking_calls.call("info", {})
    gc.collect()  # a socket that was left open is a warning, and warnings are errors


async def test_tls_is_asked_for_there_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("localhost"))
    async with a_peer(tls=context) as peer:
        with pytest.raises(Unreachable, match="not trusted"):
            await asking(peer)
        task = asking(peer, ca=authority.cert)
        caller = await peer.accept()
        caller.reply(await caller.next(), 5)
        assert await task == 5


async def test_servers_are_tried_in_turn(peer: Peer) -> None:
    side = runnel.open(peer.url.replace("runnel://", "runnel://127.0.0.1:1,")).backend.link.blocking_calls
    task = asyncio.create_task(asyncio.to_thread(side.call, "info", {}))
    caller = await peer.accept()
    caller.reply(await caller.next(), 5)
    assert await task == 5


async def test_a_unix_socket_is_as_good(tmp_path: Path) -> None:
    async with a_peer(path=tmp_path / "s") as peer:
        task = asking(peer)
        caller = await peer.accept()
        caller.reply(await caller.next(), 5)
        assert await task == 5
