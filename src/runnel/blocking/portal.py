"""Runs coroutines on an event loop in another thread, and blocks the calling thread until they finish."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from runnel.core.errors import BrokerClosed, Forked, WouldDeadlock

R = TypeVar("R")

GRACE = 1.0  # seconds that calls of other threads have to end in when a broker is closed


class Portal:
    """Runs coroutines on a loop in another thread: one of its own, unless it is given one."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.owned = loop is None
        self.loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._open = not self.owned
        self._turn = threading.Lock()  # no call may go to a loop that will not run it any more

    @property
    def is_forked(self) -> bool:
        """Whether this is its copy in the child of a fork, where no thread runs the loop."""
        return os.getpid() != self._process

    def start(self) -> None:
        """Start the thread, if the loop is our own."""
        if self.is_forked:
            raise Forked
        if self.owned:
            self._thread = threading.Thread(target=self.loop.run_forever, name="runnel", daemon=True)
            self._thread.start()
            self._open = True

    def stop(self) -> None:
        """End the thread, once the calls of others have ended."""
        if self._thread is not None:
            self.run(_let_finish())
            with self._turn:
                self._open = False
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.run_until_complete(_let_finish())  # of calls that came in between
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """The result of `call`, run on the loop. Interrupting the caller cancels it."""
        try:
            self._check_not_inside()
            with self._turn:
                self._check_open()
                future = asyncio.run_coroutine_threadsafe(call, self.loop)
        except BaseException:
            call.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], R]) -> R:
        """The result of `function`, called on the loop: without a task and a future, in half the time of `run`."""
        self._check_not_inside()
        crossing = Crossing(function)
        with self._turn:
            self._check_open()
            self.loop.call_soon_threadsafe(crossing)
        return crossing.result()

    def _check_not_inside(self) -> None:
        if asyncio._get_running_loop() is self.loop:
            raise WouldDeadlock("the event loop", "runnel.blocking, called from the loop's own thread")
        if self.is_forked:  # it would wait for ever, perhaps for a lock that a thread of the parent holds
            raise Forked

    def _check_open(self) -> None:
        if not self._open or self.loop.is_closed():
            raise BrokerClosed("this")


class Crossing(Generic[R]):
    """A call that one thread makes on the event loop of another, and waits for."""

    __slots__ = ("_called", "_error", "_function", "_value")

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._called = threading.Lock()
        self._called.acquire()

    def __call__(self) -> None:
        """Make the call; on the event loop."""
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
        finally:
            self._called.release()

    def result(self) -> R:
        """The result of the call, or its exception; in the other thread."""
        self._called.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it refers to this frame, which refers to it
        return self._value


async def _let_finish() -> None:
    """Let the calls of other threads end, now that the broker is closed; cancel those that do not."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        _, late = await asyncio.wait(calls, timeout=GRACE)
        for call in late:
            call.cancel()
        await asyncio.sleep(0)
