"""Request and reply, and publishing that waits until it was processed."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest

import runnel
from runnel import Broker
from runnel.core.replies import MAX_REPLY_BYTES
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


async def test_a_request_without_a_responder_fails_at_once(broker: Broker) -> None:
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
        asks: tuple[Any, ...] = (broker.topic("ask").request, broker.topic("ask").publish_and_wait)
        for ask in (*asks, partial(broker.request, "ask")):
            for timeout in (0, -1, float("nan"), "5"):
                with pytest.raises(runnel.InvalidOption, match="timeout"):
                    await ask(b"1", timeout=timeout)
        broker.close()
        assert await rest(requests) == []


# -- typed requests and replies ---------------------------------------------------------------------------------


class Question(msgspec.Struct):
    number: int


class Total(pydantic.BaseModel):
    sum: int


class Answer(msgspec.Struct):
    square: int
    by: str = ""


class Overdrawn(Exception):
    code = "overdrawn"


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
async def test_requests_and_replies_are_typed(broker: Broker, group: str | None) -> None:
    @broker.on("square", group=group)
    async def square(question: Question) -> Answer:
        return Answer(question.number**2)

    questions = broker.topic("square", Question)
    async with running(broker.run(signals=False)):
        await at_rest()
        assert (await soon(questions.request(Question(12), type=Answer))).value == Answer(144)
        assert (await soon(broker.request("square", b'{"number":3}'))).value == b'{"square":9,"by":""}'
        assert (await soon(questions.request(Question(2), type=dict[str, Any]))).value == {"square": 4, "by": ""}
        with pytest.raises(runnel.ValidationFailed):
            await questions.request(Question("12"), type=Answer)  # type: ignore[arg-type]
        with pytest.raises(runnel.ValidationFailed, match="the reply of square"):
            await soon(questions.request(Question(1), type=Question))


async def test_a_reply_may_be_text_or_any_value(broker: Broker) -> None:
    async with broker.subscribe("ask") as requests:
        for value, kind, expected in (
            ("grüße", str, "grüße"),
            (b"\xff", bytes, b"\xff"),
            ([1, 2], list[int], [1, 2]),
            (Answer(4), Answer, Answer(4)),
            ([Total(sum=4)], list[Total], [Total(sum=4)]),
        ):
            async with running(broker.request("ask", b"?", type=kind)) as asking:
                question = await soon(anext(requests))
                with pytest.raises(runnel.InvalidValue, match="what msgspec or Pydantic encodes"):
                    await broker.reply(question, object())
                assert await broker.reply(question, value)
                assert (await soon(asking)).value == expected


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
async def test_what_a_handler_raises_reaches_the_requester(broker: Broker, group: str | None) -> None:
    errors: list[BaseException] = [Overdrawn("by 3 EUR"), KeyError("no such account"), runnel.UnknownTopic("t")]

    @broker.on("pay", group=group, retries=None if group is None else 0)
    async def pay(amount: bytes) -> object:
        if amount == b"unencodable":
            return object()
        raise errors[int(amount)]

    async with running(broker.run(signals=False)):
        await at_rest()
        for number, (code, why) in enumerate(
            [("overdrawn", "by 3 EUR"), ("KeyError", "'no such account'"), ("unknown_topic", "there is no topic")]
        ):
            with pytest.raises(runnel.RequestFailed, match="the responder of 'pay' failed") as caught:
                await soon(broker.request("pay", str(number)))
            assert (caught.value.code, caught.value.error, caught.value.topic) == ("request_failed", code, "pay")
            assert why in caught.value.why
        with pytest.raises(runnel.RequestFailed) as caught:
            await soon(broker.request("pay", "unencodable"))
        assert caught.value.error == "invalid_value"


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
async def test_a_request_that_a_handler_cannot_decode_fails(broker: Broker, group: str | None) -> None:
    @broker.on("ask", group=group)
    async def answer(question: Question) -> int:
        return question.number + 1

    async with running(broker.run(signals=False)):
        await at_rest()
        with pytest.raises(runnel.RequestFailed, match="Expected `int`, got `str`"):
            await soon(broker.request("ask", b'{"number":"seven"}'))
        assert (await soon(broker.request("ask", b'{"number":7}'))).value == b"8"


@on_every_socket
async def test_a_requester_is_notified_when_a_group_gives_its_request_up_and_not_before(broker: Broker) -> None:
    attempts: list[bytes] = []

    @broker.on("pay", group="g", retries=2, backoff=[0], jitter=0)
    async def pay(amount: bytes) -> bytes:
        attempts.append(amount)
        if amount == b"never":
            raise runnel.Reject("no such account")
        if amount == b"late" and attempts.count(amount) == 3:
            return b"paid"
        raise Overdrawn("by 3 EUR")

    async with running(broker.run(signals=False)):
        await at_rest()
        assert (await soon(broker.request("pay", b"late"))).value == b"paid"
        with pytest.raises(runnel.RequestFailed) as caught:
            await soon(broker.request("pay", b"much"))
        assert (caught.value.error, caught.value.why) == ("overdrawn", "by 3 EUR")
        with pytest.raises(runnel.RequestFailed, match="no such account"):
            await soon(broker.request("pay", b"never"))
    assert attempts == [b"late"] * 3 + [b"much"] * 3 + [b"never"]


@on_every_socket
async def test_a_requester_is_notified_of_every_give_up(broker: Broker) -> None:
    async with broker.subscribe("pay", group="g", max_deliver=1) as deliveries:
        for is_rejected, reason, error in (
            (True, "it is closed: for good", ("given_up", "it is closed: for good")),
            (False, "Overdrawn: by 3 EUR", ("Overdrawn", "by 3 EUR")),
        ):
            async with running(broker.request("pay", b"?")) as asking:
                delivery = await soon(anext(deliveries))
                await (delivery.reject(reason) if is_rejected else delivery.nack(reason=reason))
                with pytest.raises(runnel.RequestFailed) as caught:
                    await soon(asking)
                assert (caught.value.error, caught.value.why) == error
        await broker.publish("pay", b"?", headers={"runnel-reply-to": "answers"})
        async with broker.subscribe("answers") as answers:
            await (await soon(anext(deliveries))).reject("the account is closed")
            (told,) = await read(answers, 1)
            assert (told.value, told.headers["runnel-error"]) == (b"the account is closed", "given_up")


async def test_a_reply_to_an_inbox_that_is_not_there_is_not_taken(broker: Broker) -> None:
    async with broker.subscribe("ask") as requests:
        await broker.publish("ask", b"?", headers={"runnel-reply-to": f"$runnel.inbox.{'0' * 32}"})
        assert await broker.reply(await anext(requests), b"!") is False


# -- many replies to one request --------------------------------------------------------------------------------


@on_every_socket
async def test_replies_of_all_responders_are_gathered_until_the_deadline(broker: Broker, clock: JumpingClock) -> None:
    @broker.on("prices")
    async def cheap(item: str) -> Answer:
        return Answer(1, by="cheap")

    @broker.on("prices", group="shops", retries=0)  # one responder, however many members it has
    async def dear(item: str) -> Answer:
        return Answer(3, by="dear")

    @broker.on("prices")
    async def sold_out(item: str) -> None:
        raise Overdrawn("sold out")

    @broker.on("prices")
    async def rude(item: str) -> str:
        return "what?"

    async with running(broker.run(signals=False)):
        await broker.ready()
        async with running(broker.request_many("prices", "tea", type=Answer, timeout=3, key="k")) as asking:
            await at_rest()
            await clock.advance(2.9)
            assert not asking.done()
            await clock.advance(0.2)
            replies = await soon(asking)
    assert sorted((reply.value.square, reply.value.by) for reply in replies) == [(1, "cheap"), (3, "dear")]
    assert sorted(one.code for one in replies.failures) == ["request_failed", "validation_failed"]
    failed = next(one for one in replies.failures if isinstance(one, runnel.RequestFailed))
    assert (failed.error, failed.why) == ("overdrawn", "sold out")


@on_every_socket
async def test_gathering_ends_at_the_limit(broker: Broker) -> None:
    async with broker.subscribe("ask") as one, broker.subscribe("ask") as two, broker.subscribe("ask") as three:
        async with running(broker.topic("ask").request_many(b"?", timeout=3600, limit=2)) as asking:
            assert await broker.reply(await soon(anext(one)), b"1")
            assert await broker.reply(await soon(anext(two)), b"2")
            replies = await soon(asking)
            assert ([reply.value for reply in replies], replies.failures) == ([b"1", b"2"], [])
            assert await broker.reply(await soon(anext(three)), b"too late") is False


async def test_gathering_ends_when_the_replies_are_too_large(broker: Broker) -> None:
    async with broker.subscribe("ask") as questions:
        async with running(broker.request_many("ask", b"?", timeout=3600)) as asking:
            question = await soon(anext(questions))
            piece = bytes(1 << 20)
            for _ in range(MAX_REPLY_BYTES >> 20):
                assert await broker.reply(question, piece)
            assert len(await soon(asking)) == MAX_REPLY_BYTES >> 20


async def test_a_request_to_many_without_an_answer(broker: Broker, clock: JumpingClock) -> None:
    with pytest.raises(runnel.NoResponders):
        await broker.request_many("ask", b"?", timeout=3600)
    async with broker.subscribe("ask"):
        async with running(broker.request_many("ask", b"?", timeout=5)) as asking:
            await at_rest()
            await clock.advance(5.1)
            assert await soon(asking) == []
        for wrong in ({"timeout": 0}, {"timeout": float("inf")}, {"limit": 0}, {"limit": 10_001}):
            with pytest.raises(runnel.InvalidOption):
                await broker.request_many("ask", b"?", **wrong)


async def test_closing_ends_the_gathering(broker: Broker) -> None:
    async with broker.subscribe("ask") as questions:
        async with running(broker.request_many("ask", b"?", timeout=3600)) as asking:
            await soon(anext(questions))
            broker.close()
            with pytest.raises(runnel.RunnelError):
                await soon(asking)


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
