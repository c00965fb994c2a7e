"""Process settings of a long-running command: logging, and how threads and the collector share time."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import msgspec

from runnel.cli.output import escaped
from runnel.server.request_id import CURRENT

SWITCH_INTERVAL = 0.0005  # so that the commit thread need not wait 5 ms for its turn


class TextLogFormatter(logging.Formatter):
    """For people: `2026-05-01T12:00:00.123Z WARNING runnel: 3 connections are cut off`."""

    def __init__(self, worker: int | None = None) -> None:
        of = "" if worker is None else f" worker {worker} ({os.getpid()})"
        super().__init__(f"%(asctime)s.%(msecs)03dZ %(levelname)s{of} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """One line, whatever clients chose as names."""
        record.message = escaped(record.message)
        return super().formatMessage(record)


class JsonLogFormatter(logging.Formatter):
    """A JSON object a line: `time`, `level`, `logger`, `message`.

    And where there is one: `worker` and `pid` of one of several, the `request` that the server works on, `error`.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._which = {} if worker is None else {"worker": worker, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._which,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := CURRENT.get():
            found["request"] = request
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(found).decode()


@contextmanager
def process_settings(
    level: str, form: str, stream: TextIO | None = None, *, worker: int | None = None
) -> Iterator[None]:
    """Logging, switch interval and collector of a long-running command.

    They are put back at the end: a program that calls the command in its own process keeps its settings.
    """
    root, interval, thresholds = logging.getLogger(), sys.getswitchinterval(), gc.get_threshold()
    before = root.level
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter((JsonLogFormatter if form == "json" else TextLogFormatter)(worker))
    root.addHandler(handler)
    root.setLevel(level.upper())
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
