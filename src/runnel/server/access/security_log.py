"""The security log: events in durable internal topics, and as JSON lines of the logger `runnel.security`.

An admin action is written before it is done, and is not done if it cannot be written. Logins and refusals are counted,
and written once a second, each to a topic of their own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from runnel.core.errors import AuditFailed, NotSupported, RunnelError
from runnel.core.options import TopicOptions
from runnel.core.pattern import SECURITY_LOG_TOPICS
from runnel.core.publishing import append_of
from runnel.security.audit import (
    EVENTS_TOPIC,
    LOGINS_TOPIC,
    REFUSALS_TOPIC,
    RETENTION_AGE,
    RETENTION_BYTES,
    EventCounter,
    SecurityEvent,
    shortened,
)
from runnel.server.request_id import CURRENT

if TYPE_CHECKING:
    from runnel.core.backend import Backend, Writer

FLUSH_SECONDS = 1.0
WRITE_TIMEOUT = 10.0  # seconds that an admin action waits for its entry
MAX_UNWRITTEN = 2500  # events under way to the log; beyond that only the logger has them

log = logging.getLogger("runnel.security")


class SecurityLog:
    """Writes events. Before `start`, and where the backend cannot keep them, they go to the logger alone."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}
        self._logins, self._refusals = EventCounter(), EventCounter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing: asyncio.Task[None] | None = None

    def start(self, backend: Backend) -> None:
        """Write to topics of `backend` from now on."""
        options = TopicOptions(retention_age=RETENTION_AGE, retention_bytes=RETENTION_BYTES)
        try:
            self._writers = {topic: backend.writer(topic, None, options) for topic in SECURITY_LOG_TOPICS}
        except NotSupported:  # a cluster cannot limit the bytes of a topic
            options = TopicOptions(retention_age=RETENTION_AGE)
            self._writers = {topic: backend.writer(topic, None, options) for topic in SECURITY_LOG_TOPICS}
        self._flushing = asyncio.get_running_loop().create_task(self._flush_often())

    async def stop(self) -> None:
        """Write the pending counts, and end."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])
        self.flush()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=WRITE_TIMEOUT)

    def note(self, event: SecurityEvent) -> None:
        """Write an event that nothing waits for; a login, or one that was refused or failed, is counted first."""
        event = _with_request(event)
        if event.outcome != "allowed":
            self._refusals.add(event)
        elif event.kind == "login":
            self._logins.add(event)
        else:
            self._write_soon(EVENTS_TOPIC, event)

    async def audit(self, event: SecurityEvent) -> None:
        """Return when the event is stored; `AuditFailed` if it cannot be."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._write(EVENTS_TOPIC, _with_request(event))
        except (RunnelError, TimeoutError) as error:
            why = str(error) or f"it took longer than {WRITE_TIMEOUT:g} s"
            raise AuditFailed(event.action, why) from None

    def flush(self) -> None:
        """Write the logins and refusals that were counted."""
        for topic, counted in ((LOGINS_TOPIC, self._logins), (REFUSALS_TOPIC, self._refusals)):
            for event in counted.due():
                self._write_soon(topic, event)

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.flush()

    def _write_soon(self, topic: str, event: SecurityEvent) -> None:
        if len(self._tasks) >= MAX_UNWRITTEN:
            _log(event)
            return
        task = asyncio.get_running_loop().create_task(self._try_to_write(topic, event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_to_write(self, topic: str, event: SecurityEvent) -> None:
        try:
            await self._write(topic, event)
        except RunnelError as error:
            log.warning("an event of the security log could not be stored: %s", error)

    async def _write(self, topic: str, event: SecurityEvent) -> None:
        _log(event)
        if (writer := self._writers.get(topic)) is not None:
            await writer.append(append_of(writer, event.encoded()))


def _with_request(event: SecurityEvent) -> SecurityEvent:
    """The event with the id of the request that is handled now."""
    request = CURRENT.get()
    return msgspec.structs.replace(event, request=shortened(request)) if request else event


def _log(event: SecurityEvent) -> None:
    level = logging.INFO if event.outcome == "allowed" else logging.WARNING
    log.log(level, "%s", event.encoded().decode())
