"""Ways to look at transactions that the contract's tests share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runnel import Broker, Transaction
from tests.contract.reading import values


@asynccontextmanager
async def refused(broker: Broker, error: type[Exception], match: str | None = None) -> AsyncIterator[Transaction]:
    """A transaction that fails with this error, in its block or at its end."""
    with pytest.raises(error, match=match):
        async with broker.transaction() as tx:
            yield tx
    assert not tx.applied


async def stored(broker: Broker, *topics: str) -> list[list[bytes]]:
    """The values of each topic; of one that is not there, none."""
    statistics = broker.statistics().topics
    found: list[list[bytes]] = []
    for topic in topics:
        found.append([])
        if topic in statistics:
            async with broker.subscribe(topic, start="earliest") as subscription:
                found[-1] = await values(subscription, statistics[topic].published)
    return found
