"""The primary's side of a warm standby: ships the journal; in sync mode acknowledges only confirmed entries.

Standbys request the bytes behind their place; a request confirms all bytes before it. In sync mode a commit lands, that
is becomes visible and is acknowledged, when the standby has confirmed it and its lease has not ended. The lease runs
from the moment an answer is sent, and the standby's promise from the moment it receives it: so the primary's ends
first, whatever the clocks say. All of it runs on the broker's loop, but `offer`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import msgspec

from runnel.broker.durable.commit_queue import CommitQueue
from runnel.core.checksum import crc_of
from runnel.core.errors import (
    BrokerClosed,
    JournalFailed,
    NotSupported,
    RunnelError,
    StandbyMissing,
    StandbyRefused,
    Superseded,
    UnknownFile,
)
from runnel.core.replication import ASYNC, SYNC, FileOffer, FollowReply, FollowRequest, Generation, JournalPlace
from runnel.core.statistics import FollowerStatistics, ReplicationStatistics
from runnel.journal.format import lineage, manifest
from runnel.journal.format.lineage import Lineage
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.write.journal import Journal, PublishedManifest
from runnel.runtime import waiting
from runnel.runtime.clock import steady_time

PIECE = 1 << 20  # bytes in one answer
AT_ONCE = 256 << 10  # bytes that are read without a thread: the last writes are in the page cache
AWAY = 3.0  # seconds without a request after which a standby counts as away, unless its lease is longer
FORGOTTEN = 600.0  # seconds after which an asynchronous standby is not listed any more
GRACE = 2.0  # leases that a synchronous standby may be away until connected clients are sent elsewhere
MOST = 16  # standbys

logger = logging.getLogger("runnel")


class Follower:
    """A standby that has asked at least once."""

    def __init__(self, request: FollowRequest, now: float) -> None:
        self.said, self.heard = request, now
        self.confirmed = (0, 0)  # the number of a segment, and a position in it
        self.lease_end = 0.0
        self.sent: deque[tuple[int, float, float]] = deque(maxlen=16)  # answers: number, when, and the lease they asked

    def take(self, request: FollowRequest, now: float, confirmed: tuple[int, int]) -> None:
        """It has asked: what it confirms, and from when on its lease counts."""
        self.said, self.heard, self.confirmed = request, now, confirmed
        for number, when, lease in self.sent:
            if number == request.reply:
                self.lease_end = max(self.lease_end, when + lease)


class PrimaryReplication:
    """Serves the standbys of a durable broker. Without one it costs nothing: the first one sets the gate."""

    def __init__(
        self,
        journal: Journal,
        commits: CommitQueue,
        sequence: Callable[[], int],
        now: Callable[[], float] = steady_time,
    ) -> None:
        self._journal, self._commits, self._sequence, self._now = journal, commits, sequence, now
        self._options = journal.options
        self._lineage = lineage.load(journal.storage)
        self._followers: dict[str, Follower] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._numbers = secrets.randbits(40)  # no answer of this life is taken for one of the last
        self._offers: list[SegmentInfo] = []
        self._taken: Event | None = None  # set when all standbys have the segments on offer
        self._refused: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._held_since: float | None = None  # when acknowledging stopped
        self._told = False  # that it has
        self._begun = False  # whether the synchronous standby has confirmed all that was there when the broker opened
        self._at_open = journal.end
        self._changing = asyncio.Lock()  # of the lineage
        self._swapped: tuple[PublishedManifest, JournalPlace] | None = None  # and the end when it was first sent
        self._names: tuple[PublishedManifest, set[str]] | None = None  # the files that a standby may ask for
        self._storing: asyncio.Task[Lineage] | None = None
        self.stopping = False
        if self._strict:
            commits.gate = self
            self._timer = commits.loop.call_later(self._options.standby_lease / 4, self._look_at_lease)

    def __repr__(self) -> str:
        return f"<PrimaryReplication, {self._options.standby}, {len(self._followers)} standbys>"

    # -- the gate -----------------------------------------------------------------------------------------------

    @property
    def _strict(self) -> bool:
        """Whether nothing is acknowledged without the synchronous standby. It stays so until that one knows better."""
        return self._lineage is not None and bool(self._lineage.standby)

    @property
    def _partner(self) -> Follower | None:
        return None if self._lineage is None else self._followers.get(self._lineage.standby)

    def written(self) -> None:
        """The journal has grown: answer the standbys that wait for it."""
        waiting_ones, self._waiting = self._waiting, set()
        for one in waiting_ones:
            waiting.resolve_waiter(one, None)

    def covers(self, end: tuple[int, int]) -> bool:
        """Whether entries up to `end` may be acknowledged."""
        found = self._lineage
        if found is None:
            return True
        if found.superseded:
            return False
        if not found.standby:
            return True
        partner = self._followers.get(found.standby)
        return partner is not None and partner.confirmed >= end and self._now() < partner.lease_end

    def _is_leased(self) -> bool:
        partner = self._partner
        return self._begun and partner is not None and self._now() < partner.lease_end

    def _is_full(self) -> bool:
        """Whether the synchronous standby is there, and has no room for what it would confirm."""
        partner = self._partner
        return partner is not None and partner.said.state == "disk full"

    # -- what listeners ask -------------------------------------------------------------------------------------

    @property
    def generation(self) -> Generation | None:
        """The generation that clients get."""
        return None if self._lineage is None else self._lineage.generation

    @property
    def origin(self) -> str:
        """The id of the first journal."""
        return self._journal.manifest.journal if self._lineage is None else self._lineage.origin

    def refusal(self) -> RunnelError | None:
        """Why no client is served now."""
        found = self._lineage
        if found is None:
            return None
        if found.superseded:
            return Superseded(found.number, found.superseded)
        if found.standby and not self._is_leased():
            return StandbyMissing(found.standby_name or found.standby)
        return None

    def on_refusal(self, ended: Callable[[], None]) -> None:
        """Have `ended` called when connected clients are to go."""
        self._refused.append(ended)

    def _look_at_lease(self) -> None:
        """Notice that the lease of the synchronous standby has ended, and for how long."""
        self._timer = None
        if not self._strict or self._commits.stopped:
            return
        now, lease = self._now(), self._options.standby_lease
        if self._is_leased():
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
            self._told = False
        elif not self._told:
            self._told = True
            logger.error("the standby is not connected: nothing is acknowledged until it is")
        elif now - self._held_since >= GRACE * lease:
            self._send_away()
        self._timer = self._commits.loop.call_later(lease / 4, self._look_at_lease)

    def _send_away(self) -> None:
        for ended in self._refused:
            ended()

    # -- standbys -----------------------------------------------------------------------------------------------

    async def follow(self, request: FollowRequest) -> FollowReply:
        """Answer a standby: at once if there is something new for it, else when there is, or after a while."""
        found = self._lineage or await self._change()
        if found.superseded:
            raise Superseded(found.number, found.superseded)
        follower = self._admit(request, found)
        self._commits.gate = self
        follower.take(request, self._now(), self._confirmed(request.at))
        self._look_at_offers()
        await self._settle_mode(follower, request)
        self._commits.confirmed()
        if self._timer is None:
            self._look_at_lease()
        if request.wait > 0 and self._has_all(request) and not self.stopping and not self._asks_for_offers(request):
            one: asyncio.Future[None] = self._commits.loop.create_future()
            self._waiting.add(one)
            try:
                await asyncio.wait([one], timeout=min(request.wait, self._options.standby_lease / 3))
            finally:
                self._waiting.discard(one)
        if self._commits.stopped:
            raise BrokerClosed("following")
        return await self._answer(follower, request)

    def _admit(self, request: FollowRequest, found: Lineage) -> Follower:
        known = self._followers.get(request.id)
        if known is not None:
            return known
        if request.id == found.id:
            raise StandbyRefused("it is this primary's own folder")
        now = self._now()
        for id, one in list(self._followers.items()):
            if now - one.heard > FORGOTTEN and id != found.standby:
                del self._followers[id]
        if len(self._followers) >= MOST:
            raise StandbyRefused(f"{MOST} standbys follow this primary already")
        logger.info("standby %s follows the journal", request.name or request.id)
        known = self._followers[request.id] = Follower(request, now)
        return known

    async def _settle_mode(self, follower: Follower, request: FollowRequest) -> None:
        """Switch to acknowledging only entries that this standby has, or to async mode, once it confirmed the mode."""
        found = self._lineage
        assert found is not None, "a journal that is followed has a lineage"
        wanted = self._options.standby == SYNC
        if wanted and not found.standby and self._is_near_the_end(request):
            # From now on nothing is acknowledged without it: so it gets to the end, also of a journal under load.
            partner = {"standby": request.id, "standby_name": request.name or request.id}
            self._lineage, self._begun = msgspec.structs.replace(found, **partner), True
            try:
                await self._change(**partner)
            except OSError:  # an unstored mode must not be relied on: the next request tries again
                self._lineage = msgspec.structs.replace(self._lineage, standby="", standby_name="")
                raise
            logger.info("standby %s has caught up: from now on nothing is acknowledged without it", request.name)
        elif found.standby == request.id:
            if not self._begun and follower.confirmed >= self._at_open:
                self._begun, self._held_since = True, None
            if not wanted and request.mode == ASYNC:
                await self._change(standby="", standby_name="")
                logger.info("standby %s follows asynchronously from now on", request.name or request.id)

    async def _change(self, **fields: Any) -> Lineage:
        """Change the lineage, durably."""
        async with self._changing:
            known = self._lineage or Lineage.of_primary(self._journal.manifest.journal)
            await asyncio.to_thread(lineage.write, self._journal.storage, msgspec.structs.replace(known, **fields))
            self._lineage = msgspec.structs.replace(self._lineage or known, **fields)
        return self._lineage

    def _active(self) -> SegmentInfo:
        return self._journal.published.segments[-1]

    def _end(self) -> JournalPlace:
        """The durable end of the journal."""
        info = self._active()
        return JournalPlace(info.number, info.id, self._written(info.id))

    def _written(self, id: int) -> int:
        for source in reversed(self._journal.history.sources[-3:]):
            if source.info.id == id:
                return max(source.written, START)
        return START

    def _confirmed(self, at: JournalPlace | None) -> tuple[int, int]:
        """The confirmed place of a standby at `at`: none, if its segment is not of this journal (a restore)."""
        if at is None:
            return (0, 0)
        infos = [source.info for source in self._journal.history.sources[-8:]]
        if at.number < infos[0].number or any((at.number, at.id) == (info.number, info.id) for info in infos):
            return at.number, at.position
        return (0, 0)

    def _is_at_end(self, request: FollowRequest) -> bool:
        return request.at is not None and request.at == self._end()

    def _is_near_the_end(self, request: FollowRequest) -> bool:
        """Whether one answer brings the standby up to date."""
        at, end = request.at, self._end()
        is_current = request.manifest == crc_of(self._journal.published.data)
        return is_current and at is not None and at.id == end.id and end.position - at.position <= PIECE

    def _has_all(self, request: FollowRequest) -> bool:
        if request.manifest != crc_of(self._journal.published.data) or request.at is None:
            return False
        return request.at.position + request.ahead >= self._end().position

    def _asks_for_offers(self, request: FollowRequest) -> bool:
        return any(info.id not in request.ready and info.id not in request.offered for info in self._offers)

    async def _answer(self, follower: Follower, request: FollowRequest) -> FollowReply:
        found, published, end = self._lineage, self._journal.published, self._end()
        assert found is not None, "a journal that is followed has a lineage"
        is_partner = found.standby == request.id
        wants = is_partner and self._options.standby == SYNC
        reply = FollowReply(
            number=self._next(),
            end=end,
            origin=found.origin,
            generation=found.number,
            key=found.key,
            sequence=self._sequence(),
            time=self._journal.ledger.time,
            mode=SYNC if wants else ASYNC,
            lease=self._options.standby_lease if is_partner else 0.0,
            offers=[FileOffer(*msgspec.structs.astuple(info)) for info in self._offers],
            stopping=self.stopping,
        )
        at = request.at
        if request.manifest != crc_of(published.data) and not self._lacks_what_came_before(at, published, end):
            reply.manifest = published.data
            reply.behind = self._behind(request, published.segments)
        elif at is not None and at.id == end.id:
            start = at.position + request.ahead
            size = min(end.position - start, PIECE)
            if size > 0:
                reply.data = await self.read_file(published.segments[-1].name, start, size)
            reply.behind = max(0, end.position - at.position)
        follower.sent.append((reply.number, self._now(), reply.lease))
        return reply

    def _lacks_what_came_before(self, at: JournalPlace | None, published: PublishedManifest, end: JournalPlace) -> bool:
        """Whether a manifest names fewer records because of others behind `at`: those come first.

        Else a standby that is promoted in between had neither what retention dropped nor what it was dropped for.
        """
        if self._swapped is None or self._swapped[0] is not published:
            self._swapped = published, end
        swapped = self._swapped[1]
        return at is not None and at.id == swapped.id and at.position < swapped.position

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _behind(self, request: FollowRequest, segments: Sequence[SegmentInfo]) -> int:
        """Bytes that the standby has not confirmed, by its last request."""
        at = request.at
        if at is None:
            return sum(info.end for info in segments) + self._end().position
        behind = sum(info.end for info in segments if info.sealed and info.number >= at.number and not info.generation)
        return max(0, behind + self._end().position - at.position)

    async def read_file(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a file that the manifest names, or that is on offer."""
        if not self._names or self._names[0] is not self._journal.published:
            self._names = self._journal.published, manifest.decode(self._journal.published.data).files()
        offered = {one for info in self._offers for one in (info.name, info.index_name)}
        if name not in self._names[1] and name not in offered:
            raise UnknownFile(name)
        offset, size = max(0, offset), max(1, min(size, PIECE))
        try:
            if size <= AT_ONCE and name == self._active().name:
                return self._read(name, offset, size)
            return await asyncio.to_thread(self._read, name, offset, size)
        except FileNotFoundError:
            raise UnknownFile(name) from None

    def _read(self, name: str, offset: int, size: int) -> bytes:
        file = self._journal.storage.open(name)
        try:
            return file.read(offset, size)
        finally:
            file.close()

    # -- segments that the cleaner wrote ------------------------------------------------------------------------

    def offer(self, made: Sequence[SegmentInfo], stopping: Event) -> None:
        """Let standbys copy what the cleaner wrote before it replaces other segments. On the cleaner's thread.

        Else a standby had to copy it before it could follow the next roll, and in sync mode publishers would wait for
        that. The wait is bounded by `standby_patience`: a slow standby must not keep the disk from being given back.
        """
        if not made or not self._followers:
            return
        taken = Event()
        with suppress(RuntimeError):  # the loop is closed
            self._commits.loop.call_soon_threadsafe(self._begin_offer, list(made), taken)
            deadline = time.monotonic() + self._options.standby_patience
            while not taken.wait(0.05) and not stopping.is_set() and time.monotonic() < deadline:
                pass
            self._commits.loop.call_soon_threadsafe(self._end_offer)

    def _begin_offer(self, made: list[SegmentInfo], taken: Event) -> None:
        self._offers, self._taken = made, taken
        self._look_at_offers()
        self.written()

    def _end_offer(self) -> None:
        self._taken = None  # the offers stay until the next ones: the manifest names them from now on

    def _look_at_offers(self) -> None:
        """Whether all connected standbys have the offered segments."""
        if self._taken is None:
            return
        now = self._now()
        here = [one for one in self._followers.values() if now - one.heard < self._away_after]
        if all(info.id in one.said.ready for one in here for info in self._offers):
            self._taken.set()

    # -- the end of a primary -----------------------------------------------------------------------------------

    def seen(self, generation: Generation) -> None:
        """A higher generation of the same journal, with a proof, ends this primary: for good, also after a restart."""
        found = self._lineage
        if found is None or generation.origin != found.origin or generation.number <= found.number:
            return
        if not generation.is_proven(found.key):
            return
        if not found.superseded:
            # First of all, and at once: nothing that is not on the standby may be acknowledged from now on.
            self._lineage = msgspec.structs.replace(found, superseded=generation.number)
            self._commits.gate = self
            logger.error("%s", Superseded(found.number, generation.number))
            self._journal.failed = self._journal.failed or JournalFailed(
                f"a standby was promoted to generation {generation.number}"
            )
            self._commits.abandon_unconfirmed()
            self._commits.loop.call_soon(self._send_away)  # the client that shows it gets to know why
            self.written()
        if self._storing is None or (self._storing.done() and self._storing.exception() is not None):
            self._storing = self._commits.loop.create_task(self._change(superseded=generation.number))

    @property
    def old_primary(self) -> str | None:
        """Where the server was that this one took over from, if that has not been reached since."""
        return None if self._lineage is None else self._lineage.primary or None

    async def old_primary_stopped(self) -> None:
        """It was shown the new generation, or is a standby now."""
        await self._change(primary="")

    async def promote(self, *, primary_is_down: bool) -> Generation:
        """It is a primary."""
        raise NotSupported("promote", "this server is a primary already")

    async def release(self) -> str | None:
        """Wait for the synchronous standby no more."""
        found = self._lineage
        if found is None or not found.standby:
            return None
        name = found.standby_name or found.standby
        await self._change(standby="", standby_name="")
        self._followers.pop(found.standby, None)
        self._held_since = None
        logger.warning("the primary continues without its standby %s; do not promote this standby", name)
        self._commits.confirmed()
        return name

    def close(self) -> None:
        """The broker closes: answer the standbys that wait."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.written()

    # -- figures ------------------------------------------------------------------------------------------------

    @property
    def _away_after(self) -> float:
        return max(AWAY, self._options.standby_lease)

    def statistics(self) -> ReplicationStatistics | None:
        """Role, mode and lag; None: no standby has ever followed."""
        found = self._lineage
        if found is None:
            return None
        return ReplicationStatistics(
            role="superseded" if found.superseded else "primary",
            mode=SYNC if self._strict else ASYNC,
            generation=found.number,
            holding=self._strict and (not self._is_leased() or self._is_full()),
            followers=tuple(self._figures(one) for one in self._followers.values()),
        )

    def _figures(self, one: Follower) -> FollowerStatistics:
        found, now, said = self._lineage, self._now(), one.said
        assert found is not None, "a journal that is followed has a lineage"
        is_partner = said.id == found.standby
        away = now - one.heard
        end = self._sequence()
        at_end = self._is_at_end(said)
        behind = 0 if at_end else self._behind(said, self._journal.published.segments)
        return FollowerStatistics(
            name=said.name or said.id,
            id=said.id,
            state="away" if away > self._away_after else said.state,
            mode=said.mode if is_partner else ASYNC,
            lag_bytes=behind,
            lag_records=0 if at_end else max(0, end - said.sequence),
            lag_seconds=0.0 if at_end else max(0.0, time.time() - said.time / 1e6) if said.time else away,
            lease=max(0.0, one.lease_end - now) if is_partner else 0.0,
            left=said.left,
        )
