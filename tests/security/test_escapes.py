"""Ways around a rule: a reply that is a publish, a change that comes while another is made, what outlives its right."""

import asyncio
import gc
import json
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import msgspec
import pytest
import websockets.asyncio.client as ws
from starlette.requests import HTTPConnection
from websockets.exceptions import ConnectionClosed

import runnel
from runnel.core.batch_format import pack
from runnel.core.dead_letter import TOPIC
from runnel.core.errors import (
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    RunnelError,
)
from runnel.core.options import SubscribeOptions
from runnel.core.record import INBOX
from runnel.security.audit import EVENTS_TOPIC, LOGINS_TOPIC
from runnel.security.policy import AuthPolicy, Identity
from runnel.security.tokens import TokenTable
from runnel.server.access.control import Peer
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded, line
from tests.security.matrix import packed
from tests.server.native_client import until

RULES = """
[roles.viewer]
console = "viewer"
"""


def tokens() -> Tokens:
    made = Tokens()
    made.add("reader", ["subscribe:>"])
    made.add("writer", ["publish:orders.>", "create:orders.>"])
    made.add("weak", ["publish:other.>", "create:other.>", "subscribe:other.>"])
    made.add("member", ["group:orders.>", "subscribe:orders.>"])
    made.add("root", roles=["admin"])
    return made


async def nats(server: Guarded, token: str, *lines: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A NATS client that has logged in, and said these lines."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port("nats"))
    said = {"verbose": False, "pedantic": False, "headers": True, "auth_token": token}
    writer.write(b"".join(f"{one}\r\n".encode() for one in (f"CONNECT {json.dumps(said)}", *lines, "PING")))
    await reader.readuntil(b"PONG\r\n")
    return reader, writer


async def test_a_reply_to_the_inboxes_of_nats_clients_reaches_no_topic_and_no_subject_without_the_right(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        reader, subscriber = await nats(server, server.tokens["reader"], "SUB > 1", "SUB $x.> 2")
        forged = [f"{INBOX}nats.orders.new", f"{INBOX}nats.$x.y", f"{INBOX}nats._INBOX.short", f"{INBOX}nats."]
        async with server.client(server.tokens["weak"]) as weak:
            for target in forged:
                with suppress(NotAuthorized):
                    assert not await weak.backend.link.call("reply", {"reply_to": target, "batch": packed()})
                with pytest.raises(RunnelError):
                    await weak.publish("other.a", "x", headers={"runnel-reply-to": target})
        _, other = await nats(
            server, server.tokens["weak"], *(text for target in forged[:3] for text in (f"PUB {target} 1", "x"))
        )
        _, writer = await nats(server, server.tokens["writer"], "PUB orders.last 4", "last")
        said = await reader.readuntil(b"last\r\n")
        assert said == b"MSG orders.last 1 4\r\nlast\r\n"
        for one in (subscriber, other, writer):
            one.close()


async def test_replies_count_for_the_rate_of_who_sends_them(tmp_path: Path) -> None:
    rules = "[principals.weak.limits]\npublish_bytes = 10\n"
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["weak"]) as weak:
            for target in ("other.a", f"{INBOX}{'0' * 32}"):
                call = {"reply_to": target, "batch": pack([bytes(100)])}
                replies = (asyncio.ensure_future(weak.backend.link.call("reply", call)) for _ in range(3))
                ends = [one for one in await refusals(*replies) if isinstance(one, LimitExceeded)]
                assert ends, target


async def refusals(*tasks: "asyncio.Future[Any]") -> list[BaseException | None]:
    """The errors of those that were refused; the others wait for their turn, and are cancelled."""
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for one in waiting:
        one.cancel()
    return [one.exception() for one in done]


JWT = """
[jwt]
issuer = "i"
audience = "a"
jwks = "keys.json"
refresh = 1.0
"""


@pytest.mark.parametrize("cause", ["reload", "schedule"])
async def test_a_token_that_is_revoked_while_keys_are_fetched_stays_revoked(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from jwt import get_algorithm_by_name

    key = json.loads(get_algorithm_by_name("ES256").to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key]}))
    rules = JWT if cause == "schedule" else JWT.replace("1.0", "300.0")
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        files, read = server.auth.files, server.auth.files.read_keys
        asked, answer = asyncio.Event(), Event()
        loop = asyncio.get_running_loop()

        def slowly(config: Any) -> Any:
            loop.call_soon_threadsafe(asked.set)
            answer.wait(PATIENCE)
            return read(config)

        monkeypatch.setattr(files, "read_keys", slowly)
        reload = asyncio.ensure_future(server.server.reload()) if cause == "reload" else None
        await asked.wait()
        files.write_tokens(files.read_tokens().without("weak")[0])
        await until(lambda: len(server.auth.policy.tokens) == 4)
        monkeypatch.undo()
        before = server.auth.policy
        answer.set()
        if reload is not None:
            await reload
        await until(lambda: server.auth.policy is not before)
        with pytest.raises(NotAuthenticated):
            async with server.client(server.tokens["weak"]):
                pass


