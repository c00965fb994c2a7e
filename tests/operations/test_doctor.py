"""`runnel doctor --server`: a server examines itself, for operators."""

import asyncio
import json
import time
from pathlib import Path

import pytest

import runnel
from runnel.cli.doctor import server_findings
from runnel.core.errors import NotAuthorized
from runnel.observe.checkup import certificate_end
from runnel.server import Server, ServerOptions
from runnel.server.access.files import AuthFiles
from runnel.server.options import TlsOptions
from tests.patience import PATIENCE
from tests.security.guarded import RULES, Tokens
from tests.server.certificates import Authority


async def test_a_server_examines_itself_for_operators_alone(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path / "ca").issue("server")  # for two days: near its end
    file, tokens = tmp_path / "auth.toml", Tokens()
    file.write_text(RULES)
    tokens.add("watcher", roles=["viewer"])
    tokens.add("ops", roles=["operator"], expires=time.time() + 3 * 86_400)
    tokens.write(AuthFiles(file))
    options = ServerOptions(port=0, json_port=None, auth=file, ssl=TlsOptions(cert=cert, key=key), unix=tmp_path / "s")
    async with runnel.open(tmp_path / "data") as broker, asyncio.timeout(PATIENCE):
        async with Server(broker, options, folder=tmp_path / "data") as server:
            await broker.publish("t", "x")
            url = f"runnels://localhost:{server.listeners[0].port}"
            ca = tmp_path / "ca" / "ca.pem"
            async with runnel.open(url, token=tokens.texts["watcher"], ca=ca, reconnect=False) as watcher:
                with pytest.raises(NotAuthorized):
                    await watcher.backend.administer("doctor", {})
            async with runnel.open(url, token=tokens.texts["ops"], ca=ca, reconnect=False) as ops:
                said = await ops.backend.administer("doctor", {})
            found = {one[0]: one for one in said["findings"]}
            assert found["certificate"][1] == "wrong"
            assert "runnel reload" in found["certificate"][3]
            assert found["fsync"][2].startswith("commit")
            assert server.serving is not None
            assert server.serving.certificate_end == certificate_end(cert)
            assert any(what.startswith("token ") and one[1] == "wrong" for what, one in found.items())
            assert any(what.startswith("file system of") for what in found)
            assert not any(token in json.dumps(said) for token in tokens.texts.values())
            local = await asyncio.to_thread(server_findings, f"runnel+unix://{tmp_path / 's'}")
            assert {one.what for one in local} >= {"answers", "clock of the server", "open files", "connections"}
