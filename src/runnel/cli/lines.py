"""Lines of a file or of what is typed and piped in, as they come: a thread reads, the event loop takes them in chunks.

A chunk is what is there: one line that somebody typed, or thousands out of a file.
Below: nothing. Above: pub.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

READ = 256 * 1024
MAX_LINES = 4096  # of a chunk
MAX_AHEAD = 8  # chunks that may wait, so that a huge file is never in memory as a whole


def split(carry: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines, without their ends, and what is left of the last one."""
    lines = (carry + data).split(b"\n")
    left = lines.pop()
    return [line.removesuffix(b"\r") for line in lines], left


async def lines_of(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Lines as they come, in chunks, with the bytes that were read so far. A last line without an end counts."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[list[bytes], int] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(MAX_AHEAD)

    def hand_over(item: tuple[list[bytes], int] | BaseException | None) -> None:
        room.acquire()
        try:
            loop.call_soon_threadsafe(arrived.put_nowait, item)
        except RuntimeError:  # nobody waits any more, and the loop is closed
            pass

    def read() -> None:
        carry, count = b"", 0
        try:
            while data := os.read(descriptor, READ):
                count += len(data)
                lines, carry = split(carry, data)
                for at in range(0, len(lines), MAX_LINES):
                    hand_over((lines[at : at + MAX_LINES], count))
            if carry:
                hand_over(([carry.removesuffix(b"\r")], count))
            hand_over(None)
        except OSError as error:
            hand_over(error)

    # A daemon: it may wait for a line that never comes, and nobody can end that wait.
    threading.Thread(target=read, name="runnel-lines", daemon=True).start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        room.release()
        yield item
