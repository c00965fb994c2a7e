"""Functions that the broker calls with records: `@broker.on(pattern)`.

What a function wants is read off its first parameter: a `Delivery[Order]`, a `Record[Order]`,
an `Order`, `str` or `bytes`. Below: delivery, codec. Above: workers, which run it.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from runnel.core.errors import InvalidOption
from runnel.core.histogram import Histogram
from runnel.core.record import Record
from runnel.core.statistics import HandlerStatistics
from runnel.surface.delivery import BaseDelivery

_Parameter = inspect.Parameter

Message: TypeAlias = Record[Any] | BaseDelivery[Any]
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
        record = message.record if isinstance(message, BaseDelivery) else message
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
    return "delivery" if isinstance(kind, type) and issubclass(kind, BaseDelivery) else None
