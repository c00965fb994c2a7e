"""The backend of a standby's server: it has no topics and refuses clients, and answers operators and health checks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from runnel.broker.backend import LocalBackend
from runnel.core.errors import NotPrimary, NotSupported, PromotionRefused, RunnelError
from runnel.core.replication import SYNC, FollowReply, FollowRequest, Generation
from runnel.core.statistics import ReplicationStatistics
from runnel.journal.backup.promotion import Promotion, check_promotable, promote
from runnel.standby.follower import JournalFollower

logger = logging.getLogger("runnel")


class StandbyReplication:
    """A standby's part: it follows until it is promoted. See `core.replication.Replication`."""

    def __init__(self, follower: JournalFollower) -> None:
        self.follower = follower
        self._following: asyncio.Task[None] | None = None
        self.promoted: asyncio.Future[Promotion] = asyncio.get_running_loop().create_future()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._promoting = False

    def __repr__(self) -> str:
        return f"<StandbyReplication, {self.follower!r}>"

    def start(self) -> None:
        """Begin to follow."""
        self._following = asyncio.create_task(self.follower.run())
        self._following.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_result(error)

    async def stop(self) -> None:
        """Follow no more: nothing is confirmed from now on."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await asyncio.to_thread(self.follower.close)

    @property
    def generation(self) -> Generation | None:
        """The generation of the primary's journal."""
        return self.follower.replica.lineage.generation

    @property
    def origin(self) -> str:
        """That of the primary's journal."""
        return self.follower.replica.lineage.origin

    def refusal(self) -> RunnelError:
        """Clients go to the primary."""
        return NotPrimary(self.follower.replica.lineage.shown_primary)

    def on_refusal(self, ended: Callable[[], None]) -> None:
        """Clients are refused from the beginning: there is none to be ended."""

    def seen(self, generation: Generation) -> None:
        """A standby of an old primary acknowledges nothing anyway."""

    async def follow(self, request: FollowRequest) -> FollowReply:
        """Standbys follow primaries."""
        raise self.refusal()

    async def read_file(self, name: str, offset: int, size: int) -> bytes:
        """Standbys follow primaries."""
        raise self.refusal()

    async def release(self) -> str | None:
        """It waits for no standby."""
        raise NotSupported("releasing a standby", "this server is a standby itself: ask its primary")

    async def promote(self, *, primary_is_down: bool) -> Generation:
        """Stop following, wait until the lease that the primary may rely on has ended, and promote the folder."""
        follower = self.follower
        if self._promoting:
            raise PromotionRefused("it is being promoted already")
        check_promotable(follower.replica.lineage, primary_is_down=primary_is_down)
        self._promoting, before = True, follower.state
        follower.state = "promoting"
        logger.warning("promoting: %s is followed no more", follower.replica.lineage.shown_primary)
        await self.stop()
        try:
            if follower.replica.lineage.mode == SYNC and not primary_is_down:
                await asyncio.sleep(max(0.0, follower.promised_until - follower.now()))
            done = await asyncio.to_thread(partial(promote, follower.replica))
        except BaseException as error:
            follower.state, self._promoting = before, False
            if not self.failed.done():
                self.failed.set_result(error)  # it is neither: the process ends, and starts again as a standby
            raise
        logger.warning(
            "promoted to generation %d: journal %s continues after sequence %d",
            done.lineage.number,
            done.journal,
            done.sequence,
        )
        self.promoted.set_result(done)
        found = done.lineage.generation
        assert found is not None, "a journal that was followed has a generation"
        return found

    def statistics(self) -> ReplicationStatistics:
        """Role, mode and lag."""
        return self.follower.statistics()


class StandbyBackend(LocalBackend):
    """A broker in memory that no client reaches: what listeners need while the server is a standby."""

    def __init__(self, replication: StandbyReplication) -> None:
        super().__init__()
        self._replication = replication

    @property
    def replication(self) -> StandbyReplication:
        """The standby's side."""
        return self._replication
