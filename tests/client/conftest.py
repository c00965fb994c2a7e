"""A server in a thread of its own, or one that does as it is told, and a broker that is its client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.api.broker import Broker
from runnel.testing.clock import JumpingClock
from tests.client.scripted_server import Caller, Joined, Peer, a_peer
from tests.contract.afar import Served


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[Any]:
    """The broker of a folder, far away."""
    async with Served(JumpingClock(), tmp_path / "data", {}, unix=False) as broker:
        yield broker


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A server that does what a test says, frame by frame."""
    async with a_peer() as peer:
        yield peer


@pytest.fixture
def joined(peer: Peer) -> Joined:
    """A broker that is connected to the peer, and the peer's side of the connection."""

    @asynccontextmanager
    async def join(**options: Any) -> AsyncIterator[tuple[Broker, Caller]]:
        broker = runnel.open(peer.url, **{"close_timeout": 0.0, "backoff_min": 0.001, **options})
        entering = asyncio.create_task(broker.__aenter__())
        caller = await peer.accept()
        await entering
        try:
            yield broker, caller
        finally:
            await broker.__aexit__(None, None, None)

    return join
