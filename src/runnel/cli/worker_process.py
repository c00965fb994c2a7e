"""One worker: import the program, open its broker, run its handlers, and drain when it has to stop.

A supervisor holds the other end of `channel`: one byte means that the worker is ready, another that it has drained. It
keeps its broker open until the supervisor closes the channel: the broker may own the folder that the others still need.
When the supervisor ends the worker stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any

from runnel.api.broker import Broker
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.output import many, print_line
from runnel.cli.server_process import SIGNALS, ExitDeadline, exit_now, fast_loop
from runnel.core.errors import RunnelError

GRACE = 5.0  # seconds beyond the deadline: to close the broker, and for a supervisor before it kills
READY, DRAINED = b"r", b"d"

log = logging.getLogger("runnel.worker")


class WorkerProcess:
    """One worker, from the import to its end."""

    def __init__(
        self, target: str, deadline: float, channel: int | None, *, is_alone: bool = True, as_json: bool = False
    ) -> None:
        self._target, self._seconds, self._is_alone, self._as_json = target, deadline, is_alone, as_json
        self._channel = None if channel is None else socket.socket(fileno=channel)
        self._stopping = False
        self._deadline = ExitDeadline(deadline + GRACE)

    def run(self) -> int:
        """Work; the exit code."""
        try:
            broker = load_broker(self._target)
        except (CommandError, RunnelError):
            raise
        except Exception:  # in the user's module: where, is what they need
            traceback.print_exc()
            raise CommandError("usage_error", f"importing {self._target!r} failed: see above", USAGE) from None
        if not self._is_alone and not (broker.is_durable or broker.backend.is_remote):
            why = "a broker in memory is one process's own; give runnel.open a folder or a server, or use one process"
            raise CommandError("usage_error", f"{self._target!r} cannot be run by several processes: {why}", USAGE)
        try:
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                return runner.run(self._live(broker))
        finally:
            if not self._stopping:  # else it holds to the end: Python waits for threads of handlers after this
                self._deadline.cancel()

    async def _live(self, broker: Broker) -> int:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None, "run() makes a task"
        running: asyncio.Task[None] | None = None

        def stop() -> None:
            if self._stopping:
                exit_now(FOUND)
            self._stopping = True
            self._deadline.begin()
            if running is None:
                me.cancel()  # it is still opening
            broker.stop()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop)
        if self._channel is not None:
            loop.add_reader(self._channel, self._supervisor_is_gone, stop)
        try:
            async with broker:
                running = asyncio.create_task(broker.run(deadline=self._seconds, signals=False))
                ready = asyncio.create_task(broker.ready())
                ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # `running` raises it
                await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    self._announce(broker)
                if self._stopping:
                    broker.stop()  # the signal came before the handlers ran
                await running
                ready.cancel()
                if self._stopping and self._channel is not None:
                    await self._until_all_have_drained(broker, self._channel)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        log.info("stopped")
        return FINE

    @staticmethod
    async def _until_all_have_drained(broker: Broker, channel: socket.socket) -> None:
        """Say that the work here is done and stored; return when that of the other workers is, too."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(channel)
        channel.setblocking(False)
        with contextlib.suppress(RunnelError):  # then the records go back to their group
            await broker.sync()
        with contextlib.suppress(OSError):  # the supervisor ended
            await loop.sock_sendall(channel, DRAINED)
            while await loop.sock_recv(channel, 1):
                pass

    def _supervisor_is_gone(self, stop: Any) -> None:
        assert self._channel is not None, "it was read from"
        asyncio.get_running_loop().remove_reader(self._channel)
        if not self._stopping:
            log.warning("the supervisor is gone: stopping")
            stop()

    def _announce(self, broker: Broker) -> None:
        names = ", ".join(one.name for one in broker.handlers())
        log.info("ready: %s (%s)", many(len(broker.handlers()), "handler"), names)
        if self._channel is not None:
            self._channel.send(READY)
        if self._as_json:
            print_line({"event": "ready", "worker": 1, "pid": os.getpid()})
            sys.stdout.flush()


def load_broker(target: str) -> Broker:
    """The broker that `module:name` names: an object, a function that returns one, or the only one of a module."""
    name, _, attribute = target.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        meant = f"{name.removesuffix('.py').replace('/', '.')}:broker" if name.endswith(".py") else "MODULE:BROKER"
        why = f"there is no module {name!r} in this folder or on Python's path; name a module and a broker: {meant}"
        raise CommandError("usage_error", why, USAGE) from None
    there = {key: value for key, value in vars(module).items() if isinstance(value, Broker)}
    known = f"; it has {', '.join(sorted(there))}" if there else ""
    if not attribute:
        if len({id(value) for value in there.values()}) != 1:
            raise CommandError("usage_error", f"say which broker of {name!r}: {name}:NAME{known}", USAGE)
        return next(iter(there.values()))
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if callable(found):
        found = found()
    if isinstance(found, Broker):
        return found
    why = f"is no broker of runnel.open{known}"
    if inspect.iscoroutine(found):
        found.close()
        why = "is async: a plain function can return runnel.open(...), which the worker enters"
    elif isinstance(getattr(found, "_broker", None), Broker):
        why = "is a broker of runnel.blocking: make it with runnel.open; its functions need not be async"
    raise CommandError("usage_error", f"{attribute!r} of {name!r} {why}", USAGE)
