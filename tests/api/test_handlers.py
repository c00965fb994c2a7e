"""Handlers at work: settled by how they end, drained when told, never left running unwatched."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runnel import Broker, Delivery, Record
from runnel.api.handlers import Reject
from runnel.core.errors import BrokerClosed, InvalidOption, NotSupported, TopicDeleted
from tests.patience import PATIENCE


@asynccontextmanager
async def at_work(broker: Broker, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """`broker.run()` beside the block; stopped at its end."""
    run = asyncio.create_task(broker.run(signals=False, **options))
    await turns()
    try:
        yield run
    finally:
        broker.stop()
        await asyncio.wait([run])


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def counts(broker: Broker) -> tuple[int, int, int]:
    """How many are acked, dead-lettered and not settled."""
    (group,) = broker.statistics().groups
    return group.acked, group.dead_lettered, group.lag


async def test_without_handlers_there_is_nothing_to_run(runnel_broker: Broker) -> None:
    with pytest.raises(InvalidOption, match=r"@broker\.on"):
        await runnel_broker.run()


async def test_a_broker_runs_once_at_a_time(runnel_broker: Broker) -> None:
    @runnel_broker.on("t")
    async def ignore(record: Record[bytes]) -> None: ...

    async with at_work(runnel_broker):
        with pytest.raises(NotSupported, match="second run"):
            await runnel_broker.run(signals=False)
    async with at_work(runnel_broker) as again:
        assert not again.done()


async def test_a_handler_that_would_never_run_is_refused(runnel_broker: Broker) -> None:
    async def ignore(record: Record[bytes]) -> None: ...

    runnel_broker.on("t")(ignore)
    async with at_work(runnel_broker):
        with pytest.raises(NotSupported, match="register it before run"):
            runnel_broker.on("u")(ignore)


async def test_waiting_for_a_run_ends_with_the_broker(runnel_broker: Broker) -> None:
    @runnel_broker.on("t")
    async def ignore(record: Record[bytes]) -> None: ...

    waiting = asyncio.create_task(runnel_broker.ready())
    await turns()
    runnel_broker.close()
    with pytest.raises(BrokerClosed):
        await asyncio.wait_for(waiting, PATIENCE)


async def test_as_many_functions_that_block_run_at_once_as_it_says(runnel_broker: Broker) -> None:
    meeting = threading.Barrier(40)  # more than the threads of asyncio

    @runnel_broker.on("jobs", group="g", concurrency=40, prefetch=1)
    def work(data: bytes) -> None:
        meeting.wait(PATIENCE)

    async with at_work(runnel_broker):
        jobs = runnel_broker.topic("jobs")
        await jobs.publish_many([b"%d" % number for number in range(39)])
        await jobs.publish_and_wait(b"last")
        assert counts(runnel_broker) == (40, 0, 0)


async def test_a_deadline_is_not_negative(runnel_broker: Broker) -> None:
    @runnel_broker.on("t")
    async def ignore(record: Record[bytes]) -> None: ...

    with pytest.raises(InvalidOption, match="deadline"):
        await runnel_broker.run(deadline=-1, signals=False)
    runnel_broker.stop()  # harmless


async def test_what_returns_is_acked_what_raises_is_nacked_and_what_is_hopeless_is_rejected(
    runnel_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    @runnel_broker.on("t", group="g")
    async def work(data: bytes) -> None:
        if data == b"fail":
            raise ValueError("try later")
        if data == b"hopeless":
            raise Reject("never")
        if data == b"wordless":
            raise Reject

    async with at_work(runnel_broker):
        for value in (b"good", b"fail", b"hopeless", b"wordless"):
            await runnel_broker.publish("t", value)
        await turns()
        assert counts(runnel_broker) == (1, 2, 1)
    failure, rejection = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "failed on 't' offset 1, attempt 1: ValueError('try later')" in failure
    assert "the record of 't' at offset 2 is a dead letter now in 'dead-letters.g': 'never'" in rejection
    async with runnel_broker.subscribe("dead-letters.g", start="earliest") as letters:
        reasons = [(await anext(letters)).headers["runnel-dead-letter-reason"] for _ in range(2)]
    assert reasons == ["never", "rejected by its handler"]


async def test_what_a_function_settled_itself_stays_as_it_is(
    runnel_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    @runnel_broker.on("t", group="g")
    async def work(delivery: Delivery[bytes]) -> None:
        if delivery.value == b"nack":
            await delivery.nack(delay=60)
        else:
            await delivery.ack()
            raise ValueError("too late to matter")

    async with at_work(runnel_broker):
        await runnel_broker.publish("t", b"nack")
        await runnel_broker.publish("t", b"ack")
        await turns()
        assert counts(runnel_broker) == (1, 0, 1)
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "after settling it" in error.getMessage()


async def test_without_a_group_a_failure_is_logged_and_the_next_record_comes(
    runnel_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    @runnel_broker.on("t")
    async def work(data: bytes) -> None:
        seen.append(data)
        if data == b"bad":
            raise ValueError("oops")

    async with at_work(runnel_broker):
        for value in (b"bad", b"good"):
            await runnel_broker.publish("t", value)
        await turns()
    assert seen == [b"bad", b"good"]
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.exc_info is not None
    assert isinstance(error.exc_info[1], ValueError)


@pytest.mark.parametrize("group", [None, "g"])
async def test_so_many_run_at_once_and_no_more(runnel_broker: Broker, group: str | None) -> None:
    gate = asyncio.Event()
    running: list[bytes] = []

    @runnel_broker.on("t", group=group, concurrency=3)
    async def work(data: bytes) -> None:
        running.append(data)
        await gate.wait()

    async with at_work(runnel_broker):
        for number in range(7):
            await runnel_broker.publish("t", b"%d" % number)
        await turns()
        assert len(running) == 3
        assert runnel_broker.handlers()[0].running == 3
        gate.set()
        await turns()
        assert sorted(running) == [b"%d" % number for number in range(7)]


async def test_asked_to_stop_it_finishes_the_work_in_hand_and_takes_nothing_new(runnel_broker: Broker) -> None:
    gate = asyncio.Event()

    @runnel_broker.on("t", group="g")
    async def work(data: bytes) -> None:
        await gate.wait()

    async with at_work(runnel_broker) as run:
        for value in (b"in hand", b"waiting"):
            await runnel_broker.publish("t", value)
        await turns()
        runnel_broker.stop()
        await turns()
        assert not run.done()
        gate.set()
        await run
    assert counts(runnel_broker) == (1, 0, 1)


async def test_what_does_not_finish_in_time_goes_back(runnel_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    cancelled: list[bytes] = []

    @runnel_broker.on("t", group="g")
    async def work(data: bytes) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(data)
            raise

    async with at_work(runnel_broker, deadline=0.01) as run:
        await runnel_broker.publish("t", b"slow")
        await turns()
        runnel_broker.stop()
        await run
    assert cancelled == [b"slow"]
    assert counts(runnel_broker) == (0, 0, 1)
    assert "did not finish within 0.01 s" in caplog.text
    async with runnel_broker.subscribe("t", group="g") as deliveries:
        assert (await anext(deliveries)).attempt == 2


async def test_a_run_that_is_cancelled_takes_its_functions_along(runnel_broker: Broker) -> None:
    cancelled: list[bytes] = []

    @runnel_broker.on("t", group="g")
    async def work(data: bytes) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(data)
            raise

    async with at_work(runnel_broker) as run:
        await runnel_broker.publish("t", b"x")
        await turns()
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert cancelled == [b"x"]
    assert counts(runnel_broker) == (0, 0, 1)


async def test_a_deleted_topic_ends_the_run_and_the_other_functions_with_it(runnel_broker: Broker) -> None:
    cancelled: list[bytes] = []

    @runnel_broker.on("t", group="g")
    async def ignore(data: bytes) -> None: ...

    @runnel_broker.on("other", group="g")
    async def work(data: bytes) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(data)
            raise

    async with at_work(runnel_broker) as run:
        await runnel_broker.publish("other", b"x")
        await turns()
        await runnel_broker.delete("t")
        with pytest.raises(TopicDeleted):
            await run
        assert cancelled == [b"x"]


async def test_a_handler_that_cannot_start_ends_the_run(runnel_broker: Broker) -> None:
    @runnel_broker.on("t", group="g", ack_wait=5.0)
    async def one(data: bytes) -> None: ...

    @runnel_broker.on("t", group="g", ack_wait=6.0)
    async def two(data: bytes) -> None: ...

    with pytest.raises(InvalidOption, match="members must agree"):
        await runnel_broker.run(signals=False)
    assert runnel_broker.statistics().groups[0].members == ()


@pytest.mark.parametrize("group", [None, "g"])
async def test_the_end_of_the_broker_is_the_end_of_the_run(runnel_broker: Broker, group: str | None) -> None:
    @runnel_broker.on("t", group=group)
    async def ignore(data: bytes) -> None: ...

    async with at_work(runnel_broker) as run:
        runnel_broker.close()
        await run


async def test_a_reply_that_cannot_be_sent_is_a_failure(
    runnel_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    @runnel_broker.on("t", group="g", retries=0)
    async def work(data: bytes) -> Any:
        return object()

    async with at_work(runnel_broker):
        await runnel_broker.publish("t", b"?", headers={"runnel-reply-to": "answers"})
        await turns()
    assert counts(runnel_broker) == (0, 1, 0)
    assert "InvalidValue" in caplog.text
