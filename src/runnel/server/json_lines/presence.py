"""The presence of a topic on a JSON lines connection: who is there, then who comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runnel.api.presence import PresenceWatch
from runnel.core.errors import RunnelError
from runnel.server.json_lines.subscription import JsonLinesStream, LineWriter
from runnel.wire import json_events as events
from runnel.wire.json_commands import Id


class PresenceStream(JsonLinesStream):
    """One watch. UNSUB ends it, as it ends a subscription."""

    def __init__(self, watch: PresenceWatch, outlet: LineWriter, topic: str, id: Id | None) -> None:
        super().__init__(outlet, topic, id)
        self._watch = watch
        self.ended = False  # for the guard: a login that may not read the topic any more ends it

    def open(self, over: Callable[[PresenceStream], None]) -> None:
        """Begin; `over` is called at the end."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._over(over))

    def _over(self, over: Callable[[PresenceStream], None]) -> None:
        self.ended = True
        over(self)

    def end(self, error: RunnelError) -> None:
        """Its client may not see it any more."""
        self._watch.fail(error)

    async def _run(self) -> None:
        try:
            async with self._watch as found:
                members = [one.member for one in found.waiting()]
                self._outlet.write(events.presence(self.topic, members, self.id))
                async for one in found:
                    self._outlet.write(events.presence_change(self.topic, one, self.id))
                    await self._outlet.writable()
        except RunnelError as error:
            self._outlet.write(events.End(self.topic, error.code, str(error), self.id).line())
