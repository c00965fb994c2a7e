"""A key is noticed at once, without Enter; where there is no keyboard, never."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys
import termios

import pytest

from runnel.cli.top import key_pressed
from tests.patience import PATIENCE


async def test_a_key_is_noticed_and_the_terminal_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(theirs)
        with key_pressed("q") as came:
            os.write(ours, b"x")
            os.write(ours, b"q")
            async with asyncio.timeout(PATIENCE):
                await came.wait()
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


async def test_without_a_terminal_it_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO("q"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with key_pressed("q") as came:
            await asyncio.sleep(0)
            assert not came.is_set()
