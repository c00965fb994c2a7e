"""Handlers: functions that the broker calls, typed by annotation, retried, drained when the program is told to end."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Delivery, Record
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, soon
from tests.contract.working import fill, look
from tests.patience import PATIENCE


class Order(msgspec.Struct):
    id: int


@asynccontextmanager
async def at_work(broker: Broker, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """`broker.run()` beside the block; stopped at its end."""
    run = asyncio.create_task(broker.run(signals=False, **options))
    await at_rest()
    try:
        yield run
    finally:
        broker.stop()
        await asyncio.wait([run])


async def settled(broker: Broker) -> None:
    """Wait until the group has nothing left to do."""
    while look(broker).lag:
        await at_rest()


async def reasons(broker: Broker, count: int) -> list[str]:
    async with broker.subscribe("dead-letters.g", start="earliest") as letters:
        return [letter.headers["runnel-dead-letter-reason"] for letter in await read(letters, count)]


# -- what a worker needs ----------------------------------------------------------------------------------------


@on_every_socket
async def test_what_is_published_after_ready_reaches_every_handler(broker: Broker) -> None:
    seen: list[str] = []
    both = asyncio.Event()

    def note(name: str) -> None:
        seen.append(name)
        if len(seen) == 2:
            both.set()

    @broker.on("jobs")
    async def one(job: bytes) -> None:
        note("one")

    @broker.on("jobs", group="g")
    async def two(job: bytes) -> None:
        note("two")

    waiting = asyncio.create_task(broker.ready())  # it may wait before `run` has begun
    await at_rest()
    assert not waiting.done()
    run = asyncio.create_task(broker.run(signals=False))
    await soon(waiting)
    await broker.publish("jobs", b"1")
    await soon(both.wait())
    await soon(broker.ready())  # at once, from then on
    broker.stop()
    await soon(run)


async def test_ready_raises_what_run_raises(broker: Broker) -> None:
    @broker.on("jobs", name="taken")
    async def work(job: bytes) -> None: ...

    async with broker.subscribe("jobs", name="taken"):
        waiting = asyncio.create_task(broker.ready())
        await at_rest()
        with pytest.raises(runnel.NameInUse):
            await broker.run(signals=False)
        with pytest.raises(runnel.NameInUse):
            await soon(waiting)


async def test_without_handlers_there_is_nothing_to_wait_for(broker: Broker) -> None:
    await soon(broker.ready())


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
async def test_what_a_handler_returns_is_published(broker: Broker, group: str | None) -> None:
    results = broker.topic("results", Order)

    @broker.on("jobs", group=group, publish="texts")
    async def text(job: str) -> str | None:
        return None if job == "nothing" else job.upper()

    @broker.on("jobs", group=group and "h", publish=results)
    async def typed(job: str) -> Order:
        return Order(len(job))

    async with broker.subscribe("texts") as texts, results.subscribe() as typed_ones, at_work(broker):
        await broker.ready()
        await broker.publish("jobs", "nothing")
        await broker.publish("jobs", "tea", key="k")
        (shouted,) = await read(texts, 1)
        assert (shouted.value, shouted.key) == (b"TEA", b"k")
        assert [record.value for record in await read(typed_ones, 2)] == [Order(7), Order(3)]
        if group is not None:
            while any(found.lag for found in broker.statistics().groups):
                await at_rest()
    assert (await broker.bounds("texts"))[0].end == 1


async def test_a_result_that_cannot_be_published_fails_the_record(broker: Broker) -> None:
    await broker.topic("results", Order).declare()

    @broker.on("jobs", group="g", retries=0, publish="results")
    async def work(job: str) -> str:
        return job

    async with at_work(broker):
        await broker.ready()
        await broker.publish("jobs", "nonsense")
        await broker.publish("jobs", '{"id":1}')
        assert "validation_failed" in (await reasons(broker, 1))[0]
        await settled(broker)
    assert (await broker.bounds("results"))[0].end == 1


async def test_a_call_that_takes_too_long_has_failed(broker: Broker) -> None:
    @broker.on("jobs", group="g", retries=0, time_limit=0.01)
    async def work(job: bytes) -> None:
        if job == b"slow":
            await asyncio.Event().wait()
        if job == b"own":
            raise TimeoutError("of its own")

    async with at_work(broker):
        await broker.ready()
        for job in ("slow", "own", "fast"):
            await broker.publish("jobs", job)
        found = await reasons(broker, 2)
        await settled(broker)
    assert any("time_limit_exceeded" in reason and "0.01 s" in reason for reason in found)
    assert any("TimeoutError: of its own" in reason for reason in found)


async def test_no_more_calls_begin_in_a_second_than_the_rate_allows(broker: Broker) -> None:
    times: list[float] = []
    done = asyncio.Event()

    @broker.on("jobs", group="g", rate=100, concurrency=2)
    async def work(job: bytes) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 12:
            done.set()

    async with at_work(broker):
        await broker.ready()
        await broker.topic("jobs").publish_many([b"x"] * 12)
        await soon(done.wait())
    # Of 12 calls, 2 may begin at once, and each of the others 10 ms after one before it.
    assert times[-1] - times[0] >= 0.09


async def test_middleware_of_one_handler_is_inside_of_that_of_all(broker: Broker) -> None:
    order: list[str] = []
    done = asyncio.Event()

    @broker.use
    async def outer(message: Any, call_next: Any) -> Any:
        order.append("outer")
        return await call_next()

    async def inner(message: Any, call_next: Any) -> Any:
        order.append("inner")
        return await call_next()

    @broker.on("jobs", middleware=inner)
    async def work(job: bytes) -> None:
        order.append("work")
        done.set()

    @broker.on("others")
    async def other(job: bytes) -> None: ...

    async with at_work(broker):
        await broker.ready()
        await broker.publish("jobs", b"x")
        await soon(done.wait())
    assert order == ["outer", "inner", "work"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_retries": 3}, "did you mean 'retries'"),
        ({"concurency": 3}, "did you mean 'concurrency'"),
        ({"prefech": 3}, "did you mean 'prefetch'"),
        ({"timelimit": 3}, "did you mean 'time_limit'"),
        ({"zzz": 3}, "there are group, concurrency"),
        ({"rate": 0}, "calls in a second above 0"),
        ({"time_limit": -1}, "seconds above 0"),
        ({"publish": 7}, "the name of a topic"),
        ({"publish": "a b"}, "a b"),
        ({"middleware": 7}, "call_next"),
    ],
)
@pytest.mark.near("nothing is sent")
async def test_a_wrong_option_of_a_handler_names_the_right_one(
    broker: Broker, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(runnel.RunnelError, match=expected):
        broker.on("jobs", **options)


# -- what they are called with ----------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g"])
async def test_the_annotation_says_what_a_function_gets(broker: Broker, group: str | None) -> None:
    got: dict[str, Any] = {}

    @broker.on("orders", group=group)
    async def of_record(record: Record[Order]) -> None:
        got["record"] = record

    @broker.on("orders", group=group and f"{group}2")
    async def of_value(order: Order) -> None:
        got["value"] = order

    @broker.on("orders", group=group and f"{group}3")
    async def of_text(text: str) -> None:
        got["text"] = text

    @broker.on("orders", group=group and f"{group}4")
    async def of_bytes(data: bytes) -> None:
        got["bytes"] = data

    @broker.on("orders", group=group and f"{group}5")
    async def of_raw_record(record: Record[bytes]) -> None:
        got["raw"] = record.value

    async with at_work(broker):
        await broker.publish("orders", b'{"id":1}', key="k")
        await at_rest()
    assert (got["record"].value, got["record"].key) == (Order(1), b"k")
    assert (got["value"], got["text"], got["bytes"], got["raw"]) == (Order(1), '{"id":1}', b'{"id":1}', b'{"id":1}')


async def test_a_function_may_ask_for_the_delivery_itself(broker: Broker) -> None:
    seen: list[tuple[Any, int]] = []

    @broker.on("orders", group="g", backoff=[0], jitter=0)
    async def work(delivery: Delivery[Order]) -> None:
        seen.append((delivery.value, delivery.attempt))
        if delivery.attempt == 1:
            await delivery.nack()

    async with at_work(broker):
        await broker.topic("orders", Order).publish(Order(7))
        await settled(broker)
    assert seen == [(Order(7), 1), (Order(7), 2)]
    assert look(broker).acked == 1


async def test_what_a_function_cannot_be_given_is_a_dead_letter(broker: Broker) -> None:
    seen: list[Order] = []

    @broker.on("orders", group="g")
    async def work(order: Order) -> None:
        seen.append(order)

    async with at_work(broker):
        for value in (b"junk", b'{"id":2}'):
            await broker.publish("orders", value)
        await settled(broker)
    assert seen == [Order(2)]
    assert (await reasons(broker, 1))[0].startswith("not a Order")


async def test_a_function_that_takes_two_things_is_refused_where_it_is_written(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="takes one argument"):

        @broker.on("orders")
        async def work(one: bytes, other: bytes) -> None: ...


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"group": "g", "retries": -1}, {"retries": 3}])
def test_options_that_make_no_sense_are_refused_where_they_are_written(broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(runnel.InvalidOption):
        broker.on("orders", **options)


# -- failing ----------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_failure_is_tried_again_and_after_its_retries_a_dead_letter_with_the_error(broker: Broker) -> None:
    tries: list[bytes] = []

    @broker.on("jobs", group="g", retries=2, backoff=[0], jitter=0)
    async def work(data: bytes) -> None:
        tries.append(data)
        raise ValueError(f"cannot do {data.decode()}")

    async with at_work(broker):
        await fill(broker, 1)
        await settled(broker)
    assert tries == [b"0"] * 3
    assert await reasons(broker, 1) == ["ValueError: cannot do 0"]


async def test_failures_back_off(broker: Broker, clock: JumpingClock) -> None:
    tries: list[float] = []

    @broker.on("jobs", group="g", backoff=[10, 60], jitter=0)
    async def work(data: bytes) -> None:
        tries.append(clock.time())
        if len(tries) < 4:
            raise ValueError

    async with at_work(broker):
        await fill(broker, 1)
        await clock.advance(200)
        await settled(broker)
    assert [later - tries[0] for later in tries] == [0, 10, 70, 130]


async def test_what_can_never_succeed_is_rejected_at_once(broker: Broker) -> None:
    @broker.on("jobs", group="g", retries=5)
    async def work(data: bytes) -> None:
        raise runnel.Reject("no such account")

    async with at_work(broker):
        await fill(broker, 1)
        await settled(broker)
    assert await reasons(broker, 1) == ["no such account"]
    assert look(broker).redelivered == 0


async def test_one_failure_does_not_hold_up_the_others(broker: Broker) -> None:
    done: list[bytes] = []

    @broker.on("jobs", group="g")
    async def work(data: bytes) -> None:
        if data == b"0":
            raise ValueError
        done.append(data)

    async with at_work(broker):
        await fill(broker, 3)
        await at_rest()
        assert done == [b"1", b"2"]
        assert (look(broker).acked, look(broker).lag) == (2, 1)


# -- how they run -----------------------------------------------------------------------------------------------


async def test_a_function_that_blocks_does_not_block_the_loop(broker: Broker) -> None:
    release, threads = threading.Event(), set()

    @broker.on("jobs", group="g")
    def work(data: bytes) -> None:
        threads.add(threading.get_ident())
        if not release.wait(PATIENCE):
            raise TimeoutError

    async with at_work(broker):
        await fill(broker, 1)
        while not threads:
            await at_rest()
        assert look(broker).in_flight == 1
        release.set()
        await settled(broker)
    assert threading.get_ident() not in threads
    assert look(broker).acked == 1


async def test_so_many_run_at_once(broker: Broker) -> None:
    gate = asyncio.Event()
    running: set[bytes] = set()

    @broker.on("jobs", group="g", concurrency=3)
    async def work(data: bytes) -> None:
        running.add(data)
        await gate.wait()

    async with at_work(broker):
        await fill(broker, 9)
        await at_rest()
        assert len(running) == 3
        assert len(look(broker).members) == 3
        gate.set()
        await settled(broker)
    assert len(running) == 9


async def test_a_key_is_never_with_two_functions_at_once(broker: Broker) -> None:
    busy: set[str] = set()
    seen: list[int] = []

    @broker.on("jobs", group="g", concurrency=4)
    async def work(record: Record[bytes]) -> None:
        key = str(record.key)
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(0)
        seen.append(record.offset)
        busy.discard(key)

    async with at_work(broker):
        for number in range(40):
            await fill(broker, 1, first=number, key=f"k{number % 2}")
        await settled(broker)
    assert [offset for offset in seen if offset % 2] == list(range(1, 40, 2))
    assert look(broker).redelivered == 0


async def test_a_function_that_exceeds_its_time_is_reported_and_its_record_is_not_acked(
    broker: Broker, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    seen: list[int] = []

    @broker.on("jobs", group="g", ack_wait=10, publish="results")
    async def work(delivery: Delivery[bytes]) -> str:
        seen.append(delivery.attempt)
        await gates[delivery.attempt - 1].wait()
        return f"attempt {delivery.attempt}"

    async with at_work(broker):
        await fill(broker, 1)
        await clock.advance(10)
        gates[0].set()
        await at_rest()
        assert "the lease of 'jobs' offset 0 ended before handler" in caplog.text
        assert (seen, look(broker).acked) == ([1, 2], 0)
        gates[1].set()
        await settled(broker)
    assert look(broker).acked == 1
    async with broker.subscribe("results", start="earliest") as results:
        assert (await soon(anext(results))).value == b"attempt 2"  # a record has one result


async def test_middleware_is_around_every_function_the_first_one_outermost(broker: Broker) -> None:
    steps: list[str] = []

    @broker.use
    async def outer(message: Any, call_next: Any) -> Any:
        steps.append(f"> {message.topic}")
        try:
            return await call_next()
        finally:
            steps.append("< outer")

    @broker.use
    async def inner(message: Any, call_next: Any) -> Any:
        steps.append("> inner")
        return await call_next()

    @broker.on("jobs", group="g")
    async def work(data: bytes) -> None:
        steps.append("work")

    async with at_work(broker):
        await fill(broker, 1)
        await settled(broker)
    assert steps == ["> jobs", "> inner", "work", "< outer"]


async def test_middleware_may_stand_in_for_the_function(broker: Broker) -> None:
    done: list[bytes] = []

    @broker.use
    async def no_evens(message: Any, call_next: Any) -> Any:
        if int(message.value) % 2 == 0:
            return None
        return await call_next()

    @broker.on("jobs", group="g")
    async def work(data: bytes) -> None:
        done.append(data)

    async with at_work(broker):
        await fill(broker, 4)
        await settled(broker)
    assert done == [b"1", b"3"]
    assert look(broker).acked == 4


async def test_an_error_of_the_middleware_is_one_of_the_record(broker: Broker) -> None:
    @broker.use
    async def strict(message: Any, call_next: Any) -> Any:
        raise PermissionError("not yours")

    @broker.on("jobs", group="g", retries=0)
    async def work(data: bytes) -> None: ...

    async with at_work(broker):
        await fill(broker, 1)
        await settled(broker)
    assert await reasons(broker, 1) == ["PermissionError: not yours"]


@pytest.mark.parametrize("group", [None, "g"])
async def test_what_a_function_returns_answers_a_request(broker: Broker, group: str | None) -> None:
    @broker.on("ask", group=group)
    async def shout(text: str) -> str:
        return text.upper()

    async with at_work(broker):
        assert (await soon(broker.request("ask", "hello"))).value == b"HELLO"


async def test_how_long_functions_take_is_counted(broker: Broker) -> None:
    @broker.on("jobs", group="g", backoff=[0], jitter=0)
    async def work(data: bytes) -> None:
        if data == b"1":
            raise runnel.Reject

    async with at_work(broker):
        await fill(broker, 3)
        await settled(broker)
    (handler,) = broker.statistics().handlers
    assert (handler.pattern, handler.group) == ("jobs", "g")
    assert (handler.handled, handler.failed, handler.running) == (2, 1, 0)
    assert handler.durations.count == 3
    assert 0 < handler.durations.sum < PATIENCE
    assert handler.durations.quantile(0.5) < PATIENCE


# -- the end ----------------------------------------------------------------------------------------------------


async def test_a_second_run_is_refused_while_one_runs(broker: Broker) -> None:
    @broker.on("jobs")
    async def work(data: bytes) -> None: ...

    async with at_work(broker):
        with pytest.raises(runnel.NotSupported, match="running already"):
            await broker.run()


@on_every_socket
async def test_stop_finishes_what_is_in_hand(broker: Broker) -> None:
    gate, done = asyncio.Event(), []

    @broker.on("jobs", group="g")
    async def work(data: bytes) -> None:
        await gate.wait()
        done.append(data)

    async with at_work(broker) as run:
        await fill(broker, 2)
        await at_rest()
        broker.stop()
        await at_rest()
        assert not run.done()
        gate.set()
        await soon(run)
    assert done == [b"0"]
    assert (look(broker).acked, look(broker).lag, look(broker).in_flight) == (1, 1, 0)


async def test_what_was_left_is_done_by_the_next_run(broker: Broker) -> None:
    done: list[bytes] = []

    @broker.on("jobs", group="g")
    async def work(data: bytes) -> None:
        done.append(data)
        broker.stop()

    await fill(broker, 3)
    for _ in range(3):
        await soon(broker.run(signals=False))
    assert done == [b"0", b"1", b"2"]


PROGRAM = """
    import asyncio
    import runnel

    async def main() -> None:
        async with runnel.open() as broker:

            @broker.on("jobs", group="g")
            async def work(data: bytes) -> None:
                print("working on", data.decode(), flush=True)
                await asyncio.sleep({takes})
                print("done with", data.decode(), flush=True)

            for number in range(3):
                await broker.publish("jobs", b"%d" % number)
            await broker.run(deadline={deadline})
            (group,) = broker.statistics().groups
            print("acked", group.acked, "left", group.lag, "out", group.in_flight, flush=True)

    asyncio.run(main())
