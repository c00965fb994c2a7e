"""A server in memory, and a client that says frames by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runnel.server.server import Server
from tests.server.native_client import Raw, connected, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
async def raw(server: Server) -> AsyncIterator[Raw]:
    async with connected(server) as client:
        yield client
