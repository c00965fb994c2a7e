"""The way to a loop in another thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runnel import BrokerClosed, WouldDeadlock
from runnel.blocking.portal import Portal
from tests.patience import PATIENCE


async def ident() -> int:
    return threading.get_ident()


def test_calls_run_on_a_thread_of_its_own_until_it_is_stopped() -> None:
    portal = Portal(None)
    portal.start()
    assert portal.run(ident()) != threading.get_ident()
    portal.stop()
    with pytest.raises(BrokerClosed):
        portal.run(ident())


def test_what_a_call_raises_reaches_the_caller() -> None:
    async def fail() -> None:
        raise LookupError("here")

    portal = Portal(None)
    portal.start()
    with pytest.raises(LookupError, match="here"):
        portal.run(fail())
    portal.stop()


def test_stopping_cancels_a_call_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.blocking.portal.GRACE", 0.01)
    portal = Portal(None)
    portal.start()
    started = threading.Event()
    outcome: list[BaseException] = []

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.run(hang())
        except BaseException as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert started.wait(PATIENCE)
    portal.stop()
    caller.join(PATIENCE)
    assert not caller.is_alive()
    assert [type(error).__name__ for error in outcome] == ["CancelledError"]


async def test_the_loops_own_thread_is_turned_away() -> None:
    portal = Portal(asyncio.get_running_loop())
    with pytest.raises(WouldDeadlock):
        portal.run(ident())


def test_a_plain_function_is_called_on_the_loop() -> None:
    portal = Portal(None)
    portal.start()
    assert portal.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        portal.call(lambda: 1 // 0)
    inside: list[object] = []

    def again() -> None:
        with pytest.raises(WouldDeadlock):
            portal.call(threading.get_ident)
        inside.append(True)

    portal.call(again)
    assert inside == [True]
    portal.stop()
    with pytest.raises(BrokerClosed):
        portal.call(threading.get_ident)
