"""OpenTelemetry: spans around publishing and processing, and metrics from statistics.

Needs the extra `runnel-mq[otel]`. A record carries its publisher's `traceparent`, so the process span of a
subscriber joins the publisher's trace, in any process. Names follow OpenTelemetry's messaging conventions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Span, SpanKind, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runnel.core.position import Position
from runnel.core.record import Record
from runnel.core.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.api.delivery import Delivery
    from runnel.core.statistics import Statistics

SYSTEM = "runnel"


class Telemetry:
    """Spans and metrics of one broker.

    >>> telemetry = Telemetry(broker)
    >>> await telemetry.publish("orders", b"...")  # a producer span around it
    >>> async for record in orders:
    ...     with telemetry.processing(record):  # a consumer span, in the publisher's trace
    ...         ...
    """

    def __init__(
        self,
        broker: Broker,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._broker = broker
        self._tracer = trace.get_tracer("runnel", tracer_provider=tracer_provider)
        meter = metrics.get_meter("runnel", meter_provider=meter_provider)
        meter.create_observable_counter(
            "messaging.client.sent.messages", [self._observing(_sent)], "{message}", "Records published"
        )
        meter.create_observable_counter(
            "messaging.client.consumed.messages", [self._observing(_consumed)], "{message}", "Records delivered"
        )
        meter.create_observable_counter(
            "runnel.subscriber.dropped", [self._observing(_dropped)], "{message}", "Records that subscribers missed"
        )
        meter.create_observable_gauge(
            "runnel.subscriber.lag", [self._observing(_lag)], "{message}", "Records published and not yet asked beyond"
        )

    async def publish(self, topic: str, value: bytes | str, **options: Any) -> Position:
        """`broker.publish` inside a producer span, whose context travels with the record."""
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            position = await self._broker.publish(topic, value, **options)
            span.set_attribute("messaging.message.id", str(position))
            return position

    async def middleware(self, message: Record[Any] | Delivery[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """A consumer span around every handler: `broker.use(telemetry.middleware)`."""
        with self.processing(message):
            return await call_next()

    @contextmanager
    def processing(self, record: Record[Any] | Delivery[Any], *, group: str | None = None) -> Iterator[Span]:
        """A consumer span around the work on `record`, child of the span that published it."""
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.message.id": str(record.position),
        }
        group = group or getattr(record, "group", None)  # a delivery knows its own
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        # Without a publisher's trace the span is a root: a derived parent would sample for a trace that does not exist.
        carried = {TRACEPARENT: record.headers[TRACEPARENT]} if TRACEPARENT in record.headers else {}
        parent = TraceContextTextMapPropagator().extract(carried)
        with self._tracer.start_as_current_span(
            f"process {record.topic}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes
        ) as span:
            yield span

    def _observing(
        self, observe: Callable[[Statistics], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: list(observe(self._broker.statistics()))


def _sent(statistics: Statistics) -> Iterator[Observation]:
    for topic in statistics.topics.values():
        yield Observation(topic.published, {"messaging.system": SYSTEM, "messaging.destination.name": topic.name})


def _consumed(statistics: Statistics) -> Iterator[Observation]:
    for (pattern, subscriber), flowed in statistics.flowed.items():
        yield Observation(flowed.delivered, _labels(pattern, subscriber))


def _dropped(statistics: Statistics) -> Iterator[Observation]:
    for (pattern, subscriber), flowed in statistics.flowed.items():
        yield Observation(flowed.dropped, _labels(pattern, subscriber))


def _lag(statistics: Statistics) -> Iterator[Observation]:
    for one in statistics.subscriptions:
        yield Observation(one.lag, _labels(one.pattern, one.label))


def _labels(pattern: str, subscriber: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": pattern,
        "messaging.destination.subscription.name": subscriber,
    }
