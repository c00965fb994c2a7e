"""What an attacker tries with what it was given: a ticket, a cookie, an embedded application, a limit, a bad body."""

import asyncio
import json
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.asyncio.client as ws
from starlette.requests import HTTPConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

import runnel
from runnel.core.backend import Backend, ReadableBackend
from runnel.core.errors import InvalidOption, LimitExceeded, NameOwned, NotAuthenticated, NotAuthorized, RunnelError
from runnel.security.jwt_claims import LATEST, JwtConfig, VerifyingKey, verify
from runnel.security.policy import AuthPolicy, Identity
from runnel.security.tokens import TokenTable
from runnel.security.usage import LONGEST_PAUSE
from runnel.server import http
from runnel.server.access.control import MAX_BEFORE_LOGIN, Peer
from runnel.server.access.files import AuthFiles
from runnel.server.access.guard import GuardedBackend
from runnel.wire.frames import PREFACE, FrameKind, frame
from runnel.wire.msgpack_messages import Hello, encode_message
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded, line
from tests.server.certificates import Authority

RULES = """
[roles.viewer]
console = "viewer"
"""


def tokens(*names: str) -> Tokens:
    """Principals that may do everything, as a program behind a web site may."""
    made = Tokens()
    for name in names or ("backend",):
        made.add(name, [f"{action}:t.>" for action in ("publish", "create", "subscribe", "group")], roles=["admin"])
    return made


def browser(server: Guarded, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE, **options)


def bearer(server: Guarded, name: str = "backend") -> dict[str, str]:
    return {"authorization": f"Bearer {server.tokens[name]}"}


async def ticket_of(server: Guarded, topics: list[str]) -> str:
    async with browser(server) as client:
        answer = await client.post("/tickets", json={"topics": topics}, headers=bearer(server))
        return str(answer.json()["ticket"])


async def test_a_ticket_allows_reading_its_topics_and_nothing_else_of_what_its_maker_may(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["backend"]) as owner:
            await owner.publish("t.a", "x")
            async with owner.subscribe("t.a", name="mine"):
                pass
        host = f"127.0.0.1:{server.port('http')}"
        refused = [
            {"command": "PUB", "topic": "t.a", "payload": "x"},
            {"command": "SUB", "topic": "t.b"},
            {"command": "SUB", "topic": "t.>"},
            {"command": "SUB", "topic": "t.a", "group": "g"},
            {"command": "SUB", "topic": "t.a", "name": "mine"},
        ]
        url = f"ws://{host}/ws?ticket={await ticket_of(server, ['t.a'])}"
        async with ws.connect(url) as socket:
            for command in refused:
                await socket.send(json.dumps(command))
                assert json.loads(await socket.recv())["code"] == "not_authorized", command
            await socket.send(json.dumps({"command": "SUB", "topic": "t.a"}))
            assert json.loads(await socket.recv())["event"] != "error"
        access, _ = await server.auth.redeem_ticket(
            await ticket_of(server, ["t.a"]), host, Peer("1.2.3.4", "http"), connection=False
        )
        assert server.server.serving is not None
        peer = server.server.serving.guarded(access).broker  # all that any listener has of it
        for attempt in (
            peer.publish("t.a", "x"),
            peer.delete("t.a"),
            peer.forget("mine"),
            peer.backend.place({"mine": ("t.a", runnel.Position(1, 0))}, None),
            peer.backend.info(),
            peer.backend.replay("t.a", None, None),
            peer.backend.ask_group("g", "t.a", "pause"),
        ):
            with pytest.raises((NotAuthorized, NameOwned)):
                await attempt
        assert (await peer.topics(), await peer.marks()) == (["t.a"], {})


