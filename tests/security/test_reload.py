"""A reload takes certificates, limits, keys and the log level, drops no connection, and is all or nothing."""

import asyncio
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import runnel
from runnel.core.errors import AccessRevoked, InvalidOption, LimitExceeded
from runnel.server import Server, ServerOptions
from runnel.server.options import TlsOptions
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded, line
from tests.server.certificates import Authority

JWT = """
[jwt]
issuer = "i"
audience = "a"
jwks = "keys.json"
allow = ["subscribe:>", "publish:>", "create:>"]
"""


def install(authority: Authority, name: str, folder: Path) -> TlsOptions:
    """Put a new certificate where the server's is."""
    cert, key = authority.issue(name)
    shutil.copy(cert, folder / "cert.pem")
    shutil.copy(key, folder / "key.pem")
    return TlsOptions(cert=folder / "cert.pem", key=folder / "key.pem")


async def subject(port: int, authority: Authority) -> str:
    """The name in the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("localhost", port, ssl=authority.trusting())
    shown = writer.get_extra_info("peercert")
    writer.close()
    return str(dict(part for group in shown["subject"] for part in group)["commonName"])


async def test_new_connections_get_the_new_certificate_and_limits_and_present_ones_stay(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    options = ServerOptions(port=0, json_port=0, ssl=install(authority, "first", tmp_path))
    async with runnel.open() as broker, Server(broker, options) as server, asyncio.timeout(PATIENCE):
        port = server.listeners[0].port
        url = f"runnels://localhost:{port}"
        async with runnel.open(url, ca=authority.cert, reconnect=False) as client:
            async with client.subscribe("t", start="earliest") as records:
                assert await subject(port, authority) == "first"
                install(authority, "second", tmp_path)
                await server.reload(ServerOptions(max_connections=2, max_subscriptions=1, port=1))
                assert await subject(port, authority) == "second"
                assert await subject(server.listeners[1].port, authority) == "second"
                await client.publish("t", "x")  # the connection is the one from before
                assert (await anext(aiter(records))).value == b"x"
                assert server.listeners[0].port == port  # no limit: it needs a restart
            async with client.subscribe("t"), client.subscribe("t"):
                pass  # its limits are those that it was told
            async with runnel.open(url, ca=authority.cert, reconnect=False) as late:
                assert (await late.info())["limits"]["max_subscriptions"] == 1
                with pytest.raises(LimitExceeded, match="max_subscriptions"):
                    async with late.subscribe("t"), late.subscribe("t"):
                        pass
                with pytest.raises(LimitExceeded, match="max_connections"):
                    async with runnel.open(url, ca=authority.cert, reconnect=False):
                        pass
            (tmp_path / "key.pem").write_text("no key")
            with pytest.raises(InvalidOption, match="cert"):
                await server.reload(ServerOptions(max_subscriptions=7))
            assert await subject(port, authority) == "second"
            assert server.options.max_subscriptions == 1
            await client.publish("t", "y")


async def test_a_login_ends_with_the_key_that_signed_its_token(tmp_path: Path) -> None:
    def install_keys(*keys: ec.EllipticCurvePrivateKey) -> None:
        made = jwt.get_algorithm_by_name("ES256")
        listed = [json.loads(made.to_jwk(one.public_key())) for one in keys]
        (tmp_path / "keys.json").write_text(json.dumps({"keys": listed}))

    def signed(key: ec.EllipticCurvePrivateKey, name: str) -> str:
        claims = {"iss": "i", "aud": "a", "sub": name, "exp": time.time() + 600}
        return jwt.encode(claims, key, "ES256")

    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    tokens = Tokens()
    tokens.add("root", roles=["admin"])
    async with guarded(tmp_path, tokens, "") as server, asyncio.timeout(PATIENCE):
        (tmp_path / "auth.toml").write_text(JWT)
        install_keys(old, new)
        await server.server.reload()  # JWTs are new to it: its keys are read at once
        async with server.client(signed(old, "ann")) as ann, server.client(signed(new, "bob")) as bob:
            async with ann.subscribe("t") as hers, bob.subscribe("t") as his:
                install_keys(new)
                await server.server.reload()
                with pytest.raises(AccessRevoked):
                    await anext(aiter(hers))
                await bob.publish("t", "x")
                assert (await anext(aiter(his))).value == b"x"
                (tmp_path / "auth.toml").write_text(JWT.replace('"a"', '"b"'))
                await server.server.reload()  # for another audience: the token is not for this server any more
                with pytest.raises(AccessRevoked):
                    await anext(aiter(his))
        (tmp_path / "auth.toml").write_text(JWT)
        (tmp_path / "keys.json").write_text("{}")
        with pytest.raises(InvalidOption):
            await server.server.reload()
        async with server.client(server.tokens["root"]) as root:
            await root.topics()


async def test_keys_are_read_again_on_their_schedule_and_end_logins_too(tmp_path: Path) -> None:
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    made = jwt.get_algorithm_by_name("ES256")
    keys = [json.dumps({"keys": [json.loads(made.to_jwk(one.public_key()))]}) for one in (key, other)]
    (tmp_path / "keys.json").write_text(keys[0])
    token = jwt.encode({"iss": "i", "aud": "a", "sub": "ann", "exp": time.time() + 600}, key, "ES256")
    async with guarded(tmp_path, None, f"{JWT}refresh = 1.0\n") as server, asyncio.timeout(PATIENCE):
        async with server.client(token) as ann, ann.subscribe("t") as records:
            (tmp_path / "keys.json").write_text(keys[1])
            with pytest.raises(AccessRevoked):
                await anext(aiter(records))


async def test_a_wrong_token_on_a_connection_that_is_logged_in_is_logged_as_a_failed_login(tmp_path: Path) -> None:
    tokens = Tokens()
    tokens.add("ann", ["publish:>"])
    tokens.add("root", roles=["admin"])
    async with guarded(tmp_path, tokens) as server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        for token in (server.tokens["ann"], "rnl_wrong", server.tokens["root"]):
            writer.write(line(command="AUTH", token=token))
        answers = [json.loads(await reader.readline()) for _ in range(3)]
        assert [one.get("code") for one in answers if one["event"] == "error"] == ["not_authenticated"] * 2
        writer.close()
        async with server.client(server.tokens["root"]) as root:
            async with root.subscribe("$runnel.refusals", start="earliest") as refusals:
                failed = json.loads((await anext(aiter(refusals))).value)
        assert (failed["kind"], failed["listener"], failed["count"]) == ("login", "json", 2)


async def test_a_server_process_reloads_its_configuration_at_a_hangup_and_for_the_command(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    install(authority, "first", tmp_path)
    config = tmp_path / "runnel.toml"

    def configure(level: str, subscriptions: int, port: int = 0) -> None:
        config.write_text(
            f'data = "{tmp_path / "data"}"\n[serve]\nport = {port}\njson_port = "off"\nhttp_port = "off"\n'
            f'log_level = "{level}"\nlog_format = "json"\nmax_subscriptions = {subscriptions}\n'
            f'tls_cert = "{tmp_path / "cert.pem"}"\ntls_key = "{tmp_path / "key.pem"}"\n'
        )

    configure("error", 10)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runnel", "serve", "--config", str(config), "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            assert process.stdout is not None
            assert process.stderr is not None
            port = json.loads(await process.stdout.readline())["listeners"][0]["port"]
            url = f"runnels://localhost:{port}"
            async with runnel.open(url, ca=authority.cert, reconnect=False) as client:
                install(authority, "second", tmp_path)
                configure("info", 1, port=1)
                process.send_signal(signal.SIGHUP)
                logged = json.loads(await process.stderr.readline())
                assert logged["message"].endswith("act after a restart: serve.port")
                assert await subject(port, authority) == "second"
                assert (await client.info())["limits"]["max_subscriptions"] == 1
                configure("loud", 1)
                process.send_signal(signal.SIGHUP)
                assert "everything stays as it was" in json.loads(await process.stderr.readline())["message"]
                configure("error", 3)
                await client.backend.administer("reload", {})
                assert (await client.info())["limits"]["max_subscriptions"] == 3
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0
