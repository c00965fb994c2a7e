"""`/healthz`, `/readyz` and `/metrics`, for operators and monitoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import RunnelError
from runnel.observe import prometheus
from runnel.server.http.errors import problem_response
from runnel.server.http.record_json import encode_json

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.core.statistics import Statistics

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The routes. `draining` says that the server is about to stop."""

    def __init__(self, broker: Broker, draining: Callable[[], bool]) -> None:
        self._broker, self._draining = broker, draining

    async def alive(self, request: Request) -> Response:
        """The process answers: that is all it says."""
        return Response(encode_json({"status": "ok"}), media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """Whether it takes records: not while it stops or its backend is away, nor when its disk is full or failed."""
        if (why := await self._trouble()) is not None:
            return problem_response(503, "not_ready", why, headers={"retry-after": "1"})
        return Response(encode_json({"status": "ready"}), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """What a Prometheus server scrapes."""
        return Response(prometheus.render(await self._statistics()), media_type=PROMETHEUS_TEXT)

    async def _statistics(self) -> Statistics:
        found: Statistics = await self._broker.backend.snapshot()
        return msgspec.structs.replace(found, handlers=self._broker.handlers())

    async def _trouble(self) -> str | None:
        if self._draining():
            return "the server stops"
        try:
            self._broker.backend.check_ready("publishing")
            journal = (await self._statistics()).journal
        except RunnelError as error:
            return str(error)
        if journal is not None and journal.failed is not None:
            return f"the journal takes no more: {journal.failed}"
        return "the disk is full" if journal is not None and journal.full else None
