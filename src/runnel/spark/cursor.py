"""A streaming query shown on the broker: a named cursor per topic, with its lag, optionally holding retention.

Spark's checkpoint decides where the query continues. The cursor is stored after a batch was processed, so it is never
ahead of the query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from runnel.core.errors import RunnelError, UsageError
from runnel.core.position import Position
from runnel.spark.connection import BrokerConnection, open_connection
from runnel.spark.options import BrokerLocation

logger = logging.getLogger("runnel.spark")


def name_in(cursor: str, topic: str) -> str:
    """The name of a query's cursor in one topic."""
    return f"{cursor}/{topic}"


class QueryCursor:
    """The cursors of one query, all stored together. The connection is made when it is first needed, and kept."""

    def __init__(self, location: BrokerLocation, name: str, *, hold: bool) -> None:
        self._location, self._name, self._hold = location, name, hold
        self._held = ExitStack()
        self._connection: BrokerConnection | None = None
        self._stored: dict[str, Position] = {}

    def __repr__(self) -> str:
        return f"<QueryCursor {self._name!r}, {len(self._stored)} topics>"

    def store(self, positions: Mapping[str, Position]) -> None:
        """The query has processed all before these positions.

        Errors of the name or the option are raised. If the broker cannot be reached, that is logged, and the query
        continues: the next batch stores a later position.
        """
        moved = {topic: place for topic, place in positions.items() if self._stored.get(topic) != place}
        if not moved:
            return
        places = [[name_in(self._name, topic), topic, place.epoch, place.offset] for topic, place in moved.items()]
        try:
            self._connected().ask("place", places=places, hold=self._hold)
        except UsageError:
            raise
        except RunnelError as error:
            logger.warning("the position of query %r was not stored on the broker: %s", self._name, error)
            self.close()
        else:
            self._stored.update(moved)

    def close(self) -> None:
        """Close the connection; the stored position stays. Harmless twice."""
        self._connection = None
        self._held.close()

    def _connected(self) -> BrokerConnection:
        if self._connection is None:
            self._connection = self._held.enter_context(open_connection(self._location))
        return self._connection