async def test_the_cookie_of_a_ticket_is_no_session_of_its_maker(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        ticket = await ticket_of(server, ["t.a"])
        async with page.stream("GET", f"/events?topic=t.a&ticket={ticket}") as stream:
            ((name, stolen),) = stream.cookies.items()
        async with browser(server, cookies={"runnel_session": stolen, name: stolen}) as thief:
            for path in ("/session", "/topics", "/metrics", "/events?topic=t.a"):
                assert (await thief.get(path)).status_code == 401
        with pytest.raises(InvalidStatus):
            async with ws.connect(
                f"ws://127.0.0.1:{server.port('http')}/ws",
                additional_headers={"cookie": f"runnel_session={stolen}"},
                origin=f"http://127.0.0.1:{server.port('http')}",  # type: ignore[arg-type]
            ):
                pass


async def test_signing_out_ends_what_tickets_of_the_session_opened(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        await page.post("/login", data={"token": server.tokens["backend"]})
        csrf = {"x-runnel-csrf": (await page.get("/session")).json()["csrf"]}
        first, second = [
            (await page.post("/tickets", json={"topics": ["t.a"]}, headers=csrf)).json()["ticket"] for _ in range(2)
        ]
        async with browser(server) as other:
            async with other.stream("GET", f"/events?topic=t.a&ticket={first}") as stream:
                kept = dict(other.cookies)
                assert (await page.post("/logout", headers=csrf)).status_code == 303
                assert "not_authenticated" in "".join([part async for part in stream.aiter_text()])
            assert (await other.get(f"/events?topic=t.a&ticket={second}")).status_code == 401
        async with browser(server, cookies=kept) as again:
            assert (await again.get(f"/events?topic=t.a&ticket={first}")).status_code == 401


async def test_a_websocket_of_a_session_ends_with_the_token_that_it_was_opened_with(tmp_path: Path) -> None:
    made = tokens()
    made.add("short", ["publish:t.>"], expires=time.time() + 2.0)
    async with guarded(tmp_path, made) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        await page.post("/login", data={"token": server.tokens["short"]})
        origin = f"http://127.0.0.1:{server.port('http')}"
        cookie = {"cookie": f"runnel_session={page.cookies['runnel_session']}"}
        async with ws.connect(f"ws{origin[4:]}/ws", additional_headers=cookie, origin=origin) as socket:  # type: ignore[arg-type]
            await socket.send(json.dumps({"command": "PING"}))
            said: list[str | bytes] = []
            with suppress(ConnectionClosed):
                while True:
                    said.append(await socket.recv())
            assert json.loads(said[-1])["code"] == "token_expired"


async def test_the_data_of_the_console_needs_a_login_and_its_files_do_not(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens(), RULES) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        for path in ("/console/updates", "/console/analytics", "/console/../console/analytics", "/console/nothing"):
            assert (await page.get(path)).status_code == 401, path
        assert (await page.get("/console/analytics", headers=bearer(server))).status_code == 200
        assert (await page.get("/console/base.css")).status_code == 200


async def test_users_of_an_embedded_application_get_no_figures_names_or_markers_of_it() -> None:
    def authorize(connection: HTTPConnection, action: str, topic: str) -> bool:
        return action in ("publish", "create", "subscribe") and topic.startswith("chat.")

    async with runnel.open() as broker:
        await broker.publish("chat.a", "x")
        async with broker.transaction() as tx:
            tx.mark("relay", 7)
        app = http.app(broker, authorize=authorize)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
            assert (await client.get("/console/analytics")).status_code == 403
            assert (await client.get("/readyz")).status_code == 200
        from runnel.server.http.authentication import CallbackAccess
        from runnel.server.options import ServerOptions
        from runnel.server.served_broker import ServedBroker

        serving = ServedBroker(broker, ServerOptions())
        access = CallbackAccess(serving, HTTPConnection({"type": "http", "headers": []}), authorize)
        user = serving.guarded(access).broker
        await user.publish("chat.a", "y")
        for attempt in (user.forget("own"), user.mark("relay")):
            with pytest.raises(NotAuthorized):
                await attempt
        assert await user.marks() == {}
        with pytest.raises(NameOwned):
            async with user.transaction() as tx:
                tx.mark("relay", 8)
        with pytest.raises(NameOwned):
            async with user.subscribe("chat.a", name="own"):
                pass
        assert await broker.mark("relay") == 7


async def test_an_application_without_publishing_takes_none_over_a_websocket_either() -> None:
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    async with runnel.open() as broker, asyncio.timeout(PATIENCE):
        app = http.app(broker, publish=False)
        scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b"", "client": ("1.2.3.4", 5)}
        socket = asyncio.ensure_future(app(scope, to_app.get, from_app.put))
        to_app.put_nowait({"type": "websocket.connect"})
        assert (await from_app.get())["type"] == "websocket.accept"
        command = json.dumps({"command": "PUB", "topic": "t", "payload": "x"})
        to_app.put_nowait({"type": "websocket.receive", "text": command})
        assert json.loads((await from_app.get())["text"])["code"] == "not_authorized"
        to_app.put_nowait({"type": "websocket.disconnect"})
        await socket


NO_JSON = (
    b'{"\xff": 1}',
    b'{"offsets": [1, "\xff"]}',
    b"\xff",
    b'{"all": true',
    b"[" * 100_000,
    b'{"offsets": [1e999]}',
)


async def test_a_body_that_is_no_json_is_the_senders_fault() -> None:
    event = b'{"specversion":"1.0","id":"1","source":"s","type":%s}'
    events = [*NO_JSON, event % b'"\xff"', event % (b"[" * 100_000)]
    async with runnel.open() as broker:
        await broker.publish("t", "x")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(http.app(broker)), base_url="http://t") as client:
            sent = [
                *(("/dead-letters/t/replay", "application/json", body) for body in NO_JSON),
                *(("/topics/t", "application/cloudevents+json", body) for body in events),
                *(("/topics/t", "application/cloudevents-batch+json", b"[" + body) for body in events),
            ]
            for path, kind, body in sent:
                answer = await client.post(path, content=body, headers={"content-type": kind})
                assert answer.status_code == 400, (path, kind, body[:80], answer.text[:200])


