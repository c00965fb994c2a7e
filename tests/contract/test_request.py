"""Request and reply, and publishing that waits until it was processed."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, rest, running, soon, values

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def respond(broker: Broker, pattern: str, times: int = 1) -> list[bool]:
    """Answer each request in upper case."""
    async with broker.subscribe(pattern) as requests:
        return [
            await broker.reply(record, record.value.upper(), headers={"by": "me"})
            for record in await read(requests, times)
        ]


@pytest.mark.parametrize("pattern", ["ask", "*", ">"])
async def test_a_request_gets_its_reply(broker: Broker, pattern: str) -> None:
    async with running(respond(broker, pattern)) as responder:
        reply = await soon(broker.request("ask", "hello", key="k", headers={"h": "x"}))
        assert (reply.value, reply.headers["by"]) == (b"HELLO", "me")
        assert await responder == [True]


@on_every_socket
async def test_each_of_many_requests_gets_its_own_reply(broker: Broker) -> None:
    async with running(respond(broker, "ask", times=20)):
        replies = await soon(asyncio.gather(*(broker.request("ask", f"q{number}") for number in range(20))))
    assert [reply.value for reply in replies] == [b"Q%d" % number for number in range(20)]


async def test_a_request_that_nobody_listens_to_fails_at_once(broker: Broker) -> None:
    with pytest.raises(runnel.NoResponders, match="start the responder first") as caught:
        await broker.request("ask", b"?", timeout=3600)
    assert caught.value.topic == "ask"
    async with broker.subscribe("ask"):
        pass
    with pytest.raises(runnel.NoResponders):
        await broker.request("ask", b"?")
    assert broker.statistics().published == 0


async def test_a_reply_that_does_not_come_in_time(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("ask") as requests:
        async with running(broker.request("ask", b"?", timeout=2)) as asking:
            await clock.advance(1.9)
            assert not asking.done()
            await clock.advance(0.1)
            with pytest.raises(runnel.RequestTimeout, match="within 2 s"):
                await asking
        assert await broker.reply(await anext(requests), b"too late") is False


async def test_a_request_that_is_cancelled_leaves_nothing_behind(broker: Broker) -> None:
    async with broker.subscribe("ask") as requests:
        async with running(broker.request("ask", b"?")):
            pass
        assert await broker.reply(await anext(requests), b"!") is False
    assert await broker.topics() == ["ask"]
    assert broker.statistics().subscriptions == ()


async def test_only_a_request_can_be_replied_to(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"")
        with pytest.raises(runnel.InvalidOption, match="not a request"):
            await broker.reply(await anext(subscription), b"!")


async def test_a_reply_carries_the_trace_of_its_request(broker: Broker) -> None:
    async with running(respond(broker, "ask")):
        reply = await soon(broker.request("ask", "?", headers={"traceparent": TRACE}))
    assert reply.traceparent == TRACE


async def test_the_first_of_several_replies_counts(broker: Broker) -> None:
    async with broker.subscribe("ask") as one, broker.subscribe("ask") as two:
        async with running(broker.request("ask", b"?")) as asking:
            assert await broker.reply(await anext(one), b"first")
            await broker.reply(await anext(two), b"second")
            assert (await soon(asking)).value == b"first"


async def test_a_reply_may_go_to_a_topic_of_the_callers_choice(broker: Broker) -> None:
    async with broker.subscribe("answers") as answers, broker.subscribe("ask") as requests:
        await broker.publish("ask", b"?", headers={"runnel-reply-to": "answers"})
        assert await broker.reply(await anext(requests), b"!") is True
        assert await values(answers, 1) == [b"!"]


async def test_a_wrong_request_is_refused(broker: Broker) -> None:
    async with broker.subscribe("ask") as requests:
        with pytest.raises(runnel.InvalidValue):
            await broker.request("ask", 5)  # type: ignore[arg-type]
        broker.close()
        assert await rest(requests) == []


# -- publish_and_wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
async def test_it_returns_when_every_subscriber_has_asked_for_what_comes_next(
    broker: Broker, pattern: str, policy: str
) -> None:
    done = asyncio.Event()
    processed: list[bytes] = []

    async def work() -> None:
        async with broker.subscribe(pattern, policy=policy) as subscription:
            async for record in subscription:
                await done.wait()
                processed.append(record.value)

    async with running(work()), running(broker.topic("t").publish_and_wait(b"a")) as publisher:
        assert not publisher.done()
        done.set()
        assert (await soon(publisher)).offset == 0
        assert processed == [b"a"]


@on_every_socket
@pytest.mark.parametrize("how", ["record", "batch"])
async def test_it_names_those_that_stall(broker: Broker, clock: JumpingClock, how: str) -> None:
    async def work(name: str, stuck: bool) -> None:
        async with broker.subscribe("t", name=name) as subscription:
            items: Any = subscription if how == "record" else subscription.batches()
            async for _ in items:
                if stuck:
                    await asyncio.Event().wait()

    async with running(work("quick", False)), running(work("stuck", True)):
        async with broker.subscribe("*", name="asleep"):
            async with running(broker.topic("t").publish_and_wait(b"a", timeout=5)) as publisher:
                await clock.advance(4)
                assert not publisher.done()
                await clock.advance(1)
                with pytest.raises(runnel.Stalled, match="'t' offset 0 was published") as caught:
                    await publisher
    assert sorted(caught.value.subscribers) == ["asleep", "stuck"]


async def test_a_subscriber_that_leaves_is_no_longer_waited_for(broker: Broker) -> None:
    async with broker.subscribe("t"):
        publisher = asyncio.ensure_future(broker.topic("t").publish_and_wait(b"a"))
        await at_rest()
        assert not publisher.done()
    assert (await soon(publisher)).offset == 0


@on_every_socket
async def test_closing_ends_the_wait(broker: Broker) -> None:
    async with broker.subscribe("t"):
        async with running(broker.topic("t").publish_and_wait(b"a")) as publisher:
            broker.close()
            await soon(publisher)


async def test_a_subscriber_to_whom_the_record_was_lost_does_not_stall_for_ever(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(buffer=1, policy="drop_newest") as subscription:
        topic.publish_nowait(b"kept")
        async with running(topic.publish_and_wait(b"dropped")) as publisher:
            await read(subscription, 1)
            async with running(read(subscription, 1)):
                await soon(publisher)
