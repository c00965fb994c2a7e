"""Ada calls Grace, without a browser: messages, presence, frames and sound as rows, and what subscribers get of them.

To see the room, start the application itself: `python examples/callroom/app.py`. This starts it as well, joins as two
pages would, and compares what went in with what came out.

Prints::

    PostgreSQL ..., for as long as this runs: postgresql://...
    ada and grace are in the room
    grace reads: Hello!
    ringing, then active
    grace saw 15 frames of ada, the bytes that ada sent, in order
    ada heard 10 pieces of sound of grace
    a frame took ... ms from ada to grace (median)
    the last frames are rows: SELECT finds ...
    a second later the rows are gone, and no subscriber noticed
    ada closes the window, and grace sees that she left
"""

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import time
from typing import Any
from uuid import uuid4

import psycopg
from websockets.asyncio.client import ClientConnection, connect

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))

from tools.postgres import database  # noqa: E402

FRAMES, PIECES, FPS, KEEP = 15, 10, 15, 1


class Person:
    """A page without a browser: one WebSocket to the application, one to runnel."""

    def __init__(self, name: str, up: ClientConnection, down: ClientConnection) -> None:
        self.name, self._up, self._down = name, up, down

    async def follow(self, topic: str, start: str) -> None:
        await self._down.send(json.dumps({"command": "SUB", "topic": topic, "from": start}))
        while json.loads(await self._down.recv())["event"] != "subscribed":
            pass

    async def next(self, topic: str) -> dict[str, Any]:
        """The next record of a topic; those of others are left out."""
        while True:
            event: dict[str, Any] = json.loads(await self._down.recv())
            if event.get("topic") == topic:
                return event

    async def send(self, **told: Any) -> None:
        await self._up.send(json.dumps(told))

    async def stream(self, kind: bytes, values: list[bytes]) -> None:
        """Frames, as often as a camera takes them."""
        for value in values:
            await self._up.send(struct.pack("!cd", kind, time() * 1_000) + value)
            await asyncio.sleep(1 / FPS)


@asynccontextmanager
async def joined(port: int, name: str) -> AsyncIterator[Person]:
    base = f"ws://127.0.0.1:{port}"
    async with connect(f"{base}/rooms/check/people/{name}") as up, connect(f"{base}/bus/ws", max_size=None) as down:
        yield Person(name, up, down)


async def collect(person: Person, topic: str, count: int) -> list[dict[str, Any]]:
    return [await person.next(topic) for _ in range(count)]


async def check(port: int, dsn: str) -> None:
    async with joined(port, "grace") as grace:
        await grace.follow("presence.check", "earliest")
        async with joined(port, "ada") as ada:
            people = {(await grace.next("presence.check"))["key"] for _ in range(2)}
            print(" and ".join(sorted(people)), "are in the room")
            await talk(ada, grace)
            await call(ada, grace, dsn)
        left = await grace.next("presence.check")
        assert (left["key"], left["payload"]) == ("ada", "")
        print("ada closes the window, and grace sees that she left")


async def talk(ada: Person, grace: Person) -> None:
    await grace.follow("chat.check", "earliest")
    await ada.send(kind="chat", id=str(uuid4()), text="Hello!")
    print("grace reads:", json.loads((await grace.next("chat.check"))["payload"])["body"])
    await grace.follow("call.check", "latest")
    await ada.send(kind="call", state="ringing")
    ringing = json.loads((await grace.next("call.check"))["payload"])["state"]
    await grace.send(kind="call", state="active")
    print(f"{ringing}, then {json.loads((await grace.next('call.check'))['payload'])['state']}")


async def call(ada: Person, grace: Person, dsn: str) -> None:
    """Video one way and sound the other way, at the same time."""
    await grace.follow("video.check.ada", "latest")
    await ada.follow("audio.check.grace", "latest")
    pictures = [b"\xff\xd8" + os.urandom(30_000) for _ in range(FRAMES)]  # as long as a JPEG of a camera
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ada.stream(b"v", pictures))
        tasks.create_task(grace.stream(b"a", [os.urandom(3_200) for _ in range(PIECES)]))
        seeing = tasks.create_task(timed(grace, "video.check.ada", FRAMES))
        hearing = tasks.create_task(collect(ada, "audio.check.grace", PIECES))
    seen, delays = seeing.result()
    same = "the bytes that ada sent, in order" if seen == pictures else "NOT what ada sent"
    print(f"grace saw {len(seen)} frames of ada, {same}")
    print(f"ada heard {len(hearing.result())} pieces of sound of grace")
    print(f"a frame took {median(delays):.1f} ms from ada to grace (median)")
    count = "SELECT count(*) FROM callroom.video_frames WHERE room = 'check'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        rows = await (await connection.execute(f"{count} AND at > now() - interval '10 seconds'")).fetchall()
        print(f"the last frames are rows: SELECT finds {rows[0][0]}")
        while (await (await connection.execute(count)).fetchall())[0][0]:  # noqa: ASYNC110  # only the table says so
            await asyncio.sleep(0.1)
    # What a subscriber is sent next is this, and not the end of the frames.
    await ada.stream(b"v", [b"\xff\xd8the next picture"])
    after = await grace.next("video.check.ada")
    unnoticed = "no subscriber noticed" if after["headers"]["pg-op"] == "insert" else "a subscriber got it"
    print(f"a second later the rows are gone, and {unnoticed}")


async def timed(person: Person, topic: str, count: int) -> tuple[list[bytes], list[float]]:
    """Frames, and the milliseconds that each took."""
    frames, delays = [], []
    for _ in range(count):
        event = await person.next(topic)
        delays.append(time() * 1_000 - float(event["headers"]["taken"]))
        frames.append(b64decode(event["payload"]))
    return frames, delays


async def main(dsn: str, folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--dsn", dsn, "--port", str(port), "--keep", str(KEEP), "--folder", folder)
    app = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "app.py"), *where, "--until-eof"),  # it ends with us, however we end
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert app.stdout is not None
    try:
        assert (await app.stdout.readline()).startswith(b"http://"), "the application did not start"
        await check(port, dsn)
    finally:
        if app.returncode is None:
            app.send_signal(signal.SIGTERM)
        await app.wait()


if __name__ == "__main__":
    with database(None) as chosen, tempfile.TemporaryDirectory() as topics:
        asyncio.run(main(chosen, topics))
