"""`/healthz`, `/readyz` and `/metrics`, for operators and monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import RunnelError
from runnel.observe import prometheus
from runnel.security.principal import ConsoleRole
from runnel.server.http.authentication import serving_of
from runnel.server.http.errors import problem_response
from runnel.server.http.record_json import encode_json

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

PATHS = (b"/healthz", b"/readyz", b"/metrics")
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The routes."""

    def __init__(self, serving: ServedBroker, *, says_why: bool) -> None:
        self._serving, self._broker, self._connections = serving, serving.broker, serving.connections
        self._says_why = says_why

    async def alive(self, request: Request) -> Response:
        """The process answers: that is all it says."""
        return Response(encode_json({"status": "ok"}), media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """Whether it takes records: not while it stops or its backend is away, nor when its disk is full or failed."""
        if (why := await self._trouble()) is not None:
            if not self._says_why:
                why = "it does not take records now; its log says why"  # open to everyone: it reveals nothing
            return problem_response(503, "not_ready", why, headers={"retry-after": "1"})
        return Response(encode_json({"status": "ready"}), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """What a Prometheus server scrapes."""
        access = serving_of(request.scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "read metrics")
        found = await self._broker.backend.snapshot(limit=prometheus.MAX_TOPICS)  # others are summed under one label
        found = msgspec.structs.replace(found, handlers=self._broker.handlers())
        peers = self._connections
        server = prometheus.ServerFigures(self._serving.since, len(peers), peers.accepted, peers.refused)
        return Response(prometheus.render(found, server=server), media_type=PROMETHEUS_TEXT)

    async def _trouble(self) -> str | None:
        if self._connections.draining:
            return "the server stops"
        try:
            self._broker.backend.check_ready("publishing")
            journal = (await self._broker.backend.snapshot(limit=0)).journal
        except RunnelError as error:
            return str(error)
        if journal is not None and journal.failed is not None:
            return f"the journal takes no more: {journal.failed}"
        return "the disk is full" if journal is not None and journal.full else None