"""


@contextmanager
def program(folder: Path, **facts: float) -> Iterator[subprocess.Popen[str]]:
    """A program that works on jobs until it is told to end."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM).format(**facts))
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            yield it
        finally:
            it.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_asked_to_end_finishes_the_record_in_hand(tmp_path: Path, number: signal.Signals) -> None:
    with program(tmp_path, takes=0.2, deadline=600) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "working on 0\n"
        running.send_signal(number)
        told, errors = running.communicate(timeout=PATIENCE)
    assert (running.returncode, errors) == (0, "")
    assert told == "done with 0\nacked 1 left 2 out 0\n"


def test_a_record_that_is_not_finished_in_time_is_not_acked_and_not_lost(tmp_path: Path) -> None:
    with program(tmp_path, takes=600, deadline=0.05) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "working on 0\n"
        running.send_signal(signal.SIGTERM)
        told, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0
    assert told == "acked 0 left 3 out 0\n"
    assert "did not finish within 0.05 s" in errors


async def test_a_cancelled_future_inside_a_handler_is_the_records_failure_not_the_workers(broker: Broker) -> None:
    seen: list[str] = []

    @broker.on("orders", group="g", retries=0)
    async def work(order: str) -> None:
        seen.append(order)
        if order == "stop":
            broker.stop()
            return
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    for order in ("bad", "stop"):
        await broker.publish("orders", order)
    await broker.run(signals=False)
    assert seen == ["bad", "stop"]
    assert broker.statistics().groups[0].dead_lettered == 1