async def test_topics_and_groups_made_all_at_once_are_still_counted(tmp_path: Path) -> None:
    rules = "[principals.small.limits]\ntopics = 3\ngroups = 2\n"
    async with guarded(tmp_path, tokens("small"), rules) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["small"]) as client:
            names = [f"t.{'x' * 240}{number}" if number % 2 else f"t.{number}" for number in range(10)]
            ends = await asyncio.gather(*(client.publish(name, "x") for name in names), return_exceptions=True)
            assert sum(isinstance(one, LimitExceeded) and one.limit == "limits.topics" for one in ends) == 7

            async def join(name: str) -> None:
                async with client.subscribe("t.0", group=name):
                    pass

            left = await asyncio.gather(*(join(f"g{number}") for number in range(6)), return_exceptions=True)
            assert sum(isinstance(one, LimitExceeded) and one.limit == "limits.groups" for one in left) == 4
            there = [one for one in names if one in await client.topics()]
            await client.delete(there[0])
            await client.publish("t.another", "x")  # a topic that is gone counts no more


PEER_LIMITS = """
[peer_limits]
connections = 3
subscriptions = 2
topics = 2
groups = 1
publish_records = 5
storage_bytes = 100000
"""


async def test_limits_of_an_address_count_what_all_of_its_principals_do_at_every_listener(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens("one", "two"), PEER_LIMITS) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["one"]) as one, server.client(server.tokens["two"]) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
            writer.write(line(command="AUTH", token=server.tokens["one"]))
            await reader.readline()
            for name in ("one", "two"):
                with pytest.raises(LimitExceeded, match=r"peer_limits\.connections"):
                    async with server.client(server.tokens[name]):
                        pass
            async with browser(server) as page:
                answer = await page.get("/topics", headers=bearer(server, "one"))
                assert (answer.status_code, "peer_limits.connections" in answer.text) == (503, True)
            writer.close()
            await one.publish("t.a", "x")
            await two.publish("t.b", "x")
            with pytest.raises(LimitExceeded, match=r"peer_limits\.topics"):
                await one.publish("t.c", "x")
            async with one.subscribe("t.a"), two.subscribe("t.a"):
                with pytest.raises(LimitExceeded, match=r"peer_limits\.subscriptions"):
                    async with two.subscribe("t.b"):
                        pass
            async with one.subscribe("t.a", group="g"):
                pass
            with pytest.raises(LimitExceeded, match=r"peer_limits\.groups"):
                async with two.subscribe("t.b", group="g"):
                    pass
            began = time.monotonic()
            for number in range(8):
                await (one if number % 2 else two).publish("t.a", "x")
            assert time.monotonic() - began > 0.15


async def test_a_principal_far_over_its_rate_is_slowed_then_refused_and_stays_connected(tmp_path: Path) -> None:
    rules = "[principals.slow.limits]\npublish_bytes = 100\n"
    async with guarded(tmp_path, tokens("slow"), rules) as server, asyncio.timeout(PATIENCE):
        async with browser(server) as page, server.client(server.tokens["slow"]) as client:
            # Another login pays at once, so that nothing has to be waited for here.
            usage = server.auth.login(server.tokens["slow"], Peer("1.2.3.4", "json")).usages[0]
            now = server.auth.now()
            usage.delay(int(100 * (LONGEST_PAUSE + 30)), 1, now)
            with pytest.raises(LimitExceeded, match=r"limits\.publish_bytes"):
                await client.publish("t.a", bytes(50))
            answer = await page.post("/topics/t.a", content=b"x", headers=bearer(server, "slow"))
            assert (answer.status_code, "limits.publish_bytes" in answer.text) == (503, True)
            assert await client.topics() == []  # the connection is as good as before


