"""The file of `--auth`: roles, rules, principals, and how certificates, Unix users and JWTs become principals.

Read from TOML into an `AuthPolicy`, which turns an `Identity` (who has proved to be who) into a `Principal` (what it
may do). Reading the file again and asking for the same identity gives the rights that it has now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

import msgspec

from runnel.core.errors import InvalidOption, NotAuthenticated
from runnel.security.jwt_claims import (
    JwtConfig,
    VerifyingKey,
    granted_by_claims,
    principal_of_claims,
    used_claims,
    verify,
)
from runnel.security.principal import (
    EVERYTHING,
    NO_LIMITS,
    ConsoleRole,
    Limits,
    Principal,
    is_principal_name,
    rules_by_action,
)
from runnel.security.rules import Rule, parse_rule
from runnel.security.tokens import TokenTable

Proof = Literal["token", "jwt", "certificate", "unix"]
_EVERYTHING = tuple(f"{action}:{pattern}" for action, patterns in EVERYTHING.items() for pattern in patterns)
GATEWAY = "gateway"  # the role of a server over this one
CONSOLE_ROLES = {role.name.lower(): role for role in ConsoleRole if role}


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of principals with this role. `console`: viewer, operator or admin.

    `owns_names`: names of subscriptions, groups, markers and stages that they make belong to the role: all of its
    principals may use them. So members of one group can have tokens of their own.
    """

    allow: tuple[str, ...] = ()
    console: str | None = None
    owns_names: bool = False
    limits: Limits = NO_LIMITS


BUILT_IN = {
    "admin": Role(allow=_EVERYTHING, console="admin"),
    # A server over this one keeps its own sessions, owners and security log here.
    GATEWAY: Role(allow=(*_EVERYTHING, "publish:$runnel.>", "create:$runnel.>"), console="admin"),
}


