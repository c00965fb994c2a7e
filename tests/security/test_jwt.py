"""JWTs: keys pinned to their algorithms, claims that are checked, and rights that are made of them."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

import runnel
from runnel.core.errors import InvalidOption, NotAuthenticated, NotAuthorized, TokenExpired
from runnel.security.jwt_claims import (
    JwtConfig,
    granted_by_claims,
    key_of_secret,
    keys_of_jwks,
    principal_of_claims,
    verify,
)
from runnel.server.access.files import AuthFiles
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tests.server.certificates import Authority

CONFIG = JwtConfig(audience="runnel", issuer="https://id.example", jwks="keys.json", leeway=10.0)
NOW = 1_800_000_000.0
GOOD = {"sub": "u1", "aud": "runnel", "iss": "https://id.example", "exp": NOW + 60}
SECRET = b"a secret of more than thirty-two bytes, shared"

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SIGNERS: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def jwks(**more: Any) -> bytes:
    entries = []
    for algorithm, key in SIGNERS.items():
        made: Any = jwt.get_algorithm_by_name(algorithm)
        entries.append(json.loads(made.to_jwk(key.public_key())) | {"kid": algorithm, "alg": algorithm} | more)
    return json.dumps({"keys": entries}).encode()


KEYS = keys_of_jwks(jwks())


def signed(claims: dict[str, Any], algorithm: str = "ES256", **headers: Any) -> str:
    return jwt.encode(claims, SIGNERS[algorithm], algorithm, headers={"kid": algorithm, **headers})


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_a_token_of_each_algorithm_is_verified_by_its_own_key(algorithm: str) -> None:
    assert verify(signed(GOOD, algorithm), CONFIG, KEYS, NOW).claims["sub"] == "u1"


def test_a_shared_secret_verifies_hs256_alone_and_only_where_it_is_configured() -> None:
    token = jwt.encode(GOOD, SECRET, "HS256")
    assert verify(token, CONFIG, [key_of_secret(SECRET)], NOW).claims["sub"] == "u1"
    with pytest.raises(NotAuthenticated):
        verify(token, CONFIG, KEYS, NOW)
    with pytest.raises(NotAuthenticated):
        verify(signed(GOOD), CONFIG, [key_of_secret(SECRET)], NOW)
    with pytest.raises(InvalidOption):
        key_of_secret(b"short")


def test_a_public_key_is_never_used_as_a_secret_and_none_is_no_algorithm() -> None:
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac
    from base64 import urlsafe_b64encode

    def part(found: Any) -> bytes:
        return urlsafe_b64encode(json.dumps(found).encode()).rstrip(b"=")

    for header in ({"alg": "HS256", "kid": "RS256"}, {"alg": "none"}, {"alg": "HS512"}, {"alg": ["ES256"]}, {}):
        body = part({"typ": "JWT", **header}) + b"." + part(GOOD)
        mac = urlsafe_b64encode(hmac.new(pem, body, hashlib.sha256).digest()).rstrip(b"=")
        for forged in (body + b"." + mac, body + b"."):
            with pytest.raises(NotAuthenticated):
                verify(forged.decode(), CONFIG, KEYS, NOW)


def test_secrets_and_damaged_keys_in_a_jwks_are_left_out() -> None:
    oct_key = {"kty": "oct", "k": "AAAA", "kid": "x", "alg": "HS256"}
    broken = {"kty": "RSA", "n": "!", "e": "AQAB"}
    document = json.loads(jwks())
    document["keys"] += [oct_key, broken, {"kty": "EC", "crv": "P-521"}, "text", {"use": "enc", "kty": "RSA"}]
    assert len(keys_of_jwks(json.dumps(document).encode())) == 3
    for data in (b"", b"[]", b"{}", b'{"keys": 7}', b'{"keys": []}', json.dumps({"keys": [oct_key]}).encode()):
        with pytest.raises(InvalidOption):
            keys_of_jwks(data)


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": None},
        {"exp": "tomorrow"},
        {"nbf": NOW + 100},
        {"nbf": "now"},
    ],
)
def test_a_token_for_others_or_without_an_end_is_refused(change: dict[str, Any]) -> None:
    claims = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(NotAuthenticated):
        verify(signed(claims), CONFIG, KEYS, NOW)


def test_a_token_that_asks_for_extensions_is_refused() -> None:
    asking: list[dict[str, Any]] = [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": ["b64"], "b64": True}]
    for headers in asking:
        with pytest.raises(NotAuthenticated):
            verify(signed(GOOD, **headers), CONFIG, KEYS, NOW)


def test_a_token_is_in_force_until_its_end_and_the_leeway() -> None:
    token = signed(GOOD)
    assert verify(token, CONFIG, KEYS, NOW + 69)
    with pytest.raises(TokenExpired):
        verify(token, CONFIG, KEYS, NOW + 70)
    assert verify(signed(GOOD | {"nbf": NOW + 9}), CONFIG, KEYS, NOW)


def test_claims_become_a_principal_roles_and_topics() -> None:
    config = JwtConfig(
        audience="a", issuer="i", jwks="k", roles="roles", grants=("writer",), allow=("subscribe:jobs.{sub}.>",)
    )
    claims = {"sub": "u1", "roles": ["writer", "admin"]}
    roles, rules = granted_by_claims(config, claims)
    assert (roles, [str(rule) for rule in rules]) == (["writer"], ["subscribe:jobs.u1.>"])  # admin is not granted
    assert principal_of_claims(config, claims) == "u1"
    for sub in ("", "a.b", "*", ">", "$sys", "@admin", "a\nb", None, 7, "x" * 200, "a b"):
        with pytest.raises(NotAuthenticated):
            principal_of_claims(config, {"sub": sub})


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"jwks": "a", "secret_file": "b"},
        {"jwks": "http://id.example/keys"},
        {"jwks": "a", "leeway": -1},
        {"jwks": "a", "allow": ("subscribe:x{sub}",)},
        {"jwks": "a", "refresh": 0},
    ],
)
def test_a_configuration_that_would_be_unsafe_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        JwtConfig(audience="a", issuer="i", **wrong)


RULES = """
[jwt]
audience = "runnel"
issuer = "https://id.example"
jwks = "keys.json"
leeway = 0
allow = ["publish:jobs.{sub}.>", "create:jobs.{sub}.>", "subscribe:jobs.{sub}.>"]
"""


def fresh(seconds: float = 600.0, **more: Any) -> str:
    return signed(GOOD | {"exp": time.time() + seconds} | more)


async def test_a_server_lets_holders_of_jwts_in_with_topics_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(jwks())
    async with guarded(tmp_path, Tokens(), RULES) as server, asyncio.timeout(PATIENCE):
        async with server.client(fresh()) as client:
            await client.publish("jobs.u1.a", "x")
            with pytest.raises(NotAuthorized):
                await client.publish("jobs.u2.a", "x")
        for token in (fresh(sub="a.b"), fresh(sub="*"), fresh(aud="x"), "e30.e30.e30", fresh()[:-4] + "AAAA"):
            with pytest.raises(NotAuthenticated):
                async with server.client(token):
                    pass
        with pytest.raises(TokenExpired):
            async with server.client(fresh(-1)):
                pass


async def test_an_expired_jwt_ends_the_subscription_and_a_callback_resumes_it(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(jwks())
    calls: list[str] = []

    def token() -> str:
        calls.append(fresh(1.2))
        return calls[-1]

    async with guarded(tmp_path, Tokens(), RULES) as server, asyncio.timeout(PATIENCE):
        async with (
            server.client(fresh()) as writer,
            runnel.open(server.url(), token=token) as reader,
            reader.subscribe("jobs.u1.>") as records,
        ):
            for number in range(3):
                seen = len(calls)
                await writer.publish("jobs.u1.a", str(number))
                assert (await anext(aiter(records))).value == str(number).encode()
                await _until(lambda seen=seen: len(calls) > seen)  # type: ignore[misc]
            assert calls[0] not in repr(reader)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_new_keys_are_read_at_a_reload_and_old_ones_refuse(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(jwks())
    async with guarded(tmp_path, Tokens(), RULES) as server:
        other = ec.generate_private_key(ec.SECP256R1())
        made: Any = jwt.get_algorithm_by_name("ES256")
        (tmp_path / "keys.json").write_text(json.dumps({"keys": [json.loads(made.to_jwk(other.public_key()))]}))
        await server.server.reload()
        with pytest.raises(NotAuthenticated):
            async with server.client(fresh()):
                pass
        async with server.client(jwt.encode(GOOD | {"exp": time.time() + 60}, other, "ES256")) as client:
            await client.publish("jobs.u1.a", "x")


def test_keys_are_fetched_by_https_from_a_server_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(jwks())

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = JwtConfig(audience="a", issuer="i", jwks=f"https://localhost:{server.server_port}/keys")
        files = AuthFiles(tmp_path / "auth.toml")
        with pytest.raises(InvalidOption, match="no keys can be read"):
            files.read_keys(config)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        assert len(files.read_keys(config)) == 3
        server.shutdown()
