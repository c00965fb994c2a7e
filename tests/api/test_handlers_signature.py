"""What a function wants is read off its signature; how it went is counted."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from runnel.api.delivery import Delivery
from runnel.api.handlers import Handler, Middleware
from runnel.core.errors import InvalidOption
from runnel.core.record import NO_HEADERS, Record
from runnel.core.schema import Text


class Order(msgspec.Struct):
    id: int


def make(function: Any, **facts: Any) -> Handler:
    return Handler(function, facts.get("pattern", "t"), facts.get("group"), 1, {})


def record(value: Any) -> Record[Any]:
    return Record("t", 0, 0, 1, None, value, NO_HEADERS, datetime.now(UTC))


async def of_delivery(delivery: Delivery[Order]) -> Any:
    return delivery


async def of_bare_delivery(delivery: Delivery) -> Any:  # type: ignore[type-arg]
    return delivery


async def of_record(record: Record[Order]) -> Any:
    return record


async def of_bare_record(record: Record) -> Any:  # type: ignore[type-arg]
    return record


async def of_record_of_bytes(record: Record[bytes]) -> Any:
    return record


async def of_value(order: Order) -> Any:
    return order


async def of_list(orders: list[Order]) -> Any:
    return orders


async def of_text(text: str) -> Any:
    return text


async def of_bytes(data: bytes) -> Any:
    return data


async def of_anything(data: Any) -> Any:
    return data


async def unannotated(record):  # type: ignore[no-untyped-def]
    return record


async def with_a_default(order: Order, tries: int = 3) -> Any:
    return order, tries


@pytest.mark.parametrize(
    ("function", "shape", "type_"),
    [
        (of_delivery, "delivery", Order),
        (of_bare_delivery, "delivery", None),
        (of_record, "record", Order),
        (of_bare_record, "record", None),
        (of_record_of_bytes, "record", None),
        (of_value, "value", Order),
        (of_list, "value", list[Order]),
        (of_text, "value", Text),
        (of_bytes, "value", None),
        (of_anything, "value", None),
        (unannotated, "record", None),
        (with_a_default, "value", Order),
    ],
)
def test_the_annotation_says_what_a_function_is_called_with(function: Any, shape: str, type_: Any) -> None:
    handler = make(function, group="g")
    assert (handler.shape, handler.type) == (shape, type_)


async def two(one: bytes, other: bytes) -> None: ...


async def keyword_only(*, one: bytes) -> None: ...


async def packed(*many: bytes) -> None: ...


async def of_something_unknown(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (two, "takes one argument"),
        (keyword_only, "takes one argument"),
        (packed, "takes one argument"),
        (of_something_unknown, "cannot be read"),
        (5, "cannot be read"),
    ],
)
def test_a_function_that_cannot_be_called_with_a_record_is_refused(function: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        make(function)


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [(of_value, Order(1), Order(1)), (of_text, "grün", "grün"), (of_bytes, b"raw", b"raw")],
)
async def test_it_is_called_with_what_it_wants(function: Any, value: Any, expected: Any) -> None:
    assert await make(function).call(record(value), []) == expected


async def test_a_record_is_handed_over_as_it_is() -> None:
    message = record(b"x")
    assert await make(of_record).call(message, []) is message


async def test_a_function_that_is_not_async_runs_in_a_thread_of_its_own() -> None:
    def blocking(data: bytes) -> int:
        return threading.get_ident()

    assert await make(blocking).call(record(b""), []) != threading.get_ident()


async def test_a_wrapped_coroutine_function_stays_on_the_loop() -> None:
    @functools.wraps(of_bytes)
    def wrapped(data: bytes) -> Any:
        return of_bytes(data)

    handler = make(wrapped)
    assert handler.is_async
    assert await handler.call(record(b"x"), []) == b"x"


class Clerk:
    """Something that can be called."""

    async def __call__(self, order: Order) -> int:
        return order.id

    def file(self, text: str) -> str:
        return text


async def stamped(stamp: str, order: Order) -> str:
    return f"{stamp} {order.id}"


@pytest.mark.parametrize(
    ("function", "name", "value", "expected"),
    [
        (Clerk(), "Clerk.__call__", Order(3), 3),
        (Clerk().file, "Clerk.file", "memo", "memo"),
        (functools.partial(functools.partial(stamped), "seen"), "stamped", Order(4), "seen 4"),
    ],
)
async def test_whatever_can_be_called_will_do(function: Any, name: str, value: Any, expected: Any) -> None:
    handler = make(function)
    assert handler.name == name
    assert await handler.call(record(value), []) == expected


async def test_middleware_runs_from_the_outside_in_and_sees_the_message_and_the_result() -> None:
    steps: list[Any] = []

    def layer(name: str) -> Middleware:
        async def around(message: Any, call_next: Any) -> Any:
            steps.append((name, message.value))
            result = await call_next()
            steps.append((name, result))
            return result + name.encode()

        return around

    result = await make(of_bytes).call(record(b"x"), [layer("outer"), layer("inner")])
    assert result == b"xinnerouter"
    assert steps == [("outer", b"x"), ("inner", b"x"), ("inner", b"x"), ("outer", b"xinner")]


async def test_middleware_may_answer_in_the_functions_place() -> None:
    called: list[bytes] = []

    async def function(data: bytes) -> None:
        called.append(data)

    async def shortcut(message: Any, call_next: Any) -> str:
        return "not today"

    assert await make(function).call(record(b"x"), [shortcut]) == "not today"
    assert called == []


async def test_middleware_may_call_again() -> None:
    tries: list[bytes] = []

    async def flaky(data: bytes) -> str:
        tries.append(data)
        if len(tries) < 3:
            raise ValueError
        return "done"

    async def retry(message: Any, call_next: Any) -> Any:
        while True:
            try:
                return await call_next()
            except ValueError:
                continue

    assert await make(flaky).call(record(b"x"), [retry]) == "done"
    assert len(tries) == 3


async def test_it_counts_what_was_handled_what_failed_and_how_long_it_took() -> None:
    async def fails(data: bytes) -> None:
        if data:
            raise ValueError

    handler = make(fails, pattern="orders.*", group="billing")
    await handler.call(record(b""), [])
    with pytest.raises(ValueError):  # noqa: PT011  # what it says does not matter
        await handler.call(record(b"x"), [])
    statistics = handler.statistics()
    assert (statistics.pattern, statistics.group) == ("orders.*", "billing")
    assert (statistics.handled, statistics.failed, statistics.running) == (1, 1, 0)
    assert statistics.durations.count == 2
    assert "fails" in statistics.name


async def test_what_is_running_is_counted_until_it_is_cancelled() -> None:
    async def forever(data: bytes) -> None:
        await asyncio.Event().wait()

    handler = make(forever)
    task = asyncio.create_task(handler.call(record(b""), []))
    await asyncio.sleep(0)
    assert handler.statistics().running == 1
    task.cancel()
    await asyncio.wait([task])
    assert (handler.running, handler.handled, handler.failed) == (0, 0, 1)


def test_it_says_what_it_is_for() -> None:
    assert repr(make(of_text, pattern="logs")) == "<Handler of_text of 'logs'>"
    assert repr(make(of_text, pattern="logs", group="g")) == "<Handler of_text of 'logs' in group 'g'>"


def test_only_a_group_has_deliveries() -> None:
    with pytest.raises(InvalidOption, match="only a group has deliveries"):
        make(of_delivery)


async def test_what_a_plain_function_returns_is_awaited_if_it_can_be() -> None:
    async def work(value: bytes) -> bytes:
        return value * 2

    def later(value: bytes) -> Any:
        return work(value)

    assert await make(later).call(record(b"x"), []) == b"xx"
