"""TLS to a nats-server: after its greeting or before it, with a client's certificate, and refused where it must be."""

from pathlib import Path
from typing import Any

import pytest

import runnel
from tests.cluster.nodes import Node
from tests.server.certificates import Authority


@pytest.mark.parametrize("first", [False, True], ids=["after the greeting", "handshake first"])
async def test_a_client_shows_its_certificate_and_trusts_its_authority_alone(tmp_path: Path, first: bool) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    cert, key = authority.issue("server")
    own_cert, own_key = authority.issue("client")
    said = "handshake_first: true" if first else ""
    config = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.cert}", verify: true, {said} }}'
    node = Node("n", tmp_path / "n", config)
    node.start()
    try:
        node.ready()
        own: dict[str, Any] = {
            "cert": str(own_cert),
            "key": str(own_key),
            "handshake_first": first,
            "monitor": node.monitor,
        }
        async with runnel.open(node.url, ca=str(authority.cert), **own) as broker:
            await broker.publish("t", bytes(300_000))
            async with broker.subscribe("t", start="earliest") as records:
                assert len((await anext(records)).value) == 300_000
        for wrong in ({"ca": str(stranger.cert), **own}, {"ca": str(authority.cert), "handshake_first": first}):
            with pytest.raises(runnel.RunnelError):
                async with runnel.open(node.url, wait=0.1, **wrong):
                    pass
    finally:
        node.stop()
