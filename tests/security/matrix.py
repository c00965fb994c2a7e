"""Every operation at every listener, the right that it needs, and what peers with each kind of token get.

`python -m tests.security.matrix` writes the table of docs/reference/auth.md. `test_matrix` tries every cell.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import websockets.asyncio.client as ws
from websockets.exceptions import ConnectionClosed

from runnel.core.batch_format import pack
from runnel.core.errors import NotAuthenticated, RunnelError
from runnel.core.replication import FollowRequest
from runnel.core.statistics import (
    DURATION_BOUNDS,
    HandlerStatistics,
    HistogramSnapshot,
    PipelineStatistics,
    RelayStatistics,
)
from runnel.wire.frames import FrameKind
from tests.security.guarded import Guarded, line
from tests.server.native_client import Raw

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "auth.md"
BEGIN, END = "<!-- matrix: python -m tests.security.matrix -->", "<!-- end -->"
TOPIC = "orders.eu"
LETTERS = "dead-letters.work"
OK = "allowed"


class Kind(NamedTuple):
    """A kind of token, and what every operation answers to it."""

    name: str
    outcome: str


KINDS = (
    Kind("none", "not_authenticated"),
    Kind("wrong", "not_authenticated"),
    Kind("expired", "token_expired"),
    Kind("other", "not_authorized"),
    Kind("valid", OK),
)
RIGHTS = {
    "publish": ("publish:orders.>",),
    "create": ("publish:orders.>", "create:orders.>"),
    "subscribe": ("subscribe:orders.>", f"subscribe:{LETTERS}"),
    "group": ("group:orders.>",),
    "admin": ("admin:orders.>", f"admin:{LETTERS}", "publish:orders.>"),
    "any": ("publish:orders.>",),
    "a login": ("publish:orders.>",),
    "some `publish`": ("publish:orders.>",),
    "some `subscribe`": ("subscribe:orders.>",),
}
FOR_ALL = ("a login", "some `publish`", "some `subscribe`")  # rights that the other principal has, too
ROLES = {"viewer": "viewer", "operator": "operator", "console admin": "admin"}

Try = Callable[[Guarded, str], Awaitable[str]]


class Operation(NamedTuple):
    """What is tried, where, the right that it needs, and how."""

    name: str
    listener: str
    right: str
    attempt: Try
    other: str = "not_authorized"  # what a principal without the right gets


OPERATIONS: list[Operation] = []


LET_IN = (
    *("no_responders", "request_timeout", "not_supported", "bad_command"),
    *("unknown_topic", "unknown_name", "topic_deleted"),
)
"""What an operation may come to that was allowed, and had nothing to act upon."""


def packed() -> bytes:
    """One record as a batch."""
    return pack([b"x"])


# -- The native listener ---------------------------------------------------------------------------------


def native(name: str, right: str, other: str = "not_authorized") -> Callable[[Callable[[Any], Awaitable[Any]]], None]:
    """An operation of a client: its error, if it raises one."""

    def register(attempt: Callable[[Any], Awaitable[Any]]) -> None:
        async def tried(server: Guarded, token: str) -> str:
            try:
                async with server.client(token) as client:
                    found = await attempt(client)
            except RunnelError as error:
                return OK if error.code in LET_IN else error.code
            return "nothing" if found in ([], {}, 0) else OK

        OPERATIONS.append(Operation(name, "native", right, tried, OK if right in FOR_ALL else other))

    return register


@native("publish", "publish")
async def _(client: Any) -> None:
    await client.publish(TOPIC, "x")


@native("publish many", "publish")
async def _(client: Any) -> None:
    await client.topic(TOPIC).publish_many([b"x", b"y"])


@native("publish to a new topic", "create")
async def _(client: Any) -> None:
    await client.publish("orders.new", "x")
    await client.backend.link.call("describe", {"topic": "orders.new"})


@native("declare a topic", "create")
async def _(client: Any) -> None:
    await client.topic("orders.declared").declare()


@native("publish in a transaction", "publish")
async def _(client: Any) -> None:
    async with client.transaction() as tx:
        tx.publish(TOPIC, "x")


@native("request", "publish")
async def _(client: Any) -> None:
    await client.request(TOPIC, "x", timeout=0.01)


@native("request_many", "publish")
async def _(client: Any) -> None:
    await client.request_many(TOPIC, "x", timeout=0.01)


@native("reply to a topic", "publish")
async def _(client: Any) -> None:
    await client.backend.link.call("reply", {"reply_to": TOPIC, "batch": packed()})


@native("publish with a reply topic", "publish")
async def _(client: Any) -> None:
    await client.publish(TOPIC, "x", headers={"runnel-reply-to": "orders.replies"})


@native("subscribe", "subscribe")
async def _(client: Any) -> None:
    async with client.subscribe("orders.>"):
        pass


@native("subscribe with a name", "subscribe")
async def _(client: Any) -> None:
    async with client.subscribe(TOPIC, name=f"n-{id(client)}"):
        pass


@native("join a group", "group")
async def _(client: Any) -> None:
    async with client.subscribe(TOPIC, group=f"g-{id(client)}"):
        pass


@native("read history", "subscribe")
async def _(client: Any) -> None:
    await client.backend.history(TOPIC, "earliest", 10, 1 << 20)


@native("see who is subscribed", "subscribe")
async def _(client: Any) -> Any:
    await client.presence(TOPIC)


@native("cancel a delayed record", "publish")
async def _(client: Any) -> None:
    await client.cancel(TOPIC, "1")


@native("read dead letters", "subscribe")
async def _(client: Any) -> None:
    await client.backend.dead_letters(LETTERS, 0, 10, 1 << 20)


@native("store a position", "subscribe")
async def _(client: Any) -> None:
    found = await client.bounds(TOPIC)
    epoch = found[0].epoch if found else 0
    await client.backend.link.call("place", {"places": [[f"p-{id(client)}", TOPIC, epoch, 0]]})


@native("list topics", "any", other="nothing")
async def _(client: Any) -> Any:
    return await client.topics()


@native("ask for bounds", "any", other="nothing")
async def _(client: Any) -> Any:
    return await client.bounds(TOPIC)


@native("trim", "admin")
async def _(client: Any) -> None:
    await client.topic(TOPIC).trim(0)


@native("change options of a topic", "admin")
async def _(client: Any) -> None:
    await client.topic(TOPIC).configure(retention_age=86_400.0)


@native("delete", "admin", other="not_authorized")
async def _(client: Any) -> None:
    await client.delete("orders.doomed")


@native("reset a group", "admin")
async def _(client: Any) -> None:
    await client.backend.ask_group("work", TOPIC, "reset", "latest")


@native("pause a group", "operator")
async def _(client: Any) -> None:
    await client.backend.ask_group("work", TOPIC, "pause")


@native("replay dead letters", "admin")
async def _(client: Any) -> None:
    await client.backend.settle_dead_letters(LETTERS, [], put_back=True)


@native("discard dead letters", "operator")
async def _(client: Any) -> None:
    await client.backend.settle_dead_letters(LETTERS, [], put_back=False)


@native("forget a name of another", "console admin")
async def _(client: Any) -> None:
    await client.forget("alices")


@native("move a marker of another", "console admin", other="name_owned")
async def _(client: Any) -> None:
    async with client.transaction() as tx:
        tx.mark("alices", 7)


@native("statistics", "viewer")
async def _(client: Any) -> None:
    await client.backend.link.call("statistics", {})


@native("list connections", "viewer")
async def _(client: Any) -> None:
    await client.backend.link.call("connections", {})


@native("examine the server", "operator")
async def _(client: Any) -> None:
    await client.backend.link.call("doctor", {})


@native("list tokens", "console admin")
async def _(client: Any) -> None:
    await client.backend.link.call("token_list", {})


@native("create a token", "console admin")
async def _(client: Any) -> None:
    await client.backend.link.call("token_create", {"name": "new"})


@native("reload", "console admin")
async def _(client: Any) -> None:
    await client.backend.link.call("reload", {})


@native("read the security log", "console admin")
async def _(client: Any) -> None:
    async with client.subscribe("$runnel.security", start="earliest"):
        pass


def by_call(name: str, right: str, method: str, /, other: str = "not_authorized", **args: Any) -> None:
    """An operation that is a call of the native protocol."""

    async def tried(client: Any) -> Any:
        found = await client.backend.link.call(method, args)
        return (found or []) if other == "nothing" else None

    native(name, right, other)(tried)


KEY = ("writer", 1, 0, 0)
_DURATIONS = HistogramSnapshot(DURATION_BOUNDS, (0,) * (len(DURATION_BOUNDS) + 1), 0.0)
HANDLER = HandlerStatistics("h", TOPIC, "work", 0, 0, 0, _DURATIONS)
by_call("describe a topic", "any", "describe", other="nothing", topic=TOPIC)
by_call("ask for floors", "any", "floors", other="nothing", patterns=[TOPIC])
by_call("list dead-letter topics", "subscribe", "dead_letters", other="nothing")
by_call("look at a group", "group", "group", name="work", pattern=TOPIC)
by_call("resume a group", "operator", "group_resume", name="work", pattern=TOPIC)
by_call("forget a group of another", "console admin", "forget_group", name="doomed", pattern=TOPIC)
by_call("read a marker of another", "console admin", "mark", name="alices")
by_call("list markers of others", "console admin", "marks", other="nothing", prefix="alices")
by_call("stage records", "publish", "stage_write", topic=TOPIC, key=KEY, batch=packed())
by_call("look at a stage", "publish", "stage_state", topic=TOPIC, key=KEY)
by_call("discard a stage", "publish", "stage_drop", topic=TOPIC, key=KEY)
by_call("list its stages", "a login", "stages")
by_call("replay all dead letters", "admin", "replay", topic=LETTERS, all=True)
by_call("confirm what an archive has", "admin", "confirm_archived", positions=[[TOPIC, 0, 0]])
by_call("figures of the console", "viewer", "sample")
by_call("report a relay", "some `publish`", "report_relay", report=RelayStatistics(slot="s", state="s"))
by_call(
    "report an archive", "some `subscribe`", "report_relay", report=RelayStatistics(slot="t", state="s", kind="archive")
)
by_call("report a pipeline", "some `subscribe`", "report_pipeline", report=PipelineStatistics(name="p", state="s"))
by_call("report a handler", "group", "report_handlers", client="c", handlers=[HANDLER])
by_call("follow the journal", "console admin", "follow", request=FollowRequest(id="standby"))
by_call("read a file of the journal", "console admin", "read_file", name="MANIFEST", offset=0, size=1)
by_call("release a standby", "console admin", "release_standby")
by_call("promote a standby", "console admin", "promote")
by_call("revoke a token", "console admin", "token_revoke", which="doomed")
by_call("version and limits", "a login", "info")
by_call("who am I", "a login", "whoami")
by_call("end of the sequence", "a login", "end_sequence")
by_call("flush", "a login", "flush")
by_call("sync", "a login", "sync")
by_call("finish a subscription", "a login", "finish", subscription=99)


@native("number a producer", "some `publish`")
async def _(client: Any) -> None:
    await client.backend.link.call("producer_next", {"producer": id(client)})


@native("stage records of many topics", "publish")
async def _(client: Any) -> None:
    topics = [[TOPIC, packed(), [0, 1], None, None]]
    await client.backend.link.call("stage_block", {"key": (f"w-{id(client)}", 1, 0, 0), "topics": topics})


@native("go on with a new token", "a login")
async def _(client: Any) -> None:
    try:
        await client.backend.link.call("authenticate", {"token": "rnl_wrong"})
    except NotAuthenticated:
        pass  # it is asked only of who has logged in


# -- The native protocol at the Unix socket and over a WebSocket -----------------------------------------


class SocketWriter:
    """A WebSocket as a stream: binary messages, cut anywhere."""

    def __init__(self, socket: ws.ClientConnection) -> None:
        self._socket = socket
        self._sending: set[asyncio.Future[None]] = set()

    def write(self, data: bytes) -> None:
        """Send it soon, in order."""
        sending = asyncio.ensure_future(self._socket.send(data))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def read(self, _: int) -> bytes:
        """What came; nothing at the end."""
        try:
            return bytes(await self._socket.recv())  # type: ignore[arg-type]  # all messages are binary
        except ConnectionClosed:
            return b""


@asynccontextmanager
async def over_websocket(server: Guarded) -> AsyncIterator[Raw]:
    """Native frames over a WebSocket."""
    async with ws.connect(f"ws://127.0.0.1:{server.port('http')}/ws") as socket:
        stream: Any = SocketWriter(socket)
        yield Raw(stream, stream)


def by_frames(name: str, right: str, send: Callable[[Raw], int], answer: FrameKind) -> None:
    """The same frames over a WebSocket."""

    async def tried(server: Guarded, token: str) -> str:
        async with over_websocket(server) as raw:
            try:
                await raw.hello(token=token)
                await raw.next(answer, id=send(raw))
            except RunnelError as error:
                return error.code
        return OK

    OPERATIONS.append(Operation(f"{name} (native frames)", "WebSocket", right, tried))


by_frames("publish", "publish", lambda raw: raw.publish(TOPIC, b"x"), FrameKind.PUBLISHED)
by_frames("subscribe", "subscribe", lambda raw: raw.subscribe("orders.>"), FrameKind.SUBSCRIBED)
by_frames("join a group", "group", lambda raw: raw.subscribe(TOPIC, group="framed"), FrameKind.SUBSCRIBED)
by_frames("trim", "admin", lambda raw: raw.call("trim", topic=TOPIC, before=0), FrameKind.REPLY)


# -- JSON lines, over TCP and over a WebSocket -----------------------------------------------------------


COMMANDS: set[str] = set()


def spoken(name: str, right: str, command: dict[str, Any], other: str = "not_authorized", path: str = "/ws") -> None:
    """A command, at both listeners that speak JSON lines; with another `path` over a WebSocket alone."""
    COMMANDS.add(command["command"])
    other = OK if right in FOR_ALL else other

    async def by_tcp(server: Guarded, token: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        try:
            if token:
                writer.write(line(command="AUTH", token=token))
                answer = json.loads(await reader.readline())
                if answer["event"] == "error":
                    return str(answer["code"])
            writer.write(line(**command))
            return _outcome(json.loads(await reader.readline()))
        finally:
            writer.close()

    async def by_socket(server: Guarded, token: str) -> str:
        async with ws.connect(f"ws://127.0.0.1:{server.port('http')}{path}") as socket:
            if token:
                await socket.send(json.dumps({"command": "AUTH", "token": token}))
                answer = json.loads(await socket.recv())
                if answer["event"] == "error":
                    return str(answer["code"])
            await socket.send(json.dumps(command))
            return _outcome(json.loads(await socket.recv()))

    if path == "/ws":
        OPERATIONS.append(Operation(name, "JSON lines", right, by_tcp, other))
    OPERATIONS.append(Operation(name, "WebSocket", right, by_socket, other))


def _outcome(answer: dict[str, Any]) -> str:
    if answer["event"] == "error" and answer["code"] not in LET_IN:
        return str(answer["code"])
    return "nothing" if answer.get("topics") == [] else OK


spoken("PRESENCE", "subscribe", {"command": "PRESENCE", "topic": TOPIC})
spoken("PUB", "publish", {"command": "PUB", "topic": TOPIC, "payload": "x"})
spoken("PUB to a new topic", "create", {"command": "PUB", "topic": "orders.json", "payload": "x"})
spoken("SUB", "subscribe", {"command": "SUB", "topic": "orders.>"})
spoken("SUB with a group", "group", {"command": "SUB", "topic": TOPIC, "group": "json"}, other="not_authorized")
spoken("REQUEST", "publish", {"command": "REQUEST", "topic": TOPIC, "payload": "x", "timeout": 0.01})
spoken("REQUEST, many replies", "publish",
    {"command": "REQUEST", "topic": TOPIC, "payload": "x", "timeout": 0.01, "limit": 9})  # fmt: skip
spoken("REPLY to a topic", "publish", {"command": "REPLY", "reply_to": TOPIC, "payload": "x"})
spoken("TOPICS", "any", {"command": "TOPICS"}, other="nothing")
spoken("INFO", "a login", {"command": "INFO"})
spoken("PING", "a login", {"command": "PING"})
spoken("UNSUB", "a login", {"command": "UNSUB", "topic": TOPIC})
spoken("CREDIT", "a login", {"command": "CREDIT", "topic": TOPIC, "records": 1})
for _verb, _more in {"ACK": {}, "NACK": {}, "REJECT": {}, "EXTEND": {"seconds": 1}}.items():
    spoken(_verb, "a login", {"command": _verb, "delivery": 1, **_more})
spoken("LOOK, at /console/live", "viewer", {"command": "LOOK", "query": ""}, path="/console/live")


# -- The NATS listener -----------------------------------------------------------------------------------


_NATS_ERRORS = {
    "Authorization Violation": "not_authenticated",
    "User Authentication Expired": "token_expired",
    "Permissions Violation": "not_authorized",
}


def by_nats(name: str, right: str, *lines: bytes) -> None:
    """Operations of the NATS protocol, with a PING behind them."""

    async def tried(server: Guarded, token: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("nats"))
        try:
            said = {"verbose": False, "pedantic": False, "headers": True, "auth_token": token or None}
            await reader.readline()
            writer.write(b"CONNECT " + json.dumps(said).encode() + b"\r\n")
            writer.write(b"".join(one + b"\r\n" for one in (*lines, b"PING")))
            while not (answer := (await reader.readline()).decode()).startswith(("PONG", "-ERR")):
                assert answer, "the connection ended without a word"
        finally:
            writer.close()
        return next((code for text, code in _NATS_ERRORS.items() if text in answer), OK)

    OPERATIONS.append(Operation(name, "NATS", right, tried, OK if right in FOR_ALL else "not_authorized"))


by_nats("PUB", "publish", f"PUB {TOPIC} 1".encode(), b"x")
by_nats("PUB to a new topic", "create", b"PUB orders.nats 1", b"x")
by_nats("HPUB with a reply", "publish", f"HPUB {TOPIC} _INBOX.0123456789abcdef 12 13".encode(), b"NATS/1.0", b"", b"x")
by_nats("SUB", "subscribe", b"SUB orders.> 1")
by_nats("PUB to a live subject", "publish", b"PUB orders.* 1", b"x")
by_nats("PUB to an inbox", "a login", b"PUB _INBOX.0123456789abcdefghijkl 1", b"x")
by_nats("SUB to an inbox", "a login", b"SUB _INBOX.0123456789abcdefghijkl 1")
by_nats("SUB to all inboxes", "console admin", b"SUB _INBOX.> 1")
by_nats("UNSUB", "a login", b"UNSUB 1")
by_nats("SUB with a queue group", "group", f"SUB {TOPIC} q 1".encode())


# -- HTTP ------------------------------------------------------------------------------------------------


PATHS: set[tuple[str, str]] = set()


def web(name: str, right: str, method: str, path: str, other: str = "not_authorized", **more: Any) -> None:
    """A request with `Authorization: Bearer`."""
    PATHS.add((method, path.partition("?")[0]))
    other = OK if right in FOR_ALL else other

    async def tried(server: Guarded, token: str) -> str:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= more.get("headers", {})
        rest = {key: value for key, value in more.items() if key not in ("headers", "let_in")}
        async with (
            httpx.AsyncClient(base_url=server.url("http"), timeout=60, verify=False) as client,
            client.stream(method, path, headers=headers, **rest) as answer,
        ):
            if answer.status_code < 400:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    return OK
                body = await answer.aread()
                return "nothing" if body in (b'{"topics":[]}',) else OK
            found = json.loads(await answer.aread())
            if found["code"] in (*LET_IN, more.get("let_in")) and found["code"] != other:
                return OK
            assert answer.status_code == {"not_authorized": 403, "unknown_topic": 404}.get(found["code"], 401), found
            return str(found["code"])

    OPERATIONS.append(Operation(name, "HTTP", right, tried, other))


web("POST /topics/{topic}", "publish", "POST", f"/topics/{TOPIC}", content=b"x")
web("POST /topics/{topic}, lines", "publish", "POST", f"/topics/{TOPIC}", content=b"x\ny",
    headers={"content-type": "application/x-ndjson"})  # fmt: skip
web("POST /topics/{topic}, new", "create", "POST", "/topics/orders.http", content=b"x")
web("POST /topics/{topic}, CloudEvents", "publish", "POST", f"/topics/{TOPIC}",
    content=b'[{"specversion":"1.0","id":"1","source":"s","type":"t","data":1}]',
    headers={"content-type": "application/cloudevents-batch+json"})  # fmt: skip
web("POST /topics/{topic}/request", "publish", "POST", f"/topics/{TOPIC}/request?timeout=0.01", content=b"x")
web("POST /topics/{topic}/request, many replies", "publish", "POST",
    f"/topics/{TOPIC}/request?timeout=0.01&limit=9", content=b"x")  # fmt: skip
web("GET /topics", "any", "GET", "/topics", other="nothing")
web("GET /topics/{topic}/records", "subscribe", "GET", f"/topics/{TOPIC}/records")
web("GET /topics/{topic}/presence", "subscribe", "GET", f"/topics/{TOPIC}/presence")
web("GET /events", "subscribe", "GET", f"/events?topic={TOPIC}")
web("GET /events, a pattern", "subscribe", "GET", "/events?pattern=orders.>")
web("POST /tickets", "subscribe", "POST", "/tickets", content=b'{"topics":["orders.>"]}')
web("GET /dead-letters/{topic}", "subscribe", "GET", f"/dead-letters/{LETTERS}")
web("POST /dead-letters/{topic}/replay", "admin", "POST", f"/dead-letters/{LETTERS}/replay", content=b'{"offsets":[]}',
    headers={"content-type": "application/json"}, other="unknown_topic")  # fmt: skip
web("POST /dead-letters/{topic}/discard", "admin", "POST", f"/dead-letters/{LETTERS}/discard",
    content=b'{"offsets":[]}', headers={"content-type": "application/json"}, other="unknown_topic")  # fmt: skip
web("GET /metrics", "viewer", "GET", "/metrics")
web("GET /console/updates", "viewer", "GET", "/console/updates")
web("GET /console/analytics", "viewer", "GET", "/console/analytics")
web("GET /console/charts", "viewer", "GET", "/console/charts")
web("GET /console/records", "subscribe", "GET", f"/console/records?topic={TOPIC}")
web("GET /console/download", "subscribe", "GET", f"/console/download?topic={TOPIC}")
web("GET /console/letters", "subscribe", "GET", f"/console/letters?topic={LETTERS}")
web("GET /console/topic", "any", "GET", f"/console/topic?topic={TOPIC}", other="unknown_topic")
web("GET /dead-letters", "subscribe", "GET", "/dead-letters", other="nothing")
web("GET /varz", "viewer", "GET", "/varz")
web("GET /session", "a login", "GET", "/session")
web("POST /logout", "a login", "POST", "/logout")
ACTIONS: set[str] = set()


def action(do: str, right: str, other: str = "not_authorized", let_in: str = "", **fields: Any) -> None:
    """An action of the console. `let_in`: an error of one that was allowed."""
    ACTIONS.add(do)
    web(f"POST /console/actions, {do}", right, "POST", "/console/actions", other=other, let_in=let_in,
        content=json.dumps({"do": do, **fields}).encode(), headers={"content-type": "application/json"})  # fmt: skip


action("create_topic", "create", topic="orders.action")
action("configure_topic", "admin", topic=TOPIC, changes={"max_deliver": 9})
action("trim_topic", "admin", topic=TOPIC, before="0", other="unknown_topic")
action("delete_topic", "admin", topic="orders.doomed", other="unknown_topic")
action("pause_group", "operator", group="work", pattern=TOPIC, paused=True)
action("reset_group", "admin", group="work", pattern=TOPIC, start="latest")
action("forget_group", "console admin", group="doomed", pattern=TOPIC)
action("place_subscription", "subscribe", name="placed", topic=TOPIC, start="latest", other="unknown_topic")
action("place_subscription", "subscribe", name="placed-all", topic="orders.*", start="latest")
action("forget_subscription", "console admin", name="alices")
action("close_connection", "console admin", let_in="invalid_option", connection=1 << 40)


# -- The table of the page -------------------------------------------------------------------------------


def table() -> str:
    """The table, in Markdown."""
    lines = [
        "| listener | operation | right | no token | wrong | expired | without the right | with it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in OPERATIONS:
        right = (
            f"`{one.right}`" if one.right in RIGHTS and one.right != "any" and one.right not in FOR_ALL else one.right
        )
        cells = [f"`{kind.outcome}`" for kind in KINDS[:3]] + [
            {"nothing": "an empty list", OK: OK}.get(one.other, f"`{one.other}`"),
            OK,
        ]
        lines.append(f"| {one.listener} | {one.name} | {right} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table of now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
