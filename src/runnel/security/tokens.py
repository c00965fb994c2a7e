"""Opaque tokens: 256 random bits, of which only a hash is stored.

A token is `rnl_ID_SECRET`. The id finds the entry, so that the secret is compared once, in constant time. SHA-256 is
enough: a secret of 256 random bits cannot be guessed from its hash, as a password could.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_no_control
from runnel.security.rules import Rule, parse_rule

PREFIX = "rnl_"
ID_BYTES, SECRET_BYTES = 8, 32
MAX_TOKEN = 8192  # characters of any credential; a JWT is longer than a token of ours
MAX_NAME = 128
_TOKEN = re.compile(r"rnl_([0-9a-f]{16})_([0-9a-f]{64})")
_NO_HASH = "0" * 64


class StoredToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored fields of one token. Times are seconds since 1970."""

    id: str
    name: str
    hash: str
    allow: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    created: float = 0.0
    expires: float | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rights of the token itself."""
        return tuple(parse_rule(one) for one in self.allow)


class TokenFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The contents of `FILE.tokens`."""

    version: int = 1
    tokens: list[StoredToken] = []


def is_opaque(token: str) -> bool:
    """Whether `token` looks like one of ours, and not like a JWT."""
    return token.startswith(PREFIX)


def make_token(
    name: str,
    random: bytes,
    *,
    allow: Iterable[str] = (),
    roles: Iterable[str] = (),
    created: float = 0.0,
    expires: float | None = None,
) -> tuple[str, StoredToken]:
    """A new token of `name`, and what to keep of it. `random`: 40 bytes that only the caller knows."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidOption("name", name, f"the name of a token is 1 to {MAX_NAME} characters")
    check_no_control("name", name)
    if name[0] in "@$":
        raise InvalidOption("name", name, "it begins with '@' or '$', which stand for roles and for the server itself")
    if len(random) != ID_BYTES + SECRET_BYTES:
        raise ValueError(f"a token is made of {ID_BYTES + SECRET_BYTES} random bytes, not {len(random)}")
    id, secret = random[:ID_BYTES].hex(), random[ID_BYTES:].hex()
    allowed = tuple(str(parse_rule(one)) for one in allow)
    stored = StoredToken(
        id=id, name=name, hash=_hash(secret), allow=allowed, roles=tuple(roles), created=created, expires=expires
    )
    return f"{PREFIX}{id}_{secret}", stored


class TokenTable:
    """The tokens of a server. `is_written`: they are what a file says, also if it says that there are none.

    A file that is empty or not there says nothing: it may be in the middle of being replaced by hand.
    """

    def __init__(self, tokens: Iterable[StoredToken] = (), *, is_written: bool = True) -> None:
        self._tokens = {token.id: token for token in tokens}
        self.is_written = is_written

    @classmethod
    def read(cls, data: bytes) -> TokenTable:
        """The table in the bytes of a file; `InvalidOption` names the error."""
        if not data.strip():
            return cls(is_written=False)
        try:
            found = msgspec.json.decode(data, type=TokenFile)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidOption("tokens", "…", f"the file is not one that `runnel token` wrote: {error}") from None
        if found.version != 1:
            raise InvalidOption("tokens", found.version, "this runnel reads version 1 of the file; upgrade it")
        for token in found.tokens:
            _ = token.rules
        return cls(found.tokens)

    def encoded(self) -> bytes:
        """The bytes of the file."""
        return msgspec.json.format(msgspec.json.encode(TokenFile(tokens=list(self))), indent=1) + b"\n"

    def __iter__(self) -> Iterator[StoredToken]:
        return iter(self._tokens.values())

    def __len__(self) -> int:
        return len(self._tokens)

    def get(self, id: str) -> StoredToken | None:
        """The entry with this id."""
        return self._tokens.get(id)

    def find(self, token: str) -> StoredToken | None:
        """The entry of `token`, expired or not; None: there is none. A wrong secret takes as long as a right one."""
        matched = _TOKEN.fullmatch(token)
        stored = None if matched is None else self._tokens.get(matched[1])
        secret = "" if matched is None else matched[2]
        fits = hmac.compare_digest(_hash(secret), _NO_HASH if stored is None else stored.hash)
        return stored if fits else None

    def with_token(self, token: StoredToken) -> TokenTable:
        """A table with one more."""
        return TokenTable([*self, token])

    def without(self, which: str) -> tuple[TokenTable, list[StoredToken]]:
        """A table without the token of this id, or all tokens of this name; and those that were taken out."""
        gone = [token for token in self if which in (token.id, token.name)]
        return TokenTable(token for token in self if token not in gone), gone


def changed_tokens(before: TokenTable, now: TokenTable) -> Iterator[tuple[str, StoredToken]]:
    """The changes of tokens between two tables: create, change or revoke, and the token."""
    for one in now:
        known = before.get(one.id)
        if known != one:
            yield "create" if known is None else "change", one
    for one in before:
        if now.get(one.id) is None:
            yield "revoke", one


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
