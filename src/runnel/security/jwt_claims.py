"""JSON Web Tokens: verified by PyJWT with keys that are pinned to their algorithms, and claims that become rights.

The algorithm in a token's header is never believed: a key verifies the one algorithm that its configuration or its JWK
says, so that a public RSA key cannot be used as an HMAC secret. Time is an argument.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from runnel.core.errors import InvalidOption, NotAuthenticated, NotSupported, TokenExpired
from runnel.security.principal import is_principal_name
from runnel.security.rules import Rule, check_template, fields_of, fill_template, parse_rule

_KINDS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}  # what a JWK without `alg` verifies; never HS256
MIN_HMAC_BYTES = 32
LATEST = 1e11  # seconds since 1970: some 3,000 years; infinite and absurd times lie beyond


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[jwt]` of the file.

    - `jwks`: a file, or an https:// address that is fetched again every `refresh` seconds.
    - `secret_file`: with HS256 alone: a file with the shared secret.
    - `issuer`, `audience`: what `iss` and `aud` must be. `leeway`: seconds that clocks may differ by.
    - `principal`: the claim that names the principal. `roles`: the claim that lists its roles, and `grants`: the roles
      that a token may claim. `allow`: rules with claims in braces, such as "subscribe:jobs.{sub}.>".
    """

    audience: str
    issuer: str
    jwks: str | None = None
    secret_file: str | None = None
    refresh: float = 300.0
    leeway: float = 30.0
    principal: str = "sub"
    roles: str | None = None
    grants: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.jwks is None) == (self.secret_file is None):
            raise InvalidOption("jwt.jwks", self.jwks, "give jwks (public keys), or secret_file (HS256)")
        if self.jwks is not None and self.jwks.startswith("http://"):
            raise InvalidOption("jwt.jwks", self.jwks, "keys are fetched by https:// only: others could replace them")
        if not 0 <= self.leeway <= 600:
            raise InvalidOption("jwt.leeway", self.leeway, "expected seconds from 0 to 600")
        if not self.refresh >= 1:
            raise InvalidOption("jwt.refresh", self.refresh, "expected 1 second or more")
        for one in self.allow:
            check_template(one, "jwt.allow")


class VerifyingKey(NamedTuple):
    """A key, and the one algorithm that it verifies. `thumbprint`: the same for the same key, and for no other."""

    id: str | None
    algorithm: str
    key: Any
    thumbprint: str


class VerifiedToken(NamedTuple):
    """The claims of a token, and the thumbprint of the key that signed it."""

    claims: dict[str, Any]
    signed_by: str


def keys_of_jwks(data: bytes) -> list[VerifyingKey]:
    """The keys of a JWKS document that can verify signatures. Secrets (kty oct) in it are left out."""
    jwt = _library()
    try:
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list):
            raise TypeError("keys is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption("jwt.jwks", "…", f"it is no JWKS document: {error}") from None
    found: list[VerifyingKey] = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        algorithm = entry.get("alg") or _KINDS.get(str(entry.get("kty")))
        if not isinstance(algorithm, str) or algorithm not in _KINDS.values():
            continue
        try:
            key = jwt.PyJWK({**entry, "alg": algorithm}).key
        except (jwt.exceptions.PyJWTError, ValueError, TypeError, KeyError):
            continue  # of another curve, or damaged: the others still count
        kid = entry.get("kid")
        found.append(VerifyingKey(kid if isinstance(kid, str) else None, algorithm, key, _thumbprint(entry)))
    if not found:
        raise InvalidOption("jwt.jwks", "…", f"it has no key for {', '.join(_KINDS.values())}")
    return found


def key_of_secret(secret: bytes) -> VerifyingKey:
    """The shared secret of HS256."""
    secret = secret.strip()
    if len(secret) < MIN_HMAC_BYTES:
        raise InvalidOption("jwt.secret_file", "…", f"a secret of HS256 has {MIN_HMAC_BYTES} bytes or more")
    return VerifyingKey(None, "HS256", secret, hashlib.sha256(b"HS256" + secret).hexdigest())


def _thumbprint(jwk: Mapping[str, Any]) -> str:
    """As of RFC 7638: of the members that make the key, and not of its id and other notes."""
    members = {name: jwk[name] for name in ("crv", "e", "kty", "n", "x", "y") if name in jwk}
    return hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def verify(token: str, config: JwtConfig, keys: Sequence[VerifyingKey], now: float) -> VerifiedToken:
    """The claims of `token`, if a key of ours signed it for us and it is in force at `now`.

    `TokenExpired` after its time, `NotAuthenticated` for everything else: why is for the log, and says nothing of the
    token itself.
    """
    jwt = _library()
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.exceptions.PyJWTError, ValueError, RecursionError):
        raise NotAuthenticated("it is no token") from None
    if "crit" in header:  # it asks for extensions to be understood: there are none here
        raise NotAuthenticated("the token asks for extensions")
    kid = header.get("kid")
    candidates = [one for one in keys if one.algorithm == header.get("alg") and (kid is None or one.id in (None, kid))]
    for one in candidates:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=one.key,
                algorithms=[one.algorithm],
                audience=config.audience,
                issuer=config.issuer,
                options={
                    "require": ["exp", "aud", "iss"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.exceptions.InvalidSignatureError:
            continue
        except (jwt.exceptions.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise NotAuthenticated(f"the token is not for this server: {type(error).__name__}") from None
        _check_times(claims, config.leeway, now)
        return VerifiedToken(claims, one.thumbprint)
    raise NotAuthenticated("no key of this server fits the signature of the token")


def _check_times(claims: Mapping[str, Any], leeway: float, now: float) -> None:
    for name in ("exp", "nbf"):
        value = claims.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise NotAuthenticated(f"the claim {name} of the token is no number")
        if value is not None and not abs(value) < LATEST:
            raise NotAuthenticated(f"the claim {name} of the token is no time")
    if not now < claims["exp"] + leeway:
        raise TokenExpired()
    if claims.get("nbf") is not None and not now >= claims["nbf"] - leeway:
        raise NotAuthenticated("the token is not in force yet")


def principal_of_claims(config: JwtConfig, claims: Mapping[str, Any]) -> str:
    """The name that the claims give their principal. The login is refused if any template cannot be filled."""
    name = claims.get(config.principal)
    if not isinstance(name, str) or not is_principal_name(name):
        raise NotAuthenticated(f"the claim {config.principal} of the token names no principal")
    try:
        granted_by_claims(config, claims)
    except InvalidOption as error:
        raise NotAuthenticated(f"a claim of the token cannot be used: {error.why}") from None
    return name


def granted_by_claims(config: JwtConfig, claims: Mapping[str, Any]) -> tuple[list[str], list[Rule]]:
    """The roles and rules that claims give."""
    claimed = claims.get(config.roles) if config.roles is not None else None
    listed = claimed.split() if isinstance(claimed, str) else claimed if isinstance(claimed, list) else []
    roles = [role for role in config.grants if role in listed]
    return roles, [parse_rule(fill_template(one, claims)) for one in config.allow]


def used_claims(config: JwtConfig) -> set[str]:
    """The claims that rights are made of."""
    fields = {name for one in config.allow for name in fields_of(one)}
    return fields | {config.principal} | ({config.roles} if config.roles else set())


def _library() -> Any:
    try:
        import jwt
    except ImportError:
        raise NotSupported("[jwt]", "PyJWT is not installed: pip install 'runnel-mq[auth]'") from None
    return jwt
