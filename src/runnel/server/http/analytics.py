"""`GET /console/analytics`: throughput, latency, lag, drops and dead letters over minutes, hours or days.

Read from the broker's telemetry and from what the analytics pipeline made of it. An answer is worked out once for all
viewers, and again after a while: a long span changes slowly, and costs more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import InvalidOption
from runnel.observe.analytics import SPANS, Span, read_series
from runnel.security.principal import ConsoleRole
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import parameters, single_parameter

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

KEPT = {"minutes": 2.0, "hours": 30.0, "days": 120.0}  # seconds that an answer is good for


class AnalyticsRoute:
    """Answers with series, at most a little old."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving, self._broker = serving, serving.broker
        self._answers: dict[str, tuple[float, asyncio.Task[bytes]]] = {}

    async def series(self, request: Request) -> Response:
        """The series of a span."""
        access = serving_of(request.scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "look at the console")
        asked = single_parameter(parameters(request.scope), "span")
        name = "minutes" if asked is None else asked
        if name not in SPANS:
            raise InvalidOption("span", name[:64], f"expected {', '.join(SPANS)}")
        self._broker.backend.check_ready("looking at it")
        now = asyncio.get_running_loop().time()
        made, answer = self._answers.get(name, (0.0, None))
        if answer is None or (answer.done() and (now - made > KEPT[name] or _has_failed(answer))):
            answer = asyncio.get_running_loop().create_task(self._encoded(SPANS[name]))
            self._answers[name] = now, answer
        # Shielded: a viewer that leaves does not take the answer from the others.
        body = await asyncio.shield(answer)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    async def _encoded(self, span: Span) -> bytes:
        series = await read_series(self._broker.backend, span, self._broker.clock.time())
        return encode_json(series.document())


def _has_failed(answer: asyncio.Task[bytes]) -> bool:
    return answer.cancelled() or answer.exception() is not None
