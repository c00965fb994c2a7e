"""No secret in a process list, log, error, traceback, URL or metric; nothing that a peer chose acts on a terminal."""

import asyncio
import contextlib
import io
import logging
import pickle
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel.cli.main import main
from runnel.client.options import ClientOptions
from runnel.core.errors import InvalidOption, NotAuthenticated, NotAuthorized, RunnelError
from runnel.spark.connection import open_connection
from runnel.spark.options import SourceOptions
from runnel.wire.json_commands import parse
from runnel.wire.msgpack_messages import Hello
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded
from tests.server.certificates import Authority

SECRET = f"rnl_{'5' * 16}_{'e' * 64}"


def tokens() -> Tokens:
    made = Tokens()
    made.add("alice", ["publish:t", "create:t", "subscribe:t", "group:t"])
    made.add("root", roles=["admin"])
    return made


def test_options_and_messages_hide_the_token() -> None:
    options = ClientOptions.of({"token": SECRET})
    shown = [repr(options), str(options), repr(Hello(version=1, token=SECRET))]
    shown.append(repr(parse(b'{"command":"AUTH","token":"%b"}' % SECRET.encode())))
    with pytest.raises(InvalidOption) as refused:
        runnel.open(f"runnel://h?token={SECRET}")
    shown.append("".join(traceback.format_exception(refused.value)).replace(f"?token={SECRET}", "", 1))
    for wrong in (f"{SECRET}\n", 7, b"x", ""):
        with pytest.raises(InvalidOption) as refused:
            ClientOptions.of({"token": wrong})
        shown.append(str(refused.value))
    location = SourceOptions.parse({"url": "runnel://h", "topic": "a", "token": SECRET}).location
    shown.append(repr(location))
    assert pickle.loads(pickle.dumps(location)).client["token"] == SECRET
    assert "e" * 64 not in "\n".join(shown)


async def test_neither_logs_nor_errors_nor_metrics_hold_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "runnel")
    shown: list[str] = []
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        for token in (SECRET, server.tokens["alice"]):
            with contextlib.suppress(RunnelError):
                async with server.client(token) as client:
                    shown.append(repr(client))
                    await client.publish("secret", "x")
            async with httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE) as web:
                answer = await web.get("/topics/none/records", headers={"authorization": f"Bearer {token}"})
                shown.append(answer.text)
                shown.append((await web.get(f"/events?topic=t&ticket={token}")).text)
                root = {"authorization": f"Bearer {server.tokens['root']}"}
                shown.append((await web.get("/metrics", headers=root)).text)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
            writer.write(b'{"command": "AUTH", "token": "%b", "typo": 1}\n{"command":"QUIT"}\n' % token.encode())
            shown.append((await reader.read()).decode())
            writer.close()
        async with server.client(server.tokens["root"]) as root_client:
            shown.append(repr(await root_client.backend.administer("connections", {})))
            shown.append(repr(await root_client.backend.administer("token_list", {})))
        texts = [SECRET, *server.tokens.values()]
    logged = "\n".join(shown + [record.getMessage() for record in caplog.records])
    for text in texts:
        assert text.rpartition("_")[2] not in logged


