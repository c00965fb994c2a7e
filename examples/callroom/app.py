"""Two browsers in one room: chat, presence, calls, video and sound, all of it rows of PostgreSQL.

    python examples/callroom/app.py           # then open http://127.0.0.1:8000 in two windows

What a page sends goes to this program, which INSERTs a row. That INSERT is the publish: runnel's relay reads it from
PostgreSQL's log, and pages get it from runnel over a WebSocket. Nothing else is written, and nothing polls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
import tomllib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

import runnel
from runnel.postgres import Relay, SetupIncomplete
from runnel.server import http

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))  # the repository: its tools start a PostgreSQL where none is named

from tools.postgres import database  # noqa: E402

PAGES = HERE / "pages"
NAME = re.compile(r"[\w-]{1,24}")  # of a room or a person: one token of a topic
TEXT_LIMIT, FRAME_LIMIT = 2_000, 256 * 1024  # characters of a message, bytes of a frame
REPLAY = 10.0  # seconds
CHAT_KEPT, FRAMES_KEPT = 1_000, 60.0  # in topics: messages, and seconds of video and sound
HEAD = struct.Struct("!cd")  # before the bytes of a frame: its kind, and when it was taken
SAFE = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
INSERT_FRAME = {
    b"v": "INSERT INTO callroom.video_frames (room, user_id, taken, frame) VALUES (%s, %s, %s, %s)",
    b"a": "INSERT INTO callroom.audio_frames (room, user_id, taken, samples) VALUES (%s, %s, %s, %s)",
}


class Person:
    """A page in a room, as PostgreSQL knows it: one connection, a row for each thing that the page sends."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], room: str, user: str) -> None:
        self._connection, self._room, self._user = connection, room, user
        self._session: UUID = uuid4()

    async def join(self) -> None:
        """Enter the room. The newest tab of a person counts."""
        await self._connection.execute(
            "INSERT INTO callroom.presence (room, user_id, session) VALUES (%s, %s, %s) ON CONFLICT (room, user_id) "
            "DO UPDATE SET session = excluded.session, since = excluded.since",
            (self._room, self._user, self._session),
        )

    async def leave(self) -> None:
        """Leave the room, unless another tab has taken over; a call needs two."""
        async with self._connection.transaction():
            await self._connection.execute(
                "DELETE FROM callroom.presence WHERE room = %s AND user_id = %s AND session = %s",
                (self._room, self._user, self._session),
            )
            await self._connection.execute(
                "UPDATE callroom.call_state SET state = 'idle', user_id = %(user)s, at = clock_timestamp() "
                "WHERE room = %(room)s AND state <> 'idle' "
                "AND (SELECT count(*) FROM callroom.presence WHERE room = %(room)s) < 2",
                {"room": self._room, "user": self._user},
            )

    async def say(self, id: UUID, text: str) -> None:
        await self._connection.execute(
            "INSERT INTO callroom.chat_messages (id, room, user_id, body) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (id) DO NOTHING",
            (id, self._room, self._user, text[:TEXT_LIMIT]),
        )

    async def call(self, state: str) -> None:
        """Ring, answer or hang up."""
        await self._connection.execute(
            "INSERT INTO callroom.call_state (room, state, user_id) VALUES (%s, %s, %s) ON CONFLICT (room) "
            "DO UPDATE SET state = excluded.state, user_id = excluded.user_id, at = clock_timestamp()",
            (self._room, state, self._user),
        )

    async def show(self, message: bytes) -> None:
        """A picture or a piece of sound."""
        kind, taken = HEAD.unpack_from(message)
        await self._connection.execute(
            INSERT_FRAME[kind], (self._room, self._user, taken, message[HEAD.size :]), prepare=True
        )


