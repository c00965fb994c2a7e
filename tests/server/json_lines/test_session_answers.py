"""Answers go out in the order of the commands, however long each takes."""

import asyncio

import pytest

from runnel.server.json_lines.session import REPLY_OVERHEAD, OrderedReplies
from tests.patience import PATIENCE


class Written(list[bytes]):
    """What went out, one item for each write."""


def answers(limit: int = 1 << 20) -> tuple[OrderedReplies, Written]:
    written = Written()
    return OrderedReplies(written.append, limit), written


async def answered(when: asyncio.Future[None], line: bytes) -> bytes:
    await when
    return line


def futures(count: int) -> list[asyncio.Future[None]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_an_answer_that_is_ready_goes_out_at_once() -> None:
    ours, written = answers()
    ours.now(b"1\n")
    assert written == [b"1\n"]


async def test_answers_wait_for_those_before_them() -> None:
    ours, written = answers()
    first, second = futures(2)
    ours.later(answered(first, b"1\n"), 0)
    ours.later(answered(second, b"2\n"), 0)
    ours.now(b"3\n")
    second.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert written == []
    first.set_result(None)
    await ours.emptied()
    assert b"".join(written) == b"1\n2\n3\n"
    assert (len(ours), ours.bytes) == (0, 0)


async def test_what_is_ready_together_goes_out_in_one_write() -> None:
    ours, written = answers()
    (at_once,) = futures(1)
    for n in range(100):
        ours.later(answered(asyncio.shield(at_once), b"%d\n" % n), 0)
    at_once.set_result(None)
    await ours.emptied()
    assert len(written) == 1
    assert written[0].count(b"\n") == 100


async def test_work_begins_in_order_and_does_not_wait_for_other_work() -> None:
    ours, _ = answers()
    begun: list[int] = []
    (never,) = futures(1)

    async def work(n: int) -> bytes:
        begun.append(n)
        await never
        return b""

    for n in range(10):
        ours.later(work(n), 0)
    await asyncio.sleep(0)
    assert begun == list(range(10))
    ours.abandon()


async def test_there_is_room_until_the_bytes_under_way_reach_the_limit() -> None:
    ours, _ = answers(limit=2 * REPLY_OVERHEAD)
    first, second = futures(2)
    ours.later(answered(first, b""), 0)
    await asyncio.wait_for(ours.room(), PATIENCE)
    ours.later(answered(second, b""), 0)
    waiting = asyncio.create_task(ours.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    first.set_result(None)
    await waiting
    second.set_result(None)
    await ours.emptied()


async def test_an_abandoned_call_is_cancelled_and_has_no_waiter() -> None:
    ours, _ = answers(limit=1)
    (never,) = futures(1)
    ours.later(answered(never, b""), 100)
    waiting = [asyncio.create_task(ours.room())]
    await asyncio.sleep(0)
    ours.abandon()
    await asyncio.wait_for(waiting[0], PATIENCE)
    await asyncio.wait_for(ours.emptied(), PATIENCE)
    assert never.cancelled()


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_one_that_was_cancelled_does_not_hold_up_the_others(cancelled: int) -> None:
    ours, written = answers()
    waits = futures(2)
    for n, wait in enumerate(waits):
        ours.later(answered(wait, b"%d\n" % n), 0)
    await asyncio.sleep(0)
    waits[cancelled].cancel()
    waits[1 - cancelled].set_result(None)
    await ours.emptied()
    assert b"".join(written) == b"%d\n" % (1 - cancelled)
