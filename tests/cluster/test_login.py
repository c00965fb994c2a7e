"""Who a client is, told to a real nats-server: user and password, token, nkey, creds and a certificate."""

import json
from base64 import b32encode, urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import runnel
from runnel.wire.nats_auth import Nkey, _crc16
from tests.cluster.nodes import Node
from tests.server.certificates import Authority
from tests.wire.test_nats_auth import seed_of

SEED = seed_of(bytes(range(32)))


class Identity:
    """An operator, account or user of NATS that signs JWTs."""

    def __init__(self, kind: int, raw: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        body = bytes([kind << 3]) + self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = _base32(body + _crc16(body).to_bytes(2, "little"))

    def jwt(self, subject: str, name: str, about: dict[str, Any]) -> str:
        """What this identity says of another one, or of itself."""
        claims = {"iat": 1_700_000_000, "iss": self.public, "name": name, "sub": subject, "nats": about}
        claims["jti"] = _base32(sha256(json.dumps(claims).encode()).digest())
        head = _base64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        said = f"{head}.{_base64(json.dumps(claims).encode())}"
        return f"{said}.{_base64(self._key.sign(said.encode()))}"


def _base32(data: bytes) -> str:
    return b32encode(data).rstrip(b"=").decode()


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def creds(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A server that trusts an operator, the creds of a user of it, and those of a user that another account signed."""
    operator, account, system = Identity(14, bytes(32)), Identity(0, b"\x01" * 32), Identity(0, b"\x02" * 32)
    unlimited = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "max_ack_pending": -1}
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1}
    about = {"type": "account", "version": 2, "limits": {**limits, "leaf": -1, **unlimited}}
    said = operator.jwt(operator.public, "O", {"type": "operator", "version": 2, "system_account": system.public})
    plain = {"type": "account", "version": 2, "limits": {**limits, "leaf": -1}}
    known = {
        account.public: operator.jwt(account.public, "A", about),
        system.public: operator.jwt(system.public, "SYS", plain),
    }
    preload = ", ".join(f"{public}: {token}" for public, token in known.items())
    config = f"operator: {said}\nsystem_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{ {preload} }}"
    found: list[dict[str, Any]] = []
    for signer, name in ((account, "user"), (Identity(0, b"\x03" * 32), "stranger")):
        token = signer.jwt(
            Nkey(SEED).public, name, {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        )
        path = folder / f"{name}.creds"
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
        )
        found.append({"creds": str(path)})
    return config, found[0], found[1]


def certificate(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A server that knows its users by their certificates."""
    authority = Authority(folder / "ca")
    cert, key = authority.issue("server")
    files = {name: dict(zip(("cert", "key"), map(str, authority.issue(name)), strict=True)) for name in ("me", "you")}
    config = (
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.cert}", verify_and_map: true }}\n'
        'authorization { users: [ { user: "CN=me" } ] }'
    )
    own = {"ca": str(authority.cert)}
    return config, own | files["me"], own | files["you"]


def configured(way: str, folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A configuration, what logs in there, and what does not."""
    if way == "user":
        right = {"user": "me", "password": "p@ss"}
        return 'authorization { user: "me", password: "p@ss" }', right, {"user": "me", "password": "pass"}
    if way == "token":
        return 'authorization { token: "secret" }', {"token": "secret"}, {"token": "other"}
    if way == "nkey":
        known = f"authorization {{ users: [ {{ nkey: {Nkey(SEED).public} }} ] }}"
        path = folder / "seed"
        path.write_text(SEED)
        return known, {"nkey": str(path)}, {"nkey": seed_of(bytes(32))}
    return creds(folder) if way == "creds" else certificate(folder)


@pytest.mark.parametrize("way", ["user", "token", "nkey", "creds", "certificate"])
async def test_a_client_says_who_it_is_and_is_refused_otherwise(tmp_path: Path, way: str) -> None:
    config, right, wrong = configured(way, tmp_path)
    node = Node("n", tmp_path / "n", config)
    node.start()
    try:
        node.ready()
        async with runnel.open(node.url, monitor=node.monitor, **right) as broker:
            await broker.publish("t", b"x")
        own = {name: value for name, value in right.items() if name == "ca"}
        for options in (wrong, own):
            with pytest.raises(runnel.RunnelError, match=r"Authorization|certificate required"):
                async with runnel.open(node.url, monitor=node.monitor, wait=0.1, **options):
                    pass
    finally:
        node.stop()
