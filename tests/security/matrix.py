"""Every operation at every listener, the right that it needs, and what peers with each kind of token get.

`python -m tests.security.matrix` writes the table of docs/reference/auth.md. `test_matrix` tries every cell.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import websockets.asyncio.client as ws

from runnel.core.errors import RunnelError
from tests.security.guarded import Guarded, line

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
}
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


def operation(name: str, listener: str, right: str, other: str = "not_authorized") -> Callable[[Try], Try]:
    """Register an operation."""

    def register(attempt: Try) -> Try:
        OPERATIONS.append(Operation(name, listener, right, attempt, other))
        return attempt

    return register


# -- The native listener ---------------------------------------------------------------------------------


def native(name: str, right: str, other: str = "not_authorized") -> Callable[[Callable[[Any], Awaitable[Any]]], None]:
    """An operation of a client: its error, if it raises one."""

    def register(attempt: Callable[[Any], Awaitable[Any]]) -> None:
        async def tried(server: Guarded, token: str) -> str:
            try:
                async with server.client(token) as client:
                    found = await attempt(client)
            except RunnelError as error:
                return error.code
            return "nothing" if found in ([], {}, 0) else OK

        OPERATIONS.append(Operation(name, "native", right, tried, other))

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
    from runnel.core.errors import NoResponders

    try:
        await client.request(TOPIC, "x", timeout=0.01)
    except NoResponders:
        pass


@native("request_many", "publish")
async def _(client: Any) -> None:
    from runnel.core.errors import NoResponders

    try:
        await client.request_many(TOPIC, "x", timeout=0.01)
    except NoResponders:
        pass


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
    from runnel.core.errors import UnknownName

    try:
        await client.forget("alices")
    except UnknownName:
        pass


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


def packed() -> bytes:
    """One record as a batch."""
    from runnel.core.batch_format import pack

    return pack([b"x"])


# -- JSON lines, over TCP and over a WebSocket -----------------------------------------------------------


UNANSWERED = ("no_responders", "request_timeout")  # a request that was allowed


def spoken(name: str, right: str, command: dict[str, Any], other: str = "not_authorized") -> None:
    """A command, at both listeners that speak JSON lines."""

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
        async with ws.connect(f"ws://127.0.0.1:{server.port('http')}/ws") as socket:
            if token:
                await socket.send(json.dumps({"command": "AUTH", "token": token}))
                answer = json.loads(await socket.recv())
                if answer["event"] == "error":
                    return str(answer["code"])
            await socket.send(json.dumps(command))
            return _outcome(json.loads(await socket.recv()))

    OPERATIONS.append(Operation(name, "JSON lines", right, by_tcp, other))
    OPERATIONS.append(Operation(name, "WebSocket", right, by_socket, other))


def _outcome(answer: dict[str, Any]) -> str:
    if answer["event"] == "error" and answer["code"] not in UNANSWERED:  # allowed, and without an answer
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

    OPERATIONS.append(Operation(name, "NATS", right, tried))


by_nats("PUB", "publish", f"PUB {TOPIC} 1".encode(), b"x")
by_nats("PUB to a new topic", "create", b"PUB orders.nats 1", b"x")
by_nats("HPUB with a reply", "publish", f"HPUB {TOPIC} _INBOX.0123456789abcdef 12 13".encode(), b"NATS/1.0", b"", b"x")
by_nats("SUB", "subscribe", b"SUB orders.> 1")
by_nats("SUB with a queue group", "group", f"SUB {TOPIC} q 1".encode())


# -- HTTP ------------------------------------------------------------------------------------------------


def web(name: str, right: str, method: str, path: str, other: str = "not_authorized", **more: Any) -> None:
    """A request with `Authorization: Bearer`."""

    async def tried(server: Guarded, token: str) -> str:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= more.get("headers", {})
        rest = {key: value for key, value in more.items() if key != "headers"}
        async with (
            httpx.AsyncClient(base_url=server.url("http"), timeout=60) as client,
            client.stream(method, path, headers=headers, **rest) as answer,
        ):
            if answer.status_code < 400:
                if answer.headers["content-type"].startswith("text/event-stream"):
                    return OK
                body = await answer.aread()
                return "nothing" if body in (b'{"topics":[]}',) else OK
            found = json.loads(await answer.aread())
            if found["code"] in UNANSWERED:
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
web("POST /console/actions, create_topic", "create", "POST", "/console/actions",
    content=b'{"do":"create_topic","topic":"orders.action"}', headers={"content-type": "application/json"})  # fmt: skip
web("POST /console/actions, configure_topic", "admin", "POST", "/console/actions",
    content=f'{{"do":"configure_topic","topic":"{TOPIC}","changes":{{"max_deliver":9}}}}'.encode(),
    headers={"content-type": "application/json"})  # fmt: skip


# -- The table of the page -------------------------------------------------------------------------------


def table() -> str:
    """The table, in Markdown."""
    lines = [
        "| listener | operation | right | no token | wrong | expired | without the right | with it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in OPERATIONS:
        right = f"`{one.right}`" if one.right in RIGHTS and one.right != "any" else one.right
        cells = [f"`{kind.outcome}`" for kind in KINDS[:3]] + [
            "an empty list" if one.other == "nothing" else f"`{one.other}`",
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
