"""The tasks that run handlers, from `broker.run()` to its end.

Asked to stop, by a signal or by `broker.stop()`, idle workers leave at once and busy ones
finish the record in hand, within a deadline. What was not finished goes back to its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from runnel.core.errors import InvalidOption
from runnel.surface.delivery import BaseDelivery
from runnel.surface.handler import Handler, Message, Middleware, Reject

log = logging.getLogger("runnel")


class Host(Protocol):
    """The broker whose records are handled, in this process or behind a client."""

    def subscribe(self, pattern: str, **options: Any) -> Any:
        """A subscription; with `group=`, a member of it."""

    async def reply(self, record: Any, value: Any) -> bool:
        """Answer a request."""


class Workers:
    """All handlers of a broker, at work."""

    def __init__(self, broker: Host, handlers: list[Handler], middleware: list[Middleware]) -> None:
        self._broker, self._handlers, self._middleware = broker, handlers, middleware
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Take nothing more on; finish what is in hand."""
        self._stop.set()

    async def run(self, deadline: float, *, signals: bool) -> None:
        """Run until told to stop or until the broker closes; then drain for at most `deadline` seconds."""
        if not self._handlers:
            raise InvalidOption("run", "no handlers", "register functions with @broker.on(...) first")
        async with contextlib.AsyncExitStack() as stack:
            try:
                for handler in self._handlers:
                    await self._start(handler, stack)
                with self._told_by_signals() if signals else contextlib.nullcontext():
                    await self._until_stopped()
                await self._drain(deadline)
            finally:  # cancelled, or a worker failed: no function goes on unwatched
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, handler: Handler, stack: contextlib.AsyncExitStack) -> None:
        broker = self._broker
        if handler.group is not None:
            for _ in range(handler.concurrency):
                member = broker.subscribe(handler.pattern, group=handler.group, type=handler.type, **handler.options)
                deliveries = await stack.enter_async_context(member)
                self._add(self._work(handler, aiter(deliveries), asyncio.Lock()))
        else:
            subscription = broker.subscribe(handler.pattern, type=handler.type, **handler.options)
            records = await stack.enter_async_context(subscription)
            one_at_a_time = asyncio.Lock()  # several workers share the reading, not the work
            for _ in range(handler.concurrency):
                self._add(self._work(handler, aiter(records), one_at_a_time))

    def _add(self, work: Any) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _work(self, handler: Handler, messages: AsyncIterator[Message], turn: asyncio.Lock) -> None:
        task = asyncio.current_task()
        assert task is not None, "workers run as tasks"
        while not self._stop.is_set():
            async with turn:
                message = await anext(messages, None)
            if message is None:
                return  # the broker was closed
            self._busy.add(task)
            try:
                await self._handle(handler, message)
            finally:
                self._busy.discard(task)

    async def _handle(self, handler: Handler, message: Message) -> None:
        """Run the handler and settle the record; a failure is the record's, never the worker's."""
        try:
            result = await handler.call(message, self._middleware)
            if message.reply_to is not None and result is not None:
                await self._broker.reply(message, result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the worker is told to stop; otherwise something that the handler awaited was cancelled
            self._failed(handler, message, error)
        except Exception as error:
            self._failed(handler, message, error)
        else:
            if isinstance(message, BaseDelivery):
                await self._done(handler, message)

    @staticmethod
    async def _done(handler: Handler, delivery: BaseDelivery[Any]) -> None:
        if delivery.lapsed:
            log.warning(
                "handler %s took longer than ack_wait for %r offset %d: the record went back to its group and is "
                "worked on again. Give the group a longer ack_wait, or call delivery.extend() in time.",
                handler.name,
                delivery.topic,
                delivery.offset,
            )
        elif not delivery.settled:
            await delivery.ack()

    @staticmethod
    def _failed(handler: Handler, message: Message, error: BaseException) -> None:
        where = f"{message.topic!r} offset {message.offset}"
        if not isinstance(message, BaseDelivery):
            log.error("handler %s failed on %s", handler.name, where, exc_info=error)
        elif message.settled:
            when = "after its lease ended" if message.lapsed else "after settling it"
            log.error("handler %s failed on %s %s", handler.name, where, when, exc_info=error)
        elif isinstance(error, Reject):
            message.reject(str(error) or "rejected by its handler")
        else:
            log.warning("handler %s failed on %s, attempt %d: %r", handler.name, where, message.attempt, error)
            message.nack(reason=f"{type(error).__name__}: {error}")

    # -- the end ------------------------------------------------------------------------------------------------

    async def _until_stopped(self) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set() and self._tasks:
                done, _ = await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in done & self._tasks:
                    self._tasks.discard(task)
                    task.result()  # an error that ended a worker (a deleted topic, say) ends the run
        finally:
            stopped.cancel()

    async def _drain(self, deadline: float) -> None:
        self._stop.set()
        idle = self._tasks - self._busy
        for task in idle:
            task.cancel()
        busy = self._tasks & self._busy
        if busy:
            _, late = await asyncio.wait(busy, timeout=deadline)
            for task in late:
                log.warning("a handler did not finish within %g s; its record goes back to its group", deadline)
                task.cancel()

    @contextlib.contextmanager
    def _told_by_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        installed = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not in every thread, not on every loop, not on every system: then others must call stop().
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)
