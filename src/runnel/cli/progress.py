"""A bar for work that takes long: on the error stream, and only where a person sees it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

from runnel.cli.table import human_size, many

WIDTH = 30


class Ticker:
    """Call it with a line about how far it is: shown in place on the error stream, where a person sees it.

    Whether somebody does is what the call returns. Gone when it ends.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = ""

    def __enter__(self) -> Ticker:
        return self

    def __call__(self, line: str) -> bool:
        """Show the line in the place of the last one; False where the stream is no terminal."""
        if not self._stream.isatty():
            return False
        if line != self._shown:
            self._stream.write("\r" + line.ljust(len(self._shown)) + ("" if line else "\r"))
            self._stream.flush()
            self._shown = line
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self("")


class Bar:
    """Call it with what is done, and of how much: `with Bar("reading") as bar: bar(512, 1024)`. Gone when it ends.

    It counts bytes, or what `unit` names.
    """

    def __init__(self, label: str, stream: TextIO | None = None, *, unit: str | None = None) -> None:
        self._label, self._unit = label, unit
        self._ticker = Ticker(stream)

    def __enter__(self) -> Bar:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is; nothing where the stream is no terminal."""
        share = min(1.0, done / total) if total else 1.0
        filled = int(share * WIDTH)
        bar = "#" * filled + "." * (WIDTH - filled)
        self._ticker(f"{self._label} [{bar}] {share:4.0%} of {self._amount(total)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.__exit__(kind, error, trace)

    def _amount(self, total: int) -> str:
        return human_size(total) if self._unit is None else many(total, self._unit)
