"""Colour, where somebody sees it: on a terminal, unless NO_COLOR says otherwise (no-color.org)."""

from __future__ import annotations

import os
from typing import TextIO

BOLD, DIM, RED, YELLOW, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


def is_colourful(stream: TextIO) -> bool:
    """Whether colour may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, colourful: bool) -> str:
    """The text in a style, or as it is."""
    return f"{style}{text}{PLAIN}" if colourful and text else text
