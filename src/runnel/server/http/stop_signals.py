"""Ends the streams of a mounted application when its server gets a signal to stop.

ASGI servers finish open responses before they notify an application that they stop, and an event stream is never
finished: uvicorn and granian would wait for ever. No ASGI message says that a server is about to stop; but all these
servers stop on SIGTERM or SIGINT. So while a stream is open these signals are noticed here first, and passed on to the
handler of the server.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_open: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = {}  # how each open stream is ended


@contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, call `end` on this event loop when the process gets a signal to stop.

    If the signal does not end the process, because its handler does something else, the next stream is like the first.
    """
    key = object()
    _open[key] = asyncio.get_running_loop(), end
    if threading.current_thread() is threading.main_thread():  # elsewhere no server has handlers either
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Noticed):  # else the signal ends the process, or nothing
                signal.signal(number, _Noticed(handler))
    try:
        yield
    finally:
        del _open[key]
        if not _open and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if isinstance(handler := signal.getsignal(number), _Noticed):
                    signal.signal(number, handler.passed_on_to)


class _Noticed:
    """A signal handler that ends all open streams before it calls the handler that was there."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.passed_on_to = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for loop, end in tuple(_open.values()):
            with suppress(RuntimeError):  # the loop is closed: so is the stream
                loop.call_soon_threadsafe(end)
        self.passed_on_to(number, frame)
