"""The broker of a process that shares a folder and does not own it: it goes through the owner's socket.

When the owner is gone it, or one of the others, takes over; either way it is connected again in a moment.
Below: heir, client. Above: shared_folder.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from runnel.client.address import Address
from runnel.client.broker import RemoteBroker
from runnel.client.side import Side
from runnel.core.clock import Clock
from runnel.place.folder_door import door_at, socket_of
from runnel.place.heir import Heir

SOONEST, LATEST = 0.01, 0.05  # seconds between two looks whether somebody owns the folder; they are made random


class JoinedBroker(RemoteBroker):
    """A broker in a folder that another broker owns, here or in another process."""

    def __init__(self, heir: Heir, clock: Clock) -> None:
        address = Address("", 0, str(socket_of(heir.folder)))
        super().__init__(str(address), clock=clock, backoff_min=SOONEST, backoff_max=LATEST)
        self._heir = heir
        self._leaving: asyncio.Task[None] | None = None
        self._link.prepare = heir.look
        self._link.side = NearSide(self._link)

    def __repr__(self) -> str:
        role = "owner by succession" if self._heir.is_owner else "joined"
        return f"<Broker in {str(self._heir.folder)!r}, {self._home.state}, {role}, {self._link.state}>"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    def close(self) -> None:
        """End every subscription, after what was published; refuse everything else. Closing twice is harmless."""
        is_first = not self._home.closed
        super().close()
        if not is_first or self._home.forked:
            return
        loop = self._home.loop
        if loop is not None and loop.is_running():
            self._leaving = loop.create_task(self._leave())
        else:
            self._heir.drop()

    async def _leave(self) -> None:
        """Say the last things over the own connection, then give the folder to somebody else."""
        await self._link.ended()
        await self._heir.leave()


class NearSide(Side):
    """Asks the owner directly where it lives on the same thread, which cannot wait for itself by a socket."""

    def call(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a CALL, while this thread waits."""
        door = door_at(self._link.addresses[0].path)
        if door is None or not door.is_here() or self._link.home.forked:
            return super().call(method, args)
        return door.answer(method, args)
