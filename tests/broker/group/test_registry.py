"""The registry of groups: made when first joined, kept while the broker is, agreed upon by all members."""

import asyncio
from typing import Any

import pytest

from runnel import Broker
from runnel.broker.group.logic.group import BACKOFF
from runnel.core.errors import BrokerClosed, GroupInUse, InvalidName, InvalidOption, OffsetOutOfRange, UnknownGroup
from runnel.core.options import SubscribeOptions
from runnel.journal.format.ledger import GroupState


def join(broker: Broker, name: str = "g", pattern: str = "t", start: Any = None, **said: Any) -> Any:
    return broker.backend.groups.join(name, pattern, SubscribeOptions.of({"group": name, "start": start, **said}))


async def test_a_group_is_made_once_and_found_by_name_and_pattern(runnel_broker: Broker) -> None:
    one = join(runnel_broker)
    assert join(runnel_broker) is one
    assert runnel_broker.backend.groups.find("g", "t") is one
    assert list(runnel_broker.backend.groups) == [one]
    other = join(runnel_broker, pattern="u")
    assert other is not one
    assert list(runnel_broker.backend.groups) == [one, other]


async def test_a_group_that_had_no_member_is_unknown(runnel_broker: Broker) -> None:
    join(runnel_broker)
    for name, pattern in (("g", "u"), ("h", "t")):
        with pytest.raises(UnknownGroup) as caught:
            runnel_broker.backend.groups.find(name, pattern)
        assert (caught.value.group, caught.value.pattern) == (name, pattern)


async def test_members_must_agree_on_what_they_say(runnel_broker: Broker) -> None:
    join(runnel_broker, ack_wait=5.0)
    join(runnel_broker, ack_wait=5.0, jitter=0.1)  # the default, spelled out
    join(runnel_broker)
    with pytest.raises(InvalidOption, match="members must agree") as caught:
        join(runnel_broker, ack_wait=6.0)
    assert (caught.value.option, caught.value.value) == ("ack_wait", 6.0)
    with pytest.raises(InvalidOption, match="max_deliver=3: group 'g' on 't' has 20"):
        join(runnel_broker, max_deliver=3)


async def test_a_topics_options_are_the_defaults_of_its_groups(runnel_broker: Broker) -> None:
    await runnel_broker.topic("t", dead_letter="morgue", max_deliver=4, backoff=[1, 2]).declare()
    options = join(runnel_broker).options
    assert (options.dead_letter, options.max_deliver, options.backoff) == ("morgue", 4, (1, 2))
    options = join(runnel_broker, "h", max_deliver=9).options
    assert (options.dead_letter, options.max_deliver, options.backoff) == ("morgue", 9, (1, 2))


async def test_a_pattern_has_no_options_of_its_own(runnel_broker: Broker) -> None:
    await runnel_broker.topic("t.x", max_deliver=4).declare()
    options = join(runnel_broker, pattern="t.*").options
    assert (options.max_deliver, options.backoff) == (20, BACKOFF)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"name": "not a name"}, InvalidName),
        ({"start": "tomorrow"}, InvalidOption),
        ({"start": 1}, OffsetOutOfRange),
        ({"pattern": "t.*", "start": 0}, InvalidOption),
        ({"buffer": 0}, InvalidOption),
        ({"buffer": -1}, InvalidOption),
        ({"buffer_bytes": 0}, InvalidOption),
        ({"ack_wait": 0}, InvalidOption),
        ({"dead_letter": "no good"}, InvalidName),
        ({"dead_letter": "t"}, InvalidOption),
    ],
)
async def test_a_group_that_makes_no_sense_is_not_made(
    runnel_broker: Broker, how: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        join(runnel_broker, **how)
    assert list(runnel_broker.backend.groups) == []
    assert not runnel_broker.backend.readers


async def test_a_deleted_topic_takes_its_groups_along(runnel_broker: Broker) -> None:
    one = join(runnel_broker)
    await runnel_broker.delete("t")
    assert list(runnel_broker.backend.groups) == []
    assert join(runnel_broker) is not one


async def test_a_closed_broker_has_no_groups_and_takes_none(runnel_broker: Broker) -> None:
    join(runnel_broker)
    runnel_broker.close()
    assert list(runnel_broker.backend.groups) == []
    with pytest.raises(BrokerClosed):
        join(runnel_broker)


async def test_a_group_without_members_can_be_forgotten_and_begins_anew(runnel_broker: Broker) -> None:
    await runnel_broker.publish("t", "x")
    async with runnel_broker.subscribe("t", group="g") as deliveries:
        async for delivery in deliveries:
            await delivery.ack()
            break
        with pytest.raises(GroupInUse) as caught:
            await runnel_broker.forget_group("g", "t")
        assert caught.value.members == 1
    await runnel_broker.forget_group("g", "t")
    with pytest.raises(UnknownGroup):
        runnel_broker.group("g", "t")
    with pytest.raises(UnknownGroup):
        await runnel_broker.forget_group("g", "t")
    async with runnel_broker.subscribe("t", group="g") as deliveries:
        async for delivery in deliveries:
            assert delivery.record.offset == 0, "what it settled is forgotten"
            break


async def test_publishers_who_waited_for_a_group_that_is_forgotten_go_on(runnel_broker: Broker) -> None:
    topic = runnel_broker.topic("t")
    async with topic.subscribe(group="g", buffer=2):
        pass
    await topic.publish_many(["x"] * 2)
    waiting = asyncio.ensure_future(topic.publish("y"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await runnel_broker.forget_group("g", "t")
    assert (await waiting).offset == 2


async def test_a_stored_group_keeps_the_attempts_it_was_made_with(runnel_broker: Broker) -> None:
    for id, max_deliver in enumerate((None, 3)):
        stored = {"max_deliver": max_deliver}
        runnel_broker.backend.groups.revive(GroupState(id, f"g{id}", "t", stored, 0))
        assert join(runnel_broker, f"g{id}").options.max_deliver == max_deliver
