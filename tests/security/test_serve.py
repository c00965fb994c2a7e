"""`runnel serve --auth` in a process of its own: what it prints, what it refuses, and SIGHUP."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

import runnel
from runnel.core.errors import NotAuthenticated, NotAuthorized
from runnel.server.access.files import AuthFiles
from tests.patience import PATIENCE
from tests.security.guarded import Tokens


async def test_a_server_with_auth_says_so_keeps_its_log_and_reads_its_rules_again_at_a_hangup(tmp_path: Path) -> None:
    file, folder = tmp_path / "auth.toml", tmp_path / "data"
    file.write_text('[roles.r]\nallow = ["publish:a"]\n')
    tokens = Tokens()
    tokens.add("alice", roles=["r"])
    tokens.add("root", roles=["admin"])
    tokens.write(AuthFiles(file))
    command = (sys.executable, "-m", "runnel", "serve", "--data", str(folder), "--auth", str(file))
    ports = ("--host", "0.0.0.0", "--port", "0", "--json-port", "off", "--http-port", "off", "--json")
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *command, *ports, "--log-format", "json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                assert process.stdout is not None
                ready = json.loads(await process.stdout.readline())
                url = f"runnel://127.0.0.1:{ready['listeners'][0]['port']}"
                with pytest.raises(NotAuthenticated):
                    async with runnel.open(url, reconnect=False):
                        pass
                async with runnel.open(url, token=tokens.texts["alice"]) as alice:
                    with pytest.raises(NotAuthorized):
                        await alice.publish("b", "x")
                    file.write_text('[roles.r]\nallow = ["publish:b", "create:b"]\n')
                    process.send_signal(signal.SIGHUP)
                    while True:
                        try:
                            await alice.publish("b", "x")
                            break
                        except NotAuthorized:
                            await asyncio.sleep(0.02)
                async with runnel.open(folder) as owner:  # at the socket of the folder: its owner
                    assert await owner.topics() == ["b"]
                async with runnel.open(url, token=tokens.texts["root"]) as root:
                    async with root.subscribe("$runnel.logins", start="earliest") as events:
                        first = json.loads((await anext(aiter(events))).value)
                        assert (first["kind"], first["principal"]) == ("login", "alice")
                    await root.delete("b")
        finally:
            process.terminate()
            _, errors = await process.communicate()
        assert process.returncode == 0, errors
        logged = [json.loads(one) for one in errors.decode().splitlines()]
        assert any('"kind":"admin"' in one["message"] for one in logged)
        file.write_text('[roles.r]\nallow = ["publish:a"]\n')


def test_the_banner_tells_the_truth(tmp_path: Path) -> None:
    from runnel.cli.server_process import announcement
    from runnel.config.settings import load
    from runnel.server.served_broker import ListenerAddress

    settings = load({"serve.auth": str(tmp_path / "a.toml"), "serve.host": "0.0.0.0"}, {}, None)
    listener = ListenerAddress("native", "runnel://0.0.0.0:7788", "0.0.0.0", 7788)
    said = announcement([listener], settings, "1")
    assert "Authentication is on" in said
    assert "0.0.0.0" in said
    assert "Authentication is off" not in said
    assert "TLS is off: what is sent over the network, tokens too, can be read on the way." in said
    assert "token create" in said
    assert "Commands that your user runs on the folder 'data' need no token" in said
