"""A delivery's block: how it ends says how the record is settled, wherever the group lives."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime

import pytest

from runnel.api.delivery_base import ACCEPTED, DeliveryBase
from runnel.core.record import NO_HEADERS, REPLY_TO, Record


class Noted(DeliveryBase[bytes]):
    """Notes how it was settled."""

    __slots__ = ("done", "ended", "promised")

    def __init__(self, *, promised: bool = False) -> None:
        headers = {"h": "x", REPLY_TO: "answers"}
        self.record = Record("t", 3, 9, 1, b"k", b"v", headers, datetime(2026, 1, 1, tzinfo=UTC))
        self.done: list[object] = []
        self.ended, self.promised = False, promised

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        if self.ended:
            raise LookupError("too late")
        self.done.append("ack")
        return ACCEPTED

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        self.done.append((delay, reason))
        return ACCEPTED

    def reject(self, reason: str) -> Awaitable[None]:
        self.done.append(reason)
        return ACCEPTED

    def extend(self, seconds: float) -> Awaitable[None]:
        return ACCEPTED

    @property
    def lapsed(self) -> bool:
        return self.ended

    @property
    def settled(self) -> bool:
        return self.ended or bool(self.done)

    def _is_promised(self) -> bool:
        return self.promised

    def _is_open(self) -> bool:
        return not self.done

    @property
    def attempt(self) -> int:
        return 1

    @property
    def group(self) -> str:
        return "g"


async def test_a_block_acks() -> None:
    async with Noted() as delivery:
        pass
    assert delivery.done == ["ack"]


@pytest.mark.parametrize(
    ("error", "nacked"),
    [(ValueError("no"), (None, "ValueError: no")), (asyncio.CancelledError(), (0.0, "CancelledError: "))],
    ids=["failed", "cancelled"],
)
async def test_a_block_that_raises_nacks_and_one_that_is_cancelled_gives_back_at_once(
    error: BaseException, nacked: object
) -> None:
    delivery = Noted()
    with pytest.raises(type(error)):
        async with delivery:
            raise error
    assert delivery.done == [nacked]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_settled_in_the_block_stays_as_it_is(fails: bool) -> None:
    delivery = Noted()
    try:
        async with delivery:
            await delivery.reject("never")
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert delivery.done == ["never"]


async def test_a_lease_that_ended_meanwhile_is_told_to_whoever_thinks_it_is_done() -> None:
    delivery = Noted()
    with pytest.raises(LookupError, match="too late"):
        async with delivery:
            delivery.ended = True


async def test_a_lease_that_ended_does_not_hide_why_the_block_failed() -> None:
    delivery = Noted()
    delivery.ended = True
    with pytest.raises(ValueError, match="the reason"):
        async with delivery:
            raise ValueError("the reason")
    assert delivery.done == []


async def test_what_a_transaction_takes_is_not_acked_twice() -> None:
    async with Noted(promised=True) as delivery:
        pass
    assert delivery.done == []


def test_it_has_the_fields_of_its_record() -> None:
    delivery = Noted()
    fields = "topic offset sequence epoch position key value headers time traceparent reply_to"
    for field in fields.split():
        assert getattr(delivery, field) == getattr(delivery.record, field)
    assert (delivery.value, delivery.reply_to, NO_HEADERS) == (b"v", "answers", {})
