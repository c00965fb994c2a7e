"""Several workers: starts them, starts those again that die, and restarts all when the code changes.

At a stop and at a restart, those that have drained stay until the last of them has: one of them may own the folder in
which the others settle their records. Workers have sessions of their own, so that Ctrl-C reaches the supervisor alone,
which stops them in good order. When it is killed, its ends of their sockets close, and they stop by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from runnel.cli.errors import FINE, FOUND, USAGE
from runnel.cli.output import many, print_line
from runnel.cli.server_process import SIGNALS
from runnel.cli.worker_process import DRAINED, GRACE, READY

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a worker that died is started again
STEADY = 60.0  # seconds after which a worker that dies had been well: the pause begins anew
LOOK_EVERY = 0.5  # seconds between two looks at the files
NOT_CODE = {"__pycache__", "node_modules", "site-packages"}

log = logging.getLogger("runnel.worker")


class Supervisor:
    """The workers of one command."""

    def __init__(
        self, command: list[str], processes: int, deadline: float, watched: str | None, *, as_json: bool = False
    ) -> None:
        self._command, self._processes, self._deadline = command, processes, deadline
        self._watched, self._as_json = None if watched is None else Path(watched), as_json
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ending: set[asyncio.subprocess.Process] = set()  # asked to drain
        self._drained: set[asyncio.subprocess.Process] = set()  # those of them that have
        self._noted = asyncio.Event()  # set when one has drained or ended, and then replaced
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()  # set at the next change of the code, and then replaced
        self._status = FINE

    def run(self) -> int:
        """Supervise until a signal; the exit code."""
        return asyncio.run(self._live())

    async def _live(self) -> int:
        loop = asyncio.get_running_loop()
        for signalled in SIGNALS:
            loop.add_signal_handler(signalled, self._on_signal)
        log.info("starting %s of %s", many(self._processes, "worker"), self._command[4])
        watching = None if self._watched is None else asyncio.create_task(self._watch(self._watched))
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(1, self._processes + 1):
                    tasks.create_task(self._keep(number))
        finally:
            if watching is not None:
                watching.cancel()
            for signalled in SIGNALS:
                loop.remove_signal_handler(signalled)
        return self._status

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for process in self._running.values():
                process.kill()
            self._status = FOUND
        else:
            log.info("stopping %s", many(len(self._running), "worker"))
            self._stop.set()

    # -- one worker ---------------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Start a worker again and again, until all stop."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while not self._stop.is_set():
            began, changed = loop.time(), self._changed
            pid, status, is_asked = await self._life(number, changed)
            if self._stop.is_set():
                return
            if is_asked:
                pause = FIRST_PAUSE
            elif self._watched is not None and status in (FINE, USAGE):
                await self._either(changed)
            elif status == FINE:
                log.info("worker %d (process %d) has ended by itself", number, pid)
                return
            elif status == USAGE:
                self._status = USAGE
                self._stop.set()
            else:
                pause = FIRST_PAUSE if loop.time() - began > STEADY else pause
                log.error("worker %d (process %d) %s; another one follows in %g s", number, pid, _how(status), pause)
                await self._either(changed, pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _life(self, number: int, changed: asyncio.Event) -> tuple[int, int, bool]:
        """One process, from its start to its end: its id, its exit code, and whether it got a request to stop."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            which = ["--number", f"{number}/{self._processes}", "--channel", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *which,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
            )
            theirs.close()
            self._running[number] = process
            ended = asyncio.create_task(process.wait())
            ended.add_done_callback(lambda _: self._note())
            listening = asyncio.create_task(self._listen(number, process, ours))
            try:
                await self._either(changed, None, ended)
                if is_asked := not ended.done():
                    await self._end(number, process, ended, ours)
                return process.pid, await ended, is_asked
            finally:
                listening.cancel()
                del self._running[number]
                self._ending.discard(process)
                self._drained.discard(process)
                if not ended.done():  # this task was cancelled: no worker outlives its supervisor
                    process.kill()
                    await ended

    async def _end(
        self, number: int, process: asyncio.subprocess.Process, ended: asyncio.Task[int], channel: socket.socket
    ) -> None:
        """Have a worker drain, and end once all have; kill it if it does not."""
        self._ending.add(process)
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline + GRACE):
                while not all(one.returncode is not None or one in self._drained for one in self._ending):
                    await self._noted.wait()
                with contextlib.suppress(OSError):  # it has ended
                    channel.shutdown(socket.SHUT_WR)
                await asyncio.wait([ended])
        if not ended.done():
            log.error("worker %d (process %d) did not stop in time, and was killed", number, process.pid)
            self._status = FOUND
            process.kill()

    async def _listen(self, number: int, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        """A message of a worker."""
        with contextlib.suppress(ConnectionError):  # it was killed
            while said := await asyncio.get_running_loop().sock_recv(channel, 1):
                if said == DRAINED:
                    self._drained.add(process)
                    self._note()
                elif said == READY and self._as_json:
                    print_line({"event": "ready", "worker": number, "pid": process.pid})
                    sys.stdout.flush()

    def _note(self) -> None:
        noted, self._noted = self._noted, asyncio.Event()
        noted.set()

    async def _either(self, event: asyncio.Event, seconds: float | None = None, *others: asyncio.Future[int]) -> None:
        """Return when it is time to stop, or `event` is set, or one of `others` is done, or after so many seconds."""
        waiting: list[asyncio.Future[Any]] = [asyncio.create_task(one.wait()) for one in (self._stop, event)]
        try:
            await asyncio.wait([*waiting, *others], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    # -- reload -------------------------------------------------------------------------------------------------

    async def _watch(self, folder: Path) -> None:
        """Note when a file of Python changes."""
        before = await asyncio.to_thread(code_below, folder)
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = await asyncio.to_thread(code_below, folder)
            if changed := sorted(path for path, _ in before.items() ^ now.items()):
                log.info("%s changed: starting again", Path(changed[0]).name)
                before = now
                changed_before, self._changed = self._changed, asyncio.Event()
                changed_before.set()


def code_below(folder: Path) -> dict[str, int]:
    """The files of Python below a folder, and when each was written."""
    found = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in NOT_CODE and not one.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(where, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue  # it was removed meanwhile
    return found


def _how(status: int) -> str:
    """How a process ended."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
