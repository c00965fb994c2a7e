"""A page of a terminal that is drawn again in place, without flicker: each line is written over the one that was there.

Below: nothing. Above: top.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # a page of its own, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_THE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_STYLE = re.compile(r"\x1b\[\d*m")


class Screen:
    """`with Screen() as screen: screen.show(lines)`. What was there before is there again afterwards."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream

    def __enter__(self) -> Screen:
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        """Draw: one write, so that nothing half-drawn is seen; what does not fit is left out."""
        width, height = self.size
        fitting = [cut(line, width) + _TO_THE_END for line in lines[:height]]
        self._write(_HOME + "\r\n".join(fitting) + _BELOW)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def cut(line: str, width: int) -> str:
    """The line, no wider than `width`; styles take no room and are ended."""
    if len(_STYLE.sub("", line)) <= width:
        return line
    kept, room, at = [], width, 0
    for style in (*_STYLE.finditer(line), None):
        text = line[at : style.start() if style else None]
        kept.append(text[:room])
        room -= len(text[:room])
        if style is not None:
            kept.append(style[0])
            at = style.end()
    return "".join(kept)
