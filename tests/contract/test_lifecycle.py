"""The end of things: leaving, cancelling and closing end a subscription, and `async for` ends with it."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, read, rest, running, soon, values
from tests.patience import PATIENCE


async def test_leaving_the_block_ends_the_subscription(broker: Broker) -> None:
    await broker.topic("t").declare()
    async with broker.subscribe("t"):
        assert len(broker.statistics().subscriptions) == 1
    assert broker.statistics().subscriptions == ()
    assert broker.statistics().topics["t"].subscribers == 0


async def test_leaving_the_block_by_an_exception_ends_the_subscription(broker: Broker) -> None:
    async def fail() -> None:
        async with broker.subscribe("t") as subscription, broker.subscribe("*"):
            await broker.publish("t", b"a")
            async for _ in subscription:
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()
    assert broker.statistics().subscriptions == ()


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("how", ["record", "batch"])
async def test_cancelling_the_task_ends_the_subscription(broker: Broker, pattern: str, how: str) -> None:
    async def consume() -> None:
        async with broker.subscribe(pattern) as subscription:
            await rest(subscription if how == "record" else subscription.batches(max_wait=5))

    async with running(consume()):
        assert len(broker.statistics().subscriptions) == 1
    assert broker.statistics().subscriptions == ()
    await broker.publish("t", b"nobody is harmed")


@on_every_socket
async def test_a_task_cancelled_mid_record_leaves_the_others_alone(broker: Broker) -> None:
    entered = asyncio.Event()

    async def stuck() -> None:
        async with broker.subscribe("t", policy="block", buffer=1) as subscription:
            async for _ in subscription:
                entered.set()
                await asyncio.Event().wait()

    async with broker.subscribe("t") as other:
        async with running(stuck()):
            await broker.publish("t", b"a")
            await soon(entered.wait())
            async with running(broker.publish("t", b"b")) as publisher:
                assert not publisher.done()
                assert await values(other, 1) == [b"a"]
                waiting = publisher
                break_free = asyncio.shield(waiting)
                await at_rest()
                assert not break_free.done()
        assert broker.statistics().subscriptions[0].label == other.label
        await broker.publish("t", b"c")


async def test_cancelling_a_stuck_block_subscriber_frees_its_publishers(broker: Broker) -> None:
    async def stuck() -> None:
        async with broker.subscribe("t", policy="block", buffer=1) as subscription:
            async for _ in subscription:
                await asyncio.Event().wait()

    async with running(stuck()):
        await broker.publish("t", b"a")
        await at_rest()
        publisher = asyncio.ensure_future(broker.publish("t", b"b"))
        await at_rest()
        assert not publisher.done()
    assert (await soon(publisher)).offset == 1


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("how", ["record", "batch", "patient batch"])
async def test_closing_the_broker_ends_a_waiting_reader(place: Place, pattern: str, how: str) -> None:
    async with place.open() as broker:
        async with broker.subscribe(pattern) as subscription:
            items: Any = subscription
            if how != "record":
                items = subscription.batches(max_wait=60 if how == "patient batch" else None)
            async with running(rest(items)) as reader:
                await broker.publish("t", b"a")
                await at_rest()
                broker.close()
                assert len(await soon(reader)) == 1


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
async def test_what_was_published_before_closing_is_still_read(place: Place, policy: str) -> None:
    async with place.open() as broker:
        async with broker.subscribe("t", policy=policy) as subscription:
            await broker.topic("t").publish_many([b"a", b"b"])
            broker.close()
            assert [record.value for record in await soon(rest(subscription))] == [b"a", b"b"]
            assert await soon(rest(subscription)) == []


@on_every_socket
async def test_a_closed_broker_refuses_everything_with_a_way_out(place: Place) -> None:
    async with place.open() as broker:
        topic = broker.topic("t")
        await topic.publish(b"a")
        topic.publish_nowait(b"b")
    for call in (
        broker.publish("t", b"c"),
        topic.publish(b"c"),
        topic.publish_many([b"c"]),
        topic.publish_and_wait(b"c"),
        topic.declare(),
        broker.request("t", b"c"),
        broker.topics(),
        broker.delete("t"),
        broker.subscribe("t").__aenter__(),
        broker.subscribe("*").__aenter__(),
    ):
        with pytest.raises(runnel.BrokerClosed, match="keep inside `async with"):
            await call
    with pytest.raises(runnel.BrokerClosed):
        topic.publish_nowait(b"c")
    with pytest.raises(runnel.BrokerClosed):
        async with broker:
            pass


async def test_closing_twice_is_harmless(place: Place) -> None:
    async with place.open() as broker:
        await broker.publish("t", b"a")
        broker.close()
        broker.close()
        assert broker.statistics().published == 1
    broker.close()


@pytest.mark.near("a server that is gone cannot be asked")
async def test_statistics_can_still_be_read_when_all_is_over(place: Place) -> None:
    async with place.open() as broker:
        await broker.publish("t", b"a")
    assert broker.statistics().published == 1


@on_every_socket
async def test_closing_the_broker_fails_publishers_that_wait(place: Place) -> None:
    async with place.open() as broker:
        async with broker.subscribe("t", policy="block", buffer=1):
            await broker.publish("t", b"a")
            async with running(broker.publish("t", b"b")) as publisher:
                broker.close()
                with pytest.raises(runnel.BrokerClosed):
                    await soon(publisher)


async def test_a_subscription_is_entered_once(broker: Broker) -> None:
    subscription = broker.subscribe("t")
    async with subscription:
        with pytest.raises(runnel.SubscriptionMisused, match="entered before"):
            async with subscription:
                pass
    with pytest.raises(runnel.SubscriptionMisused, match="entered before"):
        async with subscription:
            pass


async def test_a_subscription_is_read_inside_its_block(broker: Broker) -> None:
    subscription = broker.subscribe("t")
    with pytest.raises(runnel.SubscriptionMisused, match="enter it first"):
        await anext(subscription)
    with pytest.raises(runnel.SubscriptionMisused, match="enter it first"):
        subscription.batches()


async def test_a_subscription_is_read_in_one_way(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"a")
        await read(subscription, 1)
        with pytest.raises(runnel.SubscriptionMisused, match="one way"):
            subscription.batches()


async def test_reading_after_the_block_ends_at_once(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"a")
        await read(subscription, 1)
        await broker.publish("t", b"b")
    assert await soon(rest(subscription)) == []


async def test_a_subscription_left_while_another_task_reads_it_ends_there_too(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        reader = asyncio.ensure_future(rest(subscription))
        await at_rest()
    assert await soon(reader) == []


async def test_two_subscribers_one_of_which_raises(broker: Broker) -> None:
    async def careless() -> None:
        async with broker.subscribe("t") as subscription:
            async for record in subscription:
                raise ValueError(record.value)

    async with broker.subscribe("t") as careful:
        async with running(careless()) as task:
            await broker.publish("t", b"a")
            await broker.publish("t", b"b")
            with pytest.raises(ValueError, match="a"):
                await soon(task)
            assert await values(careful, 2) == [b"a", b"b"]


async def test_a_subscription_says_what_it_is(broker: Broker) -> None:
    subscription = broker.subscribe("orders.*")
    assert (subscription.pattern, subscription.name) == ("orders.*", None)
    assert "not entered" in repr(subscription)
    async with subscription:
        assert "open" in repr(subscription)
        await broker.publish("orders.eu", b"")
        assert subscription.lag == 1
    assert "ended" in repr(subscription)


async def test_two_anonymous_subscriptions_have_labels_of_their_own(broker: Broker) -> None:
    assert broker.subscribe("t").label != broker.subscribe("t").label


def test_a_place_of_another_kind_says_what_is_one() -> None:
    with pytest.raises(runnel.NotSupported, match="begins with runnel://"):
        runnel.open("redis://a")


def test_an_unknown_option_of_a_broker_is_refused() -> None:
    with pytest.raises(runnel.InvalidOption, match="fsync"):
        runnel.open(fsync="commit")


FORK = """
    import asyncio, os, sys
    import runnel

    async def main() -> int:
        broker = runnel.open(*sys.argv[1:])
        async with broker:
            topic = broker.topic("t")
            topic.publish_nowait(b"a")
            child = os.fork()
            if child == 0:
                missing = []
                for name, call in {
                    "publish_nowait": lambda: topic.publish_nowait(b"b"),
                    "subscribe": lambda: broker.subscribe("t").__aenter__().send(None),
                    "topics": lambda: broker.topics().send(None),
                    "publish": lambda: topic.publish(b"b").send(None),
                }.items():
                    try:
                        call()
                    except runnel.Forked as error:
                        if "open a new one in the child" not in str(error):
                            missing.append(name)
                    else:
                        missing.append(name)
                print("not noticed by", missing, flush=True)
                os._exit(len(missing))
            _, status = os.waitpid(child, 0)
            assert (await topic.publish(b"c")).offset == 1, "the parent goes on"
            return os.waitstatus_to_exitcode(status)

    sys.exit(asyncio.run(main()))
"""


@pytest.mark.parametrize("where", [[], ["data"]], ids=["memory", "folder"])
def test_a_fork_is_noticed_in_the_child_and_the_parent_goes_on(where: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK), *where],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
