"""The traceparent of the current OpenTelemetry span. Imported only when OpenTelemetry already is."""

from __future__ import annotations

from opentelemetry.trace import get_current_span


def current_traceparent() -> str | None:
    """The current span as a W3C traceparent; None outside of any span."""
    span = get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
