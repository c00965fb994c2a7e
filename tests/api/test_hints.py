"""Calls that are nearly right are refused, or warned about, with the right form."""

from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.core.errors import AlreadySettled, InvalidOption, InvalidValue, NotSupported, SubscriptionMisused


@pytest.mark.parametrize("retries", ["3", -1, True, 1.5])
async def test_retries_are_a_whole_number(runnel_broker: Broker, retries: Any) -> None:
    with pytest.raises(InvalidOption, match=r"retries=.*a whole number, 0 or more"):
        runnel_broker.on("t", group="g", retries=retries)


async def test_a_handler_without_a_topic_is_refused_with_an_example(runnel_broker: Broker) -> None:
    with pytest.raises(InvalidOption, match=r"pattern='work': .*@broker\.on\(.orders.\)"):

        @runnel_broker.on  # type: ignore[arg-type]
        async def work(value: bytes) -> None: ...


async def test_an_option_in_the_wrong_place_is_refused_with_the_right_one(runnel_broker: Broker, tmp_path: Any) -> None:
    options: Any = {"retries": 3}
    with pytest.raises(InvalidOption, match=r"option of handlers.*max_deliver"):
        runnel_broker.subscribe("t", group="g", **options)
    with pytest.raises(InvalidOption, match="option for the address of a server"):
        runnel.open(tmp_path / "data", timeout=3)


async def test_an_asynchronous_broker_is_not_entered_or_read_without_async(runnel_broker: Broker) -> None:
    misused: Any = runnel_broker
    with pytest.raises(NotSupported, match=r"async with runnel\.open"), misused:
        pass
    for subscription in (misused.subscribe("t"), misused.subscribe("t", group="g")):
        with pytest.raises(SubscriptionMisused, match="async for"):
            list(subscription)
        with pytest.raises(SubscriptionMisused, match="do not await it"):
            await subscription
        with pytest.raises(SubscriptionMisused, match="async with"), subscription:
            pass


@pytest.mark.parametrize("durable", [False, True])
async def test_a_second_settlement_names_the_record(tmp_path: Any, durable: bool) -> None:
    async with runnel.open(tmp_path / "data", share=False) as broker:
        await broker.publish("jobs", b"one")
        async with broker.subscribe("jobs", group="g") as deliveries:
            delivery = await anext(deliveries)
            await delivery.ack()
            with pytest.raises(AlreadySettled, match="the record of 'jobs' at offset 0 was settled already"):
                await delivery.ack(durable=durable)
            with pytest.raises(AlreadySettled, match="the record of 'jobs' at offset 0 was settled already"):
                await delivery.nack()


async def test_no_value_is_refused_without_suggesting_a_type_that_is_no_name(runnel_broker: Broker) -> None:
    with pytest.raises(InvalidValue, match="b'' is an empty value") as caught:
        await runnel_broker.publish("t", None)
    assert "broker.topic('t', NoneType)" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["orders.#", "orders/+/paid"])
async def test_wildcards_of_other_systems_are_warned_about_once(
    runnel_broker: Broker, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    for _ in range(2):
        runnel_broker.subscribe(pattern)
    runnel_broker.subscribe("c++.c#")
    assert [line for line in caplog.messages if "wildcards are" in line] == [
        f"subscribed to the one topic {pattern!r}: wildcards are '*' (one token) and '>' (all that follow)"
    ]


async def test_a_time_as_text_is_refused_with_the_form_of_a_time(runnel_broker: Broker) -> None:
    start: Any = "2026-01-01"
    with pytest.raises(InvalidOption, match=r"datetime\(2026"):
        runnel_broker.subscribe("t", start=start)


def test_a_blocking_broker_publishes_many_records_to_a_topic() -> None:
    with runnel.blocking.open() as broker:
        assert broker.publish_many("t", [b"a", b"b"]).last.offset == 1


async def test_a_broker_publishes_many_records_to_a_topic(runnel_broker: Broker) -> None:
    span = await runnel_broker.publish_many("t", [b"a", "b"], keys=[None, "k"])
    assert (span.first.offset, span.last.offset) == (0, 1)
    async with runnel_broker.subscribe("t", start="earliest") as records:
        assert [(record.value, record.key) for record in [await anext(records), await anext(records)]] == [
            (b"a", None),
            (b"b", b"k"),
        ]