async def test_a_command_takes_its_token_from_a_file_or_the_environment_and_shows_it_nowhere(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        file = tmp_path / "alice.token"
        file.write_text(f"{server.tokens['alice']}\n")
        url = server.url()
        code, text = await run("pub", "t", "hello", "--server", url, "--token-file", str(file))
        assert code == 0, text
        code, text = await run("pub", "t", "again", "--server", url, RUNNEL_TOKEN=server.tokens["alice"])
        assert code == 0, text
        code, text = await run("pub", "t", "no", "--server", url, RUNNEL_TOKEN=SECRET)
        assert code == 1
        assert "not_authenticated" in text
        assert "e" * 64 not in text
        code, text = await run("topic", "delete", "t", "--yes", "--server", url, RUNNEL_TOKEN=server.tokens["alice"])
        assert (code, "not_authorized" in text) == (1, True), text
        code, text = await run("token", "create", "new", "--allow", "subscribe:t", "--server", url,
                               RUNNEL_TOKEN=server.tokens["root"])  # fmt: skip
        assert code == 0, text
        made = text.strip().splitlines()[-1]
        async with server.client(made) as client, client.subscribe("t", start="earliest") as records:
            assert (await anext(aiter(records))).value == b"hello"
        code, text = await run("token", "list", "--server", url, RUNNEL_TOKEN=server.tokens["root"])
        assert (code, "subscribe:t" in text) == (0, True), text
        assert made.rpartition("_")[2] not in text
        code, text = await run("token", "revoke", "new", "--server", url, RUNNEL_TOKEN=server.tokens["root"])
        assert code == 0, text
        with pytest.raises(NotAuthenticated):
            async with server.client(made):
                pass
        code, text = await run("reload", "--server", url, RUNNEL_TOKEN=server.tokens["root"])
        assert code == 0, text
        code, text = await run("security-log", "--server", url, RUNNEL_TOKEN=server.tokens["root"])
        assert code == 0, text
        assert "create token" in text
        assert "revoke token" in text
        code, text = await run("security-log", "--server", url, RUNNEL_TOKEN=server.tokens["alice"])
        assert (code, "not_authorized" in text) == (1, True), text


async def run(*words: str, **environment: str) -> tuple[int, str]:
    """A command, beside the server's loop; its exit code and all that it printed."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        for name, value in environment.items():
            patch.setenv(name, value)
        code = await asyncio.to_thread(main, words)
    return code, out.getvalue()


def test_tokens_are_made_listed_and_revoked_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    file.write_text('[roles.writer]\nallow = ["publish:orders.>"]\n')

    def command(*words: str) -> tuple[int, str]:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            return main(["token", *words, "--auth", str(file)]), out.getvalue()

    code, made = command("create", "web", "--role", "writer", "--allow", "subscribe:a", "--expires", "1d")
    assert (code, made[:4]) == (0, "rnl_"), made
    assert (tmp_path / "auth.toml.tokens").stat().st_mode & 0o777 == 0o600
    assert made.strip().rpartition("_")[2] not in (tmp_path / "auth.toml.tokens").read_text()
    assert "writer" in command("list")[1]
    assert command("revoke", "web")[0] == 0
    assert "no tokens" in command("list")[1]
    for wrong in (
        ("create", "x", "--allow", "read:a"),
        ("create", "x", "--role", "nothing"),
        ("create", "x\x1b[2J"),
        ("revoke", "web"),
        ("create", "x", "--expires", "soon"),
    ):
        code, said = command(*wrong)
        assert code == 2, said
        assert "\x1b" not in said


NASTY = ["a\nb", "a\r\nSet-Cookie: x=1", "\x1b[31mred", "<script>alert(1)</script>", "../../etc/passwd", "a\x00b", "‮x"]


async def test_names_headers_and_topics_of_peers_forge_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "runnel")
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["root"]) as root:
            for name in NASTY[:3] + NASTY[5:6]:
                with pytest.raises(InvalidOption):
                    await root.backend.administer("token_create", {"name": name})
        async with httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE) as web:
            headers = {"authorization": f"Bearer {server.tokens['alice']}"}
            for text in NASTY:
                answer = await web.get("/events", params={"topic": text}, headers=headers)
                assert answer.status_code in (400, 403)
                assert answer.headers["content-type"] == "application/problem+json"
                assert "set-cookie" not in answer.headers
                assert "\x1b" not in answer.text
                answer = await web.post("/login", data={"token": text})
                assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
                assert text not in answer.text
        await _refuse_all(server)
        code, text = await run("security-log", "--refusals", "--server", server.url(),
                               RUNNEL_TOKEN=server.tokens["root"])  # fmt: skip
        assert code == 0
        assert "\x1b" not in text
        assert all(line[:2] == "20" for line in text.splitlines()), text  # each is a line of the log
    assert all("\n" not in one.getMessage() for one in caplog.records if one.name == "runnel.security")


async def _refuse_all(server: Guarded) -> None:
    async with server.client(server.tokens["alice"]) as client:
        for text in ("x.<b", "x.'quoted'"):
            with pytest.raises(NotAuthorized):
                await client.publish(text, "x")
        with contextlib.suppress(RunnelError):
            await client.backend.administer("forget", {"name": "\x1b[2J\nroot did it"})
    assert server.auth.log is not None
    server.auth.log.flush()


async def test_a_client_certificate_names_a_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("localhost")
    alice, bob = authority.issue("alice"), authority.issue("bob")
    rules = '[mtls]\nrequired = false\n[principals.alice]\nallow = ["publish:t", "create:t"]\n'
    from runnel.server.options import TlsOptions

    tls = TlsOptions(cert=cert, key=key, client_ca=authority.cert)
    async with guarded(tmp_path, tokens(), rules, ssl=tls) as server, asyncio.timeout(PATIENCE):
        url = f"runnels://localhost:{server.port('native')}"

        def client(files: tuple[Path, Path] | None, **more: Any) -> Any:
            shown: dict[str, Any] = {} if files is None else {"cert": str(files[0]), "key": str(files[1])}
            return runnel.open(url, ca=str(authority.cert), reconnect=False, **shown, **more)

        async with client(alice) as connected:
            await connected.publish("t", "x")
        async with client(bob) as connected:
            with pytest.raises(NotAuthorized, match="'bob' may not publish"):
                await connected.publish("t", "x")
        with pytest.raises(NotAuthenticated):
            async with client(None):
                pass
        async with client(None, token=server.tokens["alice"]) as connected:
            await connected.publish("t", "x")
        async with httpx.AsyncClient(verify=authority.trusting(alice), timeout=PATIENCE) as web:
            posted = await web.post(f"https://localhost:{server.port('http')}/topics/t", content=b"x")
            assert posted.status_code == 201
    async with guarded(tmp_path, None, "[mtls]\n", ssl=tls) as server, asyncio.timeout(PATIENCE):
        with pytest.raises(RunnelError):  # a certificate is required, unless the file says otherwise
            async with runnel.open(
                f"runnels://localhost:{server.port('native')}",
                ca=str(authority.cert),
                reconnect=False,
                token=tokens().texts["alice"],
            ):
                pass


async def test_a_task_of_spark_logs_in_with_a_token_or_a_file_that_is_read_at_every_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        file = tmp_path / "spark.token"

        def ask(**options: str) -> Any:
            location = SourceOptions.parse({"url": server.url(), "topic": "t", "wait": "0.1", **options}).location
            with open_connection(location) as connection:
                return connection.ask("whoami")

        assert (await asyncio.to_thread(ask, token=server.tokens["alice"]))["principal"] == "alice"
        file.write_text(SECRET)
        with pytest.raises(NotAuthenticated):
            await asyncio.to_thread(ask, tokenFile=str(file))
        file.write_text(server.tokens["alice"])
        assert (await asyncio.to_thread(ask, tokenFile=str(file)))["principal"] == "alice"
