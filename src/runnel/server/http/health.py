"""`/healthz`, `/readyz` and `/metrics`, for operators and monitoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import RunnelError
from runnel.observe import prometheus
from runnel.server.http.errors import problem_response
from runnel.server.http.record_json import encode_json

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The routes. `draining` says that the server is about to stop."""

    def __init__(self, broker: Broker, draining: Callable[[], bool]) -> None:
        self._broker, self._draining = broker, draining

    async def alive(self, request: Request) -> Response:
        """The process answers: that is all it says."""
        return Response(encode_json({"status": "ok"}), media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """Whether it takes records: not while it stops, nor when its journal failed or its disk is full."""
        if (why := self._trouble()) is not None:
            return problem_response(503, "not_ready", why, headers={"retry-after": "1"})
        return Response(encode_json({"status": "ready"}), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """What a Prometheus server scrapes."""
        return Response(prometheus.render(self._broker.statistics()), media_type=PROMETHEUS_TEXT)

    def _trouble(self) -> str | None:
        if self._draining():
            return "the server stops"
        try:
            self._broker.backend.loop_owner.check_usable("publishing")
            journal = self._broker.statistics().journal
        except RunnelError as error:
            return str(error)
        if journal is not None and journal.failed is not None:
            return f"the journal takes no more: {journal.failed}"
        return "the disk is full" if journal is not None and journal.full else None
