"""A large transaction of PostgreSQL on its way: its parts are staged on arrival, so that they are committed together.

One stage holds the rows of all topics, in their order. A part that does not fit is cut: its staged rows count, and the
caller publishes the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count

from runnel.api.broker import Broker
from runnel.api.stage import MixedStage
from runnel.api.topic import Topic
from runnel.core.errors import NotNow, StageEnded, StagingFull, UsageError, ValidationFailed
from runnel.core.stages import MANY_TOPICS, StageKey
from runnel.postgres.changes import PendingRows, RecordRun, cut_records
from runnel.wire.pgoutput import format_lsn


class StagedTransaction:
    """The stage of the transaction that is under way. Empty between large transactions."""

    def __init__(self, broker: Broker, marker: str, topic_of: Callable[[RecordRun], str | Topic[bytes]]) -> None:
        self._broker, self._topic_of = broker, topic_of
        # A writer is a connection: what an earlier one staged under the same LSN must not be continued.
        self._writer = f"{marker}:{secrets.token_hex(4)}"
        self._numbers = count()
        self.key: StageKey | None = None
        self.records = 0  # in it
        self.rows = PendingRows()  # the place that they reach, and what they complete; without records

    def clear(self) -> None:
        """All of it was committed."""
        self.key, self.records, self.rows = None, 0, PendingRows()

    async def add(self, rows: PendingRows) -> bool:
        """Stage a part; False: not all of it can be. Then `rows` are those that are not staged.

        Raises `ValidationFailed` for a value that does not fit its topic. The same part can be added again then.
        """
        assert rows.place is not None, "a part ends somewhere"
        if self.key is None:
            self.key = StageKey(self._writer, rows.place.lsn, next(self._numbers), 0)
        stage = self._handle(self.key)
        try:
            for run in rows.runs:
                keys = run.keys if any(key is not None for key in run.keys) else None
                values = [value or b"" for value in run.values]  # a key without a value is a tombstone
                stage.publish_many(self._topic_of(run), values, keys=keys, headers=run.headers)
            self.records = await stage.write(ordinal=self.records)
        except ValidationFailed:
            raise
        except (StagingFull, UsageError):  # such as a topic in memory; if a record is at fault, publishing it says so
            await self._cut(rows, self.key)
            return False
        except StageEnded as error:
            raise staged_rows_lost(rows.place.lsn, error) from error
        reached = PendingRows()
        reached.place, reached.end, reached.snapshots = rows.place, rows.end, rows.snapshots
        self.rows.extend(reached)
        return True

    async def _cut(self, rows: PendingRows, key: StageKey) -> None:
        """Remove the staged rows from a part."""
        stage = self._handle(key)
        records = await stage.write()  # behind the parts under way
        if not records:
            await stage.drop()
            self.key = None
            return
        if place := cut_records(rows, records - self.records):
            self.rows.place, self.records = place, records

    def _handle(self, key: StageKey) -> MixedStage:
        return self._broker.stage(writer=key.writer, batch=key.batch, part=key.part)


def staged_rows_lost(lsn: int, why: Exception) -> NotNow:
    """Ends a connection when rows that left memory cannot be committed: PostgreSQL has to send them again."""
    return NotNow(f"what was staged of the transaction at {format_lsn(lsn)} cannot be committed: {why}")


async def drop_stages(broker: Broker, relay: str) -> None:
    """Drop the stages of all earlier connections of a relay."""
    for one in await broker.stages():
        if one.writer.startswith(f"{relay}:"):
            topic = None if one.topic == MANY_TOPICS else one.topic
            stage = broker.stage(topic, writer=one.writer, batch=one.batch, part=one.part, attempt=one.attempt)
            await stage.drop()
