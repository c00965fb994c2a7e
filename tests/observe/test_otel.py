"""OpenTelemetry with its own in-memory exporters: one trace from publisher to subscriber."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import runnel
from runnel.observe.otel import Telemetry


def tracing() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


async def test_the_process_span_is_a_child_of_the_publish_span() -> None:
    provider, exporter = tracing()
    async with runnel.open() as broker, broker.subscribe("orders") as orders:
        telemetry = Telemetry(broker, provider)
        position = await telemetry.publish("orders", b"x", key="7")
        record = await anext(orders)
        with telemetry.processing(record, group="billing"):
            pass
    published, processed = exporter.get_finished_spans()
    assert (published.name, published.kind) == ("publish orders", SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process orders", SpanKind.CONSUMER)
    assert processed.context is not None
    assert published.context is not None
    assert processed.context.trace_id == published.context.trace_id
    assert processed.parent is not None
    assert processed.parent.span_id == published.context.span_id
    assert dict(published.attributes or {}) == {
        "messaging.system": "runnel",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(position),
    }
    assert (processed.attributes or {})["messaging.consumer.group.name"] == "billing"


async def test_the_current_span_travels_with_a_plain_publish() -> None:
    provider, _ = tracing()
    async with runnel.open() as broker, broker.subscribe("t") as records:
        with provider.get_tracer("test").start_as_current_span("work") as span:
            await broker.publish("t", "x")
            broker.topic("t").publish_nowait(b"y")
        context = span.get_span_context()
        for record in (await anext(records), await anext(records)):
            assert (
                record.traceparent
                == f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
            )


async def test_what_the_caller_says_wins_over_the_current_span() -> None:
    provider, _ = tracing()
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with runnel.open() as broker, broker.subscribe("t") as records:
        with provider.get_tracer("test").start_as_current_span("work"):
            await broker.publish("t", "x", headers={"traceparent": mine})
        assert (await anext(records)).traceparent == mine


async def test_an_error_in_the_work_is_on_the_span() -> None:
    provider, exporter = tracing()
    async with runnel.open() as broker, broker.subscribe("t") as records:
        telemetry = Telemetry(broker, provider)
        await broker.publish("t", "x")
        try:
            with telemetry.processing(await anext(records)):
                raise RuntimeError("no ink")
        except RuntimeError:
            pass
    (span,) = exporter.get_finished_spans()
    assert span.status.description == "RuntimeError: no ink"


async def test_metrics_come_from_statistics() -> None:
    reader = InMemoryMetricReader()
    async with runnel.open() as broker, broker.subscribe("t", name="me", start="latest", buffer=1) as records:
        Telemetry(broker, meter_provider=MeterProvider([reader]))
        await broker.topic("t").publish_many([b"1", b"2", b"3"])
        await anext(records)
        data = reader.get_metrics_data()
        assert data is not None
    found = {
        metric.name: [point.value for point in metric.data.data_points]  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["messaging.client.sent.messages"] == [3]
    assert found["messaging.client.consumed.messages"] == [1]
    assert found["runnel.subscriber.dropped"] == [2]
    assert found["runnel.subscriber.lag"] == [0]


async def test_the_middleware_puts_every_handler_into_its_publishers_trace() -> None:
    provider, exporter = tracing()
    async with runnel.open() as broker:
        telemetry = Telemetry(broker, provider)
        broker.use(telemetry.middleware)

        @broker.on("orders", group="billing")
        async def bill(order: bytes) -> None:
            broker.stop()

        await telemetry.publish("orders", b"x")
        await broker.run(signals=False)
    published, processed = exporter.get_finished_spans()
    assert processed.name == "process orders"
    assert (processed.attributes or {})["messaging.consumer.group.name"] == "billing"
    assert processed.parent is not None
    assert published.context is not None
    assert processed.parent.span_id == published.context.span_id
