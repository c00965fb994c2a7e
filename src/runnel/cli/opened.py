"""The broker of a command that looks or sends: it leaves a folder to its server, and says when that is gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from runnel.core.errors import NotSupported
from runnel.opening.opening import visit

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.runtime.connection_state import ConnectionState


@asynccontextmanager
async def opened(where: str, *, stays: bool = False, **options: Any) -> AsyncIterator[Broker]:
    """The broker at a location, while the block lasts. `stays`: see `visit`."""
    async with visit(where, stays=stays, **options) as broker:
        try:
            connection = broker.connection
        except NotSupported:  # the folder is this command's own
            yield broker
            return
        saying = asyncio.create_task(_say(connection))
        try:
            yield broker
        finally:
            saying.cancel()
            await asyncio.wait([saying])


async def _say(connection: ConnectionState) -> None:
    """Print that the server is gone, and that it is there again."""
    lost = False
    async for state in connection.changes():
        if state == "reconnecting":
            lost = True
            print("runnel: connection lost; waiting for the server", file=sys.stderr, flush=True)
        elif state == "connected" and lost:
            lost = False
            print("runnel: connected again", file=sys.stderr, flush=True)
