"""A server with `--auth` on ports of its own, with tokens that hold one right each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import runnel
from runnel.api.broker import Broker
from runnel.security.tokens import TokenTable, make_token
from runnel.server import Server, ServerOptions
from runnel.server.access.control import AccessControl
from runnel.server.access.files import AuthFiles, random_bytes

RULES = """
[roles.viewer]
console = "viewer"
[roles.operator]
console = "operator"
"""


class Guarded:
    """A running server, its files, and tokens by name."""

    def __init__(self, server: Server, files: AuthFiles) -> None:
        self.server, self.files = server, files
        self.tokens: dict[str, str] = {}

    @property
    def auth(self) -> AccessControl:
        """Its access control."""
        assert self.server.serving is not None
        assert self.server.serving.auth is not None
        return self.server.serving.auth

    def url(self, listener: str = "native") -> str:
        """Where a listener is."""
        return next(one.url for one in self.server.listeners if one.name == listener)

    def port(self, listener: str) -> int:
        """The port of a listener."""
        return next(one.port for one in self.server.listeners if one.name == listener)

    def client(self, token: Any, **options: Any) -> Broker:
        """A client of the native listener."""
        return runnel.open(self.url(), token=token or None, reconnect=False, **options)


class Tokens:
    """Tokens for a file, made before the server starts."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._stored = TokenTable()

    def add(self, name: str, allow: Iterable[str] = (), roles: Iterable[str] = (), expires: float | None = None) -> str:
        """One more."""
        text, stored = make_token(name, random_bytes(), allow=allow, roles=roles, created=0.0, expires=expires)
        self._stored = self._stored.with_token(stored)
        self.texts[name] = text
        return text

    def write(self, files: AuthFiles) -> None:
        """Put them where the server finds them."""
        files.write_tokens(self._stored)


@asynccontextmanager
async def guarded(
    folder: Path, tokens: Tokens | None = None, rules: str = RULES, broker: Broker | None = None, **options: Any
) -> AsyncIterator[Guarded]:
    """A server over a broker in memory, unless one is given, with these tokens and rules."""
    file = folder / "auth.toml"
    file.write_text(rules)
    files = AuthFiles(file)
    if tokens is not None:
        tokens.write(files)
    given: dict[str, Any] = {"port": 0, "json_port": 0, "http_port": 0, "nats_port": 0, "auth": file} | options
    async with broker or runnel.open() as served, Server(served, ServerOptions(**given)) as server:
        made = Guarded(server, files)
        made.tokens = {} if tokens is None else dict(tokens.texts)
        yield made


def line(**command: Any) -> bytes:
    """A command of JSON lines."""
    return json.dumps(command).encode() + b"\n"
