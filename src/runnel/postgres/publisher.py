"""Publishes what the changes became: records and the marker of the last one in one transaction of the broker.

A transaction is committed only if the marker is where this relay left it, so of two relays one succeeds. A row that
does not fit the type of its topic becomes a dead letter in its place. The parts of a transaction that is too large for
one entry of the journal are staged in order as they come, and committed together; or, where that cannot be, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from runnel.api.broker import Broker
from runnel.api.topic import Topic
from runnel.api.transaction import Transaction
from runnel.core.dead_letter import REASON, TOPIC
from runnel.core.errors import MarkConflict, OffsetConflict, StageEnded, UsageError, ValidationFailed
from runnel.core.stages import StageKey
from runnel.postgres.changes import PendingRows, RecordRun, one_line, split_by_transaction
from runnel.postgres.config import RelayConfig
from runnel.postgres.control import RelayStuck
from runnel.postgres.progress import START, MarkerNames, Resume
from runnel.postgres.snapshot import SnapshotProgress
from runnel.postgres.staged import StagedTransaction, drop_stages, staged_rows_lost

CACHED_HANDLES = 65_536  # on topics
_NEVER = 1 << 62  # an offset that no record has


class RelayPublisher:
    """The only writer of a relay's markers while one connection to PostgreSQL lasts. Used by one task."""

    def __init__(
        self,
        broker: Broker,
        config: RelayConfig,
        names: MarkerNames,
        resume: Resume,
        snapshots: Mapping[str, SnapshotProgress],
    ) -> None:
        self._broker, self._config, self._names = broker, config, names
        self._snapshots = dict(snapshots)
        self._generation, self._marker = resume.generation, names.place(resume.generation)
        self._compacted = any(table.compact for table in config.table)
        self._handles: dict[str, Topic[bytes]] = {}
        self._staged = StagedTransaction(broker, self._marker, self._topic)
        self.place = resume.place
        self.stored = resume.start  # LSN before which everything is committed to the broker
        self.dead = 0

    async def drop_abandoned(self) -> None:
        """Drop what an earlier connection of this relay staged, and did not commit."""
        await drop_stages(self._broker, self._names.generation)

    async def publish(self, rows: PendingRows) -> dict[str, SnapshotProgress]:
        """Commit records, the marker of the last one, and the stages that they complete, which are returned.

        A part of a large transaction is staged, and its last part commits all of them. If a part cannot be staged as a
        whole, the staged rows are committed; the rest of the part is committed separately, and so are the following
        parts.
        """
        staged = self._staged
        if not rows.is_part:
            await self._publish_now(rows)
            return rows.snapshots
        assert rows.place is not None, "a part ends somewhere"
        is_begun = self.place.lsn == rows.place.lsn  # subscribers see a part of the transaction already
        if self._config.large_transactions == "whole" and not is_begun and await self._stage(rows):
            if not rows.end:
                return {}
            completed = staged.rows.snapshots
            await self._commit_staged()
            return completed
        completed = {**staged.rows.snapshots, **rows.snapshots}
        if staged.key is not None:
            await self._commit_staged()
        if rows.end and rows.runs and self.place.lsn == rows.place.lsn:
            rows.runs[-1].headers[-1]["pg-last"] = "true"
        await self._publish_now(rows)
        return completed

    async def _publish_now(self, rows: PendingRows) -> None:
        while True:
            try:
                await self._commit(rows)
                return
            except ValidationFailed as error:
                await self._bury_misfits(rows, error)
            except UsageError as error:  # the broker refuses a record, whenever it comes
                each = split_by_transaction(rows)
                if len(each) < 2:
                    assert rows.place is not None
                    raise RelayStuck(rows.place.lsn, str(error)) from error
                for one in each:
                    await self._publish_now(one)
                return

    async def _stage(self, rows: PendingRows) -> bool:
        """Stage a part of a transaction; False: not all of it can be, and `rows` are the rest."""
        while True:
            try:
                return await self._staged.add(rows)
            except ValidationFailed as error:
                await self._bury_misfits(rows, error)

    async def _commit_staged(self) -> None:
        """Make all that is staged visible, with the marker of the last row."""
        staged = self._staged
        assert staged.key is not None, "something is staged"
        try:
            await self._commit(staged.rows, staged.key)
        except (UsageError, StageEnded) as error:  # a type was stored, or a stage expired: rows are not in memory here
            assert staged.rows.place is not None
            raise staged_rows_lost(staged.rows.place.lsn, error) from error
        staged.clear()

    async def _commit(self, rows: PendingRows, stage: StageKey | None = None) -> None:
        place = rows.place
        assert place is not None, "rows are taken when a change ended them"
        before = None if self.place == START else self.place.pack()
        async with self._broker.transaction() as tx:
            for run in rows.runs:
                self._publish_run(tx, run)
            if stage is not None:
                tx.commit(stage)
            tx.mark(self._marker, place.pack(), expected=before)
            if rows.end > self.stored:
                tx.mark(self._names.confirmed(self._generation), rows.end)
            for table, progress in rows.snapshots.items():
                if table not in self._snapshots or progress[:2] > self._snapshots[table][:2]:  # else: asked for again
                    tx.mark(self._names.snapshot(self._generation, table), progress.pack())
        if not tx.applied:
            raise MarkConflict(self._marker, before, place.pack())
        self.place, self.stored = place, max(self.stored, rows.end)
        for table, progress in rows.snapshots.items():
            self._snapshots[table] = max(progress, self._snapshots.get(table, progress), key=lambda one: one[:2])

    async def store(self, end: int) -> None:
        """Store that everything before the LSN `end` was looked at, without a record."""
        if end > self.stored:
            async with self._broker.transaction() as tx:
                tx.mark(self._names.confirmed(self._generation), end)
            self.stored = end

    def _publish_run(self, tx: Transaction, run: RecordRun) -> None:
        topic = self._topic(run)
        if None not in run.values:
            keys = run.keys if any(key is not None for key in run.keys) else None
            values = cast(list[bytes], run.values)
            tx.publish_many(topic, values, keys=keys, headers=run.headers)
            return
        for value, key, headers in zip(run.values, run.keys, run.headers, strict=True):
            tx.publish(topic, value, key=key, headers=headers)

    def _topic(self, run: RecordRun) -> str | Topic[bytes]:
        """The topic of a run; of a compacted table with that option, which its first record declares."""
        if not self._compacted:
            return run.topic
        handle = self._handles.get(run.topic)
        if handle is None:
            name = run.headers[0].get("pg-table")
            table = next((one for one in self._config.table if one.name == name), None)
            if table is None or not table.compact or run.topic == self._config.dead_letter_topic:
                return run.topic
            if len(self._handles) >= CACHED_HANDLES:
                self._handles.clear()
            handle = self._handles[run.topic] = self._broker.topic(run.topic, compact=True)
        return handle

    # -- typed topics -------------------------------------------------------------------------------------------

    async def _bury_misfits(self, rows: PendingRows, error: ValidationFailed) -> None:
        """Make dead letters of the records that do not fit the type of a topic, each in its place."""
        runs: list[RecordRun] = []
        found = False
        for run in rows.runs:
            misfits = await self._misfits(run, range(len(run.values))) if run.topic == error.topic else {}
            found = found or bool(misfits)
            runs += self._without(run, misfits) if misfits else [run]
        if not found:
            raise error
        rows.runs = runs

    async def _misfits(self, run: RecordRun, which: Sequence[int]) -> dict[int, str]:
        """The records that do not fit, and why. Halves those that do not fit together."""
        values = [value for at in which if (value := run.values[at]) is not None]
        why = await self._refusal(run.topic, values) if values else None
        if why is None:
            return {}
        if len(which) == 1:
            return {which[0]: why}
        middle = len(which) // 2
        return await self._misfits(run, which[:middle]) | await self._misfits(run, which[middle:])

    async def _refusal(self, topic: str, values: list[bytes]) -> str | None:
        """Why the broker refuses these values. It checks them before it finds that no record has that offset."""
        try:
            async with self._broker.transaction() as tx:
                tx.publish_many(topic, values, expected_offset=_NEVER)
        except ValidationFailed as error:
            return str(error)
        except OffsetConflict:
            pass
        return None

    def _without(self, run: RecordRun, misfits: dict[int, str]) -> list[RecordRun]:
        pending = PendingRows()
        dead = self._config.dead_letter_topic
        for at, (value, key, headers) in enumerate(zip(run.values, run.keys, run.headers, strict=True)):
            if at in misfits:
                self.dead += 1
                pending.add(dead, value, key, headers | {REASON: one_line(misfits[at]), TOPIC: run.topic})
            else:
                pending.add(run.topic, value, key, headers)
        return pending.runs
