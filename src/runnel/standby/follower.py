"""Follows the journal of a primary into a replica: requests the next bytes, checks and stores them, and repeats.

Each request confirms the bytes that are durable here, and renews the lease. Whatever goes wrong, the place in the
replica stays, and following continues from there.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from runnel.client.backend import RemoteBackend
from runnel.core.checksum import crc_of
from runnel.core.errors import (
    NotAuthenticated,
    NotAuthorized,
    ReplicaDamaged,
    RunnelError,
    StandbyRefused,
    Superseded,
    UnknownFile,
)
from runnel.core.replication import SYNC, FollowReply, FollowRequest
from runnel.core.statistics import ReplicationStatistics
from runnel.journal.backup.replica import NeededFile, Replica
from runnel.journal.format import manifest
from runnel.journal.format.segment import START, SegmentInfo
from runnel.runtime.clock import steady_time

T = TypeVar("T")

PIECE = 1 << 20  # bytes asked for at a time
WAIT = 5.0  # seconds that the primary may wait for something new
ANSWER = 15.0  # seconds beyond that until a connection counts as lost
REPORT = 1.0  # seconds between two reports during a copy
PAUSE = 0.5  # seconds after an error
FRESH = 3.0  # seconds without an answer after which the lag counts from the last one
_FULL = (errno.ENOSPC, errno.EDQUOT)

logger = logging.getLogger("runnel")


class JournalFollower:
    """One standby at work, until it is stopped. `progress` is called with bytes copied and bytes to copy."""

    def __init__(
        self,
        replica: Replica,
        primary: RemoteBackend,
        name: str,
        progress: Callable[[int, int], object] = lambda done, total: None,
        now: Callable[[], float] = steady_time,
    ) -> None:
        self.replica, self.name = replica, name
        self.state = "connecting"
        self.promised_until = 0.0  # by the clock `now`: not to be promoted before
        self._primary, self._progress, self.now = primary, progress, now
        self._thread = ThreadPoolExecutor(1, "runnel-standby")
        self._reply: FollowReply | None = None
        self._accepted: tuple[str, int] | None = None  # origin and generation of the primary's journal
        self._granting = 0  # the answer whose lease the next request grants
        self._fresh = now()  # when it last had all that the primary has
        self._reported = 0.0
        self._copied = self._to_copy = self._errors = self._damaged = 0
        self._last_error: str | None = None
        self._wanted = self._lacking = 0  # checksums of manifests: the one copied last, one of which a file was missing
        self._fetching: asyncio.Task[None] | None = None
        self._offers: list[SegmentInfo] = []
        if replica.lineage.mode == SYNC:
            self.promised_until = (
                now() + replica.lineage.lease
            )  # the last life may have granted it just before it ended

    def __repr__(self) -> str:
        return f"<JournalFollower {self.name!r}, {self.state}, {self.replica!r}>"

    async def run(self) -> None:
        """Follow until cancelled; raise only permanent errors."""
        try:
            while True:
                try:
                    await self._connect()
                    while True:
                        await self._step()
                except (StandbyRefused, NotAuthorized, Superseded):
                    raise
                except UnknownFile as error:
                    # The primary's files have changed: its manifest says what there is now. If it says the same
                    # again, a file is missing there.
                    if self._lacking == self._wanted:
                        await self._failed(error)
                    self._lacking = self._wanted
                except (RunnelError, OSError) as error:
                    await self._failed(error)
        finally:
            if self._fetching is not None:
                self._fetching.cancel()
            await self._primary.aclose()

    async def _connect(self) -> None:
        if not self._primary.loop_owner.entered:
            try:
                await self._primary.open()
            except NotAuthenticated as error:
                raise StandbyRefused(str(error)) from None

    async def _failed(self, error: RunnelError | OSError) -> None:
        full = isinstance(error, OSError) and error.errno in _FULL
        if isinstance(error, OSError) and not full and not isinstance(error, RunnelError):
            raise error
        self.state = "disk full" if full else "connecting"
        self._errors += 1
        if str(error) != self._last_error:
            logger.error(
                "following %s failed; the standby tries again from its position: %s",
                self.replica.lineage.shown_primary,
                error,
            )
        self._last_error = str(error)
        if full:
            with suppress(RunnelError):
                await self._ask(0.0)  # the primary's operators see it, too
        # Errors in the primary's files last long, and each try copies some of them again.
        self._damaged = min(6, self._damaged + 1) if isinstance(error, ReplicaDamaged | UnknownFile) else 0
        await asyncio.sleep(PAUSE * 2**self._damaged)

    # -- one step -----------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        said = await self._ask(WAIT)
        replica = self.replica
        if self._accepted != (said.origin, said.generation):
            await self._in_thread(partial(replica.accept, said))
            self._accepted = (said.origin, said.generation)
        await self._in_thread(partial(replica.learn, said))  # before its files count: a promotion needs the generation
        if said.offers or self._offers:
            self._take_offers(said)
        if said.manifest:
            await self._move_to(said)
        elif said.data:
            await self._in_thread(partial(replica.append, said.data))
        await self._in_thread(partial(replica.learn, said))
        self.state, self._damaged = "following", 0
        if replica.place == said.end:
            self._fresh = self.now()

    async def _ask(self, wait: float) -> FollowReply:
        """Confirm the durable bytes, and request the next ones."""
        replica, now = self.replica, self.now()
        lease = replica.lineage.lease
        if self._granting and replica.lineage.mode == SYNC:
            # Before it is sent: the primary's lease runs from an earlier moment, and so ends first.
            self.promised_until = max(self.promised_until, now + lease)
        request = FollowRequest(
            id=replica.lineage.id,
            name=self.name,
            at=replica.place,
            ahead=replica.ahead,
            manifest=replica.crc,
            mode=replica.lineage.mode,
            reply=self._granting if replica.lineage.mode == SYNC else 0,
            offered=[info.id for info in self._offers],
            ready=[info.id for info in self._offers if replica.has(info)],
            wait=wait,
            state=self.state if self.state != "connecting" else "following" if replica.lineage.whole else "copying",
            sequence=replica.sequence,
            time=replica.time,
            left=self._to_copy - self._copied,
        )
        self._reported = now
        found = await self._call("follow", {"request": request}, wait + ANSWER)
        said = msgspec.convert(found, FollowReply)
        self._granting = said.number
        self._reply = said
        return said

    async def _call(self, method: str, args: dict[str, Any], timeout: float = ANSWER) -> Any:
        return await self._primary.link.call(method, args, timeout=timeout)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    # -- files --------------------------------------------------------------------------------------------------

    async def _move_to(self, said: FollowReply) -> None:
        """Have all files of a newer manifest, and be that journal."""
        replica, found = self.replica, manifest.decode(said.manifest)
        self._wanted = crc_of(said.manifest)
        await self._pause_offers()  # two must not write the same file
        if not replica.follows(found):
            logger.warning("%s has other segments: the copy starts again", replica.lineage.shown_primary)
            await self._in_thread(replica.start_over)
        files = await self._in_thread(partial(replica.needed, found))
        if not replica.lineage.whole:
            self.state = "copying"
        self._copied, self._to_copy = 0, sum(max(0, one.end - one.start) for one in files)
        try:
            for one in files:
                await self._fetch(one, said)
            last = found.segments[-1]
            header = b"" if last.sealed else await self._read(last.name, 0, START)
            await self._in_thread(partial(replica.adopt, said.manifest, header))
        finally:
            self._copied = self._to_copy = 0
        self._fetch_offers_soon()

    async def _fetch(self, needed: NeededFile, said: FollowReply | None = None) -> None:
        """Copy one file. During a long copy the primary hears of it."""
        at = needed.start
        while not needed.end or at < needed.end:
            size = min(PIECE, needed.end - at) if needed.end else PIECE
            data = await self._read(needed.name, at, size)
            if data or at == 0:
                await self._in_thread(partial(self.replica.write, needed, at, data))
            at += len(data)
            if said is not None:
                if needed.end:
                    self._copied += len(data)
                self._progress(self._copied, self._to_copy)
                if self.now() - self._reported > REPORT:
                    await self._ask(0.0)
            if len(data) < size:
                break
        await self._in_thread(partial(self.replica.finish, needed))

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        data = await self._call("read_file", {"name": name, "offset": offset, "size": size})
        assert isinstance(data, bytes)
        return data

    def _take_offers(self, said: FollowReply) -> None:
        """Copy what the cleaner of the primary wrote, beside following, before it counts."""
        offers = self.replica.offered(said.offers)
        if [info.id for info in offers] != [info.id for info in self._offers]:
            self._offers = offers
            if self._fetching is not None:
                self._fetching.cancel()
            self._fetch_offers_soon()

    def _fetch_offers_soon(self) -> None:
        missing = [info for info in self._offers if not self.replica.has(info)]
        self._fetching = asyncio.create_task(self._fetch_offers(missing)) if missing else None

    async def _pause_offers(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def _fetch_offers(self, offers: list[SegmentInfo]) -> None:
        with suppress(RunnelError, OSError):  # then they are copied when the manifest names them
            for info in offers:
                for one in await self._in_thread(partial(self.replica.needed_of, info)):
                    await self._fetch(one)

    # -- the end, and figures -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish pending writes, and end the thread. After `run` was cancelled."""
        self._thread.shutdown(wait=True)

    def statistics(self) -> ReplicationStatistics:
        """The progress of the standby."""
        said, replica, now = self._reply, self.replica, self.now()
        at_end = said is not None and replica.place == said.end and now - self._reported < WAIT + FRESH
        lag = 0.0 if at_end else now - self._fresh
        behind = 0 if said is None or replica.place == said.end else said.behind
        return ReplicationStatistics(
            role="standby",
            mode=replica.lineage.mode,
            generation=replica.lineage.number,
            primary=replica.lineage.shown_primary,
            state=self.state,
            lag_bytes=behind,
            lag_records=0 if said is None or not behind else max(0, said.sequence - replica.sequence),
            lag_seconds=lag,
            copied=self._copied,
            to_copy=self._to_copy,
            verified=replica.verified,
            errors=self._errors,
            last_error=self._last_error,
        )
