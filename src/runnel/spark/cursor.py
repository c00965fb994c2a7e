"""A query as the broker sees it: a named cursor in each topic that it reads, with a lag, and perhaps holding retention.

Spark keeps where a query stands by itself. What is stored here is for those who look at the broker, and for its
cleaner: it is told after a batch was processed, so it is never ahead of the query.
Below: access, line. Above: stream_reader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from runnel.core.errors import RunnelError, UsageError
from runnel.core.position import Position
from runnel.spark.access import open_line
from runnel.spark.line import Line
from runnel.spark.options import Place

logger = logging.getLogger("runnel.spark")


def name_in(cursor: str, topic: str) -> str:
    """What a query's cursor is called in one topic."""
    return f"{cursor}/{topic}"


class QueryCursor:
    """The cursors of one query, all stored together. The connection is made when it is first needed, and kept."""

    def __init__(self, place: Place, name: str, *, hold: bool) -> None:
        self._place, self._name, self._hold = place, name, hold
        self._held = ExitStack()
        self._line: Line | None = None
        self._stored: dict[str, Position] = {}

    def __repr__(self) -> str:
        return f"<QueryCursor {self._name!r}, {len(self._stored)} topics>"

    def store(self, positions: Mapping[str, Position]) -> None:
        """The query has processed all before these positions.

        What is wrong with the name or the option is raised. If the broker cannot be asked now, that is logged, and the
        query goes on: the next batch stores the same, and more.
        """
        moved = {topic: place for topic, place in positions.items() if self._stored.get(topic) != place}
        if not moved:
            return
        places = [[name_in(self._name, topic), topic, place.epoch, place.offset] for topic, place in moved.items()]
        try:
            self._asked().ask("place", places=places, hold=self._hold)
        except UsageError:
            raise
        except RunnelError as error:
            logger.warning("where the query %r stands was not stored on the broker: %s", self._name, error)
            self.close()
        else:
            self._stored.update(moved)

    def close(self) -> None:
        """Let go of the connection; what is stored stays. Harmless twice."""
        self._line = None
        self._held.close()

    def _asked(self) -> Line:
        if self._line is None:
            self._line = self._held.enter_context(open_line(self._place))
        return self._line
