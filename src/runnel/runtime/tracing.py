"""Trace propagation: the current OpenTelemetry span is published as the record's `traceparent`.

OpenTelemetry is never imported here: without it in the process there is no current span.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from runnel.core.publishing import Headers
from runnel.core.trace_context import TRACEPARENT


class Tracing:
    """Puts the current span into the headers of published records. `current` returns it; None: OpenTelemetry's."""

    __slots__ = ("current",)

    def __init__(self, current: Callable[[], str | None] | None = None) -> None:
        self.current = current

    @property
    def is_active(self) -> bool:
        """Whether a publisher may be in a span."""
        return self.current is not None or "opentelemetry.trace" in sys.modules

    def traced(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """`headers` with the traceparent of the current span, unless the caller gave one."""
        if headers and (not isinstance(headers, Mapping) or TRACEPARENT in headers):
            return headers  # or refused, a little later, for what they are
        if self.current is None:
            self.current = current_of_opentelemetry()
        found = self.current()
        return headers if found is None else {**(headers or {}), TRACEPARENT: found}

    def traced_all(self, headers: Headers | None) -> Headers | None:
        """The same for many records: the headers of all of them, or a list of those of each."""
        if isinstance(headers, list | tuple):
            return [self.traced(one) for one in headers]
        return self.traced(headers)  # type: ignore[arg-type]  # whatever else it is, is refused a little later


def current_of_opentelemetry() -> Callable[[], str | None]:
    """The function that returns the current span as a W3C traceparent; None outside of any span."""
    from opentelemetry.trace import get_current_span  # only where it is in use anyway

    def current() -> str | None:
        span = get_current_span().get_span_context()
        if not span.is_valid:
            return None
        return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"

    return current
