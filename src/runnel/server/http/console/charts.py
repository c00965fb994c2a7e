"""`GET /console/charts`: the last hours of the figures of one thing, from the ring of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import InvalidOption
from runnel.security.principal import ConsoleRole
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import parameters, single_parameter

if TYPE_CHECKING:
    from runnel.server.http.console.sampling import ConsoleSampling
    from runnel.server.served_broker import ServedBroker

KINDS = ("totals", "topic", "group", "subscription")
SPANS = {"15m": 900.0, "1h": 3600.0, "6h": 6 * 3600.0}
POINTS = 360


class ChartsRoute:
    """The route."""

    def __init__(self, serving: ServedBroker, sampling: ConsoleSampling) -> None:
        self._serving, self._sampling = serving, sampling

    async def charts(self, request: Request) -> Response:
        """`?kind=totals|topic|group|subscription&name=&span=15m|1h|6h`; a group is name, newline, pattern."""
        access = serving_of(request.scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "look at the console")
        asked = parameters(request.scope)
        kind, name = single_parameter(asked, "kind") or "totals", single_parameter(asked, "name") or ""
        span = single_parameter(asked, "span") or "1h"
        for option, said, known in (("kind", kind, KINDS), ("span", span, tuple(SPANS))):
            if said not in known:
                raise InvalidOption(option, said[:64], f"expected {', '.join(known)}")
        now, ring = self._serving.backend.clock.time(), self._sampling.ring
        end = (now // ring.step + 1) * ring.step
        series = ring.read(kind, name, now, SPANS[span], POINTS)
        answer = {"kind": kind, "name": name, "start": end - SPANS[span], "end": end, "series": series}
        return Response(encode_json(answer), media_type="application/json", headers={"cache-control": "no-store"})
