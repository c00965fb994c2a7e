"""A publish whose answer was lost is stored once, or its outcome is unknown, whatever others published meanwhile."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker, OutcomeUnknown
from runnel.client.outbox import LANES
from runnel.core import deduplication
from runnel.core.batch_format import pack
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker
from tests.chaos.proxy import Proxy
from tests.server.native_client import Raw, connected, serving, until
from tests.server.test_server_over_client import TIMES, front_of

OTHERS = 301  # clients, each with as many producers as a client has lanes


async def others_publish(raw: Raw, producers: int) -> None:
    """So many producers publish one record each; return when all is stored."""
    ids = [
        raw.publish_batch("others", pack([b"x"], producer=1_000_000 + number, producer_sequence=0))
        for number in range(producers)
    ]
    await raw.published(ids[-1])


async def lose_the_answer(proxy: Proxy, publish: Awaitable[Any], is_stored: Callable[[], object]) -> asyncio.Task[Any]:
    """Publish, and cut the connection when it is stored, before the answer is through."""
    for line in proxy.lines:
        line.gates[1].clear()
    publishing = asyncio.ensure_future(publish)
    await until(is_stored)
    await proxy.refuse()
    proxy.cut(1.0, reset=True)
    return publishing


@asynccontextmanager
async def before(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.listeners[0].port, random.Random(1)) as proxy:
        yield proxy


def end_of(broker: Broker, topic: str = "t") -> int:
    found = broker.statistics().topics.get(topic)
    return 0 if found is None else found.end


async def test_a_publish_is_stored_once_though_300_clients_published_before_it_is_sent_again() -> None:
    served = local_broker()
    async with serving(served) as server, before(server) as proxy, connected(server) as raw:
        async with runnel.open(f"runnel://127.0.0.1:{proxy.port}", **TIMES) as broker:
            publishing = await lose_the_answer(proxy, broker.publish("t", b"once"), lambda: end_of(served))
            await others_publish(raw, OTHERS * LANES)
            await proxy.listen()
            position = await publishing
            assert (position.offset, end_of(served)) == (0, 1)


def few_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "MAX_PRODUCERS", 4)


async def test_the_outcome_is_unknown_if_the_server_may_have_forgotten_it(monkeypatch: pytest.MonkeyPatch) -> None:
    few_remembered(monkeypatch)
    served = local_broker()
    async with serving(served) as server, before(server) as proxy, connected(server) as raw:
        async with runnel.open(f"runnel://127.0.0.1:{proxy.port}", **TIMES) as broker:
            publishing = await lose_the_answer(proxy, broker.publish("t", b"once"), lambda: end_of(served))
            await others_publish(raw, 5)
            await proxy.listen()
            with pytest.raises(OutcomeUnknown, match="no longer knows whether"):
                await publishing
            assert end_of(served) == 1
            assert (await broker.publish("t", b"next")).offset == 1  # its lane goes on


async def test_the_same_through_a_server_over_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    few_remembered(monkeypatch)
    served = local_broker()
    async with serving(served) as server, connected(server) as raw:
        async with front_of(server) as front, before(front) as proxy:
            async with runnel.open(f"runnel://127.0.0.1:{proxy.port}", **TIMES) as broker:
                publishing = await lose_the_answer(proxy, broker.publish("t", b"once"), lambda: end_of(served))
                await others_publish(raw, 5)
                await proxy.listen()
                with pytest.raises(OutcomeUnknown):
                    await publishing
                assert end_of(served) == 1


async def test_the_same_if_the_answer_is_lost_between_the_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    few_remembered(monkeypatch)
    served = local_broker()
    async with serving(served) as server, before(server) as proxy, connected(server) as raw:
        async with front_of(f"runnel://127.0.0.1:{proxy.port}") as front:
            async with runnel.open(front.listeners[0].url, **TIMES) as broker:
                publishing = await lose_the_answer(proxy, broker.publish("t", b"once"), lambda: end_of(served))
                await others_publish(raw, 5)
                await proxy.listen()
                with pytest.raises(OutcomeUnknown):
                    await publishing
                assert end_of(served) == 1


@pytest.mark.parametrize("others", [2, 5])
async def test_the_same_over_a_restart_of_the_server(
    others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_remembered(monkeypatch)
    options = ServerOptions(port=0, json_port=None)
    async with runnel.open(tmp_path) as served, Server(served, options) as server, before(server) as proxy:
        broker = await runnel.open(f"runnel://127.0.0.1:{proxy.port}", **TIMES).__aenter__()
        publishing = await lose_the_answer(proxy, broker.publish("t", b"once"), lambda: end_of(served))
        async with connected(server) as raw:
            await others_publish(raw, others)
    async with runnel.open(tmp_path) as served, Server(served, options) as server:
        proxy.target = server.listeners[0].port
        async with proxy:
            if others < 4:
                assert (await publishing).offset == 0
            else:
                with pytest.raises(OutcomeUnknown):
                    await publishing
            assert end_of(served) == 1
            await broker.__aexit__(None, None, None)


async def test_a_message_id_that_may_be_forgotten_has_an_unknown_outcome_too() -> None:
    clock = JumpingClock()
    served = runnel.open(clock=clock)
    async with serving(served) as server, before(server) as proxy:
        async with runnel.open(f"runnel://127.0.0.1:{proxy.port}", clock=clock, **TIMES) as broker:
            publish = broker.publish("t", b"once", message_id="m")
            publishing = await lose_the_answer(proxy, publish, lambda: end_of(served))
            await clock.advance(deduplication.MAX_MESSAGE_ID_SECONDS)
            await proxy.listen()
            with pytest.raises(OutcomeUnknown):
                await publishing
            assert end_of(served) == 1