async def test_who_is_subscribed_and_figures_are_shown_no_longer_than_the_right_lasts(tmp_path: Path) -> None:
    watched = '[principals.weak]\nconsole = "viewer"\n'
    made = tokens()
    async with guarded(tmp_path, made, watched) as server, asyncio.timeout(PATIENCE):
        http = f"ws://127.0.0.1:{server.port('http')}"
        headers = {"authorization": f"Bearer {server.tokens['weak']}"}
        async with (
            ws.connect(f"{http}/console/live", additional_headers=headers) as figures,
            ws.connect(f"{http}/ws", additional_headers=headers) as presence,
            httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE) as client,
            client.stream("GET", "/console/updates", headers=headers) as updates,
        ):
            await figures.send(json.dumps({"command": "LOOK"}))
            assert json.loads(await figures.recv())["event"] == "figures"
            await presence.send(json.dumps({"command": "PRESENCE", "topic": "other.a", "watch": True}))
            assert json.loads(await presence.recv())["event"] == "presence"
            server.files.file.write_text("")
            await server.server.reload()
            while (said := json.loads(await figures.recv()))["event"] == "figures":
                pass
            assert said["code"] == "not_authorized"
            await figures.send(json.dumps({"command": "LOOK"}))
            assert json.loads(await figures.recv())["code"] == "not_authorized"
            _ = [part async for part in updates.aiter_text()]  # it ends
            stored = server.files.read_tokens()
            (weak,) = [one for one in stored if one.name == "weak"]
            less = msgspec.structs.replace(weak, allow=("publish:other.>",))
            server.files.write_tokens(stored.without("weak")[0].with_token(less))
            assert json.loads(await presence.recv())["code"] == "not_authorized"


async def test_a_websocket_whose_login_ended_before_its_first_message_reads_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        headers = {"authorization": f"Bearer {server.tokens['weak']}"}
        async with ws.connect(f"ws://127.0.0.1:{server.port('http')}/ws", additional_headers=headers) as socket:
            server.files.write_tokens(server.files.read_tokens().without("weak")[0])
            await until(lambda: len(server.auth.policy.tokens) == 4)
            with suppress(ConnectionClosed):
                await socket.send(json.dumps({"command": "SUB", "topic": "other.>", "partial": True}))
                assert json.loads(await socket.recv())["code"] == "access_revoked"


async def records_of(server: Guarded, topic: str) -> list[dict[str, Any]]:
    """The events of the security log that are written by now."""
    server.auth.log.flush()
    async with server.client(server.tokens["root"]) as root:
        try:
            page = await root.backend.history(topic, "earliest", 1000, 1 << 20)
        except RunnelError:
            return []
        return [json.loads(record.value) for record in page.records]


