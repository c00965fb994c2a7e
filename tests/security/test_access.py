"""Logins, revocation, expiry, refresh, ownership, reply topics, limits and the security log, with real sockets."""

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.core.errors import (
    AccessRevoked,
    AuditFailed,
    InvalidOption,
    LimitExceeded,
    NameOwned,
    NotAuthenticated,
    NotAuthorized,
    TokenExpired,
)
from runnel.security.audit import EVENTS_TOPIC, REFUSALS_TOPIC
from runnel.security.tokens import make_token
from runnel.server import Server, ServerOptions
from runnel.server.access.files import AuthFiles, random_bytes
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded, line
from tests.server.native_client import until

ALL = ["publish:>", "create:>", "subscribe:>", "group:>"]


def tokens(*names: str, allow: list[str] = ALL) -> Tokens:
    made = Tokens()
    for name in names:
        made.add(name, allow)
    made.add("root", roles=["admin"])
    return made


async def records_of(server: Guarded, topic: str, wanted: str) -> list[dict[str, Any]]:
    """What the security log has, once an event with `wanted` is in it."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE), server.client(server.tokens["root"]) as root:
        async with root.subscribe(topic, start="earliest") as events:
            async for record in events:
                found.append(json.loads(record.value))
                if wanted in record.value.decode():
                    break
    return found


async def test_without_auth_nothing_is_asked_and_with_it_a_public_address_may_be_bound(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens("a"), host="0.0.0.0") as server:
        assert server.server.listeners[0].host == "0.0.0.0"
        with pytest.raises(NotAuthenticated):
            async with runnel.open(f"runnel://127.0.0.1:{server.port('native')}", reconnect=False):
                pass


async def test_a_revoked_token_ends_what_is_open_and_leases_return(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens("alice", "bob")) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["bob"]) as bob, server.client(server.tokens["alice"]) as alice:
            await bob.publish("jobs", "1")
            async with alice.subscribe("jobs", group="g") as held:
                delivery = await anext(aiter(held))
                assert delivery.attempt == 1
                began = time.monotonic()
                async with server.client(server.tokens["root"]) as root:
                    assert len(await root.backend.administer("token_revoke", {"which": "alice"})) == 1
                with pytest.raises((AccessRevoked, runnel.ConnectionLost)):
                    await anext(aiter(held))
                assert time.monotonic() - began < 30
        async with server.client(server.tokens["root"]) as root, root.subscribe("jobs", group="g") as others:
            again = await anext(aiter(others))
            assert (again.value, again.attempt) == (b"1", 2)
        with pytest.raises(NotAuthenticated):
            async with server.client(server.tokens["alice"]):
                pass


async def test_a_token_file_is_watched_and_a_reload_with_fewer_rights_ends_what_they_no_longer_allow(
    tmp_path: Path,
) -> None:
    rules = '[roles.r]\nallow = ["subscribe:a.>", "subscribe:b.>"]\n'
    made = Tokens()
    made.add("alice", roles=["r"])
    async with guarded(tmp_path, made, rules) as server, asyncio.timeout(PATIENCE):
        late, stored = make_token("late", random_bytes(), roles=["r"])
        server.files.write_tokens(server.files.read_tokens().with_token(stored))
        await until(lambda: len(server.auth.policy.tokens) == 2)
        async with server.client(server.tokens["alice"]) as alice, server.client(late) as other:
            async with alice.subscribe("a.>") as kept, alice.subscribe("b.>") as lost:
                server.files.file.write_text('[roles.r]\nallow = ["subscribe:a.>", "publish:a.>", "create:a.>"]\n')
                await server.server.reload()
                with pytest.raises(NotAuthorized, match=r"it may subscribe to 'a\.>'"):
                    await anext(aiter(lost))
                await other.publish("a.x", "1")
                assert (await anext(aiter(kept))).value == b"1"


async def test_a_wrong_file_changes_nothing_at_a_reload(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens("alice")) as server:
        for wrong in ("[roles", '[roles.x]\nallow = ["read:a"]\n', "[nothing]\n", '[roles.x]\nconsole = "boss"\n'):
            server.files.file.write_text(wrong)
            with pytest.raises(InvalidOption):
                await server.server.reload()
        async with server.client(server.tokens["alice"]) as alice:
            await alice.publish("a", "1")


async def test_a_client_refreshes_its_token_and_resumes_without_a_gap(tmp_path: Path) -> None:
    made = tokens("writer")
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        asked = 0

        async def token() -> str:
            nonlocal asked
            asked += 1
            text, stored = make_token("reader", random_bytes(), allow=ALL, expires=time.time() + 0.5)
            server.files.write_tokens(server.files.read_tokens().with_token(stored))
            known = server.auth
            await until(lambda: known.policy.tokens.get(stored.id) is not None)
            return text

        async with (
            server.client(server.tokens["writer"]) as writer,
            runnel.open(server.url(), token=token) as reader,
            reader.subscribe("t") as records,
        ):
            await writer.publish("t", "0")
            got = [(await anext(aiter(records))).value]
            for number in range(1, 4):
                before = asked
                await until(lambda seen=before: asked > seen)  # type: ignore[misc]
                await writer.publish("t", str(number))
                got.append((await anext(aiter(records))).value)
        assert got == [b"0", b"1", b"2", b"3"]


async def test_an_expired_token_ends_the_subscription_with_a_clear_error(tmp_path: Path) -> None:
    made = tokens()
    made.add("short", ALL, expires=time.time() + 1.0)
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with runnel.open(server.url(), token=server.tokens["short"]) as client, client.subscribe("t") as records:
            with pytest.raises((TokenExpired, runnel.ConnectionLost), match="token has expired"):
                await anext(aiter(records))


async def test_a_named_position_group_and_marker_belong_to_who_made_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for _ in range(2):  # and after a restart
        made = tokens("alice", "bob") if not (tmp_path / "auth.toml.tokens").exists() else None
        if made is not None:
            texts = made.texts
        async with guarded(tmp_path, made, broker=runnel.open(folder)) as server, asyncio.timeout(PATIENCE):
            async with server.client(texts["alice"]) as alice, server.client(texts["bob"]) as bob:
                await alice.publish("t", "x")
                async with alice.subscribe("t", name="mine"), alice.subscribe("t", group="ours"):
                    pass
                async with alice.transaction() as tx:
                    tx.mark("m", time.time_ns())
                await alice.producer("numbered").publish("t", "y")
                with pytest.raises(NameOwned):
                    async with bob.subscribe("t", name="mine"):
                        pass
                with pytest.raises(NameOwned):
                    async with bob.subscribe("t", group="ours"):
                        pass
                with pytest.raises(NameOwned):
                    async with bob.transaction() as tx:
                        tx.mark("m", time.time_ns())
                with pytest.raises(NameOwned):
                    await bob.producer("numbered").publish("t", "z")
                with pytest.raises(NotAuthorized):
                    await bob.forget("mine")
                with pytest.raises(NotAuthorized):
                    await bob.mark("m")
                assert await bob.marks() == {}


async def test_a_reply_or_dead_letter_topic_needs_the_right_of_the_principal_that_named_it(tmp_path: Path) -> None:
    made = tokens("handler")
    made.add("asker", ["publish:ask", "create:ask", "group:ask", "subscribe:ask", "publish:ask2", "create:ask2"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["asker"]) as asker, server.client(server.tokens["handler"]) as handler:
            await handler.publish("orders", "0")
            for publishing in (
                asker.publish("ask", "x", headers={"runnel-reply-to": "orders"}),
                asker.topic("ask").publish_many([b"x"], headers={"runnel-reply-to": "orders"}),
            ):
                with pytest.raises(NotAuthorized, match="'orders'"):
                    await publishing
            with pytest.raises(NotAuthorized, match="'orders'"):
                async with asker.transaction() as tx:
                    tx.publish("ask", "x", headers={"runnel-reply-to": "orders"})
            with pytest.raises(NotAuthorized, match="'orders'"):
                async with asker.subscribe("ask", group="g", dead_letter="orders"):
                    pass
            with pytest.raises(NotAuthorized, match="'orders'"):
                await asker.topic("ask2", dead_letter="orders").publish("x")
            async with handler.subscribe("ask", group="h") as requests:
                asking = asyncio.ensure_future(asker.request("ask", "?", timeout=PATIENCE))
                request = await anext(aiter(requests))
                await handler.reply(request, "!")  # an inbox is for who has the request
                assert (await asking).value == b"!"


async def test_partial_reads_what_is_allowed_and_moves_no_stored_position(tmp_path: Path) -> None:
    made = tokens("all")
    made.add("some", ["subscribe:a.>"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["all"]) as writer, server.client(server.tokens["some"]) as reader:
            await writer.publish("b.x", "hidden")
            await writer.publish("a.x", "seen")
            async with reader.subscribe(">", partial=True, start="earliest") as records:
                assert (await anext(aiter(records))).value == b"seen"
            with pytest.raises(InvalidOption, match="partial"):
                reader.subscribe(">", partial=True, name="n")
            with pytest.raises(InvalidOption, match="partial"):
                reader.subscribe(">", partial=True, group="g")


async def test_a_failed_login_is_slowed_down_and_logged_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.security.usage.FIRST_DELAY", 0.1)
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        secret = f"rnl_{'a' * 16}_{'b' * 64}"
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(NotAuthenticated) as refused:
                async with server.client(secret):
                    pass
            assert "b" * 64 not in str(refused.value)
        assert time.monotonic() - began >= 0.1 + 0.2 + 0.4
        events = await records_of(server, REFUSALS_TOPIC, "not_authenticated")
        assert events[-1]["kind"] == "login"
        assert events[-1]["listener"] == "native"
        assert "b" * 64 not in json.dumps(events)


async def test_refusals_alike_are_one_event_and_admin_actions_are_kept_apart(tmp_path: Path) -> None:
    made = tokens("writer")
    made.add("weak", ["publish:a"])
    async with guarded(tmp_path, made) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["weak"]) as weak:
            for _ in range(50):
                with pytest.raises(NotAuthorized):
                    await weak.publish("b", "x")
        async with server.client(server.tokens["writer"]) as writer:
            await writer.publish("doomed", "x")
        async with server.client(server.tokens["root"]) as root:
            await root.delete("doomed")
        refusals = await records_of(server, REFUSALS_TOPIC, '"weak"')
        assert sum(one.get("count", 1) for one in refusals if one["principal"] == "weak") >= 40
        assert len(refusals) <= 5
        events = await records_of(server, EVENTS_TOPIC, '"delete"')
        assert (events[-1]["principal"], events[-1]["target"]) == ("root", "doomed")
        assert not any(one["kind"] == "refusal" for one in events)


async def test_an_admin_action_that_cannot_be_logged_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path, tokens("alice")) as server:
        async with server.client(server.tokens["alice"]) as alice:
            await alice.publish("t", "x")

        async def broken(*_: Any) -> None:
            raise runnel.BrokerClosed("writing")

        monkeypatch.setattr(server.auth.log, "_write", broken)
        async with server.client(server.tokens["root"]) as root:
            with pytest.raises(AuditFailed):
                await root.delete("t")
            assert "t" in await root.topics()
        monkeypatch.undo()


async def test_limits_of_a_principal_are_named_and_rates_slow_it_down(tmp_path: Path) -> None:
    rules = """
