"""After a promotion, two servers of one journal find out which of them is the primary.

An old primary may have been cut off, or suspended, and come back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runnel.client.address import parse_url
from runnel.client.connection import connect
from runnel.client.options import ClientOptions
from runnel.core.errors import NotPrimary, RunnelError, Superseded
from runnel.core.replication import Generation

if TYPE_CHECKING:
    from runnel.broker.durable.replication import PrimaryReplication
    from runnel.journal.format.lineage import Lineage

PAUSE = 2.0  # seconds between two tries
LONGEST = 60.0  # and once it has seen it
NAME = "promoted standby"

logger = logging.getLogger("runnel")


async def stop_old_primary(replication: PrimaryReplication) -> None:
    """Show the old primary the new generation, which stops it for good, until it is a standby.

    Again and again: one that is killed before it has stored that comes back as if nothing had happened.
    """
    url, seen, shown, pause = replication.old_primary, replication.generation, False, PAUSE
    assert url is not None, "a promoted standby knows whom it followed"
    addresses, written = parse_url(url)
    options = ClientOptions.of({"name": NAME}, written)
    while True:
        for address in addresses:
            try:
                connection = await connect(address, options, lambda *frame: None, seen)
            except Superseded:
                if not shown:
                    logger.warning("the old primary at %s is superseded: it acknowledges nothing any more", address)
                shown = True
            except NotPrimary:
                logger.info("the old primary at %s is a standby now", address)
                await replication.old_primary_stopped()
                return
            except RunnelError:
                continue  # it is down, or cannot be reached
            else:
                connection.close()
        pause = min(LONGEST, pause * 2) if shown else PAUSE
        await asyncio.sleep(pause)


async def newer_generation(found: Lineage, url: str) -> Generation | None:
    """The generation of the server at `url`, if that was promoted later than the journal of this lineage."""
    addresses, written = parse_url(url)
    options = ClientOptions.of({"name": NAME, "operator": True}, written)
    for address in addresses:
        try:
            connection = await connect(address, options, lambda *frame: None, found.generation)
        except RunnelError:
            continue
        connection.close()
        said = connection.welcome.generation
        if not isinstance(said, Generation) or said.origin != found.origin or said.number <= found.number:
            continue
        if said.is_proven(found.key):
            return said
    return None
