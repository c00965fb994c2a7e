"""A folder that several processes open: the first one owns it, the others go through its socket.

Whether a broker owns the folder or joins the owner is decided when its block is entered. The owner has its broker in
its own process, at full speed; the others become a client of the owner (`standby`).
"""

from __future__ import annotations

import asyncio
import random
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from runnel.broker.broker import Broker
from runnel.broker.durable.folder import BrokerFolder
from runnel.core.clock import Clock
from runnel.core.errors import FolderInUse, Unreachable
from runnel.journal.folder_lock import TRIES, FolderLock, recorded_owner
from runnel.journal.options import JournalOptions
from runnel.opening.folder_listener import FolderListener

if TYPE_CHECKING:
    from runnel.broker.topic_handle import Topic
    from runnel.server.server import Server

PAUSE = (0.01, 0.05)  # seconds before the next look, about
ALONE = 0.5  # seconds of an owner who lets nobody in, until that is an error: commands own a folder for a moment
PATIENCE = 30.0  # seconds for an owner who shares to be reached: it may be recovering a large folder


class SharedBroker(Broker):
    """A broker in a folder that others may open, too. `joins=False`: own it, or raise `FolderInUse`."""

    def __init__(
        self,
        path: Path,
        options: JournalOptions,
        *,
        auto_create: bool = True,
        clock: Clock | None = None,
        joins: bool = True,
    ) -> None:
        lock = FolderLock(path, shares=True, tries=0 if joins else TRIES)
        super().__init__(auto_create=auto_create, clock=clock, folder=BrokerFolder(path, options, lock=lock))
        self._path, self._options, self._auto_create, self._joins = path, options, auto_create, joins
        self._listener: FolderListener | None = None
        # As long as it is open who it will be; an attribute, so that nothing is asked on the way of every publish.
        self.topic = self._early_topic  # type: ignore[method-assign]

    async def __aenter__(self) -> Broker:
        loop_owner = self.backend.loop_owner
        if loop_owner.entered or loop_owner.closed or loop_owner.forked:
            return await super().__aenter__()
        loop = asyncio.get_running_loop()
        began = loop.time()
        shut = began  # when somebody who owns it and lets nobody in was not there, the last time
        while True:
            try:
                await super().__aenter__()
            except FolderInUse:
                if not self._joins:
                    raise
                is_shared = recorded_owner(self._path).shares
                if is_shared and await self._join():
                    return self
                now = loop.time()
                if is_shared:
                    shut = now
                if now - began > PATIENCE or now - shut > ALONE:
                    raise
            else:
                self._own()
                return self
            await asyncio.sleep(random.uniform(*PAUSE))

    def _own(self) -> None:
        self.__dict__.pop("topic", None)
        self._listener = FolderListener(self, self._path.absolute())
        try:
            self._listener.open()
        except BaseException:
            self.close()
            raise

    async def _join(self) -> bool:
        """Become the broker of one who goes through the owner's socket; False: there is none, for now."""
        from runnel.opening.standby import JoinedBroker, StandbyOwner

        import_module("runnel.server.server")  # a standby needs it at once, and now there is time
        standby = StandbyOwner(self._path.absolute(), self._options, self.clock, auto_create=self._auto_create)
        joined = JoinedBroker(standby, self.clock)
        try:
            await joined.__aenter__()
        except Unreachable:
            return False
        joined._handlers += self._handlers
        joined._middleware += self._middleware
        # The user holds this object already, perhaps under a name of a module, and handlers were registered with it:
        # so it is this object that becomes the other twin. Nothing that it was has begun to live.
        me: Any = self
        me.__class__, me.__dict__ = JoinedBroker, joined.__dict__
        return True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me: Any = self
        if not isinstance(me, SharedBroker):  # `async with` took this method before it knew who it would enter
            await me.__aexit__(kind, error, trace)
            return
        try:
            if self._listener is not None:
                await self._listener.close()
        finally:
            self.close()

    def close(self) -> None:
        """End every subscription, after what was published; refuse everything else. Closing twice is harmless."""
        if self._listener is not None and not self.backend.loop_owner.forked:
            self._listener.shut()
        super().close()

    def hand_listener_to(self, server: Server) -> None:
        """Have a server let the others in, so that it knows all who are connected."""
        if self._listener is not None:
            self._listener.hand_to(server)

    def _early_topic(self, name: str, type: Any = None, **options: Any) -> Topic[Any]:
        made = Broker.topic(self, name, type, **options)
        return cast("Topic[Any]", DeferredTopic(self, made, type, options))


class DeferredTopic:
    """A handle on a topic that was made before its broker's block was entered, for either twin."""

    def __init__(self, broker: SharedBroker, made: Topic[Any], type: Any, options: dict[str, Any]) -> None:
        self._early = (broker, made, type, options)
        self._late: Any = None

    def __repr__(self) -> str:
        return repr(self._real())

    def _real(self) -> Any:
        if self._late is None:
            broker, made, type_, options = self._early
            if isinstance(broker, SharedBroker):  # it owns the folder, or was not entered yet
                if not broker.backend.loop_owner.entered:
                    return made
                self._late = made
            else:
                self._late = broker.topic(made.name, type_, **options)
        return self._late

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> Any:  # to be taken for what it stands for
        return type(self._real())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real(), name)
        if self._late is not None and callable(found) and not name.startswith("_"):
            self.__dict__[name] = found  # the next call goes there without asking
        return found