class Room:
    """What the web application does: it takes what pages send, and serves the files that they are."""

    def __init__(self, broker: runnel.Broker, dsn: str) -> None:
        self._broker, self._dsn = broker, dsn

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", lambda request: RedirectResponse("rooms/tea")),
                Route("/rooms/{room}", self.page),
                Route("/rooms/{room}/people/{user}/frames", self.replay),
                WebSocketRoute("/rooms/{room}/people/{user}", self.person),
                Mount("/static", StaticFiles(directory=PAGES)),
                Mount("/bus", http.app(self._broker)),
            ]
        )

    async def page(self, request: Request) -> Response:
        return FileResponse(PAGES / "room.html", headers=SAFE)

    async def person(self, socket: WebSocket) -> None:
        """All that one page sends, until it is closed: then the person has left."""
        room, user = socket.path_params["room"], socket.path_params["user"]
        own = urlsplit(socket.headers.get("origin", "")).netloc in ("", socket.headers.get("host"))
        if not (own and NAME.fullmatch(room) and NAME.fullmatch(user)):
            await socket.close(1008)
            return
        await self._declare(room, user)
        await socket.accept()
        try:
            async with self._entered(room, user) as person:
                while True:
                    await self._take(person, socket, await socket.receive())
        except WebSocketDisconnect:
            pass
        except (psycopg.OperationalError, psycopg.InterfaceError):  # PostgreSQL restarts: the page comes back
            await close(socket, 1013)
        except (KeyError, ValueError, TypeError, AttributeError, struct.error, psycopg.Error):  # no page of ours
            await close(socket, 1008)

    @asynccontextmanager
    async def _entered(self, room: str, user: str) -> AsyncIterator[Person]:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            person = Person(connection, room, user)
            await person.join()
            try:
                yield person
            finally:
                if not connection.closed:
                    await person.leave()

    async def _take(self, person: Person, socket: WebSocket, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        if (frame := message.get("bytes")) is not None:
            await person.show(frame)
            return
        told = json.loads(message["text"])
        if told["kind"] == "chat":
            await person.say(UUID(told["id"]), str(told["text"]))
        elif told["kind"] == "call":
            await person.call(str(told["state"]))
        elif told["kind"] == "clock":  # so that pages on several machines measure with one clock
            await socket.send_json({"sent": told["sent"], "now": time.time() * 1_000})

    async def _declare(self, room: str, user: str) -> None:
        """How much of the past topics keep. Frames are for now."""
        await self._broker.topic(f"chat.{room}", retention_count=CHAT_KEPT).declare()
        for kind in ("video", "audio"):
            await self._broker.topic(f"{kind}.{room}.{user}", retention_age=FRAMES_KEPT).declare()

    async def replay(self, request: Request) -> Response:
        """The last seconds of a person: frames stay rows until their time is over, and SELECT finds them."""
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            found = await connection.execute(
                "SELECT taken, frame FROM callroom.video_frames WHERE room = %s AND user_id = %s "
                "AND at > clock_timestamp() - make_interval(secs => %s) ORDER BY id",
                (request.path_params["room"], request.path_params["user"], REPLAY),
            )
            frames = [{"taken": taken, "jpeg": b64encode(frame).decode()} async for taken, frame in found]
        return JSONResponse(frames, headers=SAFE)


async def close(socket: WebSocket, code: int) -> None:
    with suppress(RuntimeError, WebSocketDisconnect):  # the page has gone, too
        await socket.close(code)


def relay_config(keep: float | None) -> dict[str, Any]:
    """What relay.toml says; `keep` is another time to live of frames and sound."""
    config: dict[str, Any] = tomllib.loads((HERE / "relay.toml").read_text())["relay"]
    for table in config["table"]:
        if keep is not None and "keep" in table:
            table["keep"] = keep
    return config


class WebServer(uvicorn.Server):
    """A web server in a program that has more to do, and that handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(dsn: str, folder: Path, port: int, keep: float | None = None) -> None:
    """Tables, broker, relay and pages, until SIGINT or SIGTERM."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute((HERE / "tables.sql").read_text())
    async with runnel.open(folder) as broker, asyncio.TaskGroup() as tasks:
        relay = Relay(broker, dsn, relay_config(keep))
        await relay.setup()
        relaying = tasks.create_task(relay.run())
        app = Room(broker, dsn).application()
        web = WebServer(
            uvicorn.Config(
                app,
                port=port,
                log_level="warning",
                ws_max_size=FRAME_LIMIT,
                ws_ping_interval=5.0,  # a page whose line is gone has left the room 13 seconds later
                ws_ping_timeout=8.0,
            )
        )
        stopped = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stopped.set)
        serving = tasks.create_task(web.serve())
        while not (web.started and relay.state == "streaming"):  # noqa: ASYNC110  # neither says so in another way
            await asyncio.sleep(0.02)
        print(f"http://127.0.0.1:{port}: open it in two windows; Ctrl-C ends it", flush=True)
        await stopped.wait()
        relaying.cancel()
        broker.close()  # with it the WebSockets of readers end, for which the web server would wait
        web.should_exit = True
        await serving


def stop_at_eof() -> None:
    """The program that started this one has ended."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Two browsers in one room, over PostgreSQL and runnel.")
    parser.add_argument("--dsn", help="your PostgreSQL (wal_level = logical); default: one for as long as this runs")
    parser.add_argument("--folder", type=Path, help="where runnel keeps topics; default: callroom-data with --dsn")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--keep", type=float, help="seconds after which frames are deleted; default: as in relay.toml")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    if given.until_eof:
        threading.Thread(target=stop_at_eof, daemon=True).start()
    with ExitStack() as held:
        dsn = held.enter_context(database(given.dsn))
        # Topics belong to a database: they stay only where that does.
        temporary = None if given.dsn else held.enter_context(tempfile.TemporaryDirectory())
        folder = given.folder or (Path("callroom-data") if temporary is None else Path(temporary) / "topics")
        try:
            asyncio.run(serve(dsn, folder, given.port, given.keep))
        except* SetupIncomplete as incomplete:
            sys.exit(str(incomplete.exceptions[0]))