async def test_a_deleted_topic_is_not_made_again_without_the_right_to(tmp_path: Path) -> None:
    made = tokens()
    made.add("writer", ["publish:t.>"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["backend"]) as owner, server.client(server.tokens["writer"]) as writer:
            await owner.publish("t.a", "x")
            await writer.publish("t.a", "y")
            await owner.delete("t.a")
            with pytest.raises(NotAuthorized):
                await writer.publish("t.a", "z")


async def test_a_websocket_that_says_nothing_is_not_counted_for_ever(tmp_path: Path) -> None:
    rules = "[principals.backend.limits]\nconnections = 1\n"
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        url = f"ws://127.0.0.1:{server.port('http')}/ws"
        async with ws.connect(url, additional_headers=bearer(server)):
            with pytest.raises(InvalidStatus):
                async with ws.connect(url, additional_headers=bearer(server)):
                    pass
        while True:
            try:
                async with ws.connect(url, additional_headers=bearer(server)):
                    return
            except InvalidStatus:  # the server has not seen the end of the first one yet
                await asyncio.sleep(0.01)


async def test_names_that_another_server_of_the_backend_gave_away_are_known_here(tmp_path: Path) -> None:
    from runnel.server.access.owners import OwnedNames

    async with guarded(tmp_path, tokens("alice", "eve")) as server, asyncio.timeout(PATIENCE):
        assert server.server.serving is not None
        elsewhere = OwnedNames()
        await elsewhere.load(server.server.serving.backend)
        alice, eve = (
            server.auth.policy.principal(server.auth.identify(server.tokens[name])) for name in ("alice", "eve")
        )
        assert alice is not None
        assert eve is not None
        await elsewhere.claim("marker", "position", alice)
        while not server.auth.owners.is_of_another("marker", "position", eve):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await elsewhere.release("marker", "position")
        while server.auth.owners.is_of_another("marker", "position", eve):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_has_not_logged_in_can_make_the_server_hold_little(tmp_path: Path) -> None:
    large = bytes(MAX_BEFORE_LOGIN + 100)
    async with guarded(tmp_path, tokens("alice")) as server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        writer.write(b'{"command": "AUTH", "token": "' + large)
        assert b"max_line=65,536" in await reader.readline()
        writer.close()
        async with httpx.AsyncClient(base_url=server.url("http")) as client:
            assert (await client.post("/login", content=b"token=" + large)).status_code == 413
        async with ws.connect(f"ws://127.0.0.1:{server.port('http')}/ws") as socket:
            await socket.send(PREFACE)
            with suppress(ConnectionClosed):
                await socket.send(bytes(2 << 20))
                await socket.recv()
            assert socket.close_code == 1009
        # A line that comes right behind the login may be longer.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        said = line(command="PUB", topic="t", payload="x" * len(large))
        writer.write(line(command="AUTH", token=server.tokens["alice"]) + said)
        assert [json.loads(await reader.readline())["event"] for _ in range(2)] == ["authenticated", "published"]
        writer.close()


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), LATEST, 10**400], ids=["inf", "nan", "late", "huge"])
def test_a_jwt_with_an_absurd_time_is_refused(wrong: float) -> None:
    import jwt

    secret = b"s" * 32
    config = JwtConfig(audience="a", issuer="i", secret_file="secret")
    token = jwt.encode({"exp": wrong, "aud": "a", "iss": "i", "sub": "x"}, secret, algorithm="HS256")
    with pytest.raises(NotAuthenticated):
        verify(token, config, [VerifyingKey(None, "HS256", secret, "x")], now=1.0)


def test_an_identity_whose_token_was_removed_is_unknown(tmp_path: Path) -> None:
    policy = AuthPolicy.of({}, TokenTable())
    for proof in ("token", "jwt", "certificate", "unix"):
        assert policy.principal(Identity(proof=proof, name="x", id="y")) is None


