"""nats-server with nats-py: core, which keeps nothing, and JetStream on files.

nats-py has no call for many values at once; it gathers what was published into one write. JetStream's best call is
`publish_async`, with as many unanswered as the lists hold that runnel has under way; its readers are ordered push
consumers, which acknowledge nothing. nats-server writes to its files at once, and syncs them every 2 minutes, or before
it answers (`sync_interval: always`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import program
from benchmarks.processes import free_port, listening
from benchmarks.roads import IN_FLIGHT, LIST, TOPIC, Keep, Road

STREAM = "s"
PENDING = IN_FLIGHT * LIST
ROOM = 1 << 30  # bytes: nobody is to be cut off as a slow consumer

_CONFIG = """\
host: 127.0.0.1
port: {port}
max_pending: {room}
write_deadline: "60s"
{jetstream}
"""


@asynccontextmanager
async def served(folder: Path, *, sync: str | None = None) -> AsyncIterator[str]:
    """A server; with `sync` ("2m", "always") it also has JetStream on files."""
    port, config = free_port(), folder / "nats.conf"
    jetstream = "" if sync is None else f'jetstream {{ store_dir: "{folder}", sync_interval: {sync} }}'
    config.write_text(_CONFIG.format(port=port, room=ROOM, jetstream=jetstream), encoding="utf-8")
    async with listening([program("nats-server") or "nats-server", "-c", str(config)], port):
        yield f"nats://127.0.0.1:{port}"


async def prepare(url: str) -> None:
    """Make the stream."""
    async with _connected(url) as client:
        await client.jetstream().add_stream(name=STREAM, subjects=[TOPIC], storage="file")


@asynccontextmanager
async def core(url: str) -> AsyncIterator[Road]:
    """Messages that nobody keeps."""
    async with _connected(url) as client:
        yield Core(client)


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[Road]:
    """Messages that are kept."""
    async with _connected(url) as client:
        yield JetStream(client.jetstream(publish_async_max_pending=PENDING, timeout=60))


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    import nats

    client: Any = await nats.connect(url, allow_reconnect=False, skip_subject_validation=True)
    try:
        yield client
    finally:
        await client.close()


class Core:
    """nats-py without JetStream."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        for values in lists:
            await self._put(values)
        await self._client.flush(60)

    async def _put(self, values: list[bytes]) -> None:
        publish = self._client.publish
        for value in values:
            await publish(TOPIC, value)

    async def send(self, values: list[bytes]) -> None:
        await self._put(values)
        await self._client.flush(60)

    async def hand_over(self, value: bytes) -> None:
        await self._client.publish(TOPIC, value)

    async def store(self, value: bytes) -> None:
        await self._client.publish(TOPIC, value)
        await self._client.flush(60)

    async def subscribe(self, keep: Keep) -> None:
        async def got(message: Any) -> None:
            keep((message.data,))

        await self._client.subscribe(TOPIC, cb=got, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._client.flush(60)


class JetStream:
    """nats-py with JetStream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        for values in lists:
            await self._put(values)
        await self._stream.publish_async_completed()

    async def _put(self, values: list[bytes]) -> list[asyncio.Future[Any]]:
        publish = self._stream.publish_async
        return [await publish(TOPIC, value, wait_stall=60) for value in values]

    async def send(self, values: list[bytes]) -> None:
        await asyncio.gather(*await self._put(values))

    async def hand_over(self, value: bytes) -> None:
        await self._stream.publish_async(TOPIC, value, wait_stall=60)

    async def store(self, value: bytes) -> None:
        await self._stream.publish(TOPIC, value)

    async def subscribe(self, keep: Keep) -> None:
        async def got(message: Any) -> None:
            keep((message.data,))

        await self._stream.subscribe(
            TOPIC, stream=STREAM, cb=got, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
