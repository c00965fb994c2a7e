"""`/healthz`, `/readyz`, `/metrics` and `/varz`, for operators and monitoring."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import RunnelError
from runnel.core.statistics import summed_handlers
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
        """The metrics for a Prometheus server."""
        self._check_viewer(request)
        found = await self._broker.backend.snapshot(limit=prometheus.MAX_TOPICS)  # others are summed under one label
        found = msgspec.structs.replace(found, handlers=summed_handlers((*found.handlers, *self._broker.handlers())))
        peers = self._connections
        nats = None if self._serving.nats is None else self._serving.nats.figures()
        end = self._serving.certificate_end
        server = prometheus.ServerFigures(self._serving.since, len(peers), peers.accepted, peers.refused, nats, end)
        return Response(prometheus.render(found, server=server), media_type=PROMETHEUS_TEXT)

    async def varz(self, request: Request) -> Response:
        """Figures of the server as a NATS server shows them, for programs that monitor one."""
        self._check_viewer(request)
        serving = self._serving
        nats = None if serving.nats is None else serving.nats.figures()
        found: dict[str, Any] = {
            "server_name": "runnel",
            "version": serving.version,
            "start": datetime.fromtimestamp(serving.since, UTC).isoformat(),
            "now": datetime.fromtimestamp(self._broker.clock.time(), UTC).isoformat(),
            "uptime_seconds": round(self._broker.clock.time() - serving.since, 3),
            "max_connections": self._connections.limit,
            "max_payload": serving.options.max_payload,
            "auth_required": serving.auth is not None,
            "total_connections": self._connections.accepted,
            "connections": len(self._connections),
            "subscriptions": 0,
            **dict.fromkeys(("in_msgs", "in_bytes", "out_msgs", "out_bytes", "slow_consumers"), 0),
            **(nats or {}),
        }
        return Response(encode_json(found), media_type="application/json")

    def _check_viewer(self, request: Request) -> None:
        access = serving_of(request.scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "read metrics")

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