async def test_an_administrator_of_topics_cannot_read_the_key_of_sessions_or_write_what_logins_rest_on(
    tmp_path: Path,
) -> None:
    tokens = Tokens()
    tokens.add("deleter", ["admin:>"])
    tokens.add("root", roles=["admin"])
    tokens.add("front", roles=["gateway"])
    async with guarded(tmp_path, tokens) as server, asyncio.timeout(PATIENCE):
        for name in ("deleter", "root"):
            async with server.client(server.tokens[name]) as client:
                with pytest.raises(NotAuthorized):
                    await client.mark("$access/key")
                with pytest.raises(NotAuthorized):
                    async with client.transaction() as transaction:
                        transaction.mark("$access/owner/group/g >", "deleter")
                assert not any(one.startswith("$access/") for one in await client.marks("$"))
                assert await client.marks("") == {}
        async with server.client(server.tokens["front"]) as front:  # another server over this one needs them
            assert await front.mark("$access/key") == server.auth.sealing_key


async def test_metrics_that_are_open_on_this_machine_are_not_open_through_a_proxy_on_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, None, "[metrics]\nopen_on_loopback = true\n") as server:
        async with httpx.AsyncClient(base_url=server.url("http")) as client:
            assert (await client.get("/metrics")).status_code == 200
            for header in ("X-Forwarded-For", "Forwarded", "Via"):
                assert (await client.get("/metrics", headers={header: "203.0.113.9"})).status_code == 401


def test_keys_are_not_fetched_through_a_redirect_to_an_address_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    asked: list[str] = []

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:9/plain")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        config = JwtConfig(audience="a", issuer="i", jwks=f"https://localhost:{server.server_port}/keys")
        with pytest.raises(InvalidOption, match="without TLS"):
            AuthFiles(tmp_path / "auth.toml").read_keys(config)
        server.shutdown()
    assert asked == ["/keys"]


def test_the_guard_says_for_every_operation_of_the_port_who_may() -> None:
    port = {name for name in vars(Backend) | vars(ReadableBackend) if not name.startswith("_")}
    assert len(port) > 40
    assert port - set(vars(GuardedBackend)) == set()


async def test_a_failed_login_says_so_however_long_its_answer_waits_and_whatever_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.security.usage.FIRST_DELAY", 0.3)
    hello = PREFACE + frame(FrameKind.HELLO, 0, encode_message(Hello(version=1, token="rnl_wrong")))
    async with guarded(tmp_path, None, hello_timeout=0.1) as server, asyncio.timeout(PATIENCE):
        for more in (b"", frame(FrameKind.PING, 1, b"x")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port("native"))
            began = time.monotonic()
            writer.write(hello + more)
            assert b"not_authenticated" in await reader.read()
            assert time.monotonic() - began >= 0.3  # a frame behind it gets no quicker answer
            writer.close()


@pytest.mark.parametrize("name", ["@workers", "$runnel", "a\nb", "x" * 129, ""])
def test_a_certificate_cannot_name_a_role_or_forge_a_line(name: str) -> None:
    policy = AuthPolicy.of({"mtls": {}, "roles": {"workers": {"owns_names": True}}}, TokenTable())
    assert policy.certificate_name({"commonName": name}) is None
    assert policy.certificate_name({"commonName": "ann"}) == "ann"
    with pytest.raises(InvalidOption):
        AuthPolicy.of({"principals": {name: {}}}, TokenTable())


async def test_the_right_admin_alone_does_not_read_the_journal_as_a_standby_does(tmp_path: Path) -> None:
    tokens = Tokens()
    tokens.add("deleter", ["admin:>"])
    tokens.add("root", roles=["admin"])
    async with runnel.open(tmp_path / "data") as broker, asyncio.timeout(PATIENCE):
        async with guarded(tmp_path, tokens, broker=broker) as server:
            calls: dict[str, dict[str, Any]] = {
                "follow": {"request": {"id": "x", "reply": 1}},
                "read_file": {"name": "MANIFEST", "offset": 0, "size": 10},
                "promote": {},
                "release_standby": {},
            }
            async with server.client(server.tokens["deleter"]) as client:
                for method, args in calls.items():
                    with pytest.raises(NotAuthorized):
                        await client.backend.link.call(method, args)
            async with server.client(server.tokens["root"]) as client:
                with suppress(RunnelError):
                    await client.backend.link.call("read_file", calls["read_file"])
                async with client.subscribe("$runnel.security", start="earliest") as events:
                    async for event in events:
                        if json.loads(event.value)["action"] == "follow":
                            break  # whichever call it began with
