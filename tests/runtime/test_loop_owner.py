"""The loop that a broker belongs to, and the ways to it from other threads."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from runnel.core.errors import BrokerClosed, Forked, Full, NotSupported, UsageError
from runnel.runtime import loop_owner as module
from runnel.runtime.loop_owner import LoopOwner, detach_sockets
from tests.patience import PATIENCE


def make_home() -> tuple[LoopOwner, list[str]]:
    notes: list[str] = []
    return LoopOwner(
        lambda loop: notes.append("moved in"),
        lambda: notes.append("forked"),
        refused=lambda: notes.append("refused"),
    ), notes


def in_thread(call: Callable[[], object]) -> None:
    """Run `call` in a thread, and raise what it raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


async def test_it_takes_the_first_loop_it_meets() -> None:
    loop_owner, notes = make_home()
    assert loop_owner.is_here()
    loop_owner.check_usable("this")
    loop_owner.check_usable("this")
    assert loop_owner.loop is asyncio.get_running_loop()
    assert notes == ["moved in"]
    assert (loop_owner.state, loop_owner.is_here()) == ("open", True)


def test_without_a_loop_there_is_no_home() -> None:
    with pytest.raises(NotSupported, match=r"runnel\.blocking"):
        make_home()[0].check_usable("publishing")


async def test_another_thread_is_elsewhere() -> None:
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")
    seen: list[bool] = []
    in_thread(lambda: seen.append(loop_owner.is_here()))
    assert seen == [False]
    with pytest.raises(NotSupported, match="subscribing from another thread"):
        in_thread(lambda: loop_owner.check_usable("subscribing"))


async def test_a_closed_or_forked_one_refuses() -> None:
    closed, _ = make_home()
    closed.check_usable("this")
    assert closed.close()
    assert not closed.close()
    with pytest.raises(BrokerClosed, match="publishing"):
        closed.check_usable("publishing")
    with pytest.raises(BrokerClosed):
        closed.post(lambda: None)
    forked, notes = make_home()
    forked.check_usable("this")
    forked.fork()
    with pytest.raises(Forked):
        forked.check_usable("this")
    with pytest.raises(Forked):
        forked.post(lambda: None)
    assert notes == ["moved in", "forked"]
    assert not forked.close()
    assert (closed.state, forked.state) == ("closed", "forked")


async def test_what_threads_post_is_called_in_order_on_the_loop() -> None:
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")
    called: list[tuple[int, int]] = []
    done = asyncio.Event()

    def note(number: int) -> None:
        called.append((number, threading.get_ident()))

    in_thread(lambda: [loop_owner.post(partial(note, number)) for number in range(100)])  # type: ignore[func-returns-value]
    loop_owner.post(done.set)
    await done.wait()
    assert called == [(n, threading.get_ident()) for n in range(100)]


async def test_no_call_is_left_behind_however_threads_interleave() -> None:
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")
    count, each, called = 4, 500, 0
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        nonlocal called
        called += 1
        if called == count * each:
            done.set_result(None)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns after nearly every instruction
    try:
        threads = [threading.Thread(target=lambda: list(map(loop_owner.post, [call] * each))) for _ in range(count)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done, PATIENCE)
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert called == count * each


async def test_what_is_posted_while_taking_is_taken_too() -> None:
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")
    again = asyncio.Event()
    loop_owner.post(lambda: loop_owner.post(again.set))
    await asyncio.wait_for(again.wait(), PATIENCE)


async def test_a_refused_record_is_logged_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    loop_owner, notes = make_home()
    loop_owner.check_usable("this")
    called: list[str] = []

    def refuse() -> None:
        raise UsageError("no")

    loop_owner.post(refuse)
    loop_owner.post(lambda: called.append("after"))
    loop_owner.take_posted()
    assert called == ["after"]
    assert "refused: no" in caplog.text
    assert notes.count("refused") == 1


async def test_the_inbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_POSTED", 3)
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")
    for _ in range(3):
        loop_owner.post(lambda: None)
    with pytest.raises(Full, match="bound of 3"):
        loop_owner.post(lambda: None)


async def test_another_loop_may_visit() -> None:
    loop_owner, _ = make_home()
    loop_owner.check_usable("this")

    async def where() -> int:
        return threading.get_ident()

    async def elsewhere() -> int:
        return await loop_owner.visit(where())

    found = await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(elsewhere()))
    assert found == threading.get_ident()
    loop_owner.close()
    with pytest.raises(BrokerClosed):
        await loop_owner.visit(where())


async def test_another_thread_may_ask() -> None:
    loop_owner, _ = make_home()
    assert loop_owner.ask(threading.get_ident) == threading.get_ident()
    loop_owner.check_usable("this")
    loop: Any = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, lambda: loop_owner.ask(threading.get_ident)) == threading.get_ident()


# -- Sockets that the child of a fork lets go of, while its parent keeps them --------------------------------


def test_what_is_let_go_of_is_nothing_any_more_and_its_number_stays_taken() -> None:
    one, other = socket.socketpair()
    with one, other, one.dup() as copy:
        detach_sockets([one.fileno(), -1])
        copy.send(b"still here")
        assert other.recv(100) == b"still here", "whoever has it too keeps it, and nobody was told"
        copy.close()
        assert other.recv(100) == b"", "and ends it"
        assert os.path.samefile(f"/proc/self/fd/{one.fileno()}", os.devnull)


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    detach_sockets([])
    assert len(os.listdir("/proc/self/fd")) == before
