"""Answers in the order of the commands, though some of them have to wait for the disk.

A publish is under way as a task while the commands behind it are read, so that many share one sync. What is
under way costs memory, and is bounded.
Below: nothing. Above: lines_session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

OVERHEAD = 1 << 10  # about what a command under way takes besides its bytes


class Answers:
    """The answers that are not written yet."""

    def __init__(self, write: Callable[[bytes], None], limit: int) -> None:
        self._write, self._limit = write, limit
        self._waiting: deque[_Answer] = deque()
        self._flushing = False
        self._changed: asyncio.Future[None] | None = None
        self._gone = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def now(self, line: bytes) -> None:
        """An answer that is ready. It goes out behind those of earlier commands."""
        if self._waiting:
            self._append(_Answer(len(line), line))
        else:
            self._write(line)

    def later(self, work: Coroutine[Any, Any, bytes], size: int) -> None:
        """The answer is what `work` returns, which begins now, behind the work of earlier commands."""
        answer = _Answer(size)
        answer.task = asyncio.create_task(work)
        answer.task.add_done_callback(answer.done)
        answer.task.add_done_callback(self._flush_soon)
        self._append(answer)

    async def room(self) -> None:
        """Return when not too much is under way."""
        while self.bytes >= self._limit and not self._gone:
            await self._change()

    async def emptied(self) -> None:
        """Return when everything is answered."""
        while self._waiting and not self._gone:
            await self._change()

    def abandon(self) -> None:
        """Nobody waits for any of it any more: what is not done yet is given up."""
        self._gone = True
        for answer in self._waiting:
            if answer.task is not None:
                answer.task.cancel()
        self._tell()

    def _append(self, answer: _Answer) -> None:
        self._waiting.append(answer)
        self.bytes += answer.size

    def _flush_soon(self, _: object) -> None:
        if not self._flushing:  # all that one commit has made durable goes out with one write
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        ready: list[bytes] = []
        waiting = self._waiting
        while waiting and (line := waiting[0].line) is not None:
            self.bytes -= waiting.popleft().size
            ready.append(line)
        if ready:
            self._write(b"".join(ready))
            self._tell()

    def _change(self) -> asyncio.Future[None]:
        """Done when something was answered. One asks at a time: the task that reads the commands."""
        self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class _Answer:
    """One of them: its line, as soon as that is known."""

    __slots__ = ("line", "size", "task")

    def __init__(self, size: int, line: bytes | None = None) -> None:
        self.size, self.line = size + OVERHEAD, line
        self.task: asyncio.Task[bytes] | None = None

    def done(self, task: asyncio.Task[bytes]) -> None:
        self.line = b"" if task.cancelled() else task.result()
        self.task = None
