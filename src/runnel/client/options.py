"""Client options, given as keywords or in the URL, and validated when they are given.

A keyword wins over the URL.
"""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import ssl as tls
import stat
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.options import not_negative, positive, unknown_option
from runnel.runtime.connection_options import (
    check_together,
    checked,
    context,
    seconds,
    text,
    tls_context,
    yes_or_no,
)


def _seconds_or_none(option: str, value: Any) -> float | None:
    return None if value is None else seconds(option, value)


def _attempts(option: str, value: Any) -> bool | int:
    if isinstance(value, bool):
        return value
    return positive(option, value)


def _token(option: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidOption(option, "…", "expected a token as text, or a callable that returns one")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "timeout": _seconds_or_none,
    "connect_timeout": seconds,
    "wait": not_negative,
    "close_timeout": not_negative,
    "linger": not_negative,
    "max_pending_bytes": positive,
    "credit": positive,
    "reconnect": _attempts,
    "backoff_min": seconds,
    "backoff_max": seconds,
    "ping": seconds,
    "name": text,
    "ssl": context,
    "ca": text,
    "cert": text,
    "key": text,
    "server_hostname": text,
    "verify": yes_or_no,
    "token": _token,
    "token_file": text,
    "operator": yes_or_no,
}
logger = logging.getLogger("runnel")

ENVIRONMENT = "env:"  # what a `token_file` begins with that is a variable of the environment


class ClientOptions(msgspec.Struct, frozen=True):
    """How a client behaves. Times are in seconds.

    - `timeout`: how long a publish or a call waits for its answer; then `NoAnswer`. None: for ever.
    - `connect_timeout`: how long one server may take to accept a connection and greet.
    - `wait`: for how long to retry, at the beginning, when no server can be reached; then `Unreachable`.
    - `close_timeout`: how long leaving the block waits for what was published to be answered.
    - `linger`: how long to wait for more before sending; 0: what one turn of the loop published goes together.
    - `max_pending_bytes`: how much may be on its way; then `publish` waits and `publish_nowait` raises `Full`.
    - `credit`: how many bytes of records the server may send ahead, for each subscription.
    - `reconnect`: what to do when the connection is lost. True: connect again, however long it takes. A number: give
      up after so many rounds through all servers. False: never.
    - `backoff_min`, `backoff_max`: the pause before each round, about; it doubles, and is made random, so that
      thousands of clients do not come back in step.
    - `ping`: after so much silence the server gets a ping; after twice that it counts as disconnected.
    - `name`: what the server calls this client.
    - With `runnels://`: `ca` (a file of those to trust), `cert` and `key` (the client's certificate),
      `server_hostname` (the name in the certificate), `verify=False` (trust any), or a whole `ssl` context.
    - `token`: proves who the client is, to a server that requires it. A callable, async or not, is called at every
      connection and before the token expires. `token_file`: a file with it, read again at every connection; or
      "env:NAME", a variable of the environment.
    - `operator`: connect for operators' calls only (statistics, promotion): a standby answers these, too, and a primary
      that waits for its standby.
    """

    timeout: float | None = 30.0
    connect_timeout: float = 5.0
    wait: float = 0.0
    close_timeout: float = 5.0
    linger: float = 0.0
    max_pending_bytes: int = 64 * 1024 * 1024
    credit: int = 1024 * 1024
    reconnect: bool | int = True
    backoff_min: float = 0.05
    backoff_max: float = 5.0
    ping: float = 15.0
    name: str | None = None
    ssl: tls.SSLContext | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_hostname: str | None = None
    verify: bool = True
    token: Any = None  # str, or a callable
    token_file: str | None = None
    operator: bool = False

    def __repr__(self) -> str:
        said = {name: getattr(self, name) for name in self.__struct_fields__ if name != "token"}
        shown = {name: value for name, value in said.items() if value != getattr(ClientOptions(), name)}
        return f"ClientOptions({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def refreshes(self) -> bool:
        """Whether another token may be had later than the one that a server refused."""
        return callable(self.token) or self.token_file is not None

    def current_token(self) -> str:
        """The token to log in with now; empty: none. For code without an event loop: no async callable."""
        found = self._asked_token()
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise NotSupported("an async token callable here", "give one that is not async")
        return _checked_token(found)

    async def fetch_token(self) -> str:
        """The same, where an async callable can be awaited."""
        found = self._asked_token()
        return _checked_token(await found if inspect.isawaitable(found) else found)

    def _asked_token(self) -> Any:
        if callable(self.token):
            return self.token()
        if self.token is not None:
            return self.token
        if self.token_file is None:
            return ""
        if self.token_file.startswith(ENVIRONMENT):
            return os.environ.get(self.token_file.removeprefix(ENVIRONMENT), "")
        try:
            with open(self.token_file, encoding="utf-8") as opened:
                if (mode := stat.S_IMODE(os.fstat(opened.fileno()).st_mode)) & 0o044:
                    _warn_of_readers(self.token_file, mode)
                return opened.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            if self.token_file.startswith("rnl_"):
                why = "it looks like a token: write the token to a file, and name that"
            raise InvalidOption("token_file", self.token_file, f"it cannot be read: {why}") from None

    @classmethod
    def of(cls, given: Mapping[str, Any], written: Mapping[str, str] | None = None) -> ClientOptions:
        """The options that were given, and those written in the url, which count less."""
        said = {name: _read(name, text) for name, text in (written or {}).items()}
        said.update(given)
        for name, value in said.items():
            _known(name, value)
        options = cls(**checked(said, _CHECKS))
        check_together(options)
        if options.token is not None and options.token_file is not None:
            raise InvalidOption("token_file", options.token_file, "give token or token_file, not both")
        return options

    def ssl_context(self) -> tls.SSLContext:
        """The TLS context of `runnels://`."""
        return tls_context(self)


def _known(name: str, value: object) -> None:
    if name not in _CHECKS:
        raise unknown_option("the client of a server", name, value, tuple(_CHECKS))


def _read(name: str, said: str) -> Any:
    """An option from the text of a url."""
    _known(name, said)
    if name == "ssl":
        raise InvalidOption(name, said, "it cannot be written in a url")
    if name == "token":
        raise InvalidOption(name, "…", "urls are logged and shown in process lists: give token=, or ?token_file=")
    if name in ("name", "token_file", "ca", "cert", "key", "server_hostname"):
        return said
    for word, value in (("true", True), ("false", False), ("none", None)):
        if said.lower() == word:
            return value
    try:
        return int(said) if said.lstrip("-").isdigit() else float(said)
    except ValueError:
        raise InvalidOption(name, said, "expected a number, true, false or none") from None


@cache
def _warn_of_readers(file: str, mode: int) -> None:
    """Once for each file: it is read again at every connection."""
    logger.warning("other users may read the token file %r (mode %o): chmod 600 %s", file, mode, shlex.quote(file))


def _checked_token(found: Any) -> str:
    if not isinstance(found, str) or (found and not found.isprintable()):
        raise InvalidOption("token", "…", "the callable, file or variable gives no text that could be a token")
    return found
