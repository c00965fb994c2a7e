"""The handle on a topic, over any backend: what it checks, and that its fast path is the same in all but time."""

import inspect
from datetime import datetime
from typing import Any

import msgspec
import pytest

import runnel
from runnel.api.topic import HANDLES, Topic, TopicHandles
from runnel.broker.writer import LocalFastPath
from runnel.client.writer import RemoteFastPath
from runnel.core.errors import InvalidName, InvalidOption


class Order(msgspec.Struct):
    id: int


def test_a_handle_says_what_it_is() -> None:
    broker = runnel.open()
    topic = broker.topic("t", Order)
    assert (repr(broker.topic("t")), repr(topic)) == ("<Topic 't'>", "<Topic 't' of Order>")
    assert isinstance(topic, runnel.Topic)
    assert (type(topic).__name__, type(topic).__module__) == ("Topic", "runnel.api.topic")
    assert type(topic) is type(broker.topic("u", Order))


@pytest.mark.parametrize("fast_path", [LocalFastPath, RemoteFastPath])
@pytest.mark.parametrize("method", ["publish", "publish_nowait"])
def test_a_fast_path_takes_what_the_documented_method_takes(fast_path: type, method: str) -> None:
    fast, slow = (inspect.signature(getattr(kind, method)).parameters for kind in (fast_path, Topic))
    assert [(one.name, one.kind, one.default) for one in fast.values()] == [
        (one.name, one.kind, one.default) for one in slow.values()
    ]


async def test_help_on_a_handle_is_that_of_the_class(broker: Any) -> None:
    topic = broker.topic("t")
    assert topic.publish.__doc__ == Topic.publish.__doc__
    assert topic.publish_nowait.__doc__ == Topic.publish_nowait.__doc__
    assert type(topic).__doc__ == Topic.__doc__


async def test_called_on_the_class_publishing_does_the_same(broker: Any) -> None:
    topic = broker.topic("t")
    assert (await Topic.publish(topic, b"a")).offset == 0
    Topic.publish_nowait(topic, b"b")
    assert (await topic.publish(b"c")).offset == 2


async def test_many_share_one_signature_in_all_handles(broker: Any) -> None:
    shown = inspect.signature(Topic.publish_many).parameters
    assert [*shown] == ["self", "values", "keys", "headers", "delay", "expires", "priority", "expected_offset"]
    assert (shown["keys"].default, shown["priority"].default) == (None, 0)
    with pytest.raises(TypeError, match="kyes"):
        await broker.topic("t").publish_many([b"a"], kyes=[b"k"])


async def test_where_to_trim_is_checked_before_anything_is_asked(broker: Any) -> None:
    topic = broker.topic("never.made")
    for wrong in (True, -1, "5"):
        with pytest.raises(InvalidOption, match="expected an offset"):
            await topic.trim(wrong)
    with pytest.raises(InvalidOption, match="zone"):
        await topic.trim(datetime(2026, 1, 1))


async def test_handles_by_name_are_kept_but_not_all_of_them(broker: Any) -> None:
    handles = TopicHandles(broker.backend)
    assert handles["t"] is handles["t"]
    first = handles["t"]
    for number in range(HANDLES):
        _ = handles[f"t{number}"]
    assert handles["t"] is not first
    with pytest.raises(InvalidName):
        _ = handles["not a name"]
