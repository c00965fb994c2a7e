"""What a server tells while it runs: lines on the error stream, for people or for programs."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

import msgspec


class TextLines(logging.Formatter):
    """For people: `2026-05-01T12:00:00.123Z WARNING runnel: 3 connections are cut off`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


class JsonLines(logging.Formatter):
    """A JSON object a line: `time`, `level`, `logger`, `message`, and `error` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(found).decode()


def tell(level: str, form: str, stream: TextIO | None = None) -> logging.Handler:
    """Have everything of `level` and above told; the way it is told, to take it back with `logging`."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler
