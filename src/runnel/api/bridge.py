"""A bridge publishes the records of one broker to another, each record once.

Its progress is a marker in the target broker, written in the same transaction as the records, so an
interruption neither loses nor repeats a record. The source only stores about where to start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from runnel.core.errors import InvalidOption, NotNow, OutcomeUnknown
from runnel.core.pattern import check_name, check_pattern
from runnel.core.record import NO_HEADERS, Record

PATH = "runnel-bridged"  # the header that says which brokers a record came through
BUFFER = 65_536  # records that a source in memory keeps for the bridge
RECORDS = 900  # in one transaction, at most: a cluster takes 1,000 messages, and the marker is one of them
BYTES = 8 * 1024 * 1024  # of values, keys and headers in one transaction, and one record more
PAUSES = (0.05, 0.2, 1.0, 5.0)  # seconds, after the first failure and the next ones
GRACE = 5.0  # seconds in which the current transaction must end when the bridge is left

log = logging.getLogger("runnel")

Broker = Any  # either in this process or behind a connection


class Bridge:
    """Records on their way from one broker to another. Made by `broker.bridge(pattern, to=...)`.

    >>> async with bus.bridge("metrics.>", to="runnel://central:7788"):
    ...     await serve()

    It works while its block lasts; leaving it waits only for the transaction in progress. `await bridge.run()`
    is the same without a block, until it is cancelled or the source closes.
    """

    def __init__(
        self,
        source: Broker,
        pattern: str,
        to: Broker,
        *,
        name: str | None = None,
        into: str = "{topic}",
        **options: Any,
    ) -> None:
        self.pattern, self.name = check_pattern(pattern), name or f"bridge:{pattern}"
        if "group" in options or "name" in options or "type" in options:
            raise InvalidOption("bridge", sorted(options), "a bridge has no group and no type: it reads all, as bytes")
        try:
            check_name(into.format(topic="a"))
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidOption(
                "into", into, f"expected a name with {{topic}} in it, such as 'eu.{{topic}}': {error}"
            ) from None
        self._source, self._to, self._into, self._options = source, to, into, options
        self._task: asyncio.Task[None] | None = None
        self._is_once = False  # whether it ends after the records that are there when it begins
        self.expected: int | None = None  # how many those are, if it ends and the source is in this process
        self._is_committing = False  # whether a transaction is in progress
        self.bridged = 0  # records that are there now, because of it
        self.repeated = 0  # that were there already, from an earlier try
        self.missed = 0  # that the source had lost before they were read

    def __repr__(self) -> str:
        return f"<Bridge {self.name!r}, {self.bridged:,} bridged, {self.missed:,} missed>"

    async def __aenter__(self) -> Bridge:
        started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(started))
        try:
            await asyncio.wait([self._task, started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()  # the block was not entered, so `__aexit__` will not run
            raise
        if self._task.done():
            await self._task  # it could not begin: say why
        self._task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log an error at once: the task in the block sees it only on leaving the block, which may be never."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bridge %r ended: %s", self.name, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None, "entering made it"
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def run(self) -> None:
        """Bridge until cancelled, or until the source closes."""
        await self._run(asyncio.get_running_loop().create_future())

    async def _run(self, started: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            target: Broker
            if isinstance(self._to, str | Path):
                target = await stack.enter_async_context(import_module("runnel.opening").open(self._to))
            else:
                target = self._to
            options = self._options
            if not self._source.is_durable and not {"policy", "buffer"} & options.keys():
                options = {"buffer": BUFFER, **options}
            records = await stack.enter_async_context(self._source.subscribe(self.pattern, name=self.name, **options))
            if self._is_once:
                records._source.finish()
            done = await self._progress(target)
            if self._is_once and not self._source.backend.is_remote:
                self.expected = records.lag
            started.set_result(None)
            async for batch in records.batches(max_records=RECORDS):
                if batch.gap is not None:
                    self.missed += batch.gap.count or 0
                    log.warning("bridge %r: %s", self.name, batch.gap)
                for some in _pieces(batch.records):
                    done = await self._in_hand(asyncio.ensure_future(self._carried(target, some, done)))
            if not self._source.is_durable and done >= 0:  # it has closed, and this life of it is over
                async with target.transaction() as tx:
                    tx.mark(self._mark, None)

    async def _in_hand(self, carrying: asyncio.Future[int]) -> int:
        """The result of `carrying`. Cancelled, it ends after the current transaction.

        So the next bridge of that name finds a mark that no running transaction can still move.
        """
        try:
            return await asyncio.shield(carrying)
        except asyncio.CancelledError:
            if self._is_committing:
                await asyncio.wait([carrying], timeout=GRACE)
            carrying.cancel()
            await asyncio.wait([carrying])
            if not carrying.cancelled() and (error := carrying.exception()) is not None:
                log.warning("bridge %r was left, and its last transaction failed: %s", self.name, error)
            raise

    # -- progress -----------------------------------------------------------------------------------------------

    @property
    def _mark(self) -> str:
        """Sequences belong to one broker, and in memory end with it."""
        return f"{self.name} from {self._source.backend.origin}"

    async def _progress(self, target: Broker) -> int:
        """The sequence of the last record that is there. Other markers with its name may belong to other bridges."""
        found = await target.mark(self._mark)
        return found if isinstance(found, int) else -1

    async def _carried(self, target: Broker, records: Sequence[Record[bytes]], done: int) -> int:
        """Have all of `records` there that are not; the sequence of the last. Tried again until it is so."""
        failures = 0
        while True:
            try:
                if failures:
                    done = await self._progress(target)  # it may be there after all
                if not (new := [record for record in records if record.sequence > done]):
                    return done
                self.repeated += 0 if failures else len(records) - len(new)
                await self._prepare(target, new)
                self._is_committing = True
                async with target.transaction() as tx:
                    self._publish(tx, target, new)
                    tx.mark(self._mark, new[-1].sequence, expected=None if done < 0 else done)
                self.bridged += len(new)
                return new[-1].sequence
            except (NotNow, OutcomeUnknown) as error:
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                log.warning("bridge %r tries again in %g s: %s", self.name, pause, error)
                self._is_committing = False
                await asyncio.sleep(pause)
            finally:
                self._is_committing = False

    async def _prepare(self, target: Broker, records: Sequence[Record[bytes]]) -> None:
        """Called before records are published. A bridge lets the first publish create their topics."""

    def _publish(self, tx: Any, target: Broker, records: Sequence[Record[bytes]]) -> None:
        for (topic, headers), group in groupby(self._labelled(target, records), key=lambda item: item[0]):
            some = [record for _, record in group]
            keys = [record.key for record in some]
            tx.publish_many(
                topic,
                [record.value for record in some],
                keys=keys if any(key is not None for key in keys) else None,
                headers=dict(headers),
            )

    def _labelled(
        self, target: Broker, records: Sequence[Record[bytes]]
    ) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], Record[bytes]]]:
        """Each record with the topic and the headers that it gets, unless it has been there before."""
        here, there = self._source.backend.origin, target.backend.origin
        for record in records:
            path = record.headers.get(PATH, "")
            if there in path.split():
                continue  # it comes from there: two bridges face each other
            carried = dict(record.headers) if record.headers is not NO_HEADERS else {}
            carried[PATH] = f"{path} {here}".strip()
            yield (self._into.format(topic=record.topic), tuple(sorted(carried.items()))), record


def _pieces(records: Sequence[Record[bytes]]) -> Iterator[Sequence[Record[bytes]]]:
    """The records, as many at a time as one transaction takes."""
    first = size = 0
    for at, record in enumerate(records, 1):
        size += (
            len(record.value)
            + len(record.key or b"")
            + sum(len(name) + len(text) for name, text in record.headers.items())
        )
        if size >= BYTES:
            yield records[first:at]
            first, size = at, 0
    if first < len(records):
        yield records[first:]
