"""What a subscriber asks for: what is wrong is said before the server is asked, the rest travels as it is."""

from datetime import UTC, datetime
from typing import Any

import pytest

import runnel
from runnel import Policy, Position
from runnel.client.member import RemoteMember
from runnel.client.reader import RemoteReader
from runnel.wire.msgpack_messages import Subscribe
from tests.client.memory_link import joined, subscribe


@pytest.mark.parametrize(
    ("pattern", "options", "option"),
    [
        ("t", {"start": "newest"}, "start"),
        ("t", {"start": datetime(2026, 1, 1)}, "start"),
        ("a.*", {"start": 5}, "start"),
        ("t", {"buffer": 0}, "buffer"),
        ("t", {"buffer_bytes": True}, "buffer_bytes"),
        ("t", {"name": ""}, "name"),
        ("t", {"hold": True}, "hold"),
        ("t", {"policy": "drop"}, "policy"),
        ("t", {"dead_letter": "t"}, "dead_letter"),
        ("t", {"prefetch": 5}, "prefetch"),
        ("t", {"ack_wait": 5}, "ack_wait"),
        ("t", {"group": "g", "policy": "block"}, "policy"),
        ("t", {"group": "g", "strict": True}, "strict"),
        ("t", {"group": "g", "prefetch": 0}, "prefetch"),
        ("t", {"group": "g", "start": "newest"}, "start"),
    ],
)
async def test_what_is_wrong_is_said_at_once(pattern: str, options: dict[str, Any], option: str) -> None:
    async with joined() as (_, link):
        with pytest.raises(runnel.InvalidOption) as caught:
            subscribe(link, pattern, **options)
        assert caught.value.option == option
        assert link.kinds == []


async def test_a_wrong_pattern_is_refused_and_nothing_is_held_in_memory() -> None:
    async with joined() as (_, link):
        with pytest.raises(runnel.InvalidPattern):
            subscribe(link, "a..b")
        with pytest.raises(runnel.NotSupported, match="memory"):
            subscribe(link, hold=True, name="n")


async def test_what_was_asked_for_travels() -> None:
    async with joined(credit=777) as (_, link):
        when = datetime(2026, 1, 1, tzinfo=UTC)
        one = subscribe(link, start=when, name="n", policy=Policy.block(5), buffer=7, on_drop=print)
        reader = one._source
        assert isinstance(reader, RemoteReader)
        asked = reader._asked
        assert isinstance(asked, Subscribe)
        assert asked.start == {"time": when.isoformat()}
        assert asked.policy is not None
        assert (asked.policy.kind, asked.policy.timeout) == ("block", 5)
        assert (asked.name, asked.buffer, asked.drops, asked.credit, asked.resume) == ("n", 7, True, 777, False)
        assert (one.label, one.name, one.pattern) == ("n", "n", "t")
        assert subscribe(link, start=Position(3, 4))._source._asked.start == {"epoch": 3, "offset": 4}
        deliveries = subscribe(link, group="g", prefetch=3, backoff=(1, 2), max_deliver=5)
        member = deliveries._source
        assert isinstance(member, RemoteMember)
        assert (deliveries.prefetch, deliveries.group) == (member.prefetch, member.group) == (3, "g")
        assert (member._asked.backoff, member._asked.max_deliver) == ((1, 2), 5)


async def test_two_without_a_name_have_labels_of_their_own() -> None:
    async with joined() as (_, link):
        assert subscribe(link).label != subscribe(link).label
        assert subscribe(link, group="g").label != subscribe(link, group="g").label
