"""Handlers: functions that a broker calls with records, `@broker.on(pattern)`.

The annotation of the first parameter says what the function receives: a `Delivery[Order]`, a `Record[Order]`,
an `Order`, `str` or `bytes`. A record is processed only when its result, if the handler publishes one, is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import signal
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias

from runnel.api.delivery import Delivery
from runnel.api.request import failure_code, failure_reply, reply_value
from runnel.api.schedules import Schedule, ScheduleBroker
from runnel.api.topic import Topic
from runnel.core.errors import (
    BrokerClosed,
    InvalidOption,
    NotAuthorized,
    NotSupported,
    RunnelError,
    TimeLimitExceeded,
    ValidationFailed,
)
from runnel.core.record import Record
from runnel.core.schema import Text
from runnel.core.statistics import HandlerStatistics, Histogram
from runnel.core.trace_context import TRACEPARENT
from runnel.runtime.waiting import resolve_waiter

_Parameter = inspect.Parameter

REPORT_SECONDS = 5.0  # between two reports of what handlers did, to a server
SPARE_THREADS = 32  # of a handler that is not async: for calls that outlived their time limit, and still run

Message: TypeAlias = Record[Any] | Delivery[Any]
Next: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Any]]  # Any: one may say Record | Delivery, of either room


class HandlerBroker(ScheduleBroker, Protocol):
    """The parts of the broker that handlers use."""

    @property
    def backend(self) -> Any:
        """Where its topics live."""

    @property
    def subscribe(self) -> Callable[..., Any]:
        """Read a topic or a pattern."""

    def reply(self, record: Any, value: Any, *, headers: Mapping[str, str] | None = None) -> Awaitable[bool]:
        """Reply to a request."""


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
        *,
        rate: float | None = None,
        time_limit: float | None = None,
        publish: str | Topic[Any] | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.function, self.pattern, self.group = function, pattern, group
        self.concurrency, self.options = concurrency, options
        self.time_limit, self.publish, self.middleware = time_limit, publish, tuple(middleware)
        self._interval = 0.0 if rate is None else 1.0 / rate  # seconds between two calls
        self._next_call = 0.0  # when the next call may begin, by the clock of the event loop
        self.name = _written(function).__qualname__.replace("<locals>.", "")
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(_written(function)))
        self.shape, self.type = _wanted(function)
        if self.shape == "delivery" and group is None:
            raise InvalidOption("handler", function, "only a group has deliveries; give it a group, or take a Record")
        self.handled = self.failed = self.running = 0
        self.durations = Histogram()
        # Of its own: asyncio's has as few as 5 threads, and a record would wait for one while its lease runs out.
        self._threads: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<Handler {self.name} of {self.pattern!r}{f' in group {self.group!r}' if self.group else ''}>"

    async def call(self, message: Message, middleware: list[Middleware]) -> Any:
        """Run the function on `message`, inside the middleware; the outermost comes first."""
        steps: Next = partial(self._invoke, message)
        for layer in reversed((*middleware, *self.middleware)):
            steps = partial(layer, message, steps)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.running += 1
        try:
            if self.time_limit is None:
                result = await steps()
            else:
                result = await self._in_time(steps, self.time_limit)
        except BaseException:
            self.failed += 1
            raise
        finally:
            self.running -= 1
            self.durations.add(loop.time() - began)
        self.handled += 1
        return result

    async def _in_time(self, steps: Next, limit: float) -> Any:
        try:
            async with asyncio.timeout(limit) as deadline:
                return await steps()
        except TimeoutError:
            if deadline.expired():
                raise TimeLimitExceeded(self.name, limit) from None
            raise

    async def turn(self) -> None:
        """Return when another call may begin: `rate` calls in a second, and at most `concurrency` of them at once."""
        if self._interval:
            loop = asyncio.get_running_loop()
            at = max(self._next_call, loop.time())
            self._next_call = at + self._interval
            await asyncio.sleep(at - loop.time())

    async def _invoke(self, message: Message) -> Any:
        arguments = self._arguments(message)
        if self.is_async:
            return await self.function(*arguments)
        # It may block: the loop must not wait for it.
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.concurrency + SPARE_THREADS, f"runnel-{self.name}")
        call = partial(contextvars.copy_context().run, self.function, *arguments)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        return await result if inspect.isawaitable(result) else result

    def dismiss_threads(self) -> None:
        """Have its threads end, each after the call that it is in."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _arguments(self, message: Message) -> tuple[Any, ...]:
        record = message.record if isinstance(message, Delivery) else message
        return {"delivery": (message,), "record": (record,), "value": (record.value,), "nothing": ()}[self.shape]

    def statistics(self) -> HandlerStatistics:
        """Counters of the handler so far."""
        return HandlerStatistics(
            self.name, self.pattern, self.group, self.handled, self.failed, self.running, self.durations.snapshot()
        )


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the annotations of `function` stand: behind a partial, or in the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _wanted(function: Callable[..., Any]) -> tuple[str, Any]:
    """The arguments for `function`, and the type of the values; None: bytes."""
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        hints = typing.get_type_hints(_written(function))
    except (TypeError, ValueError, NameError) as error:
        raise InvalidOption("handler", function, f"its signature cannot be read: {error}") from None
    if not parameters:
        return "nothing", None
    if len(parameters) != 1 or parameters[0].kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
        raise InvalidOption(
            "handler", function, "a handler takes one argument, a value, a Record or a Delivery, or none"
        )
    hint = hints.get(parameters[0].name, Record)
    shape = _shape(typing.get_origin(hint) or hint)
    if shape is not None:
        hint = next(iter(typing.get_args(hint)), bytes)
    if hint is str:
        hint = Text  # unchanged, if the topic has no type
    return shape or "value", None if hint in (bytes, Any) else hint


