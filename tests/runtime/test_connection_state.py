"""Whether there is a connection, for whoever wants to know."""

import asyncio

import pytest

from runnel.core.errors import BrokerClosed, InvalidOption, NoAnswer, Unreachable
from runnel.runtime.connection_state import ConnectionState
from tests.patience import PATIENCE


async def test_a_waiter_for_a_state_is_notified() -> None:
    state = ConnectionState()
    waiting = asyncio.create_task(state.wait("connected", timeout=PATIENCE))
    await asyncio.sleep(0)
    state.become("connecting")
    await asyncio.sleep(0)
    assert not waiting.done()
    state.become("connected")
    await waiting
    await state.wait("connected", timeout=0)


async def test_a_state_that_does_not_come_is_not_waited_for() -> None:
    state = ConnectionState()
    state.error = Unreachable("here", "nobody")
    with pytest.raises(NoAnswer, match="waiting to be connected") as caught:
        await state.wait("connected", timeout=0.001)
    assert caught.value.__cause__ is state.error
    assert not state._waiters


async def test_one_that_was_closed_says_why() -> None:
    state = ConnectionState()
    waiting = asyncio.create_task(state.wait("connected"))
    await asyncio.sleep(0)
    state.error = Unreachable("here", "nobody")
    state.become("closed")
    with pytest.raises(Unreachable):
        await waiting
    await state.wait("closed")
    state.error = None
    with pytest.raises(BrokerClosed):
        await state.wait("connected")


async def test_a_state_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidOption, match="expected one of new, connecting"):
        await ConnectionState().wait("open")


async def test_all_changes_are_reported_up_to_the_end() -> None:
    state = ConnectionState()

    async def watch() -> list[str]:
        return [one async for one in state.changes()]

    watching = asyncio.create_task(watch())
    for one in ("connecting", "connecting", "connected", "reconnecting", "closed"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        state.become(one)
    assert await watching == ["new", "connecting", "connected", "reconnecting", "closed"]


def test_it_says_what_it_is() -> None:
    state = ConnectionState()
    assert repr(state) == "<Connection, new>"
    state.address, state.error = "runnel://a:1", Unreachable("a", "b")
    assert repr(state) == "<Connection to runnel://a:1, new, unreachable>"
