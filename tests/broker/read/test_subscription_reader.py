"""The broker's side of a subscription: its options, its position, and what is told about it."""

from typing import Any

import pytest

from runnel.broker.broker import Broker
from runnel.broker.read.subscription import Subscription
from runnel.core.errors import InvalidName, InvalidOption, InvalidPattern
from runnel.core.options import SubscribeOptions
from runnel.core.position import Position


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"buffer": 0}, InvalidOption),
        ({"buffer_bytes": -1}, InvalidOption),
        ({"name": ""}, InvalidOption),
        ({"start": "soon"}, InvalidOption),
        ({"dead_letter": "a..b"}, InvalidName),
        ({"dead_letter": "t"}, InvalidOption),
    ],
)
def test_options_are_checked_before_anything_happens(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Broker().backend.reader("t", SubscribeOptions(**options))


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(InvalidPattern):
        Broker().backend.reader("t.>.x", SubscribeOptions())


def test_a_label_is_the_name_or_a_number_of_its_own() -> None:
    broker = Broker()
    assert broker.backend.reader("t", SubscribeOptions(name="billing")).label == "billing"
    labels = {broker.backend.reader("t", SubscribeOptions()).label for _ in range(3)}
    assert len(labels) == 3
    assert all(label.startswith("t#") for label in labels)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_a_name_keeps_is_the_first_record_not_asked_beyond(pattern: str) -> None:
    async with Broker() as broker:
        await broker.topic("u").publish_many([b"x"] * 10)  # sequences differ from offsets
        position = (await broker.topic("t").publish_many([b"a", b"b", b"c"])).first
        at = [Position(position.epoch, n) if pattern == "t" else 10 + n for n in range(4)]
        async with broker.subscribe(pattern, name="n", start=0 if pattern == "t" else None) as subscription:
            if pattern == "*":
                for _ in range(10):
                    await anext(subscription)
            await anext(subscription)
        assert broker.backend.positions.stored["n"] == (pattern, at[0])
        async with broker.subscribe(pattern, name="n") as subscription:
            assert (await anext(subscription)).value == b"a"
            assert (await anext(subscription)).value == b"b"
        assert broker.backend.positions.stored["n"] == (pattern, at[1])
        async with broker.subscribe(pattern, name="n") as subscription:
            await anext(subscription.batches(max_records=2))
            assert subscription.position == (1 if pattern == "t" else 11)
        assert broker.backend.positions.stored["n"] == (pattern, at[1])


async def test_a_name_is_free_again_after_a_start_that_failed() -> None:
    async with Broker() as broker:
        subscription = broker.subscribe("t", name="n", start=99)
        with pytest.raises(Exception, match="not 99"):
            await subscription.__aenter__()
        backend = broker.backend
        assert (backend.positions.open, list(backend.readers), backend.positions.stored) == ({}, [], {})
        async with broker.subscribe("t", name="n"):
            assert list(broker.backend.positions.open) == ["n"]


async def test_leaving_what_was_never_entered_is_harmless() -> None:
    async with Broker() as broker:
        reader = broker.backend.reader("t", SubscribeOptions(name="n"))
        reader.leave(Subscription(reader, None))
        assert broker.backend.positions.stored == {}