[principals.small.limits]
connections = 2
subscriptions = 1
topics = 2
groups = 1
[principals.slow.limits]
publish_records = 10
"""
    async with guarded(tmp_path, tokens("small", "slow"), rules) as server, asyncio.timeout(PATIENCE):
        small = server.tokens["small"]
        async with server.client(small) as client:
            async with server.client(small):
                with pytest.raises(LimitExceeded, match="connections"):
                    async with server.client(small):
                        pass
            async with client.subscribe("a"):
                with pytest.raises(LimitExceeded, match="subscriptions"):
                    async with client.subscribe("b"):
                        pass
            async with client.subscribe("a", group="one"):
                pass
            with pytest.raises(LimitExceeded, match="groups"):
                async with client.subscribe("a", group="two"):
                    pass
            await client.publish("t1", "x")
            await client.publish("t2", "x")
            with pytest.raises(LimitExceeded, match="topics"):
                await client.publish("t3", "x")
        async with server.client(server.tokens["slow"]) as slow:
            began = time.monotonic()
            for _ in range(15):
                await slow.publish("t", "x")
            assert time.monotonic() - began > 0.3  # 5 records more than a second's worth, at 10 a second


async def test_storage_beyond_its_limit_is_refused(tmp_path: Path) -> None:
    rules = "[principals.small.limits]\nstorage_bytes = 1000\n"
    async with guarded(tmp_path, tokens("small"), rules) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["small"]) as client:

            async def fill() -> None:
                while True:
                    await client.publish("t", bytes(200))
                    await asyncio.sleep(0.05)

            with pytest.raises(LimitExceeded, match="storage_bytes"):
                await fill()


async def test_the_owner_of_the_folder_is_admin_at_the_unix_socket_and_others_by_rule(tmp_path: Path) -> None:
    # Not below pytest's own folder: it, and other runs of it, keep other users out of that.
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "socket"
    async with guarded(tmp_path, tokens(), unix=path) as server, asyncio.timeout(PATIENCE):
        async with runnel.open(f"runnel+unix://{path}", reconnect=False) as owner:
            await owner.publish("t", "x")
            assert (await owner.backend.administer("whoami", {}))["roles"] == ["admin"]
            await owner.delete("t")
        if os.geteuid() == 0:
            script = (
                "import os, asyncio, pwd, runnel\n"
                "async def main():\n"
                "    try:\n"  # everything is loaded now: this user cannot read the library
                "        async with runnel.open('runnel+unix:///nowhere', reconnect=False): pass\n"
                "    except runnel.RunnelError: os.setuid(65534)\n"
                "    try:\n"
                f"        async with runnel.open('runnel+unix://{path}', reconnect=False) as b:\n"
                "            print((await b.backend.administer('whoami', {}))['principal'])\n"
                "    except runnel.RunnelError as error: print(error.code)\n"
                "asyncio.run(main())\n"
            )
            os.chmod(folder.name, 0o755)
            assert await _as_other_user(script) == "not_authenticated"
            server.files.file.write_text('[principals.guest]\nunix = ["nobody"]\nallow = ["subscribe:x"]\n')
            await server.server.reload()
            assert await _as_other_user(script) == "guest"
    folder.cleanup()


async def _as_other_user(script: str) -> str:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd="/", env={**os.environ, "HOME": "/"}
    )
    out, _ = await process.communicate()
    return out.decode().strip()


async def test_a_gateway_checks_its_own_principals_and_shares_revocations(tmp_path: Path) -> None:
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
    behind = Tokens()
    behind.add("gateway", roles=["gateway"])
    ahead = tokens("alice")
    async with guarded(tmp_path / "back", behind) as back, asyncio.timeout(PATIENCE):
        remote = runnel.open(back.url(), token=back.tokens["gateway"])
        async with guarded(tmp_path / "front", ahead, broker=remote) as front:
            async with front.client(front.tokens["alice"]) as alice:
                await alice.publish("t", "x")
                with pytest.raises(NotAuthorized):
                    await alice.delete("t")
                async with alice.subscribe("t", name="mine") as named:
                    assert (await anext(aiter(named))).value == b"x"
                async with alice.subscribe("t", group="ours") as members:
                    await (await anext(aiter(members))).ack()
            async with back.client(back.tokens["gateway"]) as behind_it:
                assert await behind_it.mark("$access/owner/subscription/mine") == "alice"  # for every gateway
            async with front.client(front.tokens["root"]) as root:
                assert await root.topics() == ["t"]
                await root.delete("t")
            with pytest.raises(NotAuthenticated):
                async with front.client(back.tokens["gateway"]):
                    pass


async def test_json_lines_take_nothing_before_auth_and_end_with_the_token(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens("alice"), hello_timeout=PATIENCE) as server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        writer.write(line(command="PUB", topic="t", payload="x") + line(command="AUTH", token=server.tokens["alice"]))
        assert json.loads(await reader.readline())["code"] == "not_authenticated"
        assert json.loads(await reader.readline()) == {"event": "authenticated", "principal": "alice"}
        writer.write(line(command="SUB", topic="t"))
        assert json.loads(await reader.readline())["event"] == "subscribed"
        async with server.client(server.tokens["root"]) as root:
            await root.backend.administer("token_revoke", {"which": "alice"})
        said = await reader.read()
        assert b"access_revoked" in said
        writer.close()


async def test_a_tokens_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    file.write_text("")
    files = AuthFiles(file)
    tokens("a").write(files)
    assert files.tokens_file.stat().st_mode & 0o777 == 0o600
    files.tokens_file.chmod(0o644)
    async with runnel.open() as broker:
        with pytest.raises(InvalidOption, match="chmod 600"):
            async with Server(broker, ServerOptions(port=0, json_port=None, auth=file)):
                pass
