"""Keys that are pressed while a page is shown, where there is a keyboard: without Enter, and without being printed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def awaiting(key: str) -> Iterator[asyncio.Event]:
    """An event that comes when `key` is pressed; never, where the input is no terminal."""
    came = asyncio.Event()
    if sys.stdin is None or not sys.stdin.isatty():
        yield came
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def look() -> None:
        typed = os.read(descriptor, 64).decode(errors="ignore")
        if key in typed or not typed:  # or the terminal is gone
            came.set()

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C still interrupts
    loop.add_reader(descriptor, look)
    try:
        yield came
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
