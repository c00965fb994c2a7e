"""The traceparent of the current OpenTelemetry span, in a process of its own: importing it changes how all publish."""

import subprocess
import sys
import textwrap

from tests.patience import PATIENCE

SCRIPT = """
    import asyncio
    import runnel
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from runnel.runtime.tracing import current_of_opentelemetry

    current_traceparent = current_of_opentelemetry()

    async def main():
        assert current_traceparent() is None, "outside of any span"
        tracer = TracerProvider().get_tracer("test")
        async with runnel.open() as broker, broker.subscribe("t") as subscription:
            topic = broker.topic("t")
            expected = []
            for _ in range(3):
                with tracer.start_as_current_span("work") as span:
                    context = span.get_span_context()
                    ids = f"{context.trace_id:032x}-{context.span_id:016x}"
                    expected += [f"00-{ids}-{int(context.trace_flags):02x}"] * 4
                    assert current_traceparent() == expected[-1]
                    topic.publish_nowait(b"a")
                    await topic.publish(b"b")
                    await topic.publish_many([b"c"], keys=[b"k"])
                    await broker.publish("t", b"d", headers={"h": "x"})
            mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            with tracer.start_as_current_span("work"):
                topic.publish_nowait(b"e", headers={"traceparent": mine})
            topic.publish_nowait(b"f")
            found = [(await anext(subscription)).traceparent for _ in range(14)]
            assert found[:12] == expected, (found, expected)
            assert found[12] == mine, "the caller's own comes first"
            assert found[13].endswith("-00"), "derived, outside of any span"

    asyncio.run(main())
    print("fine")
"""


def test_every_way_of_publishing_takes_the_trace_of_the_current_span() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