async def test_a_flood_of_logins_is_counted_and_evicts_no_admin_action(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        for _ in range(200):
            writer.write(line(command="AUTH", token=server.tokens["weak"]))
        for _ in range(200):
            assert json.loads(await reader.readline())["event"] == "authenticated"
        writer.close()
        found: list[dict[str, Any]] = []
        while sum(one.get("count", 1) for one in found) < 200:
            found = [one for one in await records_of(server, LOGINS_TOPIC) if one["principal"] == "weak"]
            await asyncio.sleep(0.01)
        assert len(found) <= 20
        assert not any(one["kind"] == "login" for one in await records_of(server, EVENTS_TOPIC))


async def test_tokens_that_are_made_or_revoked_in_the_file_are_in_the_security_log(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["root"]) as root:
            await root.backend.administer("token_create", {"name": "made"})
        server.files.write_tokens(server.files.read_tokens().without("weak")[0])
        seen: list[tuple[str, str]] = []
        while ("local", "weak") not in seen:
            events = await records_of(server, EVENTS_TOPIC)
            seen = [(one["peer"], one["target"]) for one in events if one["kind"] == "token"]
            await asyncio.sleep(0.01)
        assert seen == [("127.0.0.1", "made"), ("local", "weak")]  # what the server did itself is there once


def test_a_user_or_certificate_that_the_rules_give_to_another_principal_has_no_login_any_more() -> None:
    def policy(text: dict[str, Any]) -> AuthPolicy:
        return AuthPolicy.of({"mtls": {}, "principals": text}, TokenTable())

    bot = Identity(proof="unix", name="bot", subject={"user": "ann"})
    cert = Identity(proof="certificate", name="bot", subject={"commonName": "host-1"})
    both = policy({"bot": {"unix": ["ann", "bob"], "certificates": ["host-1", "host-2"]}})
    assert both.principal(bot) is not None
    assert both.principal(cert) is not None
    fewer = policy({"bot": {"unix": ["bob"], "certificates": ["host-2"]}})
    assert (fewer.principal(bot), fewer.principal(cert)) == (None, None)


async def test_a_session_that_was_signed_out_is_refused_by_the_first_request_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = tokens()
    async with asyncio.timeout(PATIENCE):
        async with guarded(tmp_path, made, broker=runnel.open(folder, fsync="os")) as server:
            async with httpx.AsyncClient(base_url=server.url("http")) as page:
                await page.post("/login", data={"token": server.tokens["weak"]})
                csrf = (await page.get("/session")).json()["csrf"]
                kept = dict(page.cookies)
                await page.post("/logout", headers={"x-runnel-csrf": csrf})
        async with guarded(tmp_path, made, broker=runnel.open(folder, fsync="os")) as server:
            async with httpx.AsyncClient(base_url=server.url("http"), cookies=kept) as thief:
                assert (await thief.get("/topics")).status_code == 401


async def test_a_malformed_origin_or_form_is_the_senders_fault(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens(), http_cors="*") as server, asyncio.timeout(PATIENCE):
        bearer = {"authorization": f"Bearer {server.tokens['weak']}"}
        async with httpx.AsyncClient(base_url=server.url("http")) as client:
            many = "&".join(f"a{number}=1" for number in range(3000))
            body = json.dumps({"topics": ["other.a"], "origin": "http://["})
            for answer in (
                await client.get("/events?topic=t&ticket=x", headers={"origin": "http://["}),
                await client.get(f"/events?ticket=x&{many}"),
                await client.post("/login", content=many),
                await client.post("/tickets", content=body, headers=bearer),
                await client.post("/tickets", content=body, headers=bearer | {"origin": "http://["}),
            ):
                assert answer.status_code in (400, 401), answer.text


async def test_a_nats_client_forgets_no_group_that_it_has_not_joined(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["member"]) as member, server.client(server.tokens["writer"]) as writer:
            await writer.publish("orders.a", "x")
            async with member.subscribe("orders.a", group="nats:jobs"):
                pass
            _, other = await nats(server, server.tokens["weak"], "SUB orders.a jobs 1", "UNSUB 1")
            other.close()
            assert await member.backend.link.call("group", {"name": "nats:jobs", "pattern": "orders.a"}) is not None


async def test_the_queue_groups_of_a_nats_client_count_while_they_are_there(tmp_path: Path) -> None:
    rules = "[principals.member.limits]\ngroups = 2\n"
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        for number in range(5):
            _, client = await nats(server, server.tokens["member"], f"SUB orders.a q{number} 1")
            client.close()
            await until(lambda: not server.auth.owners.count("group", "member"))


async def test_a_user_of_an_embedded_application_reads_in_part_what_the_callback_allows() -> None:
    from runnel.server.http.authentication import CallbackAccess
    from runnel.server.options import ServerOptions
    from runnel.server.served_broker import ServedBroker

    def authorize(connection: HTTPConnection, action: str, topic: str) -> bool:
        return action == "subscribe" and topic == "chat.a"

    async with runnel.open() as broker:
        serving = ServedBroker(broker, ServerOptions())
        access = CallbackAccess(serving, HTTPConnection({"type": "http", "headers": []}), authorize)
        partly = SubscribeOptions(partial=True)
        assert access.readable(("chat.a", "chat.b"), partly) == ("chat.a",)
        with pytest.raises(NotAuthorized):
            access.readable(("chat.b",), partly)


async def test_an_administrator_that_uses_a_name_of_another_leaves_a_trace(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["member"]) as member, server.client(server.tokens["root"]) as root:
            async with member.subscribe("orders.a", name="mine"), member.subscribe("orders.a", group="ours"):
                pass
            async with root.subscribe("orders.a", name="mine"), root.subscribe("orders.a", group="ours"):
                pass
        found = {(one["principal"], one["action"]) for one in await records_of(server, EVENTS_TOPIC)}
        assert found == {("root", "subscription of another"), ("root", "group of another")}


async def test_principals_and_addresses_that_use_nothing_are_forgotten_with_what_they_do_not_owe(
    tmp_path: Path,
) -> None:
    rules = "[principals.writer.limits]\npublish_bytes = 10\n"
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        auth = server.auth
        async with server.client(server.tokens["member"]) as member, member.subscribe("orders.a"):
            async with server.client(server.tokens["writer"]) as writer:
                await writer.publish("orders.a", bytes(1000))
            await until(lambda: not auth._usages["writer"].connections)
            auth._forget_usages()
            assert set(auth._usages) == {"member", "writer"}  # one reads, one owes
        await until(lambda: not auth._usages["member"].connections)
        auth._forget_usages()
        assert set(auth._usages) == {"writer"}


async def test_a_forged_letter_publishes_to_no_internal_topic_and_the_log_cannot_be_emptied(tmp_path: Path) -> None:
    made = tokens()
    made.add("letters", ["publish:>", "create:>", "admin:>", "subscribe:>"])
    made.add("eraser", ["admin:$runnel.>", "publish:$runnel.>", "create:$runnel.>"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["letters"]) as letters:
            for target in (EVENTS_TOPIC, "$runnel.telemetry.x", ">", ""):
                headers = {TOPIC: target, **{f"runnel-dead-letter-{one}": "1" for one in ("reason", "attempts")}}
                await letters.publish("dead-letters.forged", "x", headers=headers)
            for offset in range(4):
                with suppress(RunnelError):
                    await letters.backend.settle_dead_letters("dead-letters.forged", [offset], put_back=True)
        async with server.client(server.tokens["eraser"]) as eraser:
            before = len(await records_of(server, EVENTS_TOPIC))
            for attempt in (
                eraser.delete(EVENTS_TOPIC),
                eraser.backend.link.call("trim", {"topic": EVENTS_TOPIC, "before": 1000}),
                eraser.backend.configure(EVENTS_TOPIC, {"retention_count": 1}),
                eraser.publish(EVENTS_TOPIC, "forged"),
            ):
                with pytest.raises(RunnelError):
                    await attempt
        after = await records_of(server, EVENTS_TOPIC)
        assert {one["kind"] for one in after} <= {"admin", "token"}
        assert len(after) >= before


async def test_a_name_or_sign_out_is_stored_also_when_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.server.access import owners

    times = iter((2_000, 2_001, 1_000, 1_001, 3_000))
    monkeypatch.setattr(owners, "time_ns", lambda: next(times))
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        assert server.server.serving is not None
        async with server.client(server.tokens["member"]) as member:
            for name in ("before", "after"):
                async with member.subscribe("orders.a", name=name):
                    pass
                await server.auth._revoke(f"session:{name}", 1 << 40)
        stored = await server.server.serving.broker.marks("$access/")
        assert {f"$access/{kind}{name}" for kind in ("owner/subscription/", "revoked/session:") for name in
                ("before", "after")} < set(stored)  # fmt: skip


async def test_a_token_that_is_revoked_in_the_file_of_one_server_is_revoked_at_every_server(tmp_path: Path) -> None:
    made = tokens()
    made.add("gateway", roles=["gateway"])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with (
        guarded(tmp_path / "one", made) as one,
        guarded(tmp_path / "two", made, broker=runnel.open(one.url(), token=made.texts["gateway"])) as two,
        asyncio.timeout(PATIENCE),
    ):
        entries = one.files.read_tokens()
        one.files.write_tokens(entries.without("weak")[0])
        await until(lambda: {outcome(server, "weak") for server in (one, two)} == {"not_authenticated"})
        one.files.write_tokens(entries)  # a revoked token does not come back with its entry
        one.files.tokens_file.unlink()  # and a file that is not there revokes no token for good
        await until(lambda: outcome(one, "reader") == "not_authenticated")
        one.files.write_tokens(entries)
        await until(lambda: outcome(one, "reader") == "allowed")
        assert outcome(one, "weak") == "not_authenticated"


def outcome(server: Guarded, name: str) -> str:
    """What a login with the token of this name gets."""
    try:
        server.auth.login(server.tokens[name], Peer("", "test")).release()
    except RunnelError as error:
        return error.code
    return "allowed"


async def test_logins_of_websockets_and_tickets_are_forgotten_with_them(tmp_path: Path) -> None:
    made = tokens()
    made.add("brief", ["subscribe:>"], expires=time.time() + 86_400)
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        bearer = {"authorization": f"Bearer {made.texts['brief']}"}
        async with httpx.AsyncClient(base_url=server.url("http")) as client:
            for _ in range(5):
                async with ws.connect(f"ws://127.0.0.1:{server.port('http')}/ws", additional_headers=bearer):
                    pass
                said = await client.post("/tickets", headers=bearer, json={"topics": ["orders.a"]})
                address = f"/events?topic=orders.a&ticket={said.json()['ticket']}"
                async with client.stream("GET", address) as stream:
                    assert stream.status_code == 200

        def are_gone() -> bool:
            for usage in (*server.auth._usages.values(), *server.auth._peers.values()):
                usage.is_idle(0.0)  # forgets up to 64 readers that ended
            gc.collect()
            return len(server.auth._accesses) == 1  # that of the bearer token, which is kept for the next request

        await until(are_gone)


async def test_figures_that_are_refused_beyond_a_limit_take_no_room_from_others(tmp_path: Path) -> None:
    made = tokens()
    for name in ("one", "other"):
        made.add(name, roles=["viewer"])
    rules = f"{RULES}[principals.one.limits]\nsubscriptions = 1\n"
    async with guarded(tmp_path, made, rules, max_streams=2) as server, asyncio.timeout(PATIENCE):

        def figures(client: httpx.AsyncClient, name: str) -> Any:
            headers = {"authorization": f"Bearer {made.texts[name]}"}
            return client.stream("GET", "/console/updates", headers=headers)

        async with httpx.AsyncClient(base_url=server.url("http")) as client, figures(client, "one") as first:
            assert first.status_code == 200
            for _ in range(3):
                async with figures(client, "one") as refused:
                    assert b"limits.subscriptions" in await refused.aread()
            async with figures(client, "other") as second:
                assert second.status_code == 200


async def test_a_compressed_batch_counts_with_its_size_when_it_is_not(tmp_path: Path) -> None:
    rules = "[principals.writer.limits]\npublish_bytes = 10_000\n"
    async with guarded(tmp_path, tokens(), rules) as server:
        assert server.server.serving is not None
        access = server.auth.login(server.tokens["writer"], Peer("", "test"))
        slowed: list[float] = []
        access.on_slow = slowed.append
        publisher = server.server.serving.guarded(access).publisher
        data = pack([bytes(20_000)], compression="zstd")
        assert len(data) < 200
        publisher.publish("orders.a", data, None, lambda _: None)
        assert slowed
        assert slowed[0] > 0.9


async def test_a_principal_that_may_do_nothing_leaves_no_names_behind(tmp_path: Path) -> None:
    made = tokens()
    made.add("nothing")
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        assert server.server.serving is not None
        async with server.client(made.texts["nothing"]) as client:
            key = ("w", 0, 0, 0)
            for method, args in {
                "producer_next": {"producer": 7},
                "transact": {"marks": [["m", 1]]},
                "stage_state": {"topic": None, "key": key},
                "stage_drop": {"topic": "orders.a", "key": key},
            }.items():
                with pytest.raises(NotAuthorized):
                    await client.backend.link.call(method, args)
        assert not await server.server.serving.broker.marks("$access/owner/")


async def test_a_publish_that_waits_for_its_turn_is_not_stored_when_the_right_is_gone_by_then(tmp_path: Path) -> None:
    rules = "[principals.writer.limits]\npublish_bytes = 100\n"
    async with guarded(tmp_path, tokens(), rules) as server, asyncio.timeout(PATIENCE):
        assert server.server.serving is not None
        root = server.auth.login(server.tokens["root"], Peer("", "test"))
        headers = {"authorization": f"Bearer {server.tokens['writer']}"}
        async with httpx.AsyncClient(base_url=server.url("http"), headers=headers) as client:
            assert (await client.post("/topics/orders.a", content=b"x")).status_code == 201
            waiting = asyncio.ensure_future(client.post("/topics/orders.a", content=bytes(150)))
            await until(lambda: server.auth._usages["writer"].connections)
            await server.auth.revoke_token(root, "writer")
            assert (await waiting).status_code == 401
        (found,) = await server.server.serving.broker.bounds("orders.a")
        assert (found.first, found.end) == (0, 1)


async def test_what_was_decided_for_a_handle_is_decided_anew_for_headers_after_a_deletion_and_with_other_rights(
    tmp_path: Path,
) -> None:
    made = tokens()
    made.add("late", ["publish:orders.>"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(made.texts["root"]) as root:
            await root.publish("orders.a", "x")
            await root.publish("orders.b", "x")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))

            async def said(**command: Any) -> str:
                writer.write(line(**command))
                answer = json.loads(await reader.readline())
                return str(answer.get("code", answer["event"]))

            async def publish(topic: str = "orders.a", **more: Any) -> str:
                return await said(command="PUB", topic=topic, payload="x", **more)

            assert await said(command="AUTH", token=made.texts["late"]) == "authenticated"
            assert [await publish() for _ in range(3)] == ["published"] * 3
            assert await publish(headers={"runnel-reply-to": "other.a"}) == "not_authorized"
            assert await publish(headers={"h": "x"}, key="k") == "published"
            assert [await publish("orders.b") for _ in range(2)] == ["published"] * 2
            await root.delete("orders.b")
            assert await publish("orders.b") == "not_authorized"  # it may not create
            stored = server.files.read_tokens()
            late = next(one for one in stored if one.name == "late")
            less = msgspec.structs.replace(late, allow=("publish:orders.b",))
            server.files.write_tokens(stored.without("late")[0].with_token(less))
            await until(lambda: server.auth.policy.tokens.get(late.id) == less)
            assert await publish() == "not_authorized"
        writer.close()
