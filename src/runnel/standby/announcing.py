"""Tells an old primary that its standby was promoted: it may have been cut off, or suspended, and come back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runnel.client.address import parse_url
from runnel.client.connection import connect
from runnel.client.options import ClientOptions
from runnel.core.errors import NotPrimary, RunnelError, Superseded

if TYPE_CHECKING:
    from runnel.broker.durable.replication import PrimaryReplication

PAUSE = 2.0  # seconds between two tries
NAME = "promoted standby"

logger = logging.getLogger("runnel")


async def stop_old_primary(replication: PrimaryReplication) -> None:
    """Show the old primary the new generation until it has seen it. It stops acknowledging at once, and for good."""
    url, seen = replication.old_primary, replication.generation
    assert url is not None, "a promoted standby knows whom it followed"
    addresses, written = parse_url(url)
    options = ClientOptions.of({"name": NAME}, written)
    while True:
        for address in addresses:
            try:
                connection = await connect(address, options, lambda *frame: None, seen)
            except (Superseded, NotPrimary):
                logger.warning("the old primary at %s is superseded: it acknowledges nothing any more", address)
                await replication.old_primary_stopped()
                return
            except RunnelError:
                continue  # it is down, or cannot be reached
            connection.close()
        await asyncio.sleep(PAUSE)
