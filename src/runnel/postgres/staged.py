"""A large transaction of PostgreSQL on its way: its parts are staged as they come, so that they are committed together.

Each part gets stages of its own, so a part is staged as a whole or not at all. A stage holds records of one topic, and
stages are committed in their order: records that are next to each other in one topic go into one stage. Where that
would take too many stages, inserts next to each other are arranged by topic; nothing else changes its place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from runnel.api.broker import Broker
from runnel.api.stage import Stage
from runnel.api.topic import Topic
from runnel.core.errors import NotNow, StageEnded, StagingFull, UsageError, ValidationFailed
from runnel.postgres.changes import PendingRows, RecordRun
from runnel.wire.pgoutput import format_lsn

PART_STAGES = 64  # of one part
MAX_STAGES = 1024  # of one transaction: the journal remembers each of them while its topic keeps the records

_INSERTED = frozenset(("insert", "read"))


class StagedTransaction:
    """The stages of the transaction that is under way, in order. Empty between large transactions."""

    def __init__(self, broker: Broker, marker: str, topic_of: Callable[[RecordRun], str | Topic[bytes]]) -> None:
        self._broker, self._topic_of = broker, topic_of
        # A writer is a connection: what an earlier one staged under the same LSN must not be continued.
        self._writer = f"{marker}:{secrets.token_hex(4)}"
        self._numbers = count()
        self.stages: list[Stage[bytes]] = []
        self.rows = PendingRows()  # the place that they reach, and what they complete; without records

    def clear(self) -> None:
        """All of it was committed."""
        self.stages, self.rows = [], PendingRows()

    async def add(self, rows: PendingRows) -> bool:
        """Stage a part; False: that cannot be, and nothing of it is staged. Raises `ValidationFailed` likewise."""
        assert rows.place is not None, "a part ends somewhere"
        runs = arranged(rows.runs)
        if len(runs) > PART_STAGES or len(self.stages) + len(runs) > MAX_STAGES:
            return False
        stages = [self._stage(run, rows.place.lsn) for run in runs]
        try:
            await _all(_write(stage, run) for stage, run in zip(stages, runs, strict=True))
        except (StagingFull, UsageError) as error:
            await _all(stage.drop() for stage in stages)
            if isinstance(error, ValidationFailed):
                raise
            return False  # such as a topic in memory; if a record is at fault, publishing it says so
        except StageEnded as error:
            raise staged_rows_lost(rows.place.lsn, error) from error
        self.stages += stages
        reached = PendingRows()
        reached.place, reached.end, reached.snapshots = rows.place, rows.end, rows.snapshots
        self.rows.extend(reached)
        return True

    def _stage(self, run: RecordRun, lsn: int) -> Stage[bytes]:
        return self._broker.stage(self._topic_of(run), writer=self._writer, batch=lsn, part=next(self._numbers))


async def _write(stage: Stage[bytes], run: RecordRun) -> None:
    keys = run.keys if any(key is not None for key in run.keys) else None
    values = [value or b"" for value in run.values]  # a key without a value is a tombstone
    await stage.write(values, keys=keys, headers=run.headers)


async def _all(calls: Iterable[object]) -> None:
    """Return when all have ended; raise the first error."""
    found = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
    for error in found:
        if isinstance(error, BaseException):
            raise error


def staged_rows_lost(lsn: int, why: Exception) -> NotNow:
    """What ends a connection when rows that are not in memory any more cannot be committed: they have to come again."""
    return NotNow(f"what was staged of the transaction at {format_lsn(lsn)} cannot be committed: {why}")


async def drop_stages(broker: Broker, relay: str) -> None:
    """Drop the stages of all earlier connections of a relay."""
    for one in await broker.stages():
        if one.writer.startswith(f"{relay}:"):
            stage = broker.stage(one.topic, writer=one.writer, batch=one.batch, part=one.part, attempt=one.attempt)
            await stage.drop()


def arranged(runs: Sequence[RecordRun]) -> Sequence[RecordRun]:
    """The runs of a part as they are staged: as they are, or, if they are many, with neighbouring inserts by topic.

    Inserts are of different rows. An update, a delete, a message or an event may be about what came before it, and
    stays behind that and before what follows.
    """
    if len(runs) <= PART_STAGES:
        return runs
    found: list[RecordRun] = []
    by_topic: dict[str, RecordRun] = {}
    for run in runs:
        if any(headers["pg-op"] not in _INSERTED for headers in run.headers):
            by_topic.clear()
            found.append(run)
            continue
        joined = by_topic.get(run.topic)
        if joined is None:
            joined = by_topic[run.topic] = RecordRun(run.topic)
            found.append(joined)
        joined.values += run.values
        joined.keys += run.keys
        joined.headers += run.headers
    return found
