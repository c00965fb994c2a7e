"""Mirrors: topics with their options, types, keys and headers, from any backend to any other, each record once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

import runnel
from runnel.api.mirror import Mirror, compare
from runnel.server import Server, ServerOptions
from tests.cluster.single import open_cluster
from tests.patience import PATIENCE


class Order(msgspec.Struct):
    id: int


async def filled(broker: Any) -> None:
    orders = broker.topic("orders", Order, max_deliver=7)
    for number in range(3):
        await orders.publish(Order(number), key=str(number), headers={"shop": f"s{number}"})
    await broker.topic("notes.a").publish_many([b"%d" % number for number in range(2_000)])


async def differences(source: Any, target: Any) -> list[tuple[str, int, int]]:
    return [(one.topic, one.source, one.target) async for one in compare(source, target, ">") if not one.same]


async def test_topics_go_from_folder_to_server_to_cluster_and_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        folder = await stack.enter_async_context(runnel.open(tmp_path / "folder"))
        behind = await stack.enter_async_context(runnel.open(tmp_path / "server"))
        server = await stack.enter_async_context(Server(behind, ServerOptions(port=0, json_port=None)))
        client = await stack.enter_async_context(runnel.open(server.listeners[0].url))
        cluster = await stack.enter_async_context(open_cluster())
        last = await stack.enter_async_context(runnel.open(tmp_path / "last"))
        await filled(folder)
        for source, target in ((folder, client), (client, cluster), (cluster, last)):
            mirror = Mirror(source, ">", target, once=True)
            await mirror.run()
            assert (mirror.bridged, mirror.missed) == (2_003, 0)
            assert mirror.expected == (2_003 if source is folder else None)
            assert await differences(source, target) == []
            again = Mirror(source, ">", target, once=True)
            await again.run()
            assert again.bridged == 0, "it continues where it was"
            assert not again.expected
        assert (await last.backend.describe("orders"))["max_deliver"] == 7
        async with last.subscribe("orders", start="earliest", type=Order) as records:
            first = await anext(records)
        assert (first.value, first.key, first.headers["shop"]) == (Order(0), b"0", "s0")
        await last.publish("notes.a", b"more")
        assert await differences(folder, last) == [("notes.a", 2_000, 2_001)]


def test_a_killed_mirror_goes_on_without_loss_and_without_copies(tmp_path: Path) -> None:
    source, target, count = tmp_path / "source", tmp_path / "target", 60_000
    with runnel.blocking.open(source) as broker:
        for topic in ("a", "b"):
            for start in range(0, count // 2, 1_000):
                broker.topic(topic).publish_many([b"%d" % (start + n) for n in range(1_000)])
    command = [sys.executable, "-m", "runnel", "mirror", str(source), str(target), ">"]
    kills = 0
    for _ in range(3):
        with subprocess.Popen([*command, "--once"], stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            assert any(line.startswith("copying") for line in child.stderr), "it is at work"
            try:
                child.wait(0.1)
            except subprocess.TimeoutExpired:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
    done = subprocess.run([*command, "--verify"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [f"{topic}: equal, {count // 2:,} records and {count // 2:,}" for topic in ("a", "b")]
    assert [line.rpartition(", ")[0] for line in done.stdout.splitlines()] == expected
    assert kills
