"""Reaching the broker of a pipeline beside its queries: for figures, confirmations and alerts.

A folder is only reached through the process that has it open: a report is no reason to become its owner.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from runnel.core.errors import RunnelError
from runnel.core.statistics import PipelineStatistics
from runnel.journal.read.inspection import owner_of
from runnel.spark.options import broker_location

if TYPE_CHECKING:
    from runnel.spark.connection import BrokerConnection

log = logging.getLogger("runnel.spark.pipelines")


def has_listener(folder: str) -> bool:
    """Whether a process has the folder open and lets others in."""
    try:
        owner = owner_of(Path(folder))
    except (RunnelError, OSError):
        return False
    return owner is not None and owner.shares


class FiguresReporter:
    """Reports the figures of a pipeline to its broker, for `/metrics` and `runnel top`.

    A report that cannot be sent is dropped, and the next one is tried after a pause: figures change every second.
    """

    PAUSE = 10.0

    def __init__(self, broker: Mapping[str, str]) -> None:
        self._location = broker_location(broker)
        self._held = ExitStack()
        self._connection: BrokerConnection | None = None
        self._not_before = 0.0

    def __repr__(self) -> str:
        return f"<FiguresReporter to {self._location!r}>"

    def report(self, figures: PipelineStatistics) -> None:
        """Send them, unless the broker did not answer a moment ago."""
        if monotonic() < self._not_before:
            return
        try:
            if self._connection is None:
                if self._location.path is not None and not has_listener(self._location.path):
                    self._not_before = monotonic() + self.PAUSE
                    return
                self._connection = self._connect()
            self._connection.ask("report_pipeline", report=figures)
        except RunnelError as error:
            log.debug("the figures could not be reported: %s", error)
            self.close()
            self._not_before = monotonic() + self.PAUSE

    def _connect(self) -> BrokerConnection:
        from runnel.spark.connection import open_connection

        location = self._location
        if location.url is not None:  # queries wait for a server; figures do not
            location = msgspec.structs.replace(location, client={**location.client, "wait": 1.0, "timeout": 2.0})
        return self._held.enter_context(open_connection(location))

    def close(self) -> None:
        """Close the connection. Harmless twice."""
        self._connection = None
        self._held.close()
