"""What clients of NATS may do on a server with `--auth`."""

from __future__ import annotations

from pathlib import Path

from tests.security.guarded import Guarded, Tokens, guarded
from tests.server.native_client import until
from tests.server.nats.raw import RawClient, raw

SECRET = b"_INBOX.0123456789abcdefghijkl"


async def connected(server: Guarded, name: str, client: RawClient, **options: str) -> list[bytes]:
    await client.connect(**({"auth_token": server.tokens[name]} | options))
    client.send(b"PING")
    return [await client.line()]


def tokens() -> Tokens:
    made = Tokens()
    made.add("writer", ["publish:a.>", "create:a.>"])
    made.add("reader", ["subscribe:a.>", "group:a.>"])
    made.add("service", ["subscribe:a.>", "publish:$SRV.>"])
    return made


async def test_a_token_may_be_in_any_field_and_a_user_has_to_be_the_one_of_the_token(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server:
        token = server.tokens["writer"]
        for options in ({}, {"auth_token": "", "pass": token, "user": "writer"}, {"auth_token": "", "jwt": token}):
            async with raw(server.server, connected=False) as client:
                assert await connected(server, "writer", client, **options) == [b"PONG\r\n"]
        async with raw(server.server, connected=False) as client:
            said = {"auth_token": "", "pass": token, "user": "reader"}
            assert await connected(server, "writer", client, **said) == [b"-ERR 'Authorization Violation'\r\n"]


async def test_nothing_is_done_before_a_login(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, raw(server.server, connected=False) as client:
        assert b'"auth_required":true' in await client.line()
        client.send(b"SUB > 1")
        assert (await client.rest()) == b"-ERR 'Authorization Violation'\r\n"


async def test_inboxes_are_for_those_that_know_their_names(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server:
        async with raw(server.server, connected=False) as asker, raw(server.server, connected=False) as service:
            await connected(server, "writer", asker)
            await connected(server, "service", service)
            service.send(b"SUB a.> 1", b"SUB _INBOX.> 2", b"SUB _INBOX.* 3", b"SUB > 4")
            refused = await service.lines_before_pong()
            assert [b"Permissions Violation for Subscription" in line for line in refused] == [True] * 3
            asker.send(b"SUB " + SECRET + b".* 1", b"PUB a.b " + SECRET + b".1 1", b"?")
            assert await asker.lines_before_pong() == []
            assert await service.lines_before_pong() == [b"MSG a.b 1 " + SECRET + b".1 1\r\n", b"?\r\n"]
            service.send(b"PUB " + SECRET + b".1 1", b"!", b"PUB _INBOX.short 1", b"x", b"PUB $SRV.PING 0", b"")
            assert len(await service.lines_before_pong()) == 1, "and an inbox that could be guessed needs the right"
            assert await asker.lines_before_pong() == [b"MSG " + SECRET + b".1 1 1\r\n", b"!\r\n"]


async def test_a_queue_group_without_members_is_for_the_next_client(tmp_path: Path) -> None:
    made = tokens()
    made.add("another", ["subscribe:a.>", "group:a.>"])
    async with guarded(tmp_path, made) as server:
        for name in ("reader", "another"):
            async with raw(server.server, connected=False) as client:
                await connected(server, name, client)
                client.send(b"SUB a.b q 1")
                assert await client.lines_before_pong() == [], name
                assert server.auth.owners.owner("group", "nats:q a.b") is not None
            await until(lambda: server.auth.owners.owner("group", "nats:q a.b") is None)


async def test_a_subscription_ends_with_the_right_to_it_and_a_connection_with_its_token(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, raw(server.server, connected=False) as client:
        await connected(server, "reader", client)
        client.send(b"SUB a.> 1", b"SUB a.b q 2")
        assert await client.lines_before_pong() == []
        Tokens().write(server.files)
        await server.server.reload()
        assert b"-ERR 'User Authentication Revoked'\r\n" in await client.rest()


async def test_a_client_that_publishes_faster_than_it_may_is_read_from_later(tmp_path: Path) -> None:
    rules = "[limits]\npublish_records = 20\n"
    async with guarded(tmp_path, tokens(), rules=rules) as server, raw(server.server, connected=False) as client:
        await connected(server, "writer", client)
        loop = server.server.broker.clock
        began = loop.time()
        for _ in range(30):
            client.send(b"PUB a.b 1", b"x")
            assert await client.lines_before_pong() == []
        assert loop.time() - began > 0.25


async def test_a_reply_subject_needs_the_right_of_the_client_that_names_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, raw(server.server, connected=False) as client:
        await connected(server, "writer", client)
        for reply in (b"orders", b"$SRV.x", b"_INBOX.short"):
            client.send(b"PUB a.b " + reply + b" 1", b"?", b"PUB $SYS.b " + reply + b" 1", b"?")
            refused = await client.lines_before_pong()
            assert [b"Permissions Violation for Publish" in line for line in refused] == [True, True], reply
        client.send(b"PUB a.b " + SECRET + b" 1", b"?", b"PUB a.b a.c 1", b"?")
        assert await client.lines_before_pong() == []