def _shape(kind: Any) -> str | None:
    if kind is Record:
        return "record"
    # Whichever room it is from: a handler that takes a `runnel.Delivery` works with a server, too.
    return "delivery" if isinstance(kind, type) and issubclass(kind, Delivery) else None


def _is_given_away(message: Message) -> bool:
    """Whether another attempt has the record, which will have the one result."""
    return isinstance(message, Delivery) and message.lapsed


# -- Running handlers ------------------------------------------------------------------------------------
# The tasks between `broker.run()` and its end. On a signal or `broker.stop()`, idle tasks end at once and busy
# ones finish their record within the deadline. Unfinished records go back to their group.


log = logging.getLogger("runnel")


class HandlerRunner:
    """All handlers of a broker, at work. `broker` is the part of the broker that they use."""

    def __init__(
        self,
        broker: HandlerBroker,
        handlers: list[Handler],
        middleware: list[Middleware],
        schedules: Sequence[Schedule] = (),
        client: str = "",
    ) -> None:
        self._broker, self._handlers, self._middleware = broker, handlers, middleware
        self._schedules, self._client = schedules, client
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # it may have no waiter
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Start no more calls; finish the running ones."""
        self._stop.set()

    async def run(self, deadline: float, *, signals: bool) -> None:
        """Run until a stop is requested or the broker closes; then drain for at most `deadline` seconds."""
        try:
            await self._run(deadline, signals=signals)
        except BaseException as error:
            if not self.ready.done():
                why = error if isinstance(error, Exception) else BrokerClosed("starting handlers")
                self.ready.set_exception(why)
            raise

    async def _run(self, deadline: float, *, signals: bool) -> None:
        if not self._handlers:
            raise InvalidOption("run", "no handlers", "register functions with @broker.on(...) first")
        async with contextlib.AsyncExitStack() as stack:
            reporting = asyncio.create_task(self._report())
            try:
                for handler in self._handlers:
                    await self._start(handler, stack)
                for schedule in self._schedules:
                    await schedule.begin(self._broker)
                    self._add(schedule.run(self._broker))
                resolve_waiter(self.ready)
                with self._told_by_signals() if signals else contextlib.nullcontext():
                    await self._until_stopped()
                await self._drain(deadline)
                if not reporting.done():  # it takes reports: the last calls count, too
                    await self._report_once()
            finally:  # cancelled, or a worker failed: no function keeps running unwatched
                reporting.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(reporting, *self._tasks, return_exceptions=True)
                for handler in self._handlers:
                    handler.dismiss_threads()

    async def _report(self) -> None:
        """Report to a server what the handlers did, for its metrics, unless it takes no reports."""
        takes_reports = self._broker.backend.is_remote
        while takes_reports:
            takes_reports = await self._report_once()
            await asyncio.sleep(REPORT_SECONDS)

    async def _report_once(self) -> bool:
        """Send a report; False: the server takes none. A lost one does not matter: the next one counts everything."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                found = [handler.statistics() for handler in self._handlers]
                await self._broker.backend.report_handlers(self._client, found)
        except (NotSupported, NotAuthorized) as error:
            log.debug("the server takes no statistics of handlers: %s", error)
            return False
        except (RunnelError, TimeoutError) as error:
            log.debug("the statistics of the handlers could not be reported: %s", error)
        return True

    async def _start(self, handler: Handler, stack: contextlib.AsyncExitStack) -> None:
        if handler.group is not None:
            for _ in range(handler.concurrency):
                member = self._broker.subscribe(
                    handler.pattern, group=handler.group, type=handler.type, **handler.options
                )
                deliveries = await stack.enter_async_context(member)
                self._add(self._work(handler, aiter(deliveries), asyncio.Lock()))
        else:
            subscription = self._broker.subscribe(handler.pattern, type=handler.type, **handler.options)
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
            await handler.turn()  # before a record is taken: its lease must not run out meanwhile
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
            if handler.publish is not None and result is not None and not _is_given_away(message):
                await self._publish(handler, handler.publish, message, result)
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

    async def _publish(self, handler: Handler, topic: str | Topic[Any], message: Message, result: object) -> None:
        """Publish what the handler returned, under the record's key, and ack the record in the same transaction."""
        value = reply_value(topic, result) if isinstance(topic, str) else result
        options: dict[str, Any] = {"key": message.key}
        if message.traceparent:
            options["headers"] = {TRACEPARENT: message.traceparent}
        if not isinstance(message, Delivery) or message.settled:
            await self._publish_first(handler, topic, message, value, options)
            return
        try:
            async with self._broker.transaction() as transaction:
                transaction.publish(topic, value, **options)
                transaction.ack(message)
        except NotSupported:  # a cluster has no acks in transactions, and a topic of another broker no common journal
            await self._publish_first(handler, topic, message, value, options)

    async def _publish_first(
        self, handler: Handler, topic: str | Topic[Any], message: Message, value: Any, options: dict[str, Any]
    ) -> None:
        """Publish before the ack. A redelivered record gives the same message id, so its result is stored once."""
        record = message.record if isinstance(message, Delivery) else message
        if handler.group is not None:
            options["message_id"] = f"{handler.group}:{record.topic}:{record.epoch}:{record.offset}"
        handle: Topic[Any] = self._broker.topic(topic) if isinstance(topic, str) else topic
        await handle.publish(value, **options)

    @staticmethod
    async def _done(handler: Handler, delivery: Delivery[Any]) -> None:
        if delivery.lapsed:
            log.warning(
                "the lease of %r offset %d ended before handler %s did: it took longer than ack_wait, or the "
                "connection was lost. The record went back to its group and is delivered again; this call publishes "
                "no result. Give the group a longer ack_wait, or call delivery.extend() in time.",
                delivery.topic,
                delivery.offset,
                handler.name,
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
            await self._broker.reply(message, reason, headers=headers)
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
