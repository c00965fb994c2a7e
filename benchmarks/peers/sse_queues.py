"""sse-starlette, an asyncio.Queue for each browser: what one would write by hand.

`python -m benchmarks.peers.sse_queues PORT` serves it, by uvicorn with uvloop and httptools, one process, no access
log. It keeps nothing: a browser that comes back has missed what was published meanwhile. A publish may hold many lines,
each of which is an event.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import free_port, listening
from benchmarks.web_place import Place


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Place]:
    """A server in a process of its own."""
    port = free_port()
    async with listening([sys.executable, "-m", "benchmarks.peers.sse_queues", str(port)], port) as process:
        yield Place(port, (process.pid,), "/events", "/publish")


def application() -> Any:
    """The routes."""
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    queues: set[asyncio.Queue[str]] = set()

    async def read(queue: asyncio.Queue[str]) -> AsyncIterator[ServerSentEvent]:
        queues.add(queue)
        try:
            yield ServerSentEvent(comment="ready")
            while True:
                yield ServerSentEvent(await queue.get())
        finally:
            queues.discard(queue)

    async def events(request: Request) -> EventSourceResponse:
        return EventSourceResponse(read(asyncio.Queue()))

    async def publish(request: Request) -> Response:
        for line in (await request.body()).decode().split("\n"):
            for queue in queues:
                queue.put_nowait(line)
        return Response(status_code=201)

    return Starlette(routes=[Route("/events", events), Route("/publish", publish, methods=["POST"])])


def main(arguments: Sequence[str]) -> int:
    """Serve at a port until the process ends."""
    import uvicorn

    uvicorn.run(
        application(),
        port=int(arguments[0]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
