"""A group on a server, steered and looked at from here."""

from typing import Any

import pytest

import runnel


async def test_it_is_looked_at_paused_and_reset(remote: Any) -> None:
    for number in range(3):
        await remote.publish("jobs", b"%d" % number)
    async with remote.subscribe("jobs", group="g", prefetch=1) as deliveries:
        await (await anext(deliveries)).ack(durable=True)
        group = remote.group("g", "jobs")
        assert (group.name, group.pattern, repr(group)) == ("g", "jobs", "<Group 'g on jobs'>")
        group.pause()
        assert (group.statistics().acked, group.statistics().paused) == (1, True)
        group.resume()
        assert not group.statistics().paused
        held = await anext(deliveries)
        group.reset("earliest")
        with pytest.raises(runnel.LeaseEnded):
            held.ack()
        assert (await anext(deliveries)).offset == 0


async def test_one_without_members_is_unknown_and_a_wrong_start_is_refused(remote: Any) -> None:
    with pytest.raises(runnel.UnknownGroup):
        remote.group("g", "jobs")
    async with remote.subscribe("jobs", group="g"):
        with pytest.raises(runnel.InvalidOption, match="start"):
            remote.group("g", "jobs").reset("newest")
