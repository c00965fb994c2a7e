"""Handlers: functions that a broker calls with records, `@broker.on(pattern)`.

The annotation of the first parameter says what the function receives: a `Delivery[Order]`, a `Record[Order]`,
an `Order`, `str` or `bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from runnel.api.delivery import Delivery
from runnel.api.request import failure_code, failure_reply
from runnel.core.errors import InvalidOption, RunnelError, ValidationFailed
from runnel.core.record import Record
from runnel.core.statistics import HandlerStatistics, Histogram

_Parameter = inspect.Parameter

Message: TypeAlias = Record[Any] | Delivery[Any]
Next: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Any]]  # Any: one may say Record | Delivery, of either room


class Reject(Exception):  # what the handler wants, not what went wrong
    """Raised by a handler: this record can never succeed; to the dead letters, without another attempt."""


class Handler:
    """A function, the records it is for, and how it is run."""

    def __init__(
        self,
        function: Callable[..., Any],
        pattern: str,
        group: str | None,
        concurrency: int,
        options: dict[str, Any],
    ) -> None:
        self.function, self.pattern, self.group = function, pattern, group
        self.concurrency, self.options = concurrency, options
        self.name = _written(function).__qualname__.replace("<locals>.", "")
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(_written(function)))
        self.shape, self.type = _wanted(function)
        if self.shape == "delivery" and group is None:
            raise InvalidOption("handler", function, "only a group has deliveries; give it a group, or take a Record")
        self.handled = self.failed = self.running = 0
        self.durations = Histogram()

    def __repr__(self) -> str:
        return f"<Handler {self.name} of {self.pattern!r}{f' in group {self.group!r}' if self.group else ''}>"

    async def call(self, message: Message, middleware: list[Middleware]) -> Any:
        """Run the function on `message`, inside the middleware; the outermost comes first."""
        steps: Next = partial(self._invoke, message)
        for layer in reversed(middleware):
            steps = partial(layer, message, steps)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.running += 1
        try:
            result = await steps()
        except BaseException:
            self.failed += 1
            raise
        finally:
            self.running -= 1
            self.durations.add(loop.time() - began)
        self.handled += 1
        return result

    async def _invoke(self, message: Message) -> Any:
        argument = self._argument(message)
        if self.is_async:
            return await self.function(argument)
        # It may block: the loop must not wait for it.
        result = await asyncio.to_thread(self.function, argument)
        return await result if inspect.isawaitable(result) else result

    def _argument(self, message: Message) -> Any:
        record = message.record if isinstance(message, Delivery) else message
        if self.shape == "text":
            return record.value.decode()
        return {"delivery": message, "record": record, "value": record.value}[self.shape]

    def statistics(self) -> HandlerStatistics:
        """What it did so far."""
        return HandlerStatistics(
            self.name, self.pattern, self.group, self.handled, self.failed, self.running, self.durations.snapshot()
        )


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the annotations of `function` stand: behind a partial, or in the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _wanted(function: Callable[..., Any]) -> tuple[str, Any]:
    """What to call `function` with, and the type of the values; None: bytes."""
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        hints = typing.get_type_hints(_written(function))
    except (TypeError, ValueError, NameError) as error:
        raise InvalidOption("handler", function, f"its signature cannot be read: {error}") from None
    if len(parameters) != 1 or parameters[0].kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
        raise InvalidOption("handler", function, "a handler takes one argument: a value, a Record or a Delivery")
    hint = hints.get(parameters[0].name, Record)
    shape = _shape(typing.get_origin(hint) or hint)
    if shape is not None:
        hint = next(iter(typing.get_args(hint)), bytes)
    elif hint is str:
        return "text", None
    return shape or "value", None if hint in (bytes, Any) else hint


def _shape(kind: Any) -> str | None:
    if kind is Record:
        return "record"
    # Whichever room it is from: a handler that takes a `runnel.Delivery` works with a server, too.
    return "delivery" if isinstance(kind, type) and issubclass(kind, Delivery) else None


# -- Running handlers ------------------------------------------------------------------------------------
# The tasks between `broker.run()` and its end. On a signal or `broker.stop()`, idle tasks end at once and busy
# ones finish their record within the deadline. Unfinished records go back to their group.


log = logging.getLogger("runnel")


class HandlerRunner:
    """All handlers of a broker, at work. `subscribe` and `reply` are those of the broker."""

    def __init__(
        self,
        subscribe: Callable[..., Any],
        reply: Callable[..., Awaitable[bool]],
        handlers: list[Handler],
        middleware: list[Middleware],
    ) -> None:
        self._subscribe, self._reply, self._handlers, self._middleware = subscribe, reply, handlers, middleware
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Take nothing more on; finish what is in hand."""
        self._stop.set()

    async def run(self, deadline: float, *, signals: bool) -> None:
        """Run until a stop is requested or the broker closes; then drain for at most `deadline` seconds."""
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
        if handler.group is not None:
            for _ in range(handler.concurrency):
                member = self._subscribe(handler.pattern, group=handler.group, type=handler.type, **handler.options)
                deliveries = await stack.enter_async_context(member)
                self._add(self._work(handler, aiter(deliveries), asyncio.Lock()))
        else:
            subscription = self._subscribe(handler.pattern, type=handler.type, **handler.options)
            subscription.on_undecodable = partial(self._undecodable, handler)
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
                await self._reply(message, result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the worker has to stop; otherwise something that the handler awaited was cancelled
            await self._failed(handler, message, error)
        except Exception as error:
            await self._failed(handler, message, error)
        else:
            if isinstance(message, Delivery):
                await self._done(handler, message)

    @staticmethod
    async def _done(handler: Handler, delivery: Delivery[Any]) -> None:
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

    def _undecodable(self, handler: Handler, record: Record[bytes], error: ValidationFailed) -> None:
        """A record has no value that the handler could be called with. A group rejects such a record instead."""
        handler.failed += 1
        if record.reply_to is not None:
            task = asyncio.create_task(self._reply_failure(handler, record, error))
            self._tasks.add(task)
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)

    async def _failed(self, handler: Handler, message: Message, error: BaseException) -> None:
        # Of a group, another attempt may answer, and when the group gives the record up its requester gets an error.
        is_over = not isinstance(message, Delivery) or isinstance(error, Reject) or message.settled
        if message.reply_to is not None and is_over:
            await self._reply_failure(handler, message, error)
        where = f"{message.topic!r} offset {message.offset}"
        if not isinstance(message, Delivery):
            log.error("handler %s failed on %s", handler.name, where, exc_info=error)
        elif message.settled:
            when = "after its lease ended" if message.lapsed else "after settling it"
            log.error("handler %s failed on %s %s", handler.name, where, when, exc_info=error)
        elif isinstance(error, Reject):
            message.reject(str(error) or "rejected by its handler")
        else:
            log.warning("handler %s failed on %s, attempt %d: %r", handler.name, where, message.attempt, error)
            message.nack(reason=f"{failure_code(error)}: {error}")

    async def _reply_failure(self, handler: Handler, message: Message, error: BaseException) -> None:
        """Tell the requester that the handler failed."""
        reason, headers = failure_reply(error)
        try:
            await self._reply(message, reason, headers=headers)
        except RunnelError as trouble:
            log.warning("the failure of handler %s could not be sent to the requester: %s", handler.name, trouble)

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