class NamedPrincipal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of one principal beside those of its token or claims. `unix`: system users that are this principal."""

    allow: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    console: str | None = None
    limits: Limits = NO_LIMITS
    unix: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()


class CertificateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mtls]`: which part of a client certificate's subject names the principal.

    `required`: every peer has to show a certificate, also one with a token. False: one or the other.
    """

    principal: str = "commonName"
    required: bool = True
    roles: tuple[str, ...] = ()


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[metrics]`: with `open_on_loopback`, peers of this machine read /metrics without a token."""

    open_on_loopback: bool = False


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[session]`: seconds after which a login in a browser ends: without a request, and at the latest."""

    idle: float = 1800.0
    most: float = 43_200.0


class AuthFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file in its written form."""

    roles: dict[str, Role] = {}
    principals: dict[str, NamedPrincipal] = {}
    limits: Limits = NO_LIMITS
    peer_limits: Limits = NO_LIMITS  # of every address
    jwt: JwtConfig | None = None
    mtls: CertificateConfig | None = None
    metrics: MetricsConfig = MetricsConfig()
    session: SessionConfig = SessionConfig()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that a peer proved: by a token (`id` is that of the token), a JWT, a certificate, or its Unix user.

    It is enough to look up its rights again, after a reload. `expires`: seconds since 1970.
    `signed_by`: the key of a JWT; without that key, the login is over. `subject`: of a certificate, or the Unix user:
    when a reload gives it to another principal, or to none, the login is over, too.
    """

    proof: Proof
    name: str
    id: str = ""
    claims: Mapping[str, Any] = {}
    expires: float | None = None
    signed_by: str = ""
    subject: Mapping[str, str] = {}


class AuthPolicy:
    """The rules that are in force. Immutable: a reload makes a new one."""

    def __init__(self, file: AuthFile, tokens: TokenTable, keys: Sequence[VerifyingKey] = ()) -> None:
        self.file, self.tokens, self.keys = file, tokens, tuple(keys)
        self._trusted = {_trust(file.jwt, one) for one in keys}
        self._roles = BUILT_IN | file.roles
        for name, role in self._roles.items():
            _check_role(f"roles.{name}", role)
        self._unix: dict[str, str] = {}
        self._certificates: dict[str, str] = {}
        for name, principal in file.principals.items():
            if not is_principal_name(name):
                raise InvalidOption(
                    "principals", name, "a principal has 1 to 128 printable characters, the first not @ or $"
                )
            _check_role(f"principals.{name}", principal)
            for role_name in principal.roles:
                self._role(f"principals.{name}.roles", role_name)
            self._unix |= dict.fromkeys(principal.unix, name)
            self._certificates |= dict.fromkeys(principal.certificates, name)
        for role_name in file.mtls.roles if file.mtls is not None else ():
            self._role("mtls.roles", role_name)
        for role_name in file.jwt.grants if file.jwt is not None else ():
            self._role("jwt.grants", role_name)

    def with_tokens(self, tokens: TokenTable) -> AuthPolicy:
        """The same with these tokens."""
        return AuthPolicy(self.file, tokens, self.keys)

    def with_keys(self, keys: Sequence[VerifyingKey]) -> AuthPolicy:
        """The same with these keys for JWTs."""
        return AuthPolicy(self.file, self.tokens, keys)

    @classmethod
    def of(cls, file: Mapping[str, Any], tokens: TokenTable) -> AuthPolicy:
        """The policy of a TOML document; `InvalidOption` names the key that is wrong in it, and why."""
        try:
            return cls(msgspec.convert(file, AuthFile), tokens)
        except msgspec.ValidationError as error:
            _check_table(AuthFile, file, ())
            raise InvalidOption("auth", "…", str(error)) from None

    @property
    def certificates_are_optional(self) -> bool:
        """Whether a peer may show a token in place of a certificate."""
        return self.file.mtls is not None and not self.file.mtls.required

    def unix_name(self, user: str) -> str | None:
        """The principal of a system user; None: no rule names it."""
        return self._unix.get(user)

    def certificate_name(self, subject: Mapping[str, str]) -> str | None:
        """The principal of a certificate whose subject has these parts; None: no rule admits it."""
        if self.file.mtls is None:
            return None
        found = subject.get(self.file.mtls.principal)
        named = None if found is None else self._certificates.get(found, found)
        return named if is_principal_name(named) else None

    def principal(self, identity: Identity) -> Principal | None:
        """The rights of `identity` now; None: it may not even log in any more."""
        roles: list[str] = []
        rules: list[Rule] = []
        if identity.proof == "token":
            token = self.tokens.get(identity.id)
            if token is None:
                return None
            roles += token.roles
            rules += token.rules
        elif identity.proof == "jwt":
            if self.file.jwt is None or identity.signed_by not in self._trusted:
                return None
            more_roles, more_rules = granted_by_claims(self.file.jwt, identity.claims)
            roles += more_roles
            rules += more_rules
        elif identity.proof == "certificate":
            if self.file.mtls is None or self.certificate_name(identity.subject) != identity.name:
                return None
            roles += self.file.mtls.roles
        elif self._unix.get(identity.subject.get("user", "")) != identity.name:
            return None
        named = self.file.principals.get(identity.name)
        limits = self.file.limits
        console = ConsoleRole.NONE
        if named is not None:
            roles += named.roles
            rules += [parse_rule(one) for one in named.allow]
            console = _console(named.console)
        for name in dict.fromkeys(roles):
            role = self._roles.get(name)
            if role is None:
                continue  # a claim or a token names a role that the file does not have: it allows nothing
            rules += [parse_rule(one) for one in role.allow]
            console = max(console, _console(role.console))
            limits = role.limits.over(limits)
        if named is not None:
            limits = named.limits.over(limits)
        known = tuple(name for name in dict.fromkeys(roles) if name in self._roles)
        return Principal(
            name=identity.name,
            roles=known,
            rules=rules_by_action(rules),
            console=console,
            limits=limits,
            names_of=next((name for name in known if self._roles[name].owns_names), None),
        )

    def identity_of_jwt(self, token: str, now: float) -> Identity:
        """The identity that a JWT proves. It keeps the claims that rights are made of, and no others."""
        config = self.file.jwt
        if config is None:
            raise NotAuthenticated("this server does not know the token")
        claims, key = verify(token, config, self.keys, now)
        used = {name: claims[name] for name in used_claims(config) if name in claims}
        return Identity(
            proof="jwt",
            name=principal_of_claims(config, claims),
            id=f"jwt:{claims['jti']}" if isinstance(claims.get("jti"), str) else "",
            claims=used,
            expires=float(claims["exp"]) + config.leeway,
            signed_by=_trust(config, key),
        )

    def check_roles(self, roles: tuple[str, ...]) -> None:
        """Raise unless the file has all of these roles."""
        for role in roles:
            self._role("role", role)

    def _role(self, option: str, name: str) -> Role:
        if name not in self._roles:
            raise InvalidOption(option, name, f"there is no such role; there are {', '.join(sorted(self._roles))}")
        return self._roles[name]


def _check_table(kind: type[msgspec.Struct], table: Any, path: tuple[str, ...]) -> None:
    """Raise for the first key of a table that it does not have, or that has a value of another type."""
    fields = {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
    if not isinstance(table, Mapping):
        raise InvalidOption(".".join(path), "…", "expected a table")
    for name, value in table.items():
        here = (*path, name)
        if name not in fields:
            near = get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(fields)}"
            raise InvalidOption(".".join(here), "…", f"there is no such key; {hint}")
        inner = next((one for one in (fields[name], *get_args(fields[name])) if _is_struct(one)), None)
        if inner is not None and get_origin(fields[name]) is dict and isinstance(value, Mapping):
            for key, one in value.items():
                _check_table(inner, one, (*here, key))
        elif inner is not None:
            _check_table(inner, value, here)
        try:
            msgspec.convert(value, fields[name])
        except msgspec.ValidationError as error:
            raise InvalidOption(".".join(here), "…", str(error)) from None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _trust(config: JwtConfig | None, key: VerifyingKey | str) -> str:
    """The basis of a login by a JWT: the key, for this issuer and audience. A reload may change any of them."""
    thumbprint = key if isinstance(key, str) else key.thumbprint
    return "" if config is None else f"{thumbprint}/{config.issuer}/{config.audience}"


def _check_role(option: str, role: Role | NamedPrincipal) -> None:
    for one in role.allow:
        parse_rule(one, f"{option}.allow")
    if role.console is not None and role.console not in CONSOLE_ROLES:
        raise InvalidOption(f"{option}.console", role.console, f"expected {', '.join(CONSOLE_ROLES)}")


def _console(name: str | None) -> ConsoleRole:
    return ConsoleRole.NONE if name is None else CONSOLE_ROLES[name]
