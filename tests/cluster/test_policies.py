"""What a reader of a cluster keeps when its user is slow: by records and bytes, though records come packed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runnel import Broker
from runnel.cluster.reader import ClusterReader
from tests.cluster.single import open_cluster
from tests.patience import PATIENCE


async def waits(broker: Broker) -> ClusterReader:
    """The reader of the broker that has a policy, when everything published has reached it."""
    reader: ClusterReader = next(one for one in broker.backend._readers.open if one.pattern == "t")
    last = await broker.backend.js.last(broker.backend.js.subjects.every_bucket("t"))
    async with asyncio.timeout(PATIENCE):
        while reader._last < last.sequence:  # noqa: ASYNC110 - the reader has nobody who waits for it
            await asyncio.sleep(0.001)
    return reader


@pytest.mark.parametrize(
    ("options", "kept", "gaps"),
    [
        ({"buffer": 3}, [7, 8, 9], [7]),
        ({"buffer": 3, "policy": "drop_newest"}, [0, 1, 2], []),
        ({"buffer_bytes": 250}, [8, 9], [8]),
        ({"buffer_bytes": 250, "policy": "drop_newest"}, [0, 1], []),
        ({"buffer_bytes": 5}, [9], [9]),
        ({"buffer_bytes": 5, "policy": "drop_newest"}, [0], []),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
async def test_a_bound_keeps_what_fits_and_one_record_at_least(
    options: dict[str, Any], kept: list[int], gaps: list[int], packed: bool
) -> None:
    values = [b"%d" % number * 100 for number in range(10)]
    dropped: list[bytes] = []
    async with open_cluster() as broker:
        async with broker.subscribe("t", on_drop=lambda record: dropped.append(record.value), **options) as records:
            if packed:
                await broker.topic("t").publish_many(values)
            else:
                for value in values:
                    await broker.publish("t", value)
            reader = await waits(broker)
            (shown,) = broker.statistics().subscriptions
            assert (shown.lag, shown.dropped) == (len(kept), 10 - len(kept))
            broker.close()
            found = [record async for record in records]
    assert [record.value for record in found] == [values[number] for number in kept]
    assert [int(record.value[:1]) for record in found if record.gap] == gaps
    assert sorted(dropped) == [value for number, value in enumerate(values) if number not in kept]
    assert reader.untold == (0 if gaps else 10 - len(kept))


async def test_what_a_bound_drops_goes_to_the_dead_letter_topic() -> None:
    async with open_cluster() as broker, broker.subscribe("dead") as dead:
        async with broker.subscribe("t", buffer=1, dead_letter="dead", name="slow"):
            position = await broker.publish("t", b"a", key=b"k", headers={"h": "x"})
            await broker.publish("t", b"b")
            letter = await asyncio.wait_for(anext(dead), PATIENCE)
    assert (letter.value, letter.key, letter.headers["h"]) == (b"a", b"k", "x")
    assert letter.headers["runnel-dead-letter-reason"] == "dropped"
    assert letter.headers["runnel-dead-letter-position"] == str(position)
    assert letter.headers["runnel-dead-letter-subscriber"] == "slow"
